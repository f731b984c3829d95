//! Writes events on pods whose sidecars rejected a client without mutual TLS. The leader writes the events from
//! the reports of sidecars.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::api::ListParams;
use kube::{Client, ResourceExt as _};
use leno_model::{PlaintextClient, RejectedClient, SidecarFacts, WorkloadName};
use tokio::sync::watch;
use tokio::time::{Instant, interval};

use crate::api::{ApiError, NamespaceName, ObjectApi};
use crate::status::event::WarningEvent;

/// Writes an event on the pod of a sidecar for each client that the sidecar rejected, reported by `instance`.
/// The count of an event increases while its client keeps connecting; a client that returns within
/// [`MEMORY_DURATION`] causes no new event. Never returns.
pub async fn report_rejections(
    client: Client,
    instance: String,
    mut facts: watch::Receiver<Arc<SidecarFacts>>,
) {
    let mut events = RejectionEvents::default();
    let mut ticks = interval(POLL_INTERVAL);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            Ok(()) = facts.changed() => {}
        }
        let current_facts = Arc::clone(&facts.borrow_and_update());
        events
            .write_events(&client, &instance, &current_facts.rejected_clients, Instant::now())
            .await;
    }
}

/// The pod whose sidecar rejected a client, and the address of the client.
type RejectedClientKey = (WorkloadName, IpAddr);

/// The written events. Only [`RejectionEvents::write_events`] and [`RejectionEvents::renew_events`] perform
/// I/O.
#[derive(Default)]
struct RejectionEvents {
    events_by_client: BTreeMap<RejectedClientKey, RejectionEvent>,
    /// The times of the writes in the last minute, oldest first.
    recent_writes: std::collections::VecDeque<Instant>,
}

/// The event about one rejected client.
struct RejectionEvent {
    /// The time of the last report about the client.
    last_seen: Instant,
    /// The event, unless the write failed or it has expired.
    written_event: Option<WarningEvent>,
    /// The time of the retry after a failed write.
    retry_time: Option<Instant>,
}

impl RejectionEvents {
    /// Writes the events that are due, and increases the counts of events with active clients.
    async fn write_events(
        &mut self,
        client: &Client,
        instance: &str,
        rejected_clients: &[RejectedClient],
        now: Instant,
    ) {
        for due_client in self.due_clients(rejected_clients, now) {
            let written_event = write_event(client, instance, &due_client).await;
            self.record_write(&due_client, written_event);
        }
        self.renew_events(client, now).await;
    }

    /// Returns the clients that need an event now, within the limits of all clients, per pod and per minute.
    fn due_clients(
        &mut self,
        rejected_clients: &[RejectedClient],
        now: Instant,
    ) -> Vec<RejectedClient> {
        self.events_by_client
            .retain(|_, event| now.duration_since(event.last_seen) < MEMORY_DURATION);
        while self.recent_writes.front().is_some_and(|time| now.duration_since(*time) >= MINUTE) {
            self.recent_writes.pop_front();
        }
        let mut due_clients: Vec<RejectedClient> = Vec::new();
        for rejected_client in rejected_clients {
            let key = (rejected_client.workload.clone(), rejected_client.client);
            if let Some(event) = self.events_by_client.get_mut(&key) {
                event.last_seen = now;
                if event.retry_time.is_none_or(|time| time > now) {
                    continue;
                }
            } else if self.events_by_client.len() >= MAX_CLIENTS
                || self.count_pod_clients(&rejected_client.workload) >= MAX_CLIENTS_PER_POD
            {
                continue;
            }
            // The next poll retries the remaining clients.
            if self.recent_writes.len() >= MAX_EVENTS_PER_MINUTE {
                break;
            }
            self.recent_writes.push_back(now);
            self.events_by_client.insert(
                key,
                RejectionEvent { last_seen: now, written_event: None, retry_time: None },
            );
            due_clients.push(rejected_client.clone());
        }
        due_clients
    }

    /// Returns the number of clients with an event on the pod of a workload.
    fn count_pod_clients(&self, workload: &WorkloadName) -> usize {
        self.events_by_client.keys().filter(|(name, _)| name == workload).count()
    }

