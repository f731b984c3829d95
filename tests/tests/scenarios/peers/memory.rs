//! Memory usage, independent of body length and nearly independent of slow readers.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::stream::{check_body, narrow_buffers, write_body};
use leno_tests::{RunningSidecar, StreamingApplication, TestMesh, eventually, free_port};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockRef, Socket, Type};

use super::loopback_address;

/// The maximum increase of a sidecar's private memory by a body in transit, whatever its length.
const MAX_BODY_KIB: u64 = 1024;
/// The maximum memory per stalled reader, for the reader's sidecar and the server's sidecar. See `docs/link.md`.
const MAX_READER_KIB: [u64; 2] = [256, 96];
const READER_COUNT: usize = 1000;
/// The same maxima per HTTP/2 stream. See `docs/http2.md`.
const MAX_STREAM_KIB: [u64; 2] = [256, 96];
/// The streams per connection, and the length of a response on each.
const STREAMS_PER_CONNECTION: usize = 100;
const STREAM_BYTES: u64 = 1024 * 1024;
/// The END_STREAM flag of a frame (RFC 9113 §6).
const END_STREAM: u8 = 1;
/// The length of a response, far more than the kernel buffers of an unread response.
const RESPONSE_BYTES: u64 = 4 * 1024 * 1024;
const GIB: u64 = 1024 * 1024 * 1024;

/// Two sidecars, and an application that streams.
struct SidecarPair {
    _mesh: TestMesh,
    application: StreamingApplication,
    /// The client's sidecar, and the server's.
    sidecars: [RunningSidecar; 2],
    listener: SocketAddr,
}

impl SidecarPair {
    fn start_http1(application: StreamingApplication) -> Self {
        let server = server_manifest("web", application.port(), &[]);
        Self::start_pair(application, server)
    }

    /// Starts a pair with a listener that also accepts HTTP/2; the application receives HTTP/1.1.
    fn start_http2(application: StreamingApplication) -> Self {
        let server = server_manifest("web", application.port(), &[])
            .replace("targetPort: main", "targetPort: main, appProtocol: kubernetes.io/h2c");
        Self::start_pair(application, server)
    }

    fn start_pair(application: StreamingApplication, server: String) -> Self {
        let listener = free_port();
        let manifests =
            [mesh_config("allow"), server, client_manifest("user", &[], &[("web.shop", listener)])];
        // The default stall timeout is a minute, and a busy machine may be slow.
        let mesh = TestMesh::up_with(&manifests.concat(), &["--body-stall-timeout", "10m"]);
        let sidecars = [mesh.sidecar("shop/user-1"), mesh.sidecar("shop/web-1")];
        let pair =
            Self { _mesh: mesh, application, sidecars, listener: loopback_address(listener) };
        // One-time allocations by the first connections and a first body are not counted.
        pair.download_body(16 * 1024 * 1024);
        pair.upload_body(16 * 1024 * 1024);
        pair
    }

    /// Returns the private memory of each sidecar.
    fn private_kib(&self) -> [u64; 2] {
        self.sidecars.each_ref().map(RunningSidecar::private_kib)
    }

    /// Waits until the application cannot send any more bytes.
    fn wait_until_idle(&self) {
        let mut last_sample = (0, 0);
        eventually("no more bytes are sent", Duration::from_secs(300), || {
            // Reading the memory of two processes takes milliseconds.
            let (sent_bytes, _) = (self.application.sent_bytes(), self.private_kib());
            last_sample = if sent_bytes == last_sample.0 {
                (sent_bytes, last_sample.1 + 1)
            } else {
                (sent_bytes, 0)
            };
            (last_sample.1 >= 100).then_some(())
        });
    }

