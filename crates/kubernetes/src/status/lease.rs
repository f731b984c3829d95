//! Leader election: the control plane that holds the Lease writes statuses.

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
use leno_model::{DISCONNECTED_MAX, SidecarConnections, SidecarFacts, WorkloadName};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::ElectionIdentity;
use crate::api::{ApiError, ObjectApi};
use crate::words::{CONTROL, CONTROL_NAME};

/// Acquires and renews the Lease, and reports in `leading` whether this control plane holds it. When `stop`
/// becomes true, releases the Lease and returns. The other control planes watch the Lease, so one of them
/// acquires it immediately.
pub async fn hold_lease(
    client: Client,
    writer: ElectionIdentity,
    leading: watch::Sender<bool>,
    stop: watch::Receiver<bool>,
) {
    Box::pin(hold_looking(client, writer, leading, stop, LOOK_EVERY)).await;
}

async fn hold_looking(
    client: Client,
    writer: ElectionIdentity,
    leading: watch::Sender<bool>,
    mut stop: watch::Receiver<bool>,
    look_every: Duration,
) {
    let api: ObjectApi<Lease> = ObjectApi::for_namespace(client, &writer.namespace);
    let mut candidate =
        LeaseCandidate { name: writer.name, observed: None, renewed: None, facts: writer.facts };
    let mut pause = Duration::ZERO;
    // Open while another control plane holds the Lease.
    let mut events: Option<LeaseEvents> = None;
    loop {
        tokio::select! {
            () = sleep(pause) => {}
            () = until_free(&mut events) => {}
            Ok(_) = stop.wait_for(|stop| *stop) => break,
        }
        // A leader that cannot renew in time must have stopped writing before another one may start.
        let tried = timeout(RENEW_EVERY, candidate.try_acquire(&api)).await;
        let now = Instant::now();
        if let Ok(Err(error)) = &tried {
            tracing::debug!(%error, "cannot renew the lease");
        }
        let holds = match tried {
            Ok(Ok(holds)) => holds,
            Ok(Err(_)) | Err(_) => {
                candidate.renewed.is_some_and(|renewed| now - renewed < RENEWED_AT_LATEST)
            }
        };
        pause = if holds { RENEW_EVERY } else { look_every };
        if holds {
            events = None;
        } else if events.is_none() {
            events = Some(Box::pin(api.clone().watch(this_lease())));
        }
        if leading.send_replace(holds) != holds {
            let name = candidate.name.as_str();
            match holds {
                true => tracing::info!(name, "this control plane now writes the status of objects"),
                false => tracing::info!(
                    name,
                    "this control plane no longer writes the status of objects"
                ),
            }
        }
    }
    // Stop writing statuses before another leader starts.
    leading.send_replace(false);
    match timeout(RELEASED_AT_LATEST, candidate.release(&api)).await {
        Ok(Ok(true)) => tracing::info!(name = candidate.name, "released the lease"),
        Ok(Ok(false)) => {}
        Ok(Err(error)) => tracing::warn!(%error, "cannot release the lease; it expires on its own"),
        Err(_) => tracing::warn!("the lease was not released in time; it expires on its own"),
    }
}

type LeaseEvents = Pin<Box<dyn Stream<Item = Result<Event<Lease>, ApiError>> + Send>>;

/// Waits until the Lease has no holder; forever if there is no watch. A failed watch is reopened with
/// exponential backoff, while polling continues.
async fn until_free(events: &mut Option<LeaseEvents>) {
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
    std::future::pending().await
}

fn this_lease() -> Config {
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
    observed: Option<(String, Instant)>,
    /// The time of the last renewal.
    renewed: Option<Instant>,
    /// The source of the annotation with the connections.
    facts: watch::Receiver<Arc<SidecarFacts>>,
}

