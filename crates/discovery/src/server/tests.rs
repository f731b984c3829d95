//! Tests of both ends over a stream in memory, with a scripted mesh owner.

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
use crate::keepalive::SILENCE_MAX;
use crate::key::{ChangeId, ResourceKey};
use crate::message::{
    ConfigUpdate, InboundListener, IssuanceFailure, IssuedCertificate, ResourceRejection,
};
use crate::queue::{EventSender, QueuedEvent, event_queue};
use crate::server::session::RENEWAL_INTERVAL_MIN;
use crate::subscriber::Subscriber;
use crate::subscriptions::SubscriptionChange;
use crate::traffic::TrafficReport;

const CONNECTION: ConnectionId = ConnectionId(7);

/// The mesh owner of a single connection.
struct Owner {
    events: mpsc::Receiver<QueuedEvent>,
}

impl Owner {
    async fn wait_for_connected(&mut self) -> Connected {
        match self.next_event().await {
            Some(Event::Connected(connected)) => *connected,
            other => panic!("not connected: {other:?}"),
        }
    }

    /// The next event. Its turn ends at once.
    async fn next_event(&mut self) -> Option<Event> {
        self.events.recv().await.map(|queued| queued.event)
    }

    async fn next(&mut self) -> String {
        match self.next_event().await {
            Some(event) => describe_event(&event),
            None => "nobody left".into(),
        }
    }
}

/// An event as a short text.
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
                lists.map(|(sign, what, list)| format!("{sign}{what} {list}")).collect();
            lists.join(" ")
        }
        Event::Applied { change, refused, .. } => format!("applied {change}, {refused} refused"),
        Event::Rejected { refusals, .. } => format!("refused {}", refusals[0]),
        Event::Traffic { traffic, .. } => format!("traffic of {:?}", traffic.span),
        Event::CertificateRequested { csr, .. } => format!("certify {csr:?}"),
        Event::JoinRequested(joining) => format!("join {}", joining.workload),
        Event::OtherReplica { .. } | Event::PeerArrived | Event::PeerLeft { .. } => {
            panic!("of no proxy: {event:?}")
        }
        Event::Disconnected { connection } => format!("left {connection}"),
    }
}

/// A queue to the owner, and the sending end of one connection with its own budget.
fn event_sender() -> (EventSender, mpsc::Receiver<QueuedEvent>) {
    let (queue, events) = event_queue(16);
    (queue.create_sender(Arc::new(Budget::new(Instant::now()))), events)
}

/// A server for one connection, its owner, and the other end of the stream.
fn start_server() -> (impl Future<Output = Result<(), ServeError>>, Owner, DuplexStream) {
    let (near, far) = duplex(4096);
    let (sender, events) = event_sender();
    (serve_proxy(near, CONNECTION, sender, None, OperatorSessions::new(1)), Owner { events }, far)
}

/// A proxy with a traffic report at each call except the second.
struct Busy {
    asked: u32,
}

impl UpdateHandler for Busy {
    fn apply_update(&mut self, _: ConfigUpdate) -> Result<(), Vec<ResourceRejection>> {
        Ok(())
    }

    fn take_traffic(&mut self) -> Option<TrafficReport> {
        self.asked += 1;
        let span = Duration::from_secs(self.asked.into());
        (self.asked != 2).then(|| TrafficReport { span, ..TrafficReport::default() })
    }
}

