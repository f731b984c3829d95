//! Memory that does not depend on how long a body is, and hardly on who does not read it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use leno_tests::manifests::{client, mesh_config, server};
use leno_tests::stream::{check, narrow, produce};
use leno_tests::{Mesh, Sidecar, Streaming, eventually, free_port};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockRef, Socket, Type};

use super::loopback;

/// How much a body that passes may add to a sidecar's private memory, whatever its length.
const BODY_KIB_MAX: u64 = 1024;
/// How much a reader that does not read may add to its own sidecar, and to the server's. See
/// `docs/link.md`.
const READER_KIB_MAX: [u64; 2] = [256, 96];
const READERS: usize = 1000;
/// Far more than the kernel holds of one answer that nobody reads.
const ANSWER_BYTES: u64 = 4 * 1024 * 1024;
const GIB: u64 = 1024 * 1024 * 1024;

/// Two sidecars, and an application that streams.
struct Pair {
    _mesh: Mesh,
    application: Streaming,
    sidecars: [Sidecar; 2],
    door: SocketAddr,
}

impl Pair {
    fn up(application: Streaming) -> Self {
        let door = free_port();
        let manifests = [
            mesh_config("permissive"),
            server("web", application.port(), &[]),
            client("user", &[], &[("web.shop", door)]),
        ];
        // Who reads nothing for a minute is given up, and a busy machine takes its time.
        let mesh = Mesh::up_with(&manifests.concat(), &["--body-stall-timeout", "10m"]);
        let sidecars = [mesh.sidecar("shop/user-1"), mesh.sidecar("shop/web-1")];
        let pair = Self { _mesh: mesh, application, sidecars, door: loopback(door) };
        // What the first connections and a first body bring along is not the price of more.
        pair.download(16 * 1024 * 1024);
        pair.upload(16 * 1024 * 1024);
        pair
    }

    fn private_kib(&self) -> [u64; 2] {
        self.sidecars.each_ref().map(Sidecar::private_kib)
    }

    /// Waits until the application can give away nothing more.
    fn settles(&self) {
        let mut looks = (0, 0);
        eventually("nothing moves any more", Duration::from_secs(60), || {
            // Reading the memory of two processes takes milliseconds.
            let (given, _) = (self.application.given(), self.private_kib());
            looks = if given == looks.0 { (given, looks.1 + 1) } else { (given, 0) };
            (looks.1 >= 100).then_some(())
        });
    }

    /// Reads an answer of so many bytes; returns the most that each sidecar held meanwhile.
    fn download(&self, length: u64) -> [u64; 2] {
        let mut tcp = ask(TcpStream::connect(self.door).unwrap(), length);
        let mut most = Most::of(self);
        check(&mut tcp, length, |bytes| most.passed(bytes)).unwrap();
        most.kib
    }

    /// Sends a request of so many bytes; returns the most that each sidecar held meanwhile.
    fn upload(&self, length: u64) -> [u64; 2] {
        let mut tcp = TcpStream::connect(self.door).unwrap();
        write!(tcp, "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: {length}\r\n\r\n").unwrap();
        let mut most = Most::of(self);
        produce(&mut tcp, length, |bytes| most.passed(bytes)).unwrap();
        let mut answer = [0; 1024];
        let read = tcp.read(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer[..read]);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        most.kib
    }
}

/// The most memory that was seen, looked at now and then.
struct Most<'a> {
    pair: &'a Pair,
    since: u64,
    kib: [u64; 2],
}

impl<'a> Most<'a> {
    fn of(pair: &'a Pair) -> Self {
        Self { pair, since: 0, kib: pair.private_kib() }
    }

    fn passed(&mut self, bytes: u64) {
        self.since += bytes;
        if self.since >= 64 * 1024 * 1024 {
            self.since = 0;
            let now = self.pair.private_kib();
            self.kib = [self.kib[0].max(now[0]), self.kib[1].max(now[1])];
        }
    }
}

/// Asks for an answer of so many bytes and reads its head.
fn ask(mut tcp: TcpStream, length: u64) -> TcpStream {
    tcp.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    tcp.write_all(format!("GET /{length} HTTP/1.1\r\nhost: web\r\n\r\n").as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        tcp.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
    tcp
}

/// A client for which the kernel keeps little.
fn reader(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    narrow(SockRef::from(&socket));
    socket.connect(&address.into()).unwrap();
    ask(socket.into(), ANSWER_BYTES)
}

/// Bodies of so many bytes, one each way: neither sidecar holds more than after a short one.
fn passes(length: u64) {
    let pair = Pair::up(Streaming::start());
    let before = pair.private_kib();
    for (way, most) in [("down", pair.download(length)), ("up", pair.upload(length))] {
        let gib = length / GIB;
        eprintln!(
            "{gib} GiB {way}: {before:?} → at most {most:?} KiB (client's, server's sidecar)"
        );
        for (before, most) in before.iter().zip(most) {
            let grown = most.saturating_sub(*before);
            assert!(grown <= BODY_KIB_MAX, "{grown} KiB more for {gib} GiB {way}");
        }
    }
}

#[test]
fn a_long_body_costs_no_more_than_a_short_one() {
    passes(GIB);
}

#[test]
#[ignore = "half a minute of a core each way, which others would feel: `./test bulk`"]
fn ten_gibibytes_cost_no_more_than_a_short_body() {
    passes(10 * GIB);
}

#[test]
fn a_thousand_readers_that_do_not_read_hold_a_bounded_part_of_their_answers() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let pair = Pair::up(Streaming::start_narrow());
    let before = pair.private_kib();
    for round in ["first", "next"] {
        let mut readers: Vec<_> = (0..READERS).map(|_| reader(pair.door)).collect();
        pair.settles();
        let after = pair.private_kib();
        eprintln!("the {round} {READERS} readers: {before:?} → {after:?} KiB");
        for ((before, after), most) in before.iter().zip(after).zip(READER_KIB_MAX) {
            let each = after.saturating_sub(*before) / READERS as u64;
            assert!(each <= most, "{each} KiB for each reader");
        }
        // Others are served meanwhile, and who reads on gets all of it.
        pair.download(1024 * 1024);
        for reader in readers.iter_mut().step_by(100) {
            SockRef::from(&*reader).set_recv_buffer_size(1024 * 1024).unwrap();
            check(reader, ANSWER_BYTES, |_| {}).unwrap();
        }
        drop(readers);
        eventually("nobody is waited for", Duration::from_secs(20), || {
            let open = |sidecar: &Sidecar| sidecar.metric("leno_requests_in_flight");
            pair.sidecars.iter().all(|sidecar| open(sidecar) == 0.0).then_some(())
        });
    }
}
