//! Events on pods that rejected a client without mutual TLS.

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
/// [`REMEMBERED`] causes no new event. Never returns.
pub async fn keep_rejections(
    client: Client,
    instance: String,
    mut facts: watch::Receiver<Arc<SidecarFacts>>,
) {
    let mut events = RejectionEvents::default();
    let mut again = interval(LOOK_EVERY);
    loop {
        tokio::select! {
            _ = again.tick() => {}
            Ok(()) = facts.changed() => {}
        }
        let current = Arc::clone(&facts.borrow_and_update());
        events.write_events(&client, &instance, &current.rejected_clients, Instant::now()).await;
    }
}

type RejectedClientKey = (WorkloadName, IpAddr);

/// The written events; only [`RejectionEvents::write_events`] and [`RejectionEvents::renew_events`] do IO.
#[derive(Default)]
struct RejectionEvents {
    known: BTreeMap<RejectedClientKey, RejectionEvent>,
    /// The times of the last writes, oldest first.
    recent: std::collections::VecDeque<Instant>,
}

struct RejectionEvent {
    /// The time of the last report about the client.
    seen: Instant,
    /// The event, unless the write failed or it has expired.
    reported: Option<WarningEvent>,
    /// The time of the retry after a failed write.
    retry: Option<Instant>,
}

impl RejectionEvents {
    /// Writes the events that are due, and increases the counts of events with active clients.
    async fn write_events(
        &mut self,
        client: &Client,
        instance: &str,
        rejected: &[RejectedClient],
        now: Instant,
    ) {
        for due in self.due_clients(rejected, now) {
            let written = write(client, instance, &due).await;
            self.record_written(&due, written);
        }
        self.renew_events(client, now).await;
    }

    /// Returns the clients that need an event now, within the limits of the table, per pod and per minute.
    fn due_clients(&mut self, rejected: &[RejectedClient], now: Instant) -> Vec<RejectedClient> {
        self.known.retain(|_, known| now.duration_since(known.seen) < REMEMBERED);
        while self.recent.front().is_some_and(|at| now.duration_since(*at) >= MINUTE) {
            self.recent.pop_front();
        }
        let mut due: Vec<RejectedClient> = Vec::new();
        for client in rejected {
            let key = (client.workload.clone(), client.client);
            if let Some(known) = self.known.get_mut(&key) {
                known.seen = now;
                if known.retry.is_none_or(|at| at > now) {
                    continue;
                }
            } else if self.known.len() >= KNOWN_MAX || self.of_pod(&client.workload) >= OF_POD_MAX {
                continue;
            }
            if self.recent.len() >= MINUTE_MAX {
                break;
            }
            self.recent.push_back(now);
            self.known.insert(key, RejectionEvent { seen: now, reported: None, retry: None });
            due.push(client.clone());
        }
        due
    }

    fn of_pod(&self, workload: &WorkloadName) -> usize {
        self.known.keys().filter(|(name, _)| name == workload).count()
    }

    fn record_written(&mut self, client: &RejectedClient, written: Option<WarningEvent>) {
        let Entry::Occupied(mut known) = self.known.entry((client.workload.clone(), client.client))
        else {
            return;
        };
        let known = known.get_mut();
        known.retry = written.is_none().then(|| known.seen + RETRY_AFTER);
        known.reported = written;
    }

    /// Increases the counts of events with active clients. An event that has expired in the API server is
    /// written again when its client returns after [`REMEMBERED`].
    async fn renew_events(&mut self, client: &Client, now: Instant) {
        for known in self.known.values_mut().filter(|known| known.seen == now) {
            if let Some(reported) = &mut known.reported
                && !reported.renew_count(client, now).await
            {
                known.reported = None;
            }
        }
    }
}

