//! Tests of both ends over a stream in memory, with a scripted state task.

mod flood;
mod lists;

use std::time::Duration;

use leno_model::WorkloadName;
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::*;
use crate::budget::Budget;
use crate::client::{DiscoveryError, ProxyRequest, UpdateHandler, follow_control_plane};
use crate::condition::ProxyReport;
use crate::fixture::{bookinfo_update, gateway_hello, service_config, service_name, update_with};
use crate::keepalive::MAX_SILENCE;
use crate::key::{ChangeId, ResourceKey};
use crate::message::{
    ConfigUpdate, InboundListener, IssuanceFailure, IssuedCertificate, ResourceRejection,
};
use crate::queue::{EventSender, QueuedEvent, event_queue};
use crate::server::session::MIN_CERTIFICATE_INTERVAL;
use crate::subscriber::Subscriber;
use crate::subscriptions::SubscriptionChange;
use crate::traffic::TrafficReport;

const CONNECTION: ConnectionId = ConnectionId(7);

/// The state task of a single connection.
struct StateTask {
    events: mpsc::Receiver<QueuedEvent>,
}

impl StateTask {
    async fn wait_for_connected(&mut self) -> Connected {
        match self.next_event().await {
            Some(Event::Connected(connected)) => *connected,
            event => panic!("not connected: {event:?}"),
        }
    }

    /// Returns the next event. Its turn ends at once.
    async fn next_event(&mut self) -> Option<Event> {
        self.events.recv().await.map(|queued| queued.event)
    }

    /// Returns the next event as a short text; `closed` after the last event.
    async fn describe_next_event(&mut self) -> String {
        match self.next_event().await {
            Some(event) => describe_event(&event),
            None => "closed".into(),
        }
    }
}

/// Returns an event as a short text.
fn describe_event(event: &Event) -> String {
    match event {
        Event::Connected(_) => "connected".into(),
        Event::Listeners { listeners, .. } => format!("listeners {listeners:?}"),
        Event::Reported { report, .. } => format!("reported {report:?}"),
        Event::SubscriptionsChanged { change, .. } => {
            let SubscriptionChange { added, removed, .. } = &**change;
            let lists = [
                ("+", "services", format!("{:?}", added.services)),
                ("-", "services", format!("{:?}", removed.services)),
                ("+", "addresses", format!("{:?}", added.addresses)),
                ("-", "addresses", format!("{:?}", removed.addresses)),
                ("+", "names", format!("{:?}", added.names)),
                ("-", "names", format!("{:?}", removed.names)),
            ];
            let lists = lists.into_iter().filter(|(.., list)| list != "{}");
            let lists: Vec<String> =
                lists.map(|(sign, kind, list)| format!("{sign}{kind} {list}")).collect();
            lists.join(" ")
        }
        Event::Applied { change, rejected_count, .. } => {
            format!("applied {change}, {rejected_count} rejected")
        }
        Event::Rejected { rejections, .. } => format!("rejected {}", rejections[0]),
        Event::Traffic { traffic, .. } => format!("traffic of {:?}", traffic.span),
        Event::CertificateRequested { csr, .. } => format!("certify {csr:?}"),
        Event::JoinRequested(pending_join) => format!("join {}", pending_join.workload),
        Event::PeerSidecars { .. } | Event::PeerConnected | Event::PeerDisconnected { .. } => {
            panic!("not about a proxy: {event:?}")
        }
        Event::Disconnected { connection } => format!("disconnected {connection}"),
    }
}

/// Returns a queue to the state task, and the sending end of one connection with its own budget.
fn event_sender() -> (EventSender, mpsc::Receiver<QueuedEvent>) {
    let (queue, events) = event_queue(16);
    (queue.create_sender(Arc::new(Budget::new(Instant::now()))), events)
}

/// Returns a server for one connection, its state task, and the other end of the stream.
fn start_server() -> (impl Future<Output = Result<(), ServeError>>, StateTask, DuplexStream) {
    let (server_end, proxy_end) = duplex(4096);
    let (sender, events) = event_sender();
    (
        serve_proxy(server_end, CONNECTION, sender, None, OperatorSessions::new(1)),
        StateTask { events },
        proxy_end,
    )
}

