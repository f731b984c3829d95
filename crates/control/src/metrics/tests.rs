//! All metrics of the control plane, as a scraper receives them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use expect_test::expect_file;
use leno_discovery::{ChangeId, ConnectionId};
use leno_identity::{Authority, LEAF_LIFETIME};
use leno_model::{KeySource, Reason};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::Instant;

use super::*;
use crate::applications::Applications;
use crate::certify::{AUTHORITY_DIRECTORY, Certifier, open_join_credentials};
use crate::config::Times;
use crate::fixture::{BOOKINFO, mesh_with_sidecars};
use crate::history;
use crate::keys::{FetchOutcome, JwksFetches, KeyUpdate};
use crate::mesh::Mesh;
use crate::peers::Peers;
use crate::presence::{Presence, StartupGrace};
use crate::publish::{ConnectedProxies, PublishCounters, SentPush};
use crate::state_task::QueueLengths;
use crate::watch::Diagnostics;

/// A control plane with a value for every metric.
struct ControlPlane {
    mesh: Mesh,
    connected_proxies: ConnectedProxies,
    presence: Presence,
    applications: Applications,
    startup_grace: StartupGrace,
    certifier: Certifier,
    diagnostics: Diagnostics,
    jwks_fetches: JwksFetches,
    peers: Peers,
    connection_counters: ConnectionCounters,
    now: Instant,
    _data: TempDir,
}

impl ControlPlane {
    fn new() -> Self {
        let (now, wall_time) = (Instant::now(), SystemTime::now());
        let data = tempfile::tempdir().unwrap();
        let mesh = mesh_with_sidecars(BOOKINFO);
        let directory = data.path().join(AUTHORITY_DIRECTORY);
        let authority =
            Authority::open_or_create(&directory, &mesh.config().trust_domain, wall_time);
        let authority = watch::Sender::new(Arc::new(authority.unwrap())).subscribe();
        let join_credentials = Arc::new(open_join_credentials(data.path(), wall_time).unwrap());
        let mut certifier = Certifier::new(authority, join_credentials, LEAF_LIFETIME);
        (certifier.issued_count, certifier.rejected_count) = (6, 7);
        let mut jwks_fetches = JwksFetches::default();
        let source = KeySource::File("/keys.json".into());
        for outcome in [
            FetchOutcome::Unchanged,
            FetchOutcome::Unchanged,
            FetchOutcome::Failed("gone".to_owned()),
        ] {
            jwks_fetches.record_result(&KeyUpdate { source: source.clone(), outcome });
        }
        let connection_counters = ConnectionCounters::default();
        for reason in [Reason::UntrustedPeer, Reason::UntrustedPeer, Reason::HandshakeFailed] {
            connection_counters.record_failure(reason);
        }
        let times = Times::default();
        Self {
            mesh,
            connected_proxies: connected_proxies(times, now),
            presence: Presence::default(),
            startup_grace: StartupGrace::new(now, times.startup_grace),
            certifier,
            diagnostics: Diagnostics::default(),
            jwks_fetches,
            peers: Peers::default(),
            connection_counters,
            applications: Applications::default(),
            now,
            _data: data,
        }
    }

    fn report(&self) -> Report<'_> {
        Report {
            mesh: &self.mesh,
            connected_proxies: &self.connected_proxies,
            presence: &self.presence,
            startup_grace: &self.startup_grace,
            certifier: &self.certifier,
            diagnostics: &self.diagnostics,
            jwks_fetches: &self.jwks_fetches,
            peers: &self.peers,
            queues: QueueLengths { updates: 1, events: 2, queries: 3 },
            report_counters: history::ReportCounters { reports: 11, dropped: 12 },
            page_url: None,
            live_url: None,
            applications: &self.applications,
            supervised: false,
            kubernetes: false,
            now: self.now,
            wall_time: SystemTime::UNIX_EPOCH,
        }
    }

    fn render_page(&self, format: ExpositionFormat, names: Option<AliasNames>) -> String {
        let page = render_metrics(&self.report(), &self.connection_counters, format, names);
        page.replace(&format!("version=\"{}\"", env!("CARGO_PKG_VERSION")), "version=\"0\"")
    }
}

/// No proxy is connected any more, but two changes have been applied and one has not.
fn connected_proxies(times: Times, now: Instant) -> ConnectedProxies {
    let mut connected_proxies = ConnectedProxies::new(times, ChangeId(1));
    connected_proxies.counters = PublishCounters {
        changes: 1,
        compiled: 2,
        pushes: 3,
        applied: 4,
        rejected: 5,
        push_recipients: 8,
        delta_bytes: 9_000_000_000,
    };
    for (change, ms) in [(2, Some(30)), (3, Some(45_000)), (4, None)] {
        let connection = ConnectionId(change);
        let waiting = BTreeSet::from([connection]);
        let sent_push = SentPush {
            sent_at: now,
            affected_count: 1,
            recipient_count: 1,
            waiting_proxies: waiting,
        };
        connected_proxies.pushes.begin_push(ChangeId(change), vec![now], sent_push);
        if let Some(ms) = ms {
            connected_proxies.pushes.remove_waiting_proxy(
                connection,
                1,
                now + Duration::from_millis(ms),
            );
        }
    }
    connected_proxies
}

#[tokio::test]
async fn the_metrics_conform_to_their_exposition_formats() {
    let control_plane = ControlPlane::new();
    expect_file!["page.txt"]
        .assert_eq(&control_plane.render_page(ExpositionFormat::Prometheus, None));
    expect_file!["page.openmetrics.txt"]
        .assert_eq(&control_plane.render_page(ExpositionFormat::OpenMetrics, None));
    expect_file!["page.osm.txt"]
        .assert_eq(&control_plane.render_page(ExpositionFormat::Prometheus, Some(AliasNames::Osm)));
    expect_file!["page.fsm.txt"]
        .assert_eq(&control_plane.render_page(ExpositionFormat::Prometheus, Some(AliasNames::Fsm)));
}

#[tokio::test]
async fn every_alias_has_a_number() {
    let page = ControlPlane::new().render_page(ExpositionFormat::Prometheus, Some(AliasNames::Osm));
    for alias in ALIASES {
        let prefix = format!("osm_{}", alias.name);
        let is_name_end = |rest: &str| rest.starts_with([' ', '{', '_']);
        let mut lines = page.lines().filter_map(|line| line.strip_prefix(&prefix));
        assert!(lines.any(is_name_end), "{}", alias.name);
    }
}