    /// Stores a written event, or schedules a retry if the write failed.
    fn record_write(
        &mut self,
        rejected_client: &RejectedClient,
        written_event: Option<WarningEvent>,
    ) {
        let Entry::Occupied(mut event) =
            self.events_by_client.entry((rejected_client.workload.clone(), rejected_client.client))
        else {
            return;
        };
        let event = event.get_mut();
        event.retry_time = written_event.is_none().then(|| event.last_seen + RETRY_DELAY);
        event.written_event = written_event;
    }

    /// Increases the counts of events with active clients. An event that has expired in the API server is
    /// written again when its client returns after [`MEMORY_DURATION`].
    async fn renew_events(&mut self, client: &Client, now: Instant) {
        // `due_clients` has set this time for the clients in the current report.
        for event in self.events_by_client.values_mut().filter(|event| event.last_seen == now) {
            if let Some(written_event) = &mut event.written_event
                && !written_event.renew_count(client, now).await
            {
                event.written_event = None;
            }
        }
    }
}

/// Writes one event. Returns `None` if that fails, or if the pod has no UID, without which no tool shows the
/// event.
async fn write_event(
    client: &Client,
    instance: &str,
    rejected_client: &RejectedClient,
) -> Option<WarningEvent> {
    let RejectedClient { workload, uid, .. } = rejected_client;
    let pod = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(workload.name.to_string()),
        namespace: Some(workload.namespace.to_string()),
        uid: Some(uid.as_ref()?.to_string()),
        ..ObjectReference::default()
    };
    let client_pod = match find_pod(client, workload, rejected_client.client).await {
        Ok(client_pod) => client_pod,
        Err(error) => {
            tracing::debug!(%error, "the pod of a client cannot be read");
            None
        }
    };
    let note = event_note(rejected_client, client_pod.as_deref());
    WarningEvent::write(client, instance, &pod, PLAINTEXT_REJECTED, &note, Instant::now()).await
}

/// Returns the name of the pod with an address in the namespace of the event. Returns `None` for the address of
/// a node, which several pods share, and for pods of other namespaces: readers of events here may lack
/// permissions there.
async fn find_pod(
    client: &Client,
    workload: &WorkloadName,
    address: IpAddr,
) -> Result<Option<String>, ApiError> {
    let namespace = NamespaceName::new(workload.namespace.as_str())?;
    let pods: ObjectApi<Pod> = ObjectApi::for_namespace(client.clone(), &namespace);
    let field_selector = format!("status.podIP={address},status.phase=Running");
    let pods_at_address =
        pods.list(&ListParams::default().fields(&field_selector).limit(2)).await?.items;
    let [pod] = pods_at_address.as_slice() else { return Ok(None) };
    let is_host_network = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false);
    Ok((!is_host_network).then(|| pod.name_any()))
}

/// Returns the text of the event. `client_pod` is the name of the client's pod, if it is known.
fn event_note(rejected_client: &RejectedClient, client_pod: Option<&str>) -> String {
    let RejectedClient { client: address, port, kind, .. } = rejected_client;
    let cause = match kind {
        PlaintextClient::Member => "it has a sidecar and its connection bypasses the mesh: ",
        PlaintextClient::Other => "",
    };
    let hint = kind.hint();
    let client_description = match client_pod {
        Some(pod) => format!("{address} (pod {pod})"),
        // Only readers with permission to list pods of all namespaces may see its name.
        None => format!(
            "{address} (`kubectl get pods -A --field-selector status.podIP={address}` names its pod)"
        ),
    };
    format!(
        "the sidecar rejected a connection without mutual TLS from {client_description} to port {port}; {cause}{hint}"
    )
}

