//! Hostile clients: malformed, slow, oversized and aborted requests are rejected within bounds and do not
//! affect others.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{
    ApplicationReply, Response, RunningSidecar, TestApplication, TestConnection, TestMesh,
    eventually, free_port,
};

use super::loopback_address;

struct AttackedMesh {
    user: RunningSidecar,
    web: RunningSidecar,
    listener: SocketAddr,
    /// The number of complete requests received by the application.
    completed_requests: Arc<AtomicUsize>,
    _application: TestApplication,
    _mesh: TestMesh,
}

fn start_target() -> AttackedMesh {
    let completed_requests = Arc::new(AtomicUsize::new(0));
    let counter = completed_requests.clone();
    let application = TestApplication::start(move |request| {
        counter.fetch_add(1, Ordering::Relaxed);
        ApplicationReply::ok(&request.body)
    });
    let listener = free_port();
    let manifests = [
        mesh_config("allow"),
        server_manifest("web", application.port(), &[]),
        client_manifest("user", &[], &[("web.shop", listener)]),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let (user, web) = (mesh.sidecar("shop/user-1"), mesh.sidecar("shop/web-1"));
    let target = AttackedMesh {
        user,
        web,
        listener: loopback_address(listener),
        completed_requests,
        _application: application,
        _mesh: mesh,
    };
    target.assert_still_serves();
    target
}

impl AttackedMesh {
    fn assert_still_serves(&self) {
        assert_eq!(TestConnection::open(self.listener).unwrap().get("/").unwrap().status, 200);
    }

    /// Sends bytes to the listener and returns the first response.
    fn send_bytes(&self, bytes: impl AsRef<[u8]>) -> std::io::Result<Response> {
        let mut connection = TestConnection::open(self.listener)?;
        // The response may arrive, and the connection close, before all bytes are sent.
        drop(connection.send(bytes));
        connection.receive_response()
    }
}

#[test]
fn malformed_requests_are_rejected_with_a_reason() {
    let target = start_target();
    let many: String = (0..1000).map(|i| format!("x-{i}: {i}\r\n")).collect();
    let head = |fields: &str| format!("GET / HTTP/1.1\r\nhost: web\r\n{fields}\r\n");
    let field = |length: usize| head(&format!("x: {}\r\n", "a".repeat(length)));
    for (input, bytes, status, reason) in [
        ("a head of 60 KiB", field(60 * 1024), 200, None),
        ("a head of 65 KiB", field(65 * 1024), 431, Some("head-too-large")),
        ("a head of a megabyte", field(1024 * 1024), 431, Some("head-too-large")),
        ("1,000 fields", head(&many), 431, Some("head-too-large")),
        ("garbage", "\u{1}\u{2}\u{3}\u{4} garbage\r\n\r\n".to_owned(), 400, Some("bad-request")),
        ("no target", "GET\r\n\r\n".to_owned(), 400, Some("bad-request")),
        (
            "two lengths",
            head("content-length: 1\r\ncontent-length: 2\r\n"),
            400,
            Some("bad-request"),
        ),
        (
            "a length and chunks",
            head("content-length: 1\r\ntransfer-encoding: chunked\r\n"),
            400,
            Some("bad-request"),
        ),
        ("a negative length", head("content-length: -1\r\n"), 400, Some("bad-request")),
        ("a folded field", head("x: a\r\n b\r\n"), 400, Some("bad-request")),
        ("a space before the colon", head("x : a\r\n"), 400, Some("bad-request")),
        ("two hosts", head("host: other\r\n"), 400, Some("bad-request")),
        (
            "a chunk without a size",
            head("transfer-encoding: chunked\r\n") + "zz\r\n",
            400,
            Some("bad-request"),
        ),
    ] {
        let response = target.send_bytes(&bytes).unwrap_or_else(|error| panic!("{input}: {error}"));
        assert_eq!((response.status, response.rejection_reason()), (status, reason), "{input}");
    }
    target.assert_still_serves();
}

#[test]
fn a_body_with_a_wrong_length_is_never_complete() {
    let target = start_target();
    let before = target.completed_requests.load(Ordering::Relaxed);
    let post =
        |length: usize| format!("POST / HTTP/1.1\r\nhost: web\r\ncontent-length: {length}\r\n\r\n");
    for truncated in
        [post(100) + "short", chunked_request("5\r\nshort"), chunked_request("5\r\nshort\r\n")]
    {
        let mut connection = TestConnection::open(target.listener).unwrap();
        connection.send(&truncated).unwrap();
        connection.shut_down_sending().unwrap();
        let response = connection.read_to_end().unwrap_or_default();
        assert!(!String::from_utf8_lossy(&response).contains(" 200 "), "{truncated:?}");
    }
    target.assert_still_serves();
    let completed = target.completed_requests.load(Ordering::Relaxed) - before;
    assert_eq!(completed, 1, "the application received only the last request");
    // Bytes beyond the declared length are the next request, which is invalid here.
    let mut connection = TestConnection::open(target.listener).unwrap();
    connection.send(post(5) + "five!and more\r\n\r\n").unwrap();
    assert_eq!(connection.receive_response().unwrap().body, b"five!");
    assert_eq!(connection.receive_response().unwrap().status, 400);
    assert_eq!(connection.read_to_end().unwrap(), b"", "then the connection is closed");
    target.assert_still_serves();
}

fn chunked_request(chunks: &str) -> String {
    format!("POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n{chunks}")
}

#[test]
fn a_slow_request_head_times_out() {
    let target = start_target();
    let mut slow: Vec<TestConnection> =
        (0..20).map(|_| TestConnection::open(target.listener).unwrap()).collect();
    let mut handshake = TestConnection::open(target.web.inbound.unwrap()).unwrap();
    let started = Instant::now();
    // The beginning of a TLS record with an incomplete ClientHello.
    handshake.send([22, 3, 1, 1, 0, 1, 0, 0, 252]).unwrap();
    for connection in &mut slow {
        connection.send("GET / HTTP/1.1\r\nx: ").unwrap();
    }
    // Sends single bytes repeatedly, and checks for the response.
    while !slow[0].has_activity(Duration::from_millis(200)).unwrap() {
        for connection in &mut slow {
            // The sidecar may have closed the connection since the check.
            drop(connection.send("a"));
        }
        assert!(started.elapsed() < Duration::from_secs(15), "a slow head does not time out");
    }
    for mut connection in slow {
        let response = connection.receive_response().unwrap();
        assert_eq!((response.status, response.rejection_reason()), (408, Some("head-timeout")));
    }
    assert!(started.elapsed() > Duration::from_secs(5), "a head has more than five seconds");
    assert!(
        handshake.has_activity(Duration::from_secs(5)).unwrap_or(true),
        "a slow handshake times out as well"
    );
    assert_eq!(
        handshake.read_to_end().unwrap_or_default(),
        b"",
        "the connection is closed without bytes"
    );
    target.assert_still_serves();
}

#[test]
fn garbage_and_aborted_requests_do_not_grow_memory() {
    let target = start_target();
    let proxy = target.user.proxy;
    let inbound = target.web.inbound.unwrap();
    let garbage = "\u{16}\u{3}\u{1}\u{7f}\u{7f} no hello of any kind\r\n\r\n";
    assert_eq!(TestConnection::open(proxy).unwrap().get("/").unwrap().status, 404, "host: test");
    // A warm-up: one-time allocations are made before the measurement.
    open_and_close(&target, 200);
    let before = (target.user.private_kib(), target.web.private_kib());
    open_and_close(&target, 2000);
    for _ in 0..50 {
        for address in [target.listener, proxy, inbound] {
            let mut connection = TestConnection::open(address).unwrap();
            connection.send(garbage).unwrap();
            // The connection is rejected, reset or closed, but never served.
            drop(connection.shut_down_sending());
            let response = connection.read_to_end().unwrap_or_default();
            assert!(!String::from_utf8_lossy(&response).contains(" 200 "), "{address}");
        }
    }
    target.assert_still_serves();
    let after = (target.user.private_kib(), target.web.private_kib());
    eprintln!("the client's sidecar: {} → {} KiB", before.0, after.0);
    eprintln!("the server's sidecar: {} → {} KiB", before.1, after.1);
    assert!(after.0 < before.0 + 1024 && after.1 < before.1 + 1024, "{before:?} → {after:?}");
}

/// Opens connections and closes them immediately, some in the middle of a request.
fn open_and_close(target: &AttackedMesh, times: usize) {
    let inbound = target.web.inbound.unwrap();
    for index in 0..times {
        let address = [target.listener, target.user.proxy, inbound][index % 3];
        let mut connection = TestConnection::open(address).unwrap();
        if index % 2 == 0 {
            connection.send("GET / HT").unwrap();
        }
    }
    eventually("the sidecar serves requests afterwards", Duration::from_secs(10), || {
        TestConnection::open(target.listener)
            .ok()?
            .get("/")
            .ok()
            .filter(|response| response.status == 200)
    });
}