/// A proxy with a traffic report at each call except the second.
struct TrafficReporter {
    /// The number of calls for a report.
    report_count: u32,
}

impl UpdateHandler for TrafficReporter {
    fn apply_update(&mut self, _: ConfigUpdate) -> Result<(), Vec<ResourceRejection>> {
        Ok(())
    }

    fn take_traffic(&mut self) -> Option<TrafficReport> {
        self.report_count += 1;
        let span = Duration::from_secs(self.report_count.into());
        (self.report_count != 2).then(|| TrafficReport { span, ..TrafficReport::default() })
    }
}

#[tokio::test(start_paused = true)]
async fn traffic_is_reported_at_the_requested_interval_when_there_was_some() {
    let (server_end, proxy_end) = duplex(4096);
    let (sender, events) = event_sender();
    let server = serve_proxy(
        server_end,
        CONNECTION,
        sender,
        Some(Duration::from_secs(7)),
        OperatorSessions::new(1),
    );
    let mut state_task = StateTask { events };
    let (_requests, mut queue) = mpsc::channel(1);
    let (mut subscriber, mut reporter) = (Subscriber::new(), TrafficReporter { report_count: 0 });
    let start = Instant::now();
    let client = follow_control_plane(
        proxy_end,
        gateway_hello(),
        &mut subscriber,
        &mut queue,
        &mut reporter,
    );
    let script = async {
        let responses = state_task.wait_for_connected().await.responses;
        assert_eq!(state_task.describe_next_event().await, "traffic of 1s");
        let first_report_time = start.elapsed();
        assert_eq!(state_task.describe_next_event().await, "traffic of 3s");
        let second_report_time = start.elapsed();
        responses.send_replace(StateTaskResponse::Goodbye("enough".to_owned()));
        (first_report_time, second_report_time)
    };
    let (server_result, _, (first_report_time, second_report_time)) =
        tokio::join!(server, client, script);
    server_result.unwrap();
    assert_eq!(
        (first_report_time, second_report_time),
        (Duration::from_secs(7), Duration::from_secs(21))
    );
}

#[tokio::test(start_paused = true)]
async fn excess_traffic_reports_of_a_proxy_are_dropped() {
    let (server, mut state_task, mut proxy_end) = start_server();
    let flood = async {
        let hello = crate::envelope::hello_to_wire(&gateway_hello(), &[]);
        proxy_end.write_all(&frame_message(from_proxy::Message::Hello(hello))).await.unwrap();
        for _ in 0..500 {
            let traffic = proto::Traffic::default();
            proxy_end
                .write_all(&frame_message(from_proxy::Message::Traffic(traffic)))
                .await
                .unwrap();
        }
        drop(proxy_end);
    };
    let script = async {
        let _connected = state_task.wait_for_connected().await;
        let mut received_reports = 0;
        while state_task.describe_next_event().await.starts_with("traffic") {
            received_reports += 1;
        }
        received_reports
    };
    let (server_result, (), received_reports) = tokio::join!(server, flood, script);
    server_result.unwrap();
    assert!((1..=5).contains(&received_reports), "{received_reports}");
}

#[tokio::test(start_paused = true)]
async fn no_traffic_is_reported_without_an_interval() {
    let (server, mut state_task, proxy_end) = start_server();
    let (_requests, mut queue) = mpsc::channel(1);
    let (mut subscriber, mut reporter) = (Subscriber::new(), TrafficReporter { report_count: 0 });
    let client = follow_control_plane(
        proxy_end,
        gateway_hello(),
        &mut subscriber,
        &mut queue,
        &mut reporter,
    );
    let script = async {
        let responses = state_task.wait_for_connected().await.responses;
        // Meanwhile both ends send pings without payload.
        sleep(MAX_SILENCE * 3).await;
        responses.send_replace(StateTaskResponse::Goodbye("enough".to_owned()));
        state_task.describe_next_event().await
    };
    let (server_result, _, last_event) = tokio::join!(server, client, script);
    server_result.unwrap();
    assert_eq!((last_event.as_str(), reporter.report_count), ("disconnected 7", 0));
}