#[tokio::test(start_paused = true)]
async fn traffic_is_reported_as_often_as_asked_for_and_only_when_there_was_some() {
    let (near, far) = duplex(4096);
    let (sender, events) = event_sender();
    let server = serve_proxy(
        near,
        CONNECTION,
        sender,
        Some(Duration::from_secs(7)),
        OperatorSessions::new(1),
    );
    let mut owner = Owner { events };
    let (_requests, mut queue) = mpsc::channel(1);
    let (mut subscriber, mut busy) = (Subscriber::new(), Busy { asked: 0 });
    let began = Instant::now();
    let client = follow_control_plane(far, gateway_hello(), &mut subscriber, &mut queue, &mut busy);
    let script = async {
        let standing = owner.wait_for_connected().await.responses;
        assert_eq!(owner.next().await, "traffic of 1s");
        let first = began.elapsed();
        assert_eq!(owner.next().await, "traffic of 3s");
        let second = began.elapsed();
        standing.send_replace(OwnerResponse::Goodbye("enough".to_owned()));
        (first, second)
    };
    let (served, _, (first, second)) = tokio::join!(server, client, script);
    served.unwrap();
    assert_eq!((first, second), (Duration::from_secs(7), Duration::from_secs(21)));
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_tells_of_traffic_without_end_is_not_heard() {
    let (server, mut owner, mut far) = start_server();
    let flood = async {
        let hello = crate::envelope::hello_to_wire(&gateway_hello(), &[]);
        far.write_all(&frame_message(from_proxy::Message::Hello(hello))).await.unwrap();
        for _ in 0..500 {
            let traffic = proto::Traffic::default();
            far.write_all(&frame_message(from_proxy::Message::Traffic(traffic))).await.unwrap();
        }
        drop(far);
    };
    let script = async {
        let _connected = owner.wait_for_connected().await;
        let mut heard = 0;
        while owner.next().await.starts_with("traffic") {
            heard += 1;
        }
        heard
    };
    let (served, (), heard) = tokio::join!(server, flood, script);
    served.unwrap();
    assert!((1..=5).contains(&heard), "{heard}");
}

#[tokio::test(start_paused = true)]
async fn a_control_plane_that_does_not_ask_is_reported_nothing() {
    let (server, mut owner, far) = start_server();
    let (_requests, mut queue) = mpsc::channel(1);
    let (mut subscriber, mut busy) = (Subscriber::new(), Busy { asked: 0 });
    let client = follow_control_plane(far, gateway_hello(), &mut subscriber, &mut queue, &mut busy);
    let script = async {
        let standing = owner.wait_for_connected().await.responses;
        // Meanwhile both ends send pings without payload.
        sleep(SILENCE_MAX * 3).await;
        standing.send_replace(OwnerResponse::Goodbye("enough".to_owned()));
        owner.next().await
    };
    let (served, _, last) = tokio::join!(server, client, script);
    served.unwrap();
    assert_eq!((last.as_str(), busy.asked), ("left 7", 0));
}

#[tokio::test(start_paused = true)]
async fn an_offer_is_applied_and_then_reported() {
    let (server, mut owner, far) = start_server();
    let (requests, mut queue) = mpsc::channel(1);
    let mut subscriber = Subscriber::new();
    let mut worlds = Vec::new();
    let mut apply = |update: ConfigUpdate| {
        worlds.push(update);
        Ok(())
    };
    let client =
        follow_control_plane(far, gateway_hello(), &mut subscriber, &mut queue, &mut apply);
    let next = update_with(2, [service_config("ratings", 1)]);
    let script = async {
        let connected = owner.wait_for_connected().await;
        assert_eq!(connected.connection, CONNECTION);
        assert_eq!(connected.hello, gateway_hello());
        connected.responses.send(OwnerResponse::Config(bookinfo_update())).unwrap();
        assert_eq!(owner.next().await, "applied 1, 0 refused");
        connected.responses.send(OwnerResponse::Config(next.clone())).unwrap();
        assert_eq!(owner.next().await, "applied 2, 0 refused");
        let equal = ConfigUpdate { change: ChangeId(3), ..next.clone() };
        connected.responses.send(OwnerResponse::Config(equal)).unwrap();
        assert_eq!(owner.next().await, "applied 3, 0 refused");
        drop(requests);
        assert_eq!(owner.next().await, "left 7");
    };
    let (served, followed, ()) = tokio::join!(server, client, script);
    served.unwrap();
    assert!(matches!(followed, DiscoveryError::Stopped), "{followed}");
    assert_eq!(worlds, [bookinfo_update(), next.clone()]);
    assert_eq!(subscriber.current_update(), Some(&next));
}

#[tokio::test(start_paused = true)]
async fn a_refused_resource_is_named_with_its_reason_and_the_rest_is_applied() {
    let (server, mut owner, far) = start_server();
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
        follow_control_plane(far, gateway_hello(), &mut subscriber, &mut queue, &mut apply);
    let script = async {
        let connected = owner.wait_for_connected().await;
        let offer = update_with(5, [service_config("bad", 1), service_config("good", 1)]);
        connected.responses.send(OwnerResponse::Config(offer)).unwrap();
        let refused = "refused service bookinfo/bad: rule 1: unclosed group in `(`";
        assert_eq!(owner.next().await, refused);
        assert_eq!(owner.next().await, "applied 5, 1 refused");
        drop(requests);
    };
    let (served, _, ()) = tokio::join!(server, client, script);
    served.unwrap();
    let services = &subscriber.current_update().unwrap().snapshot.services;
    assert_eq!(services.keys().collect::<Vec<_>>(), [&service_name("good")]);
}

#[tokio::test(start_paused = true)]
async fn requests_reach_the_owner_and_certificates_come_back() {
    let (server, mut owner, far) = start_server();
    let (requests, mut queue) = mpsc::channel(8);
    let mut subscriber = Subscriber::new();
    let mut apply = |_: ConfigUpdate| Ok(());
    let client =
        follow_control_plane(far, gateway_hello(), &mut subscriber, &mut queue, &mut apply);
    let issued = IssuedCertificate { chain: vec![vec![1], vec![2]], roots: vec![vec![3]] };
    let renew = async |owner: &mut Owner,
                       result: Option<Result<IssuedCertificate, IssuanceFailure>>| {
        let (answer, answered) = oneshot::channel();
        requests.send(ProxyRequest::Renew { csr: vec![9], answer }).await.unwrap();
        match owner.next_event().await.unwrap() {
            Event::CertificateRequested { connection: CONNECTION, csr, answer } if csr == [9] => {
                // Without a result, the owner drops the request.
                if let Some(result) = result {
                    answer.send(result).unwrap();
                }
            }
            other => panic!("not a certificate request: {other:?}"),
        }
        let result = answered.await.unwrap();
        sleep(RENEWAL_INTERVAL_MIN).await;
        result
    };
    let script = async {
        let _connected = owner.wait_for_connected().await;
        requests
            .send(ProxyRequest::Subscribe(vec![service_name("a"), service_name("b")]))
            .await
            .unwrap();
        assert_eq!(owner.next().await, "+services {bookinfo/a, bookinfo/b}");
        requests.send(ProxyRequest::Unsubscribe(vec![service_name("a")])).await.unwrap();
        assert_eq!(owner.next().await, "-services {bookinfo/a}");
        requests.send(ProxyRequest::SubscribeAddresses(vec![[10, 96, 0, 1].into()])).await.unwrap();
        assert_eq!(owner.next().await, "+addresses {10.96.0.1}");
        requests
            .send(ProxyRequest::UnsubscribeAddresses(vec![[10, 96, 0, 1].into()]))
            .await
            .unwrap();
        assert_eq!(owner.next().await, "-addresses {10.96.0.1}");
        let listener = InboundListener { port: 80, address: ([127, 0, 0, 1], 15_003).into() };
        requests
            .send(ProxyRequest::Listeners(vec![listener], ProxyReport::default()))
            .await
            .unwrap();
        assert_eq!(owner.next().await, format!("listeners {:?}", [listener]));
        assert_eq!(renew(&mut owner, Some(Ok(issued.clone()))).await, Ok(issued.clone()));
        assert_eq!(renew(&mut owner, Some(Err("no".into()))).await, Err("no".into()));
        let forgotten = renew(&mut owner, None).await.unwrap_err().reason;
        assert!(forgotten.contains("try again"), "{forgotten}");
    };
    tokio::select! {
        () = script => {}
        served = server => panic!("{served:?}"),
        followed = client => panic!("{followed}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_owner_ends_a_connection_with_a_reason_or_by_letting_go() {
    for (standing, reason) in [
        (Some(OwnerResponse::Goodbye("not your workload".into())), "not your workload"),
        (None, "has ended the session"),
    ] {
        let (server, mut owner, far) = start_server();
        let (_requests, mut queue) = mpsc::channel(1);
        let mut subscriber = Subscriber::new();
        let mut apply = |_: ConfigUpdate| Ok(());
        let client =
            follow_control_plane(far, gateway_hello(), &mut subscriber, &mut queue, &mut apply);
        let script = async {
            let connected = owner.wait_for_connected().await;
            if let Some(standing) = standing {
                connected.responses.send(standing).unwrap();
            }
            drop(connected);
            assert_eq!(owner.next().await, "left 7");
        };
        let (served, followed, ()) = tokio::join!(server, client, script);
        served.unwrap();
        assert!(matches!(&followed, DiscoveryError::Goodbye(_)), "{followed}");
        assert!(followed.to_string().contains(reason), "{followed}");
    }
}

#[tokio::test(start_paused = true)]
async fn idle_streams_live_on_pings() {
    let (server, mut owner, far) = start_server();
    let (requests, mut queue) = mpsc::channel(1);
    let mut subscriber = Subscriber::new();
    let mut apply = |_: ConfigUpdate| Ok(());
    let client =
        follow_control_plane(far, gateway_hello(), &mut subscriber, &mut queue, &mut apply);
    let script = async {
        let connected = owner.wait_for_connected().await;
        sleep(Duration::from_secs(24 * 3600)).await;
        connected.responses.send(OwnerResponse::Config(bookinfo_update())).unwrap();
        assert_eq!(owner.next().await, "applied 1, 0 refused");
        drop(requests);
    };
    let (served, followed, ()) = tokio::join!(server, client, script);
    served.unwrap();
    assert!(matches!(followed, DiscoveryError::Stopped), "{followed}");
}

/// Sends these bytes as a proxy, then stays silent, and reads the responses.
async fn serve_bytes(bytes: &[u8]) -> (Result<(), ServeError>, Vec<String>) {
    let (server, mut owner, mut far) = start_server();
    let proxy = async {
        // A server that has hung up does not read anymore.
        far.write_all(bytes).await.ok();
        let mut sent = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut far, &mut sent).await.ok();
    };
    let script = async {
        let mut events = Vec::new();
        let mut kept = None;
        while let Some(event) = owner.next_event().await {
            events.push(describe_event(&event));
            if let Event::Connected(connected) = event {
                connected.responses.send(OwnerResponse::Config(bookinfo_update())).ok();
                kept = Some(connected);
            }
        }
        drop(kept);
        events
    };
    let (served, events, ()) = tokio::join!(server, script, proxy);
    (served, events)
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
async fn whatever_is_not_of_the_protocol_ends_the_connection_with_a_reason() {
    let foreign = proto::Hello { protocol: 99, ..Default::default() };
    let nameless = proto::Hello { protocol: crate::PROTOCOL, ..Default::default() };
    let nobody = proto::Services {
        names: vec!["nobody".into()],
        addresses: Vec::new(),
        dns_names: Vec::new(),
    };
    let crowd = vec!["a/b".to_owned(); crate::NAMES_MAX + 1];
    let crowd = proto::Services { dns_names: crowd, ..Default::default() };
    let address = crate::resource::socket_address_to_wire(([127, 0, 0, 1], 1).into());
    let listener = proto::Listener { port: 1, address: Some(address) };
    let everywhere = proto::Listeners { listeners: vec![listener; 4097], ..Default::default() };
    let cases = [
        (
            vec![],
            frame_message(from_proxy::Message::Ping(proto::Ping::default())),
            "must be a Hello",
        ),
        (vec![], frame_message(from_proxy::Message::Hello(foreign)), "version 99"),
        (vec![], frame_message(from_proxy::Message::Hello(nameless)), "workload"),
        (vec![], vec![0x10, 0, 0, 0], "exceeds the limit of 1048576"),
        (framed_hello(), framed_hello(), "second Hello"),
        (framed_hello(), vec![0, 0, 0, 0], "without content"),
        (framed_hello(), vec![0, 0, 0, 1, 0xff], "invalid message"),
        (
            framed_hello(),
            frame_message(from_proxy::Message::Ack(proto::Ack { nonce: 42 })),
            "delta 42",
        ),
        (framed_hello(), frame_message(from_proxy::Message::Subscribe(nobody)), "services"),
        (
            framed_hello(),
            frame_message(from_proxy::Message::Unsubscribe(crowd)),
            "more resources than a proxy",
        ),
        (
            framed_hello(),
            frame_message(from_proxy::Message::Listeners(everywhere)),
            "4096 are allowed",
        ),
    ];
    for (before, bytes, reason) in cases {
        let (served, events) = serve_bytes(&[&before[..], &bytes].concat()).await;
        let error = served.expect_err(reason).to_string();
        assert!(error.contains(reason), "{error} should say {reason}");
        match before.is_empty() {
            true => assert!(events.is_empty(), "{events:?}"),
            false => assert_eq!(events, ["connected", "left 7"]),
        }
    }
}

fn framed_renewal(id: u64) -> Vec<u8> {
    frame_message(from_proxy::Message::Certificate(proto::CertificateRequest { id, csr: vec![9] }))
}

#[tokio::test(start_paused = true)]
async fn a_second_certificate_request_before_the_answer_ends_the_connection() {
    let (server, mut owner, mut far) = start_server();
    let script = async {
        far.write_all(&[framed_hello(), framed_renewal(1)].concat()).await.unwrap();
        let _connected = owner.wait_for_connected().await;
        let _waiting = owner.next_event().await.unwrap();
        far.write_all(&framed_renewal(2)).await.unwrap();
        assert_eq!(owner.next().await, "left 7");
    };
    let (served, ()) = tokio::join!(server, script);
    let error = served.unwrap_err().to_string();
    assert!(error.contains("while another one is pending"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn certificate_requests_in_quick_succession_are_refused() {
    let (server, mut owner, mut far) = start_server();
    let script = async {
        far.write_all(&framed_hello()).await.unwrap();
        let _connected = owner.wait_for_connected().await;
        let (read, mut write) = tokio::io::split(&mut far);
        let mut reader = FrameReader::new(read, 1 << 20);
        for (id, passed_on) in [(1, true), (2, false), (3, true)] {
            write.write_all(&framed_renewal(id)).await.unwrap();
            if passed_on {
                // The owner drops the request, which is a response.
                assert_eq!(owner.next().await, "certify [9]");
            }
            let frame = reader.next().await.unwrap().unwrap();
            let sent = format!("{:?}", proto::ToProxy::decode(frame).unwrap().message);
            assert_eq!(sent.contains("too frequent"), !passed_on, "{id}: {sent}");
            if !passed_on {
                sleep(RENEWAL_INTERVAL_MIN).await;
            }
        }
    };
    tokio::select! {
        () = script => {}
        served = server => panic!("{served:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_asks_and_never_reads_is_not_listened_to() {
    const REQUESTS: usize = 100_000;
    let (server, mut owner, mut far) = start_server();
    let mut asked = 0;
    let script = async {
        far.write_all(&framed_hello()).await.unwrap();
        let _connected = owner.wait_for_connected().await;
        far.write_all(&framed_renewal(0)).await.unwrap();
        assert_eq!(owner.next().await, "certify [9]");
        // The response is being sent; from now on each request is rejected, which is a response too.
        sleep(RENEWAL_INTERVAL_MIN / 2).await;
        let flood = async {
            while asked < REQUESTS {
                far.write_all(&framed_renewal(1)).await.unwrap();
                asked += 1;
            }
        };
        timeout(Duration::from_secs(1), flood).await.unwrap_err();
    };
    tokio::select! {
        () = script => {}
        served = server => panic!("{served:?}"),
    }
    assert!(asked < REQUESTS / 10, "{asked}");
}

#[tokio::test(start_paused = true)]
async fn waits_for_a_proxy_are_bounded() {
    let start = Instant::now();
    let (served, events) = serve_bytes(&[]).await;
    assert!(matches!(served, Err(ServeError::Silent)), "{served:?}");
    assert!(events.is_empty() && start.elapsed() < SILENCE_MAX);

    let (served, events) = serve_bytes(&framed_hello()).await;
    assert!(matches!(served, Err(ServeError::Unacknowledged)), "{served:?}");
    assert_eq!(events, ["connected", "left 7"]);

    let (server, mut owner, mut far) = start_server();
    let script = async {
        far.write_all(&framed_hello()).await.unwrap();
        let connected = owner.wait_for_connected().await;
        connected.responses.send(OwnerResponse::Config(bookinfo_update())).unwrap();
        FrameReader::new(&mut far, 1 << 20).next().await.unwrap().unwrap();
        let start = Instant::now();
        let ack = frame_message(from_proxy::Message::Ack(proto::Ack { nonce: 1 }));
        far.write_all(&ack).await.unwrap();
        assert_eq!(owner.next().await, "applied 1, 0 refused");
        assert_eq!(owner.next().await, "left 7");
        assert_eq!(start.elapsed(), SILENCE_MAX);
        connected
    };
    let (served, _) = tokio::join!(server, script);
    assert!(matches!(served, Err(ServeError::Silent)), "{served:?}");
}

#[tokio::test]
async fn an_idle_connection_is_small() {
    let (server, _owner, _far) = start_server();
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
        let announced = [&[0, 0, 0, u8::try_from(bytes.len()).unwrap()][..], &bytes].concat();
        let later = [&framed_hello()[..], &announced].concat();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        for bytes in [bytes, announced, damaged, later] {
            let (served, events) = runtime.block_on(serve_bytes(&bytes));
            prop_assert!(served.is_err() || events.len() != 1, "{:?} {:?}", served, events);
            prop_assert_ne!(events.last().map(String::as_str), Some("connected"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn joins_are_answered_refused_or_given_up() {
    type Judge = fn(crate::event::PendingJoin);
    let workload: WorkloadName = "bookinfo/gateway-1".parse().unwrap();
    let issued = IssuedCertificate { chain: vec![vec![1]], roots: vec![vec![2]] };
    let judges: [(Judge, &str); 4] = [
        (
            |joining| {
                let chain = vec![joining.csr.clone()];
                joining.answer.send(Ok(IssuedCertificate { chain, roots: vec![vec![2]] })).unwrap();
            },
            "",
        ),
        (|joining| joining.answer.send(Err("used".into())).unwrap(), "rejected the join: used"),
        (drop, "try again"),
        (
            |joining| {
                let crate::PendingJoin { answer, .. } = joining;
                std::mem::forget(answer);
            },
            "in time: try again",
        ),
    ];
    for (judge, reason) in judges {
        let (near, far) = duplex(1024);
        let (sender, mut events) = event_sender();
        let owner = async {
            match events.recv().await.map(|queued| queued.event) {
                Some(Event::JoinRequested(joining)) => {
                    assert_eq!((&*joining.token, &joining.workload), ("secret", &workload));
                    judge(joining);
                }
                other => panic!("not a join: {other:?}"),
            }
        };
        let client = crate::join(far, "secret", &workload, &[1]);
        let (_, joined, ()) =
            tokio::join!(crate::serve_join(near, [127, 0, 0, 1].into(), sender), client, owner);
        match joined {
            Ok(joined) => assert_eq!((joined, reason), (issued.clone(), "")),
            Err(error) => {
                assert!(!reason.is_empty() && error.to_string().contains(reason), "{error}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_join_that_nobody_answers_ends() {
    let (near, _far) = duplex(1024);
    let workload = "bookinfo/gateway-1".parse().unwrap();
    let error = crate::join(near, "secret", &workload, &[1]).await.unwrap_err();
    assert!(matches!(error, crate::JoinError::Timeout), "{error}");
}

#[tokio::test(start_paused = true)]
async fn whatever_is_not_a_join_is_refused() {
    for bytes in [&[0, 0, 0, 0][..], &[0, 0, 0, 2, 0xff, 0xff], &[0, 1, 0, 1], &[0, 0, 0, 9, 1]] {
        let (near, mut far) = duplex(1024);
        far.write_all(bytes).await.unwrap();
        let (sender, mut events) = event_sender();
        assert!(crate::serve_join(near, [127, 0, 0, 1].into(), sender).await.is_err(), "{bytes:?}");
        assert!(events.recv().await.is_none());
    }
}
