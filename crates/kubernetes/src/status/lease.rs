//! Elects the leader of the control planes, which is the holder of a Kubernetes Lease: it writes statuses, the objects
//! of gateways, and certificate Secrets.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::runtime::watcher::{Config, Event};
use leno_model::{MAX_DISCONNECTED, SidecarConnections, SidecarFacts, WorkloadName};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::ElectionIdentity;
use crate::api::{ApiError, ObjectApi};
use crate::well_known::{CONTROL, CONTROL_NAME};

/// Acquires and renews the Lease, and reports in `is_leader` whether this control plane holds it. When
/// `shutdown` becomes true, releases the Lease and returns. The other control planes watch the Lease, so one of
/// them acquires it immediately.
pub async fn hold_lease(
    client: Client,
    identity: ElectionIdentity,
    is_leader: watch::Sender<bool>,
    shutdown: watch::Receiver<bool>,
) {
    Box::pin(run_election(client, identity, is_leader, shutdown, POLL_INTERVAL)).await;
}

/// Runs the election until `shutdown` becomes true. A control plane that does not hold the Lease polls it after
/// each `poll_interval`, and also watches it.
async fn run_election(
    client: Client,
    identity: ElectionIdentity,
    is_leader: watch::Sender<bool>,
    mut shutdown: watch::Receiver<bool>,
    poll_interval: Duration,
) {
    let api: ObjectApi<Lease> = ObjectApi::for_namespace(client, &identity.namespace);
    let mut candidate = LeaseCandidate {
        name: identity.name,
        observed_version: None,
        renewal_time: None,
        sidecar_facts: identity.sidecar_facts,
    };
    let mut poll_delay = Duration::ZERO;
    // The watch is open while another control plane holds the Lease.
    let mut lease_events: Option<LeaseEvents> = None;
    loop {
        tokio::select! {
            () = sleep(poll_delay) => {}
            () = wait_until_released(&mut lease_events) => {}
            Ok(_) = shutdown.wait_for(|shutdown| *shutdown) => break,
        }
        // A leader that cannot renew the Lease in time must stop writing before another control plane may start.
        let acquire_result = timeout(RENEWAL_INTERVAL, candidate.try_acquire(&api)).await;
        let now = Instant::now();
        if let Ok(Err(error)) = &acquire_result {
            tracing::debug!(%error, "cannot renew the lease");
        }
        let is_holder = match acquire_result {
            Ok(Ok(is_holder)) => is_holder,
            Ok(Err(_)) | Err(_) => candidate
                .renewal_time
                .is_some_and(|renewal_time| now - renewal_time < RENEWAL_DEADLINE),
        };
        poll_delay = if is_holder { RENEWAL_INTERVAL } else { poll_interval };
        if is_holder {
            lease_events = None;
        } else if lease_events.is_none() {
            lease_events = Some(Box::pin(api.clone().watch(lease_selector())));
        }
        if is_leader.send_replace(is_holder) != is_holder {
            let name = candidate.name.as_str();
            match is_holder {
                true => tracing::info!(name, "this control plane now writes the status of objects"),
                false => tracing::info!(
                    name,
                    "this control plane no longer writes the status of objects"
                ),
            }
        }
    }
    // Stop writing statuses before another leader starts.
    is_leader.send_replace(false);
    match timeout(RELEASE_TIMEOUT, candidate.release(&api)).await {
        Ok(Ok(true)) => tracing::info!(name = candidate.name, "released the lease"),
        // This control plane did not hold the Lease.
        Ok(Ok(false)) => {}
        Ok(Err(error)) => tracing::warn!(%error, "cannot release the lease; it expires on its own"),
        Err(_) => tracing::warn!("the lease was not released in time; it expires on its own"),
    }
}

type LeaseEvents = Pin<Box<dyn Stream<Item = Result<Event<Lease>, ApiError>> + Send>>;