    /// Opens a thousand stalled responses, and then a thousand more: each costs a sidecar at most this number
    /// of KiB, and responses that are read later are complete.
    fn assert_reader_memory(
        &self,
        connect: impl Fn() -> Vec<TcpStream>,
        max_kib: [u64; 2],
        read_responses: impl Fn(&mut [TcpStream]),
    ) {
        let memory_before = self.private_kib();
        let in_flight = |sidecar: &RunningSidecar| sidecar.sum_metrics("leno_requests_in_flight");
        for round in ["first", "next"] {
            let mut readers = connect();
            eventually("all requests are in flight", Duration::from_secs(300), || {
                let all_in_flight =
                    |sidecar: &RunningSidecar| in_flight(sidecar) >= READER_COUNT as f64;
                self.sidecars.iter().all(all_in_flight).then_some(())
            });
            self.wait_until_idle();
            let memory_after = self.private_kib();
            eprintln!(
                "the {round} {READER_COUNT} readers: {memory_before:?} → {memory_after:?} KiB"
            );
            for ((memory_before, memory_after), max_kib) in
                memory_before.iter().zip(memory_after).zip(max_kib)
            {
                let kib_per_reader =
                    memory_after.saturating_sub(*memory_before) / READER_COUNT as u64;
                assert!(kib_per_reader <= max_kib, "{kib_per_reader} KiB for each reader");
            }
            // Other clients are served meanwhile, and resumed readers receive the complete response.
            self.download_body(1024 * 1024);
            read_responses(&mut readers);
            drop(readers);
            eventually("no request is in flight", Duration::from_secs(20), || {
                self.sidecars.iter().all(|sidecar| in_flight(sidecar) == 0.0).then_some(())
            });
        }
    }

    /// Reads a response of this length; returns each sidecar's peak memory meanwhile.
    fn download_body(&self, length: u64) -> [u64; 2] {
        let mut stream = request_body(TcpStream::connect(self.listener).unwrap(), length);
        let mut peak_memory = PeakMemory::for_pair(self);
        check_body(&mut stream, length, |bytes| peak_memory.add_bytes(bytes)).unwrap();
        peak_memory.peak_kib
    }

    /// Sends a request of this length; returns each sidecar's peak memory meanwhile.
    fn upload_body(&self, length: u64) -> [u64; 2] {
        let mut stream = TcpStream::connect(self.listener).unwrap();
        write!(stream, "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: {length}\r\n\r\n").unwrap();
        let mut peak_memory = PeakMemory::for_pair(self);
        write_body(&mut stream, length, |bytes| peak_memory.add_bytes(bytes)).unwrap();
        let mut response = [0; 1024];
        let read = stream.read(&mut response).unwrap();
        let response = String::from_utf8_lossy(&response[..read]);
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        peak_memory.peak_kib
    }
}

/// The peak memory of periodic samples.
struct PeakMemory<'a> {
    pair: &'a SidecarPair,
    bytes_since_sample: u64,
    peak_kib: [u64; 2],
}

impl<'a> PeakMemory<'a> {
    fn for_pair(pair: &'a SidecarPair) -> Self {
        Self { pair, bytes_since_sample: 0, peak_kib: pair.private_kib() }
    }

    fn add_bytes(&mut self, bytes: u64) {
        self.bytes_since_sample += bytes;
        if self.bytes_since_sample >= 64 * 1024 * 1024 {
            self.bytes_since_sample = 0;
            let current_kib = self.pair.private_kib();
            self.peak_kib =
                [self.peak_kib[0].max(current_kib[0]), self.peak_kib[1].max(current_kib[1])];
        }
    }
}

