//! Floods of HTTP/2 clients: cheap frames that cause much work must not affect other clients.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response};
use leno_model::{Access, Protocol};
use leno_telemetry::Gauge;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::fixture::frames::{
    self, CONTINUATION, DATA, END_HEADERS, GOAWAY, HEADERS, OPENING, PING, RST_STREAM, SETTINGS,
};
use super::fixture::{
    Application, Client, Mesh, Setup, run, test_credential, tls_connect, wait_until,
    wait_until_stable,
};
use super::http2;
use crate::session::ListenerKind;
use crate::tls::ALPN_HTTP2;

/// A connection of any type.
trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}
type FloodingClient = Client<Box<dyn Stream>>;

/// The path of the flooding client to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttackPath {
    /// The application itself, through its own sidecar.
    OutboundListener,
    /// A connection without mutual TLS, at a port that allows it.
    Clear,
    /// A peer without a sidecar.
    Tls,
}

const ATTACK_PATHS: [AttackPath; 3] =
    [AttackPath::OutboundListener, AttackPath::Clear, AttackPath::Tls];

/// A mesh with a request in progress, and a connection of another client that must not be affected.
struct FloodFixture {
    mesh: Mesh,
    app: Application,
    /// The number of requests that the application has received and not responded to.
    held_requests: Rc<Cell<usize>>,
    other_client: Client<TcpStream>,
}

impl FloodFixture {
    /// Starts an application that responds to POST requests only.
    async fn new() -> Self {
        Self::with_setup(Setup::default()).await
    }

    async fn with_setup(setup: Setup) -> Self {
        let held_requests: Rc<Cell<usize>> = Rc::default();
        let count = held_requests.clone();
        let app = http2::start_application(move |request, mut respond| {
            let count = count.clone();
            async move {
                if request.method() != Method::POST {
                    count.set(count.get() + 1);
                    drop(std::future::poll_fn(|cx| respond.poll_reset(cx)).await);
                    return count.set(count.get() - 1);
                }
                let (body, _) = http2::read_body(request.into_body()).await;
                let mut stream = respond.send_response(Response::new(()), false).unwrap();
                stream.send_data(Bytes::from(body), true).unwrap();
            }
        })
        .await;
        let mesh = Mesh::new(app.address, Setup { protocol: Protocol::Http2, ..setup }).await;
        mesh.accept_plaintext(Access::AllowAll);
        let mut other_client = Client::connect(mesh.listener).await;
        other_client.send_bytes("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\n\r\nbef").await;
        wait_until(|| mesh.server.telemetry.gauge(Gauge::RequestsInFlight) == 1).await;
        Self { mesh, app, held_requests, other_client }
    }

    async fn connect_client(&self, attack_path: AttackPath) -> FloodingClient {
        let stream: Box<dyn Stream> = match attack_path {
            AttackPath::OutboundListener => {
                Box::new(TcpStream::connect(self.mesh.listener).await.unwrap())
            }
            AttackPath::Clear => Box::new(TcpStream::connect(self.mesh.inbound).await.unwrap()),
            AttackPath::Tls => {
                let identity = test_credential(&self.mesh.authority, "foreign");
                Box::new(tls_connect(self.mesh.inbound, &identity, &[ALPN_HTTP2]).await.unwrap())
            }
        };
        let mut flooding_client = Client::new(stream);
        flooding_client.send_bytes(OPENING).await;
        assert_eq!(
            flooding_client.read_frame().await.expect("the connection is accepted").kind,
            SETTINGS,
            "{attack_path:?}"
        );
        flooding_client
    }

    fn requests_in_flight(&self) -> u64 {
        self.mesh.server.telemetry.gauge(Gauge::RequestsInFlight)
    }

    /// Asserts that the request of another client succeeds and that no request of the flooding client is in
    /// progress.
    async fn expect_recovery(mut self) {
        self.other_client.send_bytes("ore").await;
        let response = self.other_client.read_response().await;
        assert_eq!((response.status, response.body_text()), (200, "before"));
        wait_until(|| self.requests_in_flight() == 0).await;
        assert_eq!(self.app.accepted.get(), 1, "the application's connection is the same");
    }
}

/// Sends the same bytes repeatedly until the connection ends; returns the error code and the number of
/// repetitions.
async fn send_repeatedly(
    flooding_client: &mut FloodingClient,
    first: &[u8],
    repeated: &[u8],
    max_repetitions: usize,
) -> (Option<u32>, usize) {
    flooding_client.send_bytes(first).await;
    let mut repetitions = 0;
    while repetitions < max_repetitions && flooding_client.stream.write_all(repeated).await.is_ok()
    {
        repetitions += 1;
        // The client reads the sidecar's frames as they arrive, so that only a limit stops the flood.
        tokio::task::yield_now().await;
    }
    drop(flooding_client.stream.flush().await);
    (flooding_client.read_frame_of_kind(GOAWAY).await.map(|frame| frame.error_code()), repetitions)
}