impl LeaseCandidate {
    /// Tries to acquire or renew the Lease; returns true if this control plane holds it.
    async fn try_acquire(&mut self, api: &ObjectApi<Lease>) -> Result<bool, ApiError> {
        let began = Instant::now();
        let Some(lease) = api.get_opt(&CONTROL_NAME).await? else {
            let metadata = ObjectMeta { name: Some(CONTROL.to_owned()), ..ObjectMeta::default() };
            let lease = self.with_holder(Lease { metadata, spec: None }, Timestamp::now());
            return self
                .record_outcome(api.create(&PostParams::default(), &lease).await.map(drop), began);
        };
        if !self.may_take(&lease, began) {
            self.renewed = None;
            return Ok(false);
        }
        let lease = self.with_holder(lease, Timestamp::now());
        self.record_outcome(
            api.replace(&CONTROL_NAME, &PostParams::default(), &lease).await.map(drop),
            began,
        )
    }

    /// Releases the Lease if this control plane holds it; otherwise returns false.
    async fn release(&mut self, api: &ObjectApi<Lease>) -> Result<bool, ApiError> {
        if self.renewed.is_none() {
            return Ok(false);
        }
        let Some(mut lease) = api.get_opt(&CONTROL_NAME).await? else { return Ok(false) };
        if lease_holder(&lease) != self.name {
            return Ok(false);
        }
        let Some(spec) = &mut lease.spec else { return Ok(false) };
        spec.holder_identity = Some(String::new());
        note_connections(&mut lease.metadata, None);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        api.replace(&CONTROL_NAME, &PostParams::default(), &lease).await.map(|_| true)
    }

    /// Returns true if the Lease has no other holder or has expired. Expiry is measured with the local clock
    /// because other clocks may be wrong.
    fn may_take(&mut self, lease: &Lease, now: Instant) -> bool {
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let since = match &self.observed {
            Some((seen, since)) if *seen == version => *since,
            _ => now,
        };
        self.observed = Some((version, since));
        let spec = lease.spec.as_ref();
        let holder = lease_holder(lease);
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let lasts = seconds.map_or(LASTS, Duration::from_secs);
        holder.is_empty() || holder == self.name || now - since >= lasts
    }