/// Requests a response of this length and reads its head.
fn request_body(mut stream: TcpStream, length: u64) -> TcpStream {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(format!("GET /{length} HTTP/1.1\r\nhost: web\r\n\r\n").as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
    stream
}

/// Returns a connection with small socket buffers.
fn small_buffer_connection(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    narrow_buffers(SockRef::from(&socket));
    socket.connect(&address.into()).unwrap();
    socket.into()
}

/// Returns a client that has read only the head of its response.
fn stalled_reader(address: SocketAddr) -> TcpStream {
    request_body(small_buffer_connection(address), RESPONSE_BYTES)
}

/// Returns an HTTP/2 client that requests many responses at once with unlimited windows, and reads nothing.
fn request_many(address: SocketAddr) -> TcpStream {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut write_frame = |frame_type: u8, flags: u8, stream_id: u32, payload: &[u8]| {
        bytes.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
        bytes.extend_from_slice(&[frame_type, flags]);
        bytes.extend_from_slice(&stream_id.to_be_bytes());
        bytes.extend_from_slice(payload);
    };
    // Neither the streams nor the connection have a window that could be exhausted (RFC 9113 §6.5.2, §6.9).
    // SETTINGS with INITIAL_WINDOW_SIZE 2³¹−1, then WINDOW_UPDATE from the initial 65,535 bytes to the same size.
    write_frame(4, 0, 0, &[0, 4, 0x7F, 0xFF, 0xFF, 0xFF]);
    write_frame(8, 0, 0, &(0x7FFF_FFFF_u32 - 65_535).to_be_bytes());
    let path = format!("/{STREAM_BYTES}");
    // GET, http, and literals for the path and the authority (RFC 7541 §6).
    let mut header_block = vec![0x82, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    header_block.extend_from_slice(path.as_bytes());
    header_block.extend_from_slice(b"\x01\x03web");
    for stream_id in (1..).step_by(2).take(STREAMS_PER_CONNECTION) {
        // HEADERS, with the flag END_HEADERS (4).
        write_frame(1, END_STREAM | 4, stream_id, &header_block);
    }
    let mut connection = small_buffer_connection(address);
    connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    connection.write_all(&bytes).unwrap();
    connection
}

/// Reads all responses on an HTTP/2 connection to their ends.
fn read_many_responses(stream: &mut TcpStream) {
    SockRef::from(&*stream).set_recv_buffer_size(1024 * 1024).unwrap();
    let mut reader = BufReader::with_capacity(64 * 1024, stream);
    let (mut ended_streams, mut read_bytes) = (0, 0);
    while ended_streams < STREAMS_PER_CONNECTION {
        let mut frame_head = [0; 9];
        reader.read_exact(&mut frame_head).unwrap();
        let length = usize::from(frame_head[0]) << 16
            | usize::from(frame_head[1]) << 8
            | usize::from(frame_head[2]);
        let mut payload = vec![0; length];
        reader.read_exact(&mut payload).unwrap();
        match frame_head[3] {
            // DATA.
            0 => read_bytes += length as u64,
            // HEADERS, which begin with status 200 of the static table.
            1 => assert_eq!(payload[0], 0x88, "the response has status 200"),
            // Otherwise only SETTINGS and WINDOW_UPDATE are expected.
            frame_type => assert!(
                frame_type == 4 || frame_type == 8,
                "a frame of kind {frame_type}: {payload:?}"
            ),
        }
        ended_streams += usize::from(frame_head[3] < 2 && frame_head[4] & END_STREAM != 0);
    }
    assert_eq!(read_bytes, STREAMS_PER_CONNECTION as u64 * STREAM_BYTES);
}

/// Transfers bodies of this length, one in each direction: neither sidecar needs more memory than for a short
/// body.
fn assert_transfers(length: u64) {
    let pair = SidecarPair::start_http1(StreamingApplication::start());
    let memory_before = pair.private_kib();
    for (direction, peak_kib) in
        [("down", pair.download_body(length)), ("up", pair.upload_body(length))]
    {
        let gib = length / GIB;
        eprintln!(
            "{gib} GiB {direction}: {memory_before:?} → at most {peak_kib:?} KiB (client's, server's sidecar)"
        );
        for (memory_before, peak_kib) in memory_before.iter().zip(peak_kib) {
            let growth = peak_kib.saturating_sub(*memory_before);
            assert!(growth <= MAX_BODY_KIB, "{growth} KiB more for {gib} GiB {direction}");
        }
    }
}

#[test]
fn a_long_body_needs_no_more_memory_than_a_short_one() {
    assert_transfers(GIB);
}

#[test]
#[ignore = "uses a core for half a minute in each direction: `./test bulk` runs it"]
fn ten_gibibytes_cost_no_more_than_a_short_body() {
    assert_transfers(10 * GIB);
}

#[test]
fn memory_of_a_thousand_stalled_responses_is_bounded() {
    raise_file_limit();
    let pair = SidecarPair::start_http1(StreamingApplication::start_narrow());
    let connect = || (0..READER_COUNT).map(|_| stalled_reader(pair.listener)).collect::<Vec<_>>();
    pair.assert_reader_memory(connect, MAX_READER_KIB, |readers| {
        for reader in readers.iter_mut().step_by(100) {
            SockRef::from(&*reader).set_recv_buffer_size(1024 * 1024).unwrap();
            check_body(reader, RESPONSE_BYTES, |_| {}).unwrap();
        }
    });
}

#[test]
fn memory_of_a_thousand_stalled_http2_streams_is_bounded() {
    raise_file_limit();
    let pair = SidecarPair::start_http2(StreamingApplication::start_narrow());
    let connection_count = READER_COUNT / STREAMS_PER_CONNECTION;
    let connect = || (0..connection_count).map(|_| request_many(pair.listener)).collect::<Vec<_>>();
    pair.assert_reader_memory(connect, MAX_STREAM_KIB, |readers| {
        read_many_responses(&mut readers[0])
    });
}

/// Raises the limit of open files: a thousand connections exceed the usual default.
fn raise_file_limit() {
    let file_limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: file_limit.maximum, ..file_limit }).unwrap();
}