const ENHANCE_YOUR_CALM: u32 = 11;
const PROTOCOL_ERROR: u32 = 1;

/// CVE-2024-27316: a field section that never ends.
#[test]
fn a_head_of_endless_continuations_ends_its_connection() {
    run(async {
        for attack_path in ATTACK_PATHS {
            let fixture = FloodFixture::new().await;
            let request_start =
                frames::encode_frame(HEADERS, 0, 1, &frames::request_block("GET", "/"));
            let fields =
                frames::header_block(&[("x-field", "a value that is kept or thrown away")]);
            for continuation in [fields.repeat(100), Vec::new()] {
                let mut flooding_client = fixture.connect_client(attack_path).await;
                let continuation = frames::encode_frame(CONTINUATION, 0, 1, &continuation);
                let (code, repetitions) =
                    send_repeatedly(&mut flooding_client, &request_start, &continuation, 10_000)
                        .await;
                let expected = [None, Some(ENHANCE_YOUR_CALM), Some(PROTOCOL_ERROR)];
                assert!(expected.contains(&code), "{attack_path:?}: {code:?}");
                assert!(repetitions < 10_000, "{attack_path:?}: all frames were read");
            }
            fixture.expect_recovery().await;
        }
    });
}

/// An incomplete head holds a connection only as long as an idle client may.
#[test]
fn an_incomplete_head_has_the_timeout_of_a_silent_connection() {
    run(async {
        let mut setup = Setup::default();
        setup.limits.idle_connection = Duration::from_millis(300);
        let app = Application::with_response(super::fixture::OK).await;
        let mesh = Mesh::new(app.address, Setup { protocol: Protocol::Http2, ..setup }).await;
        let mut flooding_client = Client::connect(mesh.listener).await;
        flooding_client.send_bytes(OPENING).await;
        flooding_client
            .send_bytes(frames::encode_frame(HEADERS, 0, 1, &frames::request_block("GET", "/")))
            .await;
        let goaway = flooding_client.read_frame_of_kind(GOAWAY).await.expect("a GOAWAY frame");
        assert_eq!(goaway.error_code(), 0);
        assert!(app.received_requests().is_empty());
    });
}

/// CVE-2019-9512, CVE-2019-9515: a client that does not read responses is not read either.
#[test]
fn unread_responses_to_pings_and_settings_stop_reading() {
    run(async {
        for frame in
            [frames::encode_frame(PING, 0, 0, &[0; 8]), frames::encode_frame(SETTINGS, 0, 0, &[])]
        {
            let fixture = FloodFixture::new().await;
            let listener_kind = ListenerKind::Inbound { port: fixture.mesh.server.port };
            let small_buffer_listener =
                fixture.mesh.server.open_small_buffer_listener(listener_kind).await;
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(4096).unwrap();
            let mut flooding_client =
                Client::new(socket.connect(small_buffer_listener).await.unwrap());
            flooding_client.send_bytes(OPENING).await;
            assert_eq!(
                flooding_client.read_frame().await.expect("the connection is accepted").kind,
                SETTINGS
            );
            let mut tcp = flooding_client.stream;
            let sent_bytes = Rc::new(Cell::new(0));
            let (count, repeated_frames) = (sent_bytes.clone(), frame.repeat(100));
            let flood = tokio::task::spawn_local(async move {
                while count.get() < FLOOD_BYTES && tcp.write_all(&repeated_frames).await.is_ok() {
                    count.set(count.get() + repeated_frames.len());
                }
                std::future::pending::<()>().await;
            });
            let sent_bytes = wait_until_stable(|| sent_bytes.get()).await;
            assert!(sent_bytes < FLOOD_BYTES, "{sent_bytes} bytes of frames were read");
            flood.abort();
            fixture.expect_recovery().await;
        }
    });
}

/// A number of bytes that far exceeds the buffers of sockets with small buffers.
const FLOOD_BYTES: usize = 16 * 1024 * 1024;