/// Writes one event. Returns `None` if that fails, or if the pod has no UID, without which no tool shows the
/// event.
async fn write(client: &Client, instance: &str, rejected: &RejectedClient) -> Option<WarningEvent> {
    let RejectedClient { workload, uid, .. } = rejected;
    let pod = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(workload.name.to_string()),
        namespace: Some(workload.namespace.to_string()),
        uid: Some(uid.as_ref()?.to_string()),
        ..ObjectReference::default()
    };
    let owner = match pod_at(client, workload, rejected.client).await {
        Ok(owner) => owner,
        Err(error) => {
            tracing::debug!(%error, "the pod of a client cannot be read");
            None
        }
    };
    let note = event_note(rejected, owner.as_deref());
    WarningEvent::write(client, instance, &pod, PLAINTEXT_REJECTED, &note, Instant::now()).await
}

/// Returns the pod with an address in the namespace of the event. Returns `None` for the address of a node,
/// which several pods share, and for pods of other namespaces: readers of events here may lack permissions
/// there.
async fn pod_at(
    client: &Client,
    workload: &WorkloadName,
    address: IpAddr,
) -> Result<Option<String>, ApiError> {
    let namespace = NamespaceName::new(workload.namespace.as_str())?;
    let pods: ObjectApi<Pod> = ObjectApi::for_namespace(client.clone(), &namespace);
    let at = format!("status.podIP={address},status.phase=Running");
    let found = pods.list(&ListParams::default().fields(&at).limit(2)).await?.items;
    let [pod] = found.as_slice() else { return Ok(None) };
    let on_host = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false);
    Ok((!on_host).then(|| pod.name_any()))
}

fn event_note(rejected: &RejectedClient, owner: Option<&str>) -> String {
    let RejectedClient { client, port, kind, .. } = rejected;
    let cause = match kind {
        PlaintextClient::Member => "it has a sidecar and its connection bypasses the mesh: ",
        PlaintextClient::Other => "",
    };
    let hint = kind.hint();
    let client = match owner {
        Some(pod) => format!("{client} (pod {pod})"),
        // Only readers with permission to list pods of all namespaces may see its name.
        None => format!(
            "{client} (`kubectl get pods -A --field-selector status.podIP={client}` names its pod)"
        ),
    };
    format!(
        "the sidecar rejected a connection without mutual TLS from {client} to port {port}; {cause}{hint}"
    )
}