/// Waits until the Lease has no holder; never returns without a watch. A failed watch is reopened with
/// exponential backoff, while polling continues.
async fn wait_until_released(events: &mut Option<LeaseEvents>) {
    let Some(stream) = events else { return std::future::pending().await };
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Apply(lease) | Event::InitApply(lease))
                if lease_holder(&lease).is_empty() =>
            {
                return;
            }
            Ok(Event::Delete(_)) => return,
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "cannot watch the lease"),
        }
    }
    // The stream of a watch does not end by itself.
    std::future::pending().await
}

fn lease_selector() -> Config {
    Config::default().fields(&format!("metadata.name={CONTROL}"))
}

fn lease_holder(lease: &Lease) -> &str {
    let spec = lease.spec.as_ref();
    spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// A control plane that competes for the Lease.
struct LeaseCandidate {
    name: String,
    /// The last observed version of the Lease, and the time since it has been unchanged.
    observed_version: Option<(String, Instant)>,
    /// The start of the last successful renewal; `None` if another control plane holds the Lease.
    renewal_time: Option<Instant>,
    /// The reports of sidecars. The holder writes their connections into an annotation of the Lease.
    sidecar_facts: watch::Receiver<Arc<SidecarFacts>>,
}

impl LeaseCandidate {
    /// Tries to acquire or renew the Lease; returns true if this control plane holds it.
    async fn try_acquire(&mut self, api: &ObjectApi<Lease>) -> Result<bool, ApiError> {
        let attempt_start = Instant::now();
        let Some(lease) = api.get_opt(&CONTROL_NAME).await? else {
            let metadata = ObjectMeta { name: Some(CONTROL.to_owned()), ..ObjectMeta::default() };
            let lease = self.with_holder(Lease { metadata, spec: None }, Timestamp::now());
            return self.record_outcome(
                api.create(&PostParams::default(), &lease).await.map(drop),
                attempt_start,
            );
        };
        if !self.can_acquire(&lease, attempt_start) {
            self.renewal_time = None;
            return Ok(false);
        }
        let lease = self.with_holder(lease, Timestamp::now());
        self.record_outcome(
            api.replace(&CONTROL_NAME, &PostParams::default(), &lease).await.map(drop),
            attempt_start,
        )
    }

    /// Releases the Lease if this control plane holds it; otherwise returns false.
    async fn release(&mut self, api: &ObjectApi<Lease>) -> Result<bool, ApiError> {
        if self.renewal_time.is_none() {
            return Ok(false);
        }
        let Some(mut lease) = api.get_opt(&CONTROL_NAME).await? else { return Ok(false) };
        if lease_holder(&lease) != self.name {
            return Ok(false);
        }
        let Some(spec) = &mut lease.spec else { return Ok(false) };
        spec.holder_identity = Some(String::new());
        annotate_connections(&mut lease.metadata, None);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        api.replace(&CONTROL_NAME, &PostParams::default(), &lease).await.map(|_| true)
    }

    /// Returns true if the Lease has no other holder or has expired. Expiry is measured with the local clock
    /// because other clocks may be wrong.
    fn can_acquire(&mut self, lease: &Lease, now: Instant) -> bool {
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let unchanged_since = match &self.observed_version {
            Some((last_version, unchanged_since)) if *last_version == version => *unchanged_since,
            _ => now,
        };
        self.observed_version = Some((version, unchanged_since));
        let spec = lease.spec.as_ref();
        let holder = lease_holder(lease);
        let lease_seconds = spec.and_then(|spec| spec.lease_duration_seconds);
        let lease_seconds =
            lease_seconds.and_then(|lease_seconds| u64::try_from(lease_seconds).ok());
        let duration = lease_seconds.map_or(LEASE_DURATION, Duration::from_secs);
        holder.is_empty() || holder == self.name || now - unchanged_since >= duration
    }

    /// Returns the Lease with this control plane as its holder.
    fn with_holder(&self, mut lease: Lease, now: Timestamp) -> Lease {
        annotate_connections(&mut lease.metadata, self.sidecar_facts.borrow().connections.as_ref());
        let previous_spec = lease.spec.take().unwrap_or_default();
        let is_new = previous_spec.holder_identity.as_ref() != Some(&self.name);
        let acquire_time = previous_spec.acquire_time.filter(|_| !is_new);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.name.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: Some(acquire_time.unwrap_or(MicroTime(now))),
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(
                previous_spec.lease_transitions.unwrap_or(0).saturating_add(i32::from(is_new)),
            ),
            ..LeaseSpec::default()
        });
        lease
    }

    /// Records the outcome of a write in the renewal time. Returns true if this control plane holds the Lease, and
    /// false after a conflict with another writer.
    fn record_outcome(
        &mut self,
        outcome: Result<(), ApiError>,
        attempt_start: Instant,
    ) -> Result<bool, ApiError> {
        match outcome {
            Ok(()) => {
                self.renewal_time = Some(attempt_start);
                Ok(true)
            }
            // Another control plane was faster.
            Err(error) if error.status_code() == Some(409) => {
                self.renewal_time = None;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Sets or removes the annotation with the connections of sidecars.
fn annotate_connections(metadata: &mut ObjectMeta, connections: Option<&SidecarConnections>) {
    let annotations = metadata.annotations.get_or_insert_default();
    let Some(SidecarConnections { peers, disconnected, count }) = connections else {
        annotations.remove(CONNECTIONS_ANNOTATION);
        return;
    };
    let names: Vec<String> = disconnected.iter().map(ToString::to_string).collect();
    let value = json!({"peers": peers, "disconnected": names, "count": count});
    annotations.insert(CONNECTIONS_ANNOTATION.to_owned(), value.to_string());
}

/// Returns the connections of sidecars from the annotation of the Lease; `None` if it is missing or invalid.
pub(crate) fn annotated_connections(metadata: &ObjectMeta) -> Option<SidecarConnections> {
    let annotation = metadata.annotations.as_ref()?.get(CONNECTIONS_ANNOTATION)?;
    let parsed: Value = serde_json::from_str(annotation).ok()?;
    let read_count = |key: &str| parsed[key].as_u64().and_then(|count| usize::try_from(count).ok());
    let read_name = |value: &Value| {
        let (namespace, name) = value.as_str()?.split_once('/')?;
        WorkloadName::new(namespace, name).ok()
    };
    let disconnected_names = parsed["disconnected"].as_array()?.iter().take(MAX_DISCONNECTED);
    Some(SidecarConnections {
        peers: read_count("peers")?,
        disconnected: disconnected_names.map(read_name).collect::<Option<_>>()?,
        count: read_count("count")?,
    })
}

/// The annotation of the Lease with the connections of sidecars, as reported by its holder.
const CONNECTIONS_ANNOTATION: &str = "leno.dev/sidecar-connections";
/// The duration of the Lease.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// The interval between renewals.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(5);
/// The polling interval of the other control planes, in addition to their watch: expiry of the Lease causes no
/// event.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// The maximum delay of shutdown by the release of the Lease.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// The time after the last renewal at which the holder stops writing; less than the duration of the Lease.
const RENEWAL_DEADLINE: Duration = Duration::from_secs(9);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::NamespaceName;
    use crate::testing::Server;

    fn test_candidate(name: &str, facts: SidecarFacts) -> LeaseCandidate {
        LeaseCandidate {
            name: name.to_owned(),
            observed_version: None,
            renewal_time: None,
            sidecar_facts: watch::channel(Arc::new(facts)).1,
        }
    }

    #[test]
    fn the_holder_annotates_its_lease_with_the_connections_of_sidecars() {
        let connections = SidecarConnections {
            peers: 1,
            disconnected: vec![WorkloadName::new("shop", "web-1").unwrap()],
            count: 40,
        };
        let facts =
            SidecarFacts { connections: Some(connections.clone()), ..SidecarFacts::default() };
        let lease =
            test_candidate("b", facts).with_holder(lease_held_by("a", "1"), Timestamp::UNIX_EPOCH);
        assert_eq!(annotated_connections(&lease.metadata), Some(connections));
        // The next holder has no data yet.
        let lease =
            test_candidate("c", SidecarFacts::default()).with_holder(lease, Timestamp::UNIX_EPOCH);
        assert_eq!(annotated_connections(&lease.metadata), None);
        for invalid in
            ["", "[]", r#"{"peers": 1}"#, r#"{"peers": 1, "count": 1, "disconnected": ["x"]}"#]
        {
            let annotations = [(CONNECTIONS_ANNOTATION.to_owned(), invalid.to_owned())].into();
            let metadata = ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() };
            assert_eq!(annotated_connections(&metadata), None, "{invalid}");
        }
    }

    fn lease_held_by(holder: &str, version: &str) -> Lease {
        Lease {
            metadata: ObjectMeta {
                resource_version: Some(version.to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                lease_duration_seconds: Some(15),
                lease_transitions: Some(4),
                ..LeaseSpec::default()
            }),
        }
    }

    #[test]
    fn a_lease_is_acquired_when_it_has_expired() {
        let mut candidate = test_candidate("b", SidecarFacts::default());
        let start = Instant::now();
        for (seconds, holder, version, expected) in [
            (0, "a", "1", false),
            (14, "a", "1", false),
            (15, "a", "1", true),
            (16, "a", "2", false),
            (30, "a", "2", false),
            (31, "a", "2", true),
            (32, "", "3", true),
            (33, "b", "4", true),
        ] {
            let now = start + Duration::from_secs(seconds);
            let acquired = candidate.can_acquire(&lease_held_by(holder, version), now);
            assert_eq!(acquired, expected, "{seconds} s: {holder} {version}");
        }
    }

    #[tokio::test]
    async fn a_released_lease_is_acquired_immediately() {
        let server = Server::start_server().await;
        let candidate = |name: &str| {
            let identity = ElectionIdentity {
                namespace: NamespaceName::new("leno-system").unwrap(),
                name: name.to_owned(),
                sidecar_facts: watch::Sender::default().subscribe(),
            };
            let (leader_sender, first_leading) = watch::channel(false);
            let (stop, stopped) = watch::channel(false);
            (
                tokio::task::spawn_local(run_election(
                    server.client.clone(),
                    identity,
                    leader_sender,
                    stopped,
                    // Longer than the test: only the watch can report the change.
                    Duration::from_secs(3600),
                )),
                first_leading,
                stop,
            )
        };
        tokio::task::LocalSet::new()
            .run_until(async {
                let (first, mut first_leading, stop) = candidate("a");
                first_leading.wait_for(|is_leader| *is_leader).await.unwrap();
                let (_second, mut second_leading, _stop) = candidate("b");
                server.wait_for_watch("leases").await;
                stop.send_replace(true);
                first.await.unwrap();
                assert!(first_leading.borrow_and_update().eq(&false));
                second_leading.wait_for(|is_leader| *is_leader).await.unwrap();
            })
            .await;
        let store = server.store.lock().unwrap();
        let lease = store.objects.values().next().unwrap();
        assert_eq!(lease["spec"]["holderIdentity"], "b");
    }

    #[test]
    fn a_change_of_the_holder_increases_the_transitions() {
        let candidate = test_candidate("b", SidecarFacts::default());
        let now = Timestamp::UNIX_EPOCH;
        let spec = candidate.with_holder(lease_held_by("a", "1"), now).spec.unwrap();
        assert_eq!(spec.lease_transitions, Some(5));
        assert_eq!(spec.holder_identity.as_deref(), Some("b"));
        assert_eq!(spec.acquire_time, Some(MicroTime(now)));
        let spec = candidate.with_holder(lease_held_by("b", "2"), now).spec.unwrap();
        assert_eq!(spec.lease_transitions, Some(4));
    }
}