/// CVE-2023-44487: streams that are opened and reset at once.
#[test]
fn streams_that_are_reset_at_once_end_their_connection() {
    run(async {
        for attack_path in ATTACK_PATHS {
            let fixture = FloodFixture::new().await;
            let mut flooding_client = fixture.connect_client(attack_path).await;
            let mut burst = Vec::new();
            for stream in 0..2_000 {
                let stream = 1 + 2 * stream;
                burst.extend(frames::get(stream));
                burst.extend(frames::encode_frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
            }
            drop(flooding_client.stream.write_all(&burst).await);
            drop(flooding_client.stream.flush().await);
            let code =
                flooding_client.read_frame_of_kind(GOAWAY).await.map(|frame| frame.error_code());
            assert!([None, Some(ENHANCE_YOUR_CALM)].contains(&code), "{attack_path:?}: {code:?}");
            fixture.expect_recovery().await;
        }
    });
}

/// Each stream is reset only after the sidecar has processed it and started its exchange.
#[test]
fn streams_reset_one_by_one_end_the_connection_of_a_peer_without_a_sidecar() {
    run(async {
        for attack_path in [AttackPath::Clear, AttackPath::Tls] {
            let fixture = FloodFixture::new().await;
            let mut flooding_client = fixture.connect_client(attack_path).await;
            let mut round_count = 0;
            let code = loop {
                let streams = round_streams(round_count, 50);
                if flooding_client.stream.write_all(&request_frames(&streams)).await.is_err() {
                    break None;
                }
                // Either the streams are served, or the limit is reached.
                tokio::select! {
                    biased;
                    () = wait_until(|| fixture.held_requests.get() == 50) => {}
                    goaway = flooding_client.read_frame_of_kind(GOAWAY) => break goaway.map(|frame| frame.error_code()),
                }
                flooding_client.stream.write_all(&reset_frames(&streams)).await.unwrap();
                wait_until(|| fixture.held_requests.get() == 0).await;
                round_count += 1;
                assert!(round_count < 100, "{attack_path:?}: the number of rounds is not limited");
            };
            assert!([None, Some(ENHANCE_YOUR_CALM)].contains(&code), "{attack_path:?}: {code:?}");
            assert!(
                round_count > 10,
                "{attack_path:?}: a valid peer may need {round_count} rounds"
            );
            fixture.expect_recovery().await;
        }
    });
}

/// Returns the stream IDs of a round of `streams` streams.
fn round_streams(number: u32, streams: u32) -> Vec<u32> {
    (0..streams).map(|index| 1 + 2 * (number * streams + index)).collect()
}

fn request_frames(streams: &[u32]) -> Vec<u8> {
    streams.iter().flat_map(|stream| frames::get(*stream)).collect()
}

fn reset_frames(streams: &[u32]) -> Vec<u8> {
    let reset = |stream: &u32| frames::encode_frame(RST_STREAM, 0, *stream, &8_u32.to_be_bytes());
    streams.iter().flat_map(reset).collect()
}

/// CVE-2019-9518: frames without data or an end.
#[test]
fn a_flood_of_empty_data_frames_ends_the_connection() {
    run(async {
        for attack_path in ATTACK_PATHS {
            let fixture = FloodFixture::new().await;
            let mut flooding_client = fixture.connect_client(attack_path).await;
            let request_start =
                frames::encode_frame(HEADERS, END_HEADERS, 1, &frames::request_block("POST", "/"));
            flooding_client.send_bytes(request_start).await;
            let empty_frames = frames::encode_frame(DATA, 0, 1, &[]).repeat(100);
            for _ in 0..500 {
                if flooding_client.stream.write_all(&empty_frames).await.is_err() {
                    break;
                }
            }
            let code =
                flooding_client.read_frame_of_kind(GOAWAY).await.map(|frame| frame.error_code());
            assert!([None, Some(ENHANCE_YOUR_CALM)].contains(&code), "{attack_path:?}: {code:?}");
            fixture.expect_recovery().await;
        }
    });
}

/// Cancellations of one client must not end streams of others on the same link.
#[test]
fn a_long_response_survives_thousands_of_canceled_requests() {
    run(async {
        let mut fixture = FloodFixture::new().await;
        let mut flooding_client = fixture.connect_client(AttackPath::OutboundListener).await;
        // More requests than one link permits resets.
        for number in 0..50 {
            let streams = round_streams(number, 100);
            flooding_client.send_bytes(request_frames(&streams)).await;
            wait_until(|| fixture.held_requests.get() == 100).await;
            flooding_client.send_bytes(reset_frames(&streams)).await;
            wait_until(|| fixture.held_requests.get() == 0).await;
        }
        let links = || fixture.mesh.client.telemetry.gauge(Gauge::LinksUpstream);
        assert!(links() > 1, "another link was opened");
        fixture.other_client.send_bytes("ore").await;
        assert_eq!(fixture.other_client.read_response().await.body_text(), "before");
        // The exhausted link ends with its last stream.
        let links = || fixture.mesh.client.telemetry.gauge(Gauge::LinksUpstream);
        wait_until(|| links() == 1).await;
    });
}