#[tokio::test(start_paused = true)]
async fn an_update_is_applied_and_acknowledged() {
    let (server, mut state_task, proxy_end) = start_server();
    let (requests, mut queue) = mpsc::channel(1);
    let mut subscriber = Subscriber::new();
    let mut updates = Vec::new();
    let mut apply = |update: ConfigUpdate| {
        updates.push(update);
        Ok(())
    };
    let client =
        follow_control_plane(proxy_end, gateway_hello(), &mut subscriber, &mut queue, &mut apply);
    let next_update = update_with(2, [service_config("ratings", 1)]);
    let script = async {
        let connected = state_task.wait_for_connected().await;
        assert_eq!(connected.connection, CONNECTION);
        assert_eq!(connected.hello, gateway_hello());
        connected.responses.send(StateTaskResponse::Config(bookinfo_update())).unwrap();
        assert_eq!(state_task.describe_next_event().await, "applied 1, 0 rejected");
        connected.responses.send(StateTaskResponse::Config(next_update.clone())).unwrap();
        assert_eq!(state_task.describe_next_event().await, "applied 2, 0 rejected");
        let equal = ConfigUpdate { change: ChangeId(3), ..next_update.clone() };
        connected.responses.send(StateTaskResponse::Config(equal)).unwrap();
        assert_eq!(state_task.describe_next_event().await, "applied 3, 0 rejected");
        drop(requests);
        assert_eq!(state_task.describe_next_event().await, "disconnected 7");
    };
    let (server_result, client_error, ()) = tokio::join!(server, client, script);
    server_result.unwrap();
    assert!(matches!(client_error, DiscoveryError::Stopped), "{client_error}");
    assert_eq!(updates, [bookinfo_update(), next_update.clone()]);
    assert_eq!(subscriber.current_update(), Some(&next_update));
}

#[tokio::test(start_paused = true)]
async fn a_rejected_resource_is_reported_with_its_reason_and_the_others_are_applied() {
    let (server, mut state_task, proxy_end) = start_server();
    let (requests, mut queue) = mpsc::channel(1);
    let mut subscriber = Subscriber::new();
    let mut apply =
        |update: ConfigUpdate| match update.snapshot.services.contains_key(&service_name("bad")) {
            true => Err(vec![ResourceRejection::new(
                ResourceKey::Service(service_name("bad")),
                "rule 1: unclosed group in `(`",
            )]),
            false => Ok(()),
        };
    let client =
        follow_control_plane(proxy_end, gateway_hello(), &mut subscriber, &mut queue, &mut apply);
    let script = async {
        let connected = state_task.wait_for_connected().await;
        let next_update = update_with(5, [service_config("bad", 1), service_config("good", 1)]);
        connected.responses.send(StateTaskResponse::Config(next_update)).unwrap();
        let expected = "rejected service bookinfo/bad: rule 1: unclosed group in `(`";
        assert_eq!(state_task.describe_next_event().await, expected);
        assert_eq!(state_task.describe_next_event().await, "applied 5, 1 rejected");
        drop(requests);
    };
    let (server_result, _, ()) = tokio::join!(server, client, script);
    server_result.unwrap();
    let services = &subscriber.current_update().unwrap().snapshot.services;
    assert_eq!(services.keys().collect::<Vec<_>>(), [&service_name("good")]);
}