/// The reason of the event.
const PLAINTEXT_REJECTED: &str = "PlaintextRejected";
/// The interval at which counts are updated and deferred events are retried.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// The time after which a returning client causes a new event: the API server has deleted the old one.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// The delay after a failed write.
const RETRY_AFTER: Duration = Duration::from_secs(300);
const MINUTE: Duration = Duration::from_secs(60);
/// The maximum number of events per minute: many clients without a sidecar are one problem.
const MINUTE_MAX: usize = 20;
/// The maximum number of clients with an event per pod.
const OF_POD_MAX: usize = 8;
/// The maximum number of clients in the table.
const KNOWN_MAX: usize = 1024;

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
    fn the_remedy_is_that_of_the_kind_of_the_client() {
        for (kind, said, not_said) in [
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
                assert!(note.contains(said) && !note.contains(not_said), "{note}");
                assert!(note.ends_with(kind.hint()) && note.len() < 1024, "{note}");
            }
        }
    }

    #[test]
    fn a_client_has_one_event_while_it_goes_on() {
        let mut events = RejectionEvents::default();
        let start = Instant::now();
        let one = [rejected_client("web-1", "10.0.0.1")];
        assert_eq!(events.due_clients(&one, start), one);
        for minutes in [1, 30, 89] {
            assert_eq!(events.due_clients(&one, start + minutes * MINUTE), [], "{minutes}");
        }
        // Another port of the same pod causes no new event, another pod does.
        let other_port = RejectedClient { port: 9090, ..one[0].clone() };
        assert_eq!(events.due_clients(&[other_port], start + 90 * MINUTE), []);
        let other = [rejected_client("web-2", "10.0.0.1")];
        assert_eq!(events.due_clients(&other, start + 90 * MINUTE), other);
        assert_eq!(events.due_clients(&[], start + 100 * MINUTE), []);
        assert_eq!(events.due_clients(&one, start + 149 * MINUTE), [], "it returned too soon");
        assert_eq!(events.due_clients(&one, start + 209 * MINUTE), one);
    }

    #[test]
    fn a_failed_write_is_repeated_after_a_pause() {
        let mut events = RejectionEvents::default();
        let start = Instant::now();
        let one = [rejected_client("web-1", "10.0.0.1")];
        assert_eq!(events.due_clients(&one, start), one);
        events.record_written(&one[0], None);
        assert_eq!(events.due_clients(&one, start + RETRY_AFTER / 2), []);
        assert_eq!(events.due_clients(&one, start + RETRY_AFTER), one);
    }

    #[test]
    fn events_are_bounded_by_pod_minute_and_table() {
        let mut events = RejectionEvents::default();
        let now = Instant::now();
        let clients: Vec<_> =
            (0..100).map(|it| rejected_client("web-1", &format!("10.0.0.{it}"))).collect();
        assert_eq!(events.due_clients(&clients, now).len(), OF_POD_MAX);
        assert_eq!(events.due_clients(&clients, now + MINUTE), []);
        let pods: Vec<_> =
            (0..2000).map(|it| rejected_client(&format!("api-{it}"), "10.0.0.1")).collect();
        assert_eq!(events.due_clients(&pods, now + MINUTE).len(), MINUTE_MAX);
        assert_eq!(events.due_clients(&pods, now + MINUTE), []);
        let mut all = OF_POD_MAX + MINUTE_MAX;
        for minute in 2..80 {
            // The known clients keep connecting.
            let both = [&clients[..], &pods[..]].concat();
            all += events.due_clients(&both, now + minute * MINUTE).len();
        }
        assert_eq!((all, events.known.len()), (KNOWN_MAX, KNOWN_MAX));
    }

    #[tokio::test]
    async fn an_event_is_counted_up_while_its_client_goes_on() {
        let server = Server::start_server().await;
        let mut events = RejectionEvents::default();
        let (start, one) = (Instant::now(), [rejected_client("web-1", "10.0.0.1")]);
        let count = || {
            let store = server.store.lock().unwrap();
            let mut written = store.objects.iter().filter(|(key, _)| key.contains("/events/"));
            let (_, event) = written.next().unwrap();
            assert!(written.next().is_none(), "a client has one event");
            event["series"]["count"].as_i64()
        };
        let (client, instance) = (&server.client, "leno-control-1");
        for (minutes, expected) in [(0, None), (10, None), (25, Some(2)), (30, Some(2))] {
            events.write_events(client, instance, &one, start + minutes * MINUTE).await;
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
        let nothing = json!({"metadata": {"resourceVersion": "1"}, "items": []});
        {
            let mut store = server.store.lock().unwrap();
            let path = |namespace: &str| format!("/api/v1/namespaces/{namespace}/pods");
            store.objects.insert(path("shop"), nothing);
            store.objects.insert(path(namespace), pods.clone());
            store.objects.insert("/api/v1/pods".to_owned(), pods);
        }
        let facts = SidecarFacts {
            rejected_clients: vec![rejected_client("web-1", "10.0.0.1")],
            ..SidecarFacts::default()
        };
        let (send, facts) = watch::channel(Arc::new(facts));
        let keeping = keep_rejections(server.client.clone(), "leno-control-1".to_owned(), facts);
        let mut written = server.store.lock().unwrap().subscribe_changes();
        let event = async {
            written.changed().await.unwrap();
            let store = server.store.lock().unwrap();
            let events = store.objects.iter().filter(|(key, _)| key.contains("/events/"));
            events.map(|(_, event)| event.clone()).collect::<Vec<Value>>()
        };
        let events = tokio::select! {
            () = keeping => panic!("it ended"),
            events = event => events,
        };
        drop(send);
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
