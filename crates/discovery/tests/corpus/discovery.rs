//! Properties of both ends of a discovery stream, for arbitrary bytes from the other end.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leno_discovery::{
    Budget, ChangeId, ConfigUpdate, Connected, ConnectionId, Event, Hello, OperatorSessions,
    QueuedEvent, ResourceRejection, ResourceVersion, StateTaskResponse, Subscriber, event_queue,
    follow_control_plane, serve_proxy,
};
use leno_model::{
    Access, MAX_TAP_TEXT_BYTES, ServiceAccount, Snapshot, TrustDomain, WorkloadConfig, WorkloadName,
};
use tokio::io::{join, sink};
use tokio::sync::{mpsc, watch};

/// The first byte selects the reader; the rest is its stream, or messages with two bytes of length each, or the
/// content of a stored configuration.
pub(crate) fn check_input(bytes: &[u8]) {
    let Some((reader, input)) = bytes.split_first() else { return };
    match reader % 5 {
        0 => check_control_plane(&frame_messages(input)),
        1 => check_proxy(&frame_messages(input)),
        2 => check_stored_config(input),
        3 => check_control_plane(input),
        _ => check_proxy(input),
    }
}

/// Serves the stream of a proxy until it ends. Each event is about that connection and within the limits, and
/// an error has a message.
fn check_control_plane(stream: &[u8]) {
    run_to_end(async {
        let (events, mut received_events) = event_queue(1);
        let budget = Arc::new(Budget::new(tokio::time::Instant::now()));
        let sender = events.create_sender(budget);
        drop(events);
        let operators = OperatorSessions::new(1);
        let server = serve_proxy(
            join(stream, sink()),
            CONNECTION,
            sender,
            Some(Duration::from_secs(1)),
            operators,
        );
        let state_task = async {
            let mut responses: Option<watch::Sender<StateTaskResponse>> = None;
            while let Some(QueuedEvent { event, turn: _turn }) = received_events.recv().await {
                match event {
                    Event::Connected(connected) => {
                        assert!(responses.is_none(), "a connection introduces itself once");
                        let Connected { connection, hello, responses: sender } = *connected;
                        assert_eq!(connection, CONNECTION);
                        assert!(hello.version.len() <= 64);
                        sender.send_replace(StateTaskResponse::Config(smallest_update()));
                        responses = Some(sender);
                    }
                    event => {
                        assert!(responses.is_some(), "the introduction is first: {event:?}");
                        check_event(event);
                    }
                }
            }
        };
        let (result, ()) = tokio::join!(server, state_task);
        assert!(result.is_ok() || result.is_err_and(|error| !error.to_string().is_empty()));
    });
}

fn check_event(event: Event) {
    match event {
        Event::SubscriptionsChanged { change, .. } => {
            let (added, removed) = (change.added, change.removed);
            assert!(!added.is_empty() || !removed.is_empty() || change.over_limit > 0);
            assert!(added.services.len() <= leno_discovery::MAX_SUBSCRIPTIONS);
            assert!(added.addresses.len() <= leno_discovery::MAX_ADDRESSES);
            assert!(added.names.len() <= leno_discovery::MAX_NAMES);
            assert!(added.services.is_disjoint(&removed.services));
        }
        Event::Rejected { rejections, .. } => {
            let is_bounded = |rejection: &ResourceRejection| {
                rejection.reason.len() <= MAX_TAP_TEXT_BYTES.max(512)
            };
            assert!(rejections.iter().all(is_bounded));
        }
        Event::CertificateRequested { reply, .. } => {
            // The proxy may be gone.
            reply.send(Err("not here".into())).ok();
        }
        _ => {}
    }
}

/// A proxy accepts no configuration that it could not read back from its disk after a restart.
fn check_proxy(stream: &[u8]) {
    let mut subscriber = Subscriber::new();
    run_to_end(async {
        let (_requests, mut receiver) = mpsc::channel(1);
        let mut apply = |update: ConfigUpdate| {
            check_round_trip(&update);
            Ok(())
        };
        let error = follow_control_plane(
            join(stream, sink()),
            gateway_hello(),
            &mut subscriber,
            &mut receiver,
            &mut apply,
        )
        .await;
        assert!(!error.to_string().is_empty());
    });
    if let Some(update) = subscriber.current_update() {
        check_round_trip(update);
    }
}

/// A stored configuration is rejected, or its decoded form is stored again.
fn check_stored_config(content: &[u8]) {
    let stored = [MAGIC, &ResourceVersion::from_content(content).0.to_be_bytes(), content].concat();
    if let Ok(subscriber) = Subscriber::from_bytes(&stored) {
        check_round_trip(subscriber.current_update().expect("a stored configuration is complete"));
    }
}

/// True if a proxy accepts the stored configuration of an input.
pub(crate) fn is_accepted(bytes: &[u8]) -> bool {
    let content = &bytes[1..];
    let stored = [MAGIC, &ResourceVersion::from_content(content).0.to_be_bytes(), content].concat();
    Subscriber::from_bytes(&stored).is_ok()
}

fn check_round_trip(update: &ConfigUpdate) {
    let restored = Subscriber::from_bytes(&update.to_bytes())
        .expect("an accepted configuration can be stored");
    assert_eq!(restored.current_update(), Some(update));
}

/// Messages of at most 64 KiB, with four bytes of length each; the last one contains the rest.
pub(crate) fn frame_messages(mut remaining_input: &[u8]) -> Vec<u8> {
    let mut stream = Vec::with_capacity(remaining_input.len() * 2);
    while let Some((length, remaining)) = remaining_input.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length)).min(remaining.len());
        let (message, remaining) = remaining.split_at(length);
        stream.extend(u32::try_from(length).expect("16 bits").to_be_bytes());
        stream.extend(message);
        remaining_input = remaining;
    }
    stream
}

/// Runs to the end on this thread.
pub(crate) fn run_to_end(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime without IO").block_on(work);
}

fn gateway_hello() -> Hello {
    Hello {
        workload: workload_name(),
        listeners: Vec::new(),
        admin: None::<SocketAddr>,
        pid: 1,
        version: String::new(),
        services: Vec::new(),
        addresses: Vec::new(),
        dns_names: Vec::new(),
        session: 1,
        ca_generation: 0,
        process: 0,
        answers_queries: false,
        report: Default::default(),
    }
}

/// The smallest configuration.
fn smallest_update() -> ConfigUpdate {
    let config = WorkloadConfig::identity_only(
        workload_name(),
        ServiceAccount::new("shop", "web").expect("an account"),
        TrustDomain::new("cluster.local").expect("a name"),
        [127, 0, 0, 1].into(),
        Access::AllowListed(Vec::new()),
    );
    let snapshot = Snapshot {
        config: Arc::new(config),
        services: Default::default(),
        addresses: BTreeMap::new(),
        names: BTreeMap::new(),
    };
    ConfigUpdate { snapshot: Arc::new(snapshot), absent: BTreeSet::new(), change: ChangeId(1) }
}

fn workload_name() -> WorkloadName {
    WorkloadName::new("shop", "web-1").expect("a name")
}

const CONNECTION: ConnectionId = ConnectionId(1);
/// The magic number of a stored configuration.
const MAGIC: &[u8] = b"lenowld\x01";