    /// Returns the Lease with this control plane as its holder.
    fn with_holder(&self, mut lease: Lease, now: Timestamp) -> Lease {
        note_connections(&mut lease.metadata, self.facts.borrow().connections.as_ref());
        let before = lease.spec.take().unwrap_or_default();
        let is_new = before.holder_identity.as_ref() != Some(&self.name);
        let acquired = before.acquire_time.filter(|_| !is_new);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.name.clone()),
            lease_duration_seconds: i32::try_from(LASTS.as_secs()).ok(),
            acquire_time: Some(acquired.unwrap_or(MicroTime(now))),
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(
                before.lease_transitions.unwrap_or(0).saturating_add(i32::from(is_new)),
            ),
            ..LeaseSpec::default()
        });
        lease
    }

    fn record_outcome(
        &mut self,
        outcome: Result<(), ApiError>,
        began: Instant,
    ) -> Result<bool, ApiError> {
        match outcome {
            Ok(()) => {
                self.renewed = Some(began);
                Ok(true)
            }
            // Another control plane was faster.
            Err(error) if error.status_code() == Some(409) => {
                self.renewed = None;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Sets or removes the annotation with the connections of sidecars.
fn note_connections(metadata: &mut ObjectMeta, connections: Option<&SidecarConnections>) {
    let annotations = metadata.annotations.get_or_insert_default();
    let Some(SidecarConnections { peers, disconnected, count }) = connections else {
        annotations.remove(CONNECTIONS);
        return;
    };
    let names: Vec<String> = disconnected.iter().map(ToString::to_string).collect();
    let noted = json!({"peers": peers, "disconnected": names, "count": count});
    annotations.insert(CONNECTIONS.to_owned(), noted.to_string());
}

/// Returns the connections of sidecars from the annotation of the Lease.
pub(crate) fn noted_connections(metadata: &ObjectMeta) -> Option<SidecarConnections> {
    let text = metadata.annotations.as_ref()?.get(CONNECTIONS)?;
    let noted: Value = serde_json::from_str(text).ok()?;
    let number = |key: &str| noted[key].as_u64().and_then(|it| usize::try_from(it).ok());
    let name = |it: &Value| {
        let (namespace, name) = it.as_str()?.split_once('/')?;
        WorkloadName::new(namespace, name).ok()
    };
    let names = noted["disconnected"].as_array()?.iter().take(DISCONNECTED_MAX);
    Some(SidecarConnections {
        peers: number("peers")?,
        disconnected: names.map(name).collect::<Option<_>>()?,
        count: number("count")?,
    })
}

/// An annotation of the Lease: the connections of sidecars, as reported by its holder.
const CONNECTIONS: &str = "leno.dev/sidecar-connections";
/// The duration of the Lease.
const LASTS: Duration = Duration::from_secs(15);
/// The interval between renewals.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// The polling interval of the other control planes, in addition to their watch: expiry of the Lease causes no
/// event.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The maximum delay of shutdown by the release of the Lease.
const RELEASED_AT_LATEST: Duration = Duration::from_secs(2);
/// The time after the last renewal at which the holder stops writing; less than the duration of the Lease.
const RENEWED_AT_LATEST: Duration = Duration::from_secs(9);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::NamespaceName;
    use crate::testing::Server;

    fn test_candidate(name: &str, facts: SidecarFacts) -> LeaseCandidate {
        let facts = watch::channel(Arc::new(facts)).1;
        LeaseCandidate { name: name.to_owned(), observed: None, renewed: None, facts }
    }

    #[test]
    fn the_holder_notes_the_connections_of_sidecars_in_its_lease() {
        let connections = SidecarConnections {
            peers: 1,
            disconnected: vec![WorkloadName::new("shop", "web-1").unwrap()],
            count: 40,
        };
        let facts =
            SidecarFacts { connections: Some(connections.clone()), ..SidecarFacts::default() };
        let taken =
            test_candidate("b", facts).with_holder(lease_held_by("a", "1"), Timestamp::UNIX_EPOCH);
        assert_eq!(noted_connections(&taken.metadata), Some(connections));
        // The next holder has no data yet.
        let taken =
            test_candidate("c", SidecarFacts::default()).with_holder(taken, Timestamp::UNIX_EPOCH);
        assert_eq!(noted_connections(&taken.metadata), None);
        for odd in
            ["", "[]", r#"{"peers": 1}"#, r#"{"peers": 1, "count": 1, "disconnected": ["x"]}"#]
        {
            let annotations = [(CONNECTIONS.to_owned(), odd.to_owned())].into();
            let metadata = ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() };
            assert_eq!(noted_connections(&metadata), None, "{odd}");
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
    fn a_lease_is_taken_when_it_has_not_been_renewed_for_its_time() {
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
            let may = candidate.may_take(&lease_held_by(holder, version), now);
            assert_eq!(may, expected, "{seconds} s: {holder} {version}");
        }
    }

    #[tokio::test]
    async fn a_lease_that_is_given_back_is_taken_at_once() {
        let server = Server::start_server().await;
        let candidate = |name: &str| {
            let writer = ElectionIdentity {
                namespace: NamespaceName::new("leno-system").unwrap(),
                name: name.to_owned(),
                facts: watch::Sender::default().subscribe(),
            };
            let (leads, leading) = watch::channel(false);
            let (stop, stopped) = watch::channel(false);
            (
                tokio::task::spawn_local(hold_looking(
                    server.client.clone(),
                    writer,
                    leads,
                    stopped,
                    // Longer than the test: only the watch can report the change.
                    Duration::from_secs(3600),
                )),
                leading,
                stop,
            )
        };
        tokio::task::LocalSet::new()
            .run_until(async {
                let (first, mut leading, stop) = candidate("a");
                leading.wait_for(|leads| *leads).await.unwrap();
                let (_second, mut next, _stays) = candidate("b");
                server.wait_for_watch("leases").await;
                stop.send_replace(true);
                first.await.unwrap();
                assert!(leading.borrow_and_update().eq(&false));
                next.wait_for(|leads| *leads).await.unwrap();
            })
            .await;
        let store = server.store.lock().unwrap();
        let lease = store.objects.values().next().unwrap();
        assert_eq!(lease["spec"]["holderIdentity"], "b");
    }

    #[test]
    fn a_lease_counts_its_holders() {
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
