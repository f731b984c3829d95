//! Hostile clients: malformed, slow, oversized and aborted requests are rejected within bounds and do not
//! affect other clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{
    ApplicationResponse, Response, RunningSidecar, TestApplication, TestConnection, TestMesh,
    eventually, free_port,
};

use super::loopback_address;

/// A mesh of the client `user` and the server `web`.
struct AttackedMesh {
    user: RunningSidecar,
    web: RunningSidecar,
    /// The listener of the client's sidecar, which receives the attacks.
    listener: SocketAddr,
    /// The number of complete requests received by the application.
    completed_requests: Arc<AtomicUsize>,
    _application: TestApplication,
    _mesh: TestMesh,
}

fn start_attacked_mesh() -> AttackedMesh {
    let completed_requests = Arc::new(AtomicUsize::new(0));
    let request_counter = completed_requests.clone();
    let application = TestApplication::start(move |request| {
        request_counter.fetch_add(1, Ordering::Relaxed);
        ApplicationResponse::ok(&request.body)
    });
    let listener = free_port();
    let manifests = [
        mesh_config("allow"),
        server_manifest("web", application.port(), &[]),
        client_manifest("user", &[], &[("web.shop", listener)]),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let (user, web) = (mesh.sidecar("shop/user-1"), mesh.sidecar("shop/web-1"));
    let attacked_mesh = AttackedMesh {
        user,
        web,
        listener: loopback_address(listener),
        completed_requests,
        _application: application,
        _mesh: mesh,
    };
    attacked_mesh.assert_still_serves();
    attacked_mesh
}

impl AttackedMesh {
    fn assert_still_serves(&self) {
        assert_eq!(TestConnection::open(self.listener).unwrap().get("/").unwrap().status, 200);
    }

    /// Sends bytes to the listener and returns the first response.
    fn send_bytes(&self, request_bytes: impl AsRef<[u8]>) -> std::io::Result<Response> {
        let mut connection = TestConnection::open(self.listener)?;
        // The response may arrive, and the connection close, before all bytes are sent.
        drop(connection.send(request_bytes));
        connection.receive_response()
    }
}

#[test]
fn malformed_requests_are_rejected_with_a_reason() {
    let attacked_mesh = start_attacked_mesh();
    let many_fields: String = (0..1000).map(|number| format!("x-{number}: {number}\r\n")).collect();
    let request_head = |fields: &str| format!("GET / HTTP/1.1\r\nhost: web\r\n{fields}\r\n");
    let request_with_field =
        |length: usize| request_head(&format!("x: {}\r\n", "a".repeat(length)));
    for (input, request_bytes, status, reason) in [
        ("a head of 60 KiB", request_with_field(60 * 1024), 200, None),
        ("a head of 65 KiB", request_with_field(65 * 1024), 431, Some("head-too-large")),
        ("a head of a megabyte", request_with_field(1024 * 1024), 431, Some("head-too-large")),
        ("1,000 fields", request_head(&many_fields), 431, Some("head-too-large")),
        ("garbage", "\u{1}\u{2}\u{3}\u{4} garbage\r\n\r\n".to_owned(), 400, Some("bad-request")),
        ("no target", "GET\r\n\r\n".to_owned(), 400, Some("bad-request")),
        (
            "two lengths",
            request_head("content-length: 1\r\ncontent-length: 2\r\n"),
            400,
            Some("bad-request"),
        ),
        (
            "a length and chunks",
            request_head("content-length: 1\r\ntransfer-encoding: chunked\r\n"),
            400,
            Some("bad-request"),
        ),
        ("a negative length", request_head("content-length: -1\r\n"), 400, Some("bad-request")),
        ("a folded field", request_head("x: a\r\n b\r\n"), 400, Some("bad-request")),
        ("a space before the colon", request_head("x : a\r\n"), 400, Some("bad-request")),
        ("two hosts", request_head("host: other\r\n"), 400, Some("bad-request")),
        (
            "a chunk without a size",
            request_head("transfer-encoding: chunked\r\n") + "zz\r\n",
            400,
            Some("bad-request"),
        ),
    ] {
        let response = attacked_mesh
            .send_bytes(&request_bytes)
            .unwrap_or_else(|error| panic!("{input}: {error}"));
        assert_eq!((response.status, response.rejection_reason()), (status, reason), "{input}");
    }
    attacked_mesh.assert_still_serves();
}

#[test]
fn a_body_with_a_wrong_length_is_never_complete() {
    let attacked_mesh = start_attacked_mesh();
    let completed_before = attacked_mesh.completed_requests.load(Ordering::Relaxed);
    let post_head =
        |length: usize| format!("POST / HTTP/1.1\r\nhost: web\r\ncontent-length: {length}\r\n\r\n");
    for truncated_request in
        [post_head(100) + "short", chunked_request("5\r\nshort"), chunked_request("5\r\nshort\r\n")]
    {
        let mut connection = TestConnection::open(attacked_mesh.listener).unwrap();
        connection.send(&truncated_request).unwrap();
        connection.shut_down_sending().unwrap();
        let response = connection.read_to_end().unwrap_or_default();
        assert!(!String::from_utf8_lossy(&response).contains(" 200 "), "{truncated_request:?}");
    }
    attacked_mesh.assert_still_serves();
    let completed = attacked_mesh.completed_requests.load(Ordering::Relaxed) - completed_before;
    assert_eq!(completed, 1, "the application received only the last request");
    // Bytes beyond the declared length are the next request, which is invalid here.
    let mut connection = TestConnection::open(attacked_mesh.listener).unwrap();
    connection.send(post_head(5) + "five!and more\r\n\r\n").unwrap();
    assert_eq!(connection.receive_response().unwrap().body, b"five!");
    assert_eq!(connection.receive_response().unwrap().status, 400);
    assert_eq!(connection.read_to_end().unwrap(), b"", "then the connection is closed");
    attacked_mesh.assert_still_serves();
}

fn chunked_request(chunks: &str) -> String {
    format!("POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n{chunks}")
}

#[test]
fn a_slow_request_head_times_out() {
    let attacked_mesh = start_attacked_mesh();
    let mut slow_connections: Vec<TestConnection> =
        (0..20).map(|_| TestConnection::open(attacked_mesh.listener).unwrap()).collect();
    let mut handshake = TestConnection::open(attacked_mesh.web.inbound.unwrap()).unwrap();
    let started = Instant::now();
    // The beginning of a TLS record with an incomplete ClientHello.
    handshake.send([22, 3, 1, 1, 0, 1, 0, 0, 252]).unwrap();
    for connection in &mut slow_connections {
        connection.send("GET / HTTP/1.1\r\nx: ").unwrap();
    }
    // Sends single bytes repeatedly, and checks for the response.
    while !slow_connections[0].has_activity(Duration::from_millis(200)).unwrap() {
        for connection in &mut slow_connections {
            // The sidecar may have closed the connection since the check.
            drop(connection.send("a"));
        }
        assert!(started.elapsed() < Duration::from_secs(15), "a slow head does not time out");
    }
    for mut connection in slow_connections {
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
    attacked_mesh.assert_still_serves();
}

#[test]
fn garbage_and_aborted_requests_do_not_grow_memory() {
    let attacked_mesh = start_attacked_mesh();
    let proxy = attacked_mesh.user.proxy;
    let inbound = attacked_mesh.web.inbound.unwrap();
    let garbage = "\u{16}\u{3}\u{1}\u{7f}\u{7f} no hello of any kind\r\n\r\n";
    assert_eq!(TestConnection::open(proxy).unwrap().get("/").unwrap().status, 404, "host: test");
    // A warm-up: one-time allocations are made before the measurement.
    open_and_close(&attacked_mesh, 200);
    let memory_before = (attacked_mesh.user.private_kib(), attacked_mesh.web.private_kib());
    open_and_close(&attacked_mesh, 2000);
    for _ in 0..50 {
        for address in [attacked_mesh.listener, proxy, inbound] {
            let mut connection = TestConnection::open(address).unwrap();
            connection.send(garbage).unwrap();
            // The connection is rejected, reset or closed, but never served.
            drop(connection.shut_down_sending());
            let response = connection.read_to_end().unwrap_or_default();
            assert!(!String::from_utf8_lossy(&response).contains(" 200 "), "{address}");
        }
    }
    attacked_mesh.assert_still_serves();
    let memory_after = (attacked_mesh.user.private_kib(), attacked_mesh.web.private_kib());
    eprintln!("the client's sidecar: {} → {} KiB", memory_before.0, memory_after.0);
    eprintln!("the server's sidecar: {} → {} KiB", memory_before.1, memory_after.1);
    assert!(
        memory_after.0 < memory_before.0 + 1024 && memory_after.1 < memory_before.1 + 1024,
        "{memory_before:?} → {memory_after:?}"
    );
}

/// Opens connections and closes them immediately, some in the middle of a request.
fn open_and_close(attacked_mesh: &AttackedMesh, connection_count: usize) {
    let inbound = attacked_mesh.web.inbound.unwrap();
    for index in 0..connection_count {
        let address = [attacked_mesh.listener, attacked_mesh.user.proxy, inbound][index % 3];
        let mut connection = TestConnection::open(address).unwrap();
        if index % 2 == 0 {
            connection.send("GET / HT").unwrap();
        }
    }
    eventually("the sidecar serves requests afterwards", Duration::from_secs(10), || {
        TestConnection::open(attacked_mesh.listener)
            .ok()?
            .get("/")
            .ok()
            .filter(|response| response.status == 200)
    });
}