#[tokio::test(start_paused = true)]
async fn requests_reach_the_owner_and_certificates_reach_the_proxy() {
    let (server, mut state_task, proxy_end) = start_server();
    let (requests, mut queue) = mpsc::channel(8);
    let mut subscriber = Subscriber::new();
    let mut apply = |_: ConfigUpdate| Ok(());
    let client =
        follow_control_plane(proxy_end, gateway_hello(), &mut subscriber, &mut queue, &mut apply);
    let issued = IssuedCertificate { chain: vec![vec![1], vec![2]], roots: vec![vec![3]] };
    let renew = async |state_task: &mut StateTask,
                       result: Option<Result<IssuedCertificate, IssuanceFailure>>| {
        let (reply, receiver) = oneshot::channel();
        requests.send(ProxyRequest::Renew { csr: vec![9], reply }).await.unwrap();
        match state_task.next_event().await.unwrap() {
            Event::CertificateRequested { connection: CONNECTION, csr, reply } if csr == [9] => {
                // Without a result, the state task drops the request.
                if let Some(result) = result {
                    reply.send(result).unwrap();
                }
            }
            event => panic!("not a certificate request: {event:?}"),
        }
        let result = receiver.await.unwrap();
        sleep(MIN_CERTIFICATE_INTERVAL).await;
        result
    };
    let script = async {
        let _connected = state_task.wait_for_connected().await;
        requests
            .send(ProxyRequest::Subscribe(vec![service_name("a"), service_name("b")]))
            .await
            .unwrap();
        assert_eq!(state_task.describe_next_event().await, "+services {bookinfo/a, bookinfo/b}");
        requests.send(ProxyRequest::Unsubscribe(vec![service_name("a")])).await.unwrap();
        assert_eq!(state_task.describe_next_event().await, "-services {bookinfo/a}");
        requests.send(ProxyRequest::SubscribeAddresses(vec![[10, 96, 0, 1].into()])).await.unwrap();
        assert_eq!(state_task.describe_next_event().await, "+addresses {10.96.0.1}");
        requests
            .send(ProxyRequest::UnsubscribeAddresses(vec![[10, 96, 0, 1].into()]))
            .await
            .unwrap();
        assert_eq!(state_task.describe_next_event().await, "-addresses {10.96.0.1}");
        let listener = InboundListener { port: 80, address: ([127, 0, 0, 1], 15_003).into() };
        requests
            .send(ProxyRequest::Listeners(vec![listener], ProxyReport::default()))
            .await
            .unwrap();
        assert_eq!(state_task.describe_next_event().await, format!("listeners {:?}", [listener]));
        assert_eq!(renew(&mut state_task, Some(Ok(issued.clone()))).await, Ok(issued.clone()));
        assert_eq!(renew(&mut state_task, Some(Err("no".into()))).await, Err("no".into()));
        let reason = renew(&mut state_task, None).await.unwrap_err().reason;
        assert!(reason.contains("try again"), "{reason}");
    };
    tokio::select! {
        () = script => {}
        server_result = server => panic!("{server_result:?}"),
        client_error = client => panic!("{client_error}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_owner_ends_a_connection_with_a_goodbye_or_by_dropping_it() {
    for (response, reason) in [
        (Some(StateTaskResponse::Goodbye("not your workload".into())), "not your workload"),
        (None, "has ended the session"),
    ] {
        let (server, mut state_task, proxy_end) = start_server();
        let (_requests, mut queue) = mpsc::channel(1);
        let mut subscriber = Subscriber::new();
        let mut apply = |_: ConfigUpdate| Ok(());
        let client = follow_control_plane(
            proxy_end,
            gateway_hello(),
            &mut subscriber,
            &mut queue,
            &mut apply,
        );
        let script = async {
            let connected = state_task.wait_for_connected().await;
            if let Some(response) = response {
                connected.responses.send(response).unwrap();
            }
            drop(connected);
            assert_eq!(state_task.describe_next_event().await, "disconnected 7");
        };
        let (server_result, client_error, ()) = tokio::join!(server, client, script);
        server_result.unwrap();
        assert!(matches!(&client_error, DiscoveryError::Goodbye(_)), "{client_error}");
        assert!(client_error.to_string().contains(reason), "{client_error}");
    }
}

#[tokio::test(start_paused = true)]
async fn pings_keep_idle_streams_open() {
    let (server, mut state_task, proxy_end) = start_server();
    let (requests, mut queue) = mpsc::channel(1);
    let mut subscriber = Subscriber::new();
    let mut apply = |_: ConfigUpdate| Ok(());
    let client =
        follow_control_plane(proxy_end, gateway_hello(), &mut subscriber, &mut queue, &mut apply);
    let script = async {
        let connected = state_task.wait_for_connected().await;
        sleep(Duration::from_secs(24 * 3600)).await;
        connected.responses.send(StateTaskResponse::Config(bookinfo_update())).unwrap();
        assert_eq!(state_task.describe_next_event().await, "applied 1, 0 rejected");
        drop(requests);
    };
    let (server_result, client_error, ()) = tokio::join!(server, client, script);
    server_result.unwrap();
    assert!(matches!(client_error, DiscoveryError::Stopped), "{client_error}");
}

/// Sends these bytes as a proxy, then stays silent, and reads the responses.
async fn serve_bytes(bytes: &[u8]) -> (Result<(), ServeError>, Vec<String>) {
    let (server, mut state_task, mut proxy_end) = start_server();
    let proxy = async {
        // The server may have closed the stream.
        proxy_end.write_all(bytes).await.ok();
        let mut responses = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut proxy_end, &mut responses).await.ok();
    };
    let script = async {
        let mut events = Vec::new();
        let mut connection = None;
        while let Some(event) = state_task.next_event().await {
            events.push(describe_event(&event));
            if let Event::Connected(connected) = event {
                connected.responses.send(StateTaskResponse::Config(bookinfo_update())).ok();
                connection = Some(connected);
            }
        }
        drop(connection);
        events
    };
    let (server_result, events, ()) = tokio::join!(server, script, proxy);
    (server_result, events)
}

fn frame_message(message: from_proxy::Message) -> Vec<u8> {
    let message = proto::FromProxy { message: Some(message) }.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap();
    [&length.to_be_bytes()[..], &message].concat()
}

fn framed_hello() -> Vec<u8> {
    frame_message(from_proxy::Message::Hello(crate::envelope::hello_to_wire(&gateway_hello(), &[])))
}

#[tokio::test(start_paused = true)]
async fn an_invalid_message_ends_the_connection_with_a_reason() {
    let unknown_protocol = proto::Hello { protocol: 99, ..Default::default() };
    let without_workload = proto::Hello { protocol: crate::PROTOCOL, ..Default::default() };
    let without_namespace = proto::Services {
        names: vec!["nobody".into()],
        addresses: Vec::new(),
        dns_names: Vec::new(),
    };
    let dns_names = vec!["a/b".to_owned(); crate::MAX_NAMES + 1];
    let too_many_names = proto::Services { dns_names, ..Default::default() };
    let address = crate::resource::socket_address_to_wire(([127, 0, 0, 1], 1).into());
    let listener = proto::Listener { port: 1, address: Some(address) };
    let too_many_listeners =
        proto::Listeners { listeners: vec![listener; 4097], ..Default::default() };
    let cases = [
        (
            vec![],
            frame_message(from_proxy::Message::Ping(proto::Ping::default())),
            "must be a Hello",
        ),
        (vec![], frame_message(from_proxy::Message::Hello(unknown_protocol)), "version 99"),
        (vec![], frame_message(from_proxy::Message::Hello(without_workload)), "workload"),
        (vec![], vec![0x10, 0, 0, 0], "exceeds the limit of 1048576"),
        (framed_hello(), framed_hello(), "second Hello"),
        (framed_hello(), vec![0, 0, 0, 0], "without content"),
        (framed_hello(), vec![0, 0, 0, 1, 0xff], "invalid message"),
        (
            framed_hello(),
            frame_message(from_proxy::Message::Ack(proto::Ack { nonce: 42 })),
            "delta 42",
        ),
        (
            framed_hello(),
            frame_message(from_proxy::Message::Subscribe(without_namespace)),
            "services",
        ),
        (
            framed_hello(),
            frame_message(from_proxy::Message::Unsubscribe(too_many_names)),
            "more resources than a proxy",
        ),
        (
            framed_hello(),
            frame_message(from_proxy::Message::Listeners(too_many_listeners)),
            "4096 are allowed",
        ),
    ];
    for (prefix, bytes, reason) in cases {
        let (server_result, events) = serve_bytes(&[&prefix[..], &bytes].concat()).await;
        let error = server_result.expect_err(reason).to_string();
        assert!(error.contains(reason), "{error} does not contain {reason}");
        match prefix.is_empty() {
            true => assert!(events.is_empty(), "{events:?}"),
            false => assert_eq!(events, ["connected", "disconnected 7"]),
        }
    }
}

fn certificate_frame(id: u64) -> Vec<u8> {
    frame_message(from_proxy::Message::Certificate(proto::CertificateRequest { id, csr: vec![9] }))
}

#[tokio::test(start_paused = true)]
async fn a_second_certificate_request_before_the_response_ends_the_connection() {
    let (server, mut state_task, mut proxy_end) = start_server();
    let script = async {
        proxy_end.write_all(&[framed_hello(), certificate_frame(1)].concat()).await.unwrap();
        let _connected = state_task.wait_for_connected().await;
        let _first_request = state_task.next_event().await.unwrap();
        proxy_end.write_all(&certificate_frame(2)).await.unwrap();
        assert_eq!(state_task.describe_next_event().await, "disconnected 7");
    };
    let (server_result, ()) = tokio::join!(server, script);
    let error = server_result.unwrap_err().to_string();
    assert!(error.contains("while another one is pending"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn certificate_requests_in_quick_succession_are_rejected() {
    let (server, mut state_task, mut proxy_end) = start_server();
    let script = async {
        proxy_end.write_all(&framed_hello()).await.unwrap();
        let _connected = state_task.wait_for_connected().await;
        let (read_half, mut write_half) = tokio::io::split(&mut proxy_end);
        let mut reader = FrameReader::new(read_half, 1 << 20);
        for (id, is_forwarded) in [(1, true), (2, false), (3, true)] {
            write_half.write_all(&certificate_frame(id)).await.unwrap();
            if is_forwarded {
                // The state task drops the request, which is a response.
                assert_eq!(state_task.describe_next_event().await, "certify [9]");
            }
            let frame = reader.next().await.unwrap().unwrap();
            let message = format!("{:?}", proto::ToProxy::decode(frame).unwrap().message);
            assert_eq!(message.contains("too frequent"), !is_forwarded, "{id}: {message}");
            if !is_forwarded {
                sleep(MIN_CERTIFICATE_INTERVAL).await;
            }
        }
    };
    tokio::select! {
        () = script => {}
        server_result = server => panic!("{server_result:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_proxy_that_never_reads_are_no_longer_read() {
    const REQUESTS: usize = 100_000;
    let (server, mut state_task, mut proxy_end) = start_server();
    let mut request_count = 0;
    let script = async {
        proxy_end.write_all(&framed_hello()).await.unwrap();
        let _connected = state_task.wait_for_connected().await;
        proxy_end.write_all(&certificate_frame(0)).await.unwrap();
        assert_eq!(state_task.describe_next_event().await, "certify [9]");
        // The response is being sent; from now on each request is rejected, which is a response too.
        sleep(MIN_CERTIFICATE_INTERVAL / 2).await;
        let flood = async {
            while request_count < REQUESTS {
                proxy_end.write_all(&certificate_frame(1)).await.unwrap();
                request_count += 1;
            }
        };
        timeout(Duration::from_secs(1), flood).await.unwrap_err();
    };
    tokio::select! {
        () = script => {}
        server_result = server => panic!("{server_result:?}"),
    }
    assert!(request_count < REQUESTS / 10, "{request_count}");
}

#[tokio::test(start_paused = true)]
async fn waits_for_a_proxy_are_bounded() {
    let start = Instant::now();
    let (server_result, events) = serve_bytes(&[]).await;
    assert!(matches!(server_result, Err(ServeError::Timeout)), "{server_result:?}");
    assert!(events.is_empty() && start.elapsed() < MAX_SILENCE);

    let (server_result, events) = serve_bytes(&framed_hello()).await;
    assert!(matches!(server_result, Err(ServeError::Unacknowledged)), "{server_result:?}");
    assert_eq!(events, ["connected", "disconnected 7"]);

    let (server, mut state_task, mut proxy_end) = start_server();
    let script = async {
        proxy_end.write_all(&framed_hello()).await.unwrap();
        let connected = state_task.wait_for_connected().await;
        connected.responses.send(StateTaskResponse::Config(bookinfo_update())).unwrap();
        FrameReader::new(&mut proxy_end, 1 << 20).next().await.unwrap().unwrap();
        let start = Instant::now();
        let ack = frame_message(from_proxy::Message::Ack(proto::Ack { nonce: 1 }));
        proxy_end.write_all(&ack).await.unwrap();
        assert_eq!(state_task.describe_next_event().await, "applied 1, 0 rejected");
        assert_eq!(state_task.describe_next_event().await, "disconnected 7");
        assert_eq!(start.elapsed(), MAX_SILENCE);
        connected
    };
    let (server_result, _) = tokio::join!(server, script);
    assert!(matches!(server_result, Err(ServeError::Timeout)), "{server_result:?}");
}

#[tokio::test]
async fn an_idle_connection_is_small() {
    let (server, _owner, _proxy_end) = start_server();
    let bytes = size_of_val(&server);
    assert!(bytes < 4 << 10, "{bytes} bytes");
}

proptest! {
    #[test]
    fn hostile_bytes_end_the_connection_and_never_panic(
        bytes in vec(any::<u8>(), 0..200),
        index in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        let mut damaged = framed_hello();
        let index = index.index(damaged.len());
        damaged[index] = value;
        let framed_bytes = [&[0, 0, 0, u8::try_from(bytes.len()).unwrap()][..], &bytes].concat();
        let hello_and_message = [&framed_hello()[..], &framed_bytes].concat();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        for bytes in [bytes, framed_bytes, damaged, hello_and_message] {
            let (result, events) = runtime.block_on(serve_bytes(&bytes));
            prop_assert!(result.is_err() || events.len() != 1, "{:?} {:?}", result, events);
            prop_assert_ne!(events.last().map(String::as_str), Some("connected"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn joins_are_accepted_rejected_or_time_out() {
    type Handler = fn(crate::event::PendingJoin);
    let workload: WorkloadName = "bookinfo/gateway-1".parse().unwrap();
    let issued = IssuedCertificate { chain: vec![vec![1]], roots: vec![vec![2]] };
    let handlers: [(Handler, &str); 4] = [
        (
            |pending_join| {
                let chain = vec![pending_join.csr.clone()];
                pending_join
                    .reply
                    .send(Ok(IssuedCertificate { chain, roots: vec![vec![2]] }))
                    .unwrap();
            },
            "",
        ),
        (
            |pending_join| pending_join.reply.send(Err("used".into())).unwrap(),
            "rejected the join: used",
        ),
        (drop, "try again"),
        (
            |pending_join| {
                let crate::PendingJoin { reply, .. } = pending_join;
                std::mem::forget(reply);
            },
            "in time: try again",
        ),
    ];
    for (handle_join, reason) in handlers {
        let (server_end, proxy_end) = duplex(1024);
        let (sender, mut events) = event_sender();
        let state_task = async {
            match events.recv().await.map(|queued| queued.event) {
                Some(Event::JoinRequested(pending_join)) => {
                    assert_eq!(
                        (&*pending_join.token, &pending_join.workload),
                        ("secret", &workload)
                    );
                    handle_join(pending_join);
                }
                event => panic!("not a join: {event:?}"),
            }
        };
        let client = crate::join(proxy_end, "secret", &workload, &[1]);
        let (_, joined, ()) = tokio::join!(
            crate::serve_join(server_end, [127, 0, 0, 1].into(), sender),
            client,
            state_task
        );
        match joined {
            Ok(joined) => assert_eq!((joined, reason), (issued.clone(), "")),
            Err(error) => {
                assert!(!reason.is_empty() && error.to_string().contains(reason), "{error}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_join_without_response_times_out() {
    let (server_end, _proxy_end) = duplex(1024);
    let workload = "bookinfo/gateway-1".parse().unwrap();
    let error = crate::join(server_end, "secret", &workload, &[1]).await.unwrap_err();
    assert!(matches!(error, crate::JoinError::Timeout), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_invalid_join_request_is_an_error() {
    for bytes in [&[0, 0, 0, 0][..], &[0, 0, 0, 2, 0xff, 0xff], &[0, 1, 0, 1], &[0, 0, 0, 9, 1]] {
        let (server_end, mut proxy_end) = duplex(1024);
        proxy_end.write_all(bytes).await.unwrap();
        let (sender, mut events) = event_sender();
        assert!(
            crate::serve_join(server_end, [127, 0, 0, 1].into(), sender).await.is_err(),
            "{bytes:?}"
        );
        assert!(events.recv().await.is_none());
    }
}