/// The reason of the event.
const PLAINTEXT_REJECTED: &str = "PlaintextRejected";
/// The interval at which counts are updated and deferred events are retried.
const POLL_INTERVAL: Duration = Duration::from_secs(30);
/// The time after which a returning client causes a new event: the API server has deleted the old one.
const MEMORY_DURATION: Duration = Duration::from_secs(3600);
/// The delay after a failed write.
const RETRY_DELAY: Duration = Duration::from_secs(300);
const MINUTE: Duration = Duration::from_secs(60);
/// The maximum number of events per minute: many clients without a sidecar are one problem.
const MAX_EVENTS_PER_MINUTE: usize = 20;
/// The maximum number of clients with an event per pod.
const MAX_CLIENTS_PER_POD: usize = 8;
/// The maximum number of clients in `events_by_client`.
const MAX_CLIENTS: usize = 1024;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::Server;

    fn rejected_client(pod: &str, client: &str) -> RejectedClient {
        RejectedClient {
            workload: WorkloadName::new("shop", pod).unwrap(),
            uid: leno_model::Uid::new(&format!("uid-{pod}")).ok(),
            client: client.parse().unwrap(),
            port: 8080,
            kind: PlaintextClient::Other,
        }
    }

    /// A client with a sidecar gets no hint to start with one.
    #[test]
    fn the_hint_depends_on_the_kind_of_client() {
        for (kind, expected, unexpected) in [
            (
                PlaintextClient::Other,
                "to port 8080; start these clients with a sidecar, open the port",
                "past the mesh",
            ),
            (
                PlaintextClient::Member,
                "to port 8080; it has a sidecar and its connection bypasses the mesh: call a \
                 Service",
                "start these clients",
            ),
        ] {
            let client = RejectedClient { kind, ..rejected_client("web-1", "10.0.0.1") };
            for owner in [None, Some("front")] {
                let note = event_note(&client, owner);
                assert!(note.contains(expected) && !note.contains(unexpected), "{note}");
                assert!(note.ends_with(kind.hint()) && note.len() < 1024, "{note}");
            }
        }
    }

    #[test]
    fn a_client_has_one_event_while_it_keeps_connecting() {
        let mut events = RejectionEvents::default();
        let start = Instant::now();
        let rejected = [rejected_client("web-1", "10.0.0.1")];
        assert_eq!(events.due_clients(&rejected, start), rejected);
        for minutes in [1, 30, 89] {
            assert_eq!(events.due_clients(&rejected, start + minutes * MINUTE), [], "{minutes}");
        }
        // Another port of the same pod causes no new event, another pod does.
        let other_port = RejectedClient { port: 9090, ..rejected[0].clone() };
        assert_eq!(events.due_clients(&[other_port], start + 90 * MINUTE), []);
        let other = [rejected_client("web-2", "10.0.0.1")];
        assert_eq!(events.due_clients(&other, start + 90 * MINUTE), other);
        assert_eq!(events.due_clients(&[], start + 100 * MINUTE), []);
        assert_eq!(events.due_clients(&rejected, start + 149 * MINUTE), [], "it returned too soon");
        assert_eq!(events.due_clients(&rejected, start + 209 * MINUTE), rejected);
    }

    #[test]
    fn a_failed_write_is_repeated_after_a_pause() {
        let mut events = RejectionEvents::default();
        let start = Instant::now();
        let rejected = [rejected_client("web-1", "10.0.0.1")];
        assert_eq!(events.due_clients(&rejected, start), rejected);
        events.record_write(&rejected[0], None);
        assert_eq!(events.due_clients(&rejected, start + RETRY_DELAY / 2), []);
        assert_eq!(events.due_clients(&rejected, start + RETRY_DELAY), rejected);
    }

    #[test]
    fn events_are_bounded_by_pod_minute_and_table() {
        let mut events = RejectionEvents::default();
        let now = Instant::now();
        let clients: Vec<_> =
            (0..100).map(|number| rejected_client("web-1", &format!("10.0.0.{number}"))).collect();
        assert_eq!(events.due_clients(&clients, now).len(), MAX_CLIENTS_PER_POD);
        assert_eq!(events.due_clients(&clients, now + MINUTE), []);
        let pods: Vec<_> =
            (0..2000).map(|number| rejected_client(&format!("api-{number}"), "10.0.0.1")).collect();
        assert_eq!(events.due_clients(&pods, now + MINUTE).len(), MAX_EVENTS_PER_MINUTE);
        assert_eq!(events.due_clients(&pods, now + MINUTE), []);
        let mut total = MAX_CLIENTS_PER_POD + MAX_EVENTS_PER_MINUTE;
        for minute in 2..80 {
            // The known clients keep connecting.
            let known_clients = [&clients[..], &pods[..]].concat();
            total += events.due_clients(&known_clients, now + minute * MINUTE).len();
        }
        assert_eq!((total, events.events_by_client.len()), (MAX_CLIENTS, MAX_CLIENTS));
    }

    #[tokio::test]
    async fn the_count_of_an_event_increases_while_its_client_keeps_connecting() {
        let server = Server::start_server().await;
        let mut events = RejectionEvents::default();
        let (start, rejected) = (Instant::now(), [rejected_client("web-1", "10.0.0.1")]);
        let count = || {
            let store = server.store.lock().unwrap();
            let mut written = store.objects.iter().filter(|(key, _)| key.contains("/events/"));
            let (_, event) = written.next().unwrap();
            assert!(written.next().is_none(), "a client has one event");
            event["series"]["count"].as_i64()
        };
        let (client, instance) = (&server.client, "leno-control-1");
        for (minutes, expected) in [(0, None), (10, None), (25, Some(2)), (30, Some(2))] {
            events.write_events(client, instance, &rejected, start + minutes * MINUTE).await;
            assert_eq!(count(), expected, "{minutes}");
        }
        // Its client stays away.
        events.write_events(client, instance, &[], start + 60 * MINUTE).await;
        assert_eq!(count(), Some(2));
    }

    /// Returns the event about a client with the address of a pod in this namespace.
    async fn event_about_client_in(namespace: &str) -> Value {
        let server = Server::start_server().await;
        let pods = json!({"metadata": {"resourceVersion": "1"}, "items": [
            {"metadata": {"name": "legacy", "namespace": namespace}, "spec": {"containers": []}},
        ]});
        let empty_list = json!({"metadata": {"resourceVersion": "1"}, "items": []});
        {
            let mut store = server.store.lock().unwrap();
            let path = |namespace: &str| format!("/api/v1/namespaces/{namespace}/pods");
            store.objects.insert(path("shop"), empty_list);
            store.objects.insert(path(namespace), pods.clone());
            store.objects.insert("/api/v1/pods".to_owned(), pods);
        }
        let facts = SidecarFacts {
            rejected_clients: vec![rejected_client("web-1", "10.0.0.1")],
            ..SidecarFacts::default()
        };
        let (facts_sender, facts) = watch::channel(Arc::new(facts));
        let reporter = report_rejections(server.client.clone(), "leno-control-1".to_owned(), facts);
        let mut changes = server.store.lock().unwrap().subscribe_changes();
        let event = async {
            changes.changed().await.unwrap();
            let store = server.store.lock().unwrap();
            let events = store.objects.iter().filter(|(key, _)| key.contains("/events/"));
            events.map(|(_, event)| event.clone()).collect::<Vec<Value>>()
        };
        let events = tokio::select! {
            () = reporter => panic!("it ended"),
            events = event => events,
        };
        drop(facts_sender);
        let [event] = events.as_slice() else { panic!("{events:?}") };
        event.clone()
    }

    #[tokio::test]
    async fn an_event_names_the_client_and_its_pod() {
        let event = event_about_client_in("shop").await;
        assert_eq!(
            (&event["reason"], &event["type"]),
            (&json!("PlaintextRejected"), &json!("Warning"))
        );
        assert_eq!(event["regarding"]["uid"], "uid-web-1");
        assert_eq!(event["reportingInstance"], "leno-control-1");
        let note = event["note"].as_str().unwrap();
        assert!(note.contains("from 10.0.0.1 (pod legacy) to port 8080"), "{note}");
    }

    /// Readers of events in one namespace may lack permissions in another.
    #[tokio::test]
    async fn an_event_names_no_pod_of_another_namespace() {
        let event = event_about_client_in("old").await;
        let note = event["note"].as_str().unwrap();
        assert!(!event.to_string().contains("legacy"), "{event}");
        assert!(note.contains("from 10.0.0.1 (`kubectl get pods -A --field-selector "), "{note}");
        assert!(note.contains("status.podIP=10.0.0.1` names its pod) to port 8080"), "{note}");
    }
}
