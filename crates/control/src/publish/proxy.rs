//! Holds the control plane's state of one connected proxy: its identity, subscriptions, and sent configuration.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use leno_discovery::{
    ChangeId, ConfigUpdate, Connected, ProxyReport, ResourceRejection, StateTaskResponse,
    UnknownEndpoints,
};
use leno_identity::VerifiedPeer;
use leno_model::{ServiceName, WorkloadName};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::compile::CompiledConfig;

/// The state of a connected proxy.
#[derive(Debug)]
pub(crate) struct ConnectedProxy {
    pub(crate) workload: WorkloadName,
    /// The identity in the proxy's certificate.
    pub(crate) peer: VerifiedPeer,
    pub(crate) subscriptions: BTreeSet<ServiceName>,
    /// The addresses that the proxy queried.
    pub(crate) queried_addresses: BTreeSet<IpAddr>,
    /// The DNS names that the proxy queried.
    pub(crate) queried_names: BTreeSet<ServiceName>,
    /// The expiry of the proxy's newest certificate, which is also the latest end of the stream.
    pub(crate) expires_at: SystemTime,
    pub(crate) connected_at: Instant,
    /// The address of the proxy's admin endpoint, if it is one of the proxy's own addresses.
    pub(crate) admin_address: Option<SocketAddr>,
    /// The reported admin address if it is not the proxy's own: tools must not connect to it.
    pub(crate) reported_admin_address: Option<SocketAddr>,
    /// The process ID on the proxy's machine.
    pub(crate) pid: u32,
    pub(crate) version: String,
    /// The session number of the stream; unrelated to sessions of TLS or HTTP. The newest stream of a workload has
    /// the highest number, at all control planes.
    pub(crate) session: u64,
    /// A number that identifies the process of the proxy; 0 if not reported.
    pub(crate) process_number: u64,
    /// The process of the proxy that this one replaced; `None` if it replaced none.
    pub(crate) replaced_process: Option<ReplacedProcess>,
    /// The time until which other processes cannot replace this proxy. Set when two proxies of one workload run.
    pub(crate) protected_until: Option<Instant>,
    /// The CA generation that signed the proxy's newest certificate.
    pub(crate) ca_generation: u64,
    /// The cost of the proxy's last compiled configuration, in budget units.
    pub(crate) config_units: u64,
    /// The configuration that was sent last.
    pub(crate) last_update: Option<ConfigUpdate>,
    /// Endpoints that the proxy keeps if it has them, because their sidecars have not reported yet.
    unknown_endpoints: UnknownEndpoints,
    /// The newest change that the proxy has applied, together with all earlier ones.
    pub(crate) applied_change: Option<ChangeId>,
    /// The time of the last acknowledgment.
    pub(crate) applied_at: Option<Instant>,
    /// The bytes of the deltas that the proxy has acknowledged since it was last in sync.
    pub(crate) acknowledged_bytes: u64,
    /// The number of resources that the proxy has rejected. It keeps the previous versions of them.
    pub(crate) rejected_count: usize,
    /// The most recent rejections, the newest last.
    pub(crate) rejections: VecDeque<ResourceRejection>,
    /// The reported state, for operators.
    pub(crate) report: ProxyReport,
    responses: watch::Sender<StateTaskResponse>,
}

/// The process of a proxy that another process replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplacedProcess {
    /// The number that identifies the process.
    pub(crate) process_number: u64,
    pub(crate) replaced_at: Instant,
}

impl ConnectedProxy {
    pub(crate) fn new(connected: Connected, peer: VerifiedPeer, now: Instant) -> Self {
        let Connected { hello, responses, .. } = connected;
        Self {
            workload: hello.workload,
            expires_at: peer.not_after,
            peer,
            subscriptions: BTreeSet::new(),
            queried_addresses: BTreeSet::new(),
            queried_names: BTreeSet::new(),
            connected_at: now,
            admin_address: hello.admin,
            reported_admin_address: None,
            pid: hello.pid,
            version: hello.version,
            session: hello.session,
            process_number: hello.process,
            replaced_process: None,
            protected_until: None,
            ca_generation: hello.ca_generation,
            config_units: 0,
            last_update: None,
            unknown_endpoints: UnknownEndpoints::default(),
            applied_change: None,
            applied_at: None,
            acknowledged_bytes: 0,
            rejected_count: 0,
            rejections: VecDeque::new(),
            report: hello.report,
            responses,
        }
    }

    /// Sends the proxy a configuration and the unknown endpoints, unless both equal the last ones sent.
    pub(crate) fn send_if_changed(
        &mut self,
        compiled_config: CompiledConfig,
        unknown_endpoints: UnknownEndpoints,
        change: ChangeId,
    ) -> PushOutcome {
        let CompiledConfig { mut snapshot, absent } = compiled_config;
        if let Some(last_update) = &self.last_update {
            if last_update.snapshot == snapshot
                && last_update.absent == absent
                && self.unknown_endpoints == unknown_endpoints
            {
                return PushOutcome::Unchanged;
            }
            // The old and the new snapshot share the allocation of an equal proxy configuration.
            if last_update.snapshot.config == snapshot.config {
                Arc::make_mut(&mut snapshot).config = Arc::clone(&last_update.snapshot.config);
            }
        }
        let update = ConfigUpdate { snapshot, absent, change };
        self.last_update = Some(update.clone());
        self.unknown_endpoints = unknown_endpoints.clone();
        self.responses.send_replace(match unknown_endpoints.is_empty() {
            true => StateTaskResponse::Config(update),
            false => StateTaskResponse::PartialConfig(update, unknown_endpoints),
        });
        PushOutcome::Sent
    }

    /// Records that the proxy applied all updates up to `change`, except the resources that it rejected.
    pub(crate) fn record_applied(&mut self, change: ChangeId, rejected_count: usize, now: Instant) {
        self.applied_change = Some(change);
        self.applied_at = Some(now);
        self.rejected_count = rejected_count;
        if rejected_count == 0 {
            self.rejections.clear();
        }
    }

    pub(crate) fn record_rejections(&mut self, rejections: Vec<ResourceRejection>) {
        self.rejections.extend(rejections);
        while self.rejections.len() > MAX_REJECTIONS {
            self.rejections.pop_front();
        }
    }

    /// True if the proxy has not yet applied the last update (out of sync).
    pub(crate) fn is_out_of_sync(&self) -> bool {
        let newest_change = self.last_update.as_ref().map(|update| update.change);
        newest_change.is_some() && self.applied_change < newest_change
    }

    /// Ends the stream; the proxy receives the reason.
    pub(crate) fn end_connection(self, reason: String) {
        self.responses.send_replace(StateTaskResponse::Goodbye(reason));
    }

    /// True if the task of the stream has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.responses.is_closed()
    }
}

/// The result of a comparison of a configuration with the last one sent to a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PushOutcome {
    /// An update was sent.
    Sent,
    /// The proxy already has this configuration; no update was sent.
    Unchanged,
}

/// Maximum rejections kept per proxy.
const MAX_REJECTIONS: usize = 16;
