//! HTTP/1.1 through two sidecars: framing, interim responses, early responses, and clients that disconnect.

use super::fixture::{Application, Client, End, GET, Mesh, OK, ReceivedMessage, run, wait_until};

#[test]
fn sequential_requests_reuse_connections() {
    run(async {
        let app =
            Application::respond_with(|request| ok_response(request.head.lines().next().unwrap()))
                .await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        for index in 0..5 {
            let request = format!("GET /ratings/{index}?q HTTP/1.1\r\nhost: x\r\n\r\n");
            let response = client.send_request(&request).await;
            assert_eq!(response.status, 200);
            assert_eq!(response.body_text(), format!("GET /ratings/{index}?q HTTP/1.1"));
            assert_eq!(response.field_value("connection"), None);
        }
        assert_eq!(app.accepted.get(), 1, "the application's connection is kept too");
        let last_request = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        assert_eq!(
            client.send_request(last_request).await.field_value("connection"),
            Some("close")
        );
        assert_eq!(client.read_end().await, End::Clean);
    });
}

#[test]
fn pipelined_requests_get_responses_in_order() {
    run(async {
        let app = Application::respond_with(|request| {
            ok_response(request.head.split(' ').nth(1).unwrap())
        });
        let mesh = Mesh::permissive(app.await.address).await;
        let mut client = Client::connect(mesh.listener).await;
        let mut pipeline = String::new();
        for index in 0..100 {
            pipeline += &match index % 3 {
                0 => format!("GET /{index} HTTP/1.1\r\nhost: x\r\n\r\n"),
                1 => format!("POST /{index} HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"),
                _ => format!(
                    "PUT /{index} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n\
                     3\r\nabc\r\n0\r\n\r\n"
                ),
            };
        }
        client.send_bytes(pipeline).await;
        for index in 0..100 {
            assert_eq!(client.read_response().await.body_text(), format!("/{index}"));
        }
    });
}

/// The data and the trailers arrive in one packet or in several.
#[test]
fn chunks_and_trailers_are_forwarded_in_both_directions() {
    run(async {
        for cuts in [&[][..], &[3], &[3, 8, 11, 16], &[22]] {
            let app = Application::start(|mut client| async move {
                let mut request = client.read_head().await.unwrap();
                client.read_body(&mut request).await.unwrap();
                let ReceivedMessage { body, trailers, .. } = request;
                let body_bytes = body.len();
                let text = String::from_utf8(body).unwrap();
                let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
                client
                    .send_bytes(format!(
                        "{head}{body_bytes:x}\r\n{text}\r\n0\r\n{trailers}\r\n\r\n"
                    ))
                    .await;
            });
            let mesh = Mesh::permissive(app.await.address).await;
            let mut client = Client::connect(mesh.listener).await;
            client
                .send_bytes("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
                .await;
            let mut body = "3\r\nabc\r\n3\r\ndef\r\n0\r\nx-sum: 6\r\n\r\n".as_bytes();
            let mut sent = 0;
            for cut in cuts {
                let (now, later) = body.split_at(cut - sent);
                (body, sent) = (later, *cut);
                client.send_bytes(now).await;
                // One turn of the event loop: the sidecar reads the packet separately.
                tokio::task::yield_now().await;
            }
            client.send_bytes(body).await;
            let response = client.read_response().await;
            assert_eq!(
                (response.body_text(), &*response.trailers),
                ("abcdef", "x-sum: 6"),
                "{cuts:?}"
            );
        }
    });
}

#[test]
fn headers_of_responses_without_a_body_are_forwarded() {
    run(async {
        let app = Application::respond_with(|request| {
            let response = match request.head.split(' ').nth(1).unwrap() {
                "/head" => "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n",
                "/head-chunked" => "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
                "/204" => "HTTP/1.1 204 No Content\r\n\r\n",
                "/304" => "HTTP/1.1 304 Not Modified\r\netag: \"1\"\r\ncontent-length: 7\r\n\r\n",
                _ => "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            };
            response.to_owned()
        })
        .await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        for (method, path, status, length) in [
            ("HEAD", "/head", 200, Some("1000")),
            ("HEAD", "/head-chunked", 200, None),
            ("GET", "/204", 204, None),
            ("GET", "/304", 304, Some("7")),
            ("GET", "/empty", 200, Some("0")),
            ("HEAD", "/204", 204, None),
        ] {
            client.send_bytes(format!("{method} {path} HTTP/1.1\r\nhost: x\r\n\r\n")).await;
            let response_head = client.read_head().await.unwrap();
            assert_eq!(response_head.status, status, "{path}");
            assert_eq!(response_head.field_value("content-length"), length, "{path}");
        }
        assert_eq!(
            client.send_request(GET).await.status,
            200,
            "the connection is at the start of a message"
        );
    });
}

#[test]
fn interim_responses_are_forwarded() {
    run(async {
        let app = Application::respond_with(|_| {
            "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
                .to_owned()
                + OK
        });
        let mesh = Mesh::permissive(app.await.address).await;
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..2 {
            let hints = client.send_request(GET).await;
            assert_eq!((hints.status, hints.field_value("link")), (103, Some("</a>")));
            assert_eq!(client.read_response().await.status, 102);
            assert_eq!(client.read_response().await.body_text(), "ok");
        }
        let request = "GET / HTTP/1.0\r\nhost: x\r\n\r\n";
        assert_eq!(
            client.send_request(request).await.status,
            200,
            "RFC 9110 §15.2: not to HTTP/1.0"
        );
    });
}

#[test]
fn the_body_waits_for_100_continue_of_the_application() {
    run(async {
        let app = Application::start(|mut client| async move {
            while let Some(mut request) = client.read_head().await {
                assert_eq!(request.field_value("expect"), Some("100-continue"));
                client.send_bytes("HTTP/1.1 100 Continue\r\n\r\n").await;
                client.read_body(&mut request).await.unwrap();
                client.send_bytes(ok_response(request.body_text())).await;
            }
        });
        let mesh = Mesh::permissive(app.await.address).await;
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..2 {
            assert_eq!(client.send_request(EXPECT).await.status, 100);
            client.send_bytes("abc").await;
            assert_eq!(client.read_response().await.body_text(), "abc");
        }
    });
}

#[test]
fn a_rejection_instead_of_100_continue_ends_the_connection() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.read_head().await.unwrap();
            client.send_bytes("HTTP/1.1 413 Too Much\r\ncontent-length: 3\r\n\r\nno!").await;
            client.read_rest().await;
        });
        let mesh = Mesh::permissive(app.await.address).await;
        let mut client = Client::connect(mesh.listener).await;
        let response = client.send_request(EXPECT).await;
        assert_eq!((response.status, response.body_text()), (413, "no!"));
        assert_eq!(response.field_value("connection"), Some("close"));
        assert_eq!(client.read_end().await, End::Clean);
        assert_eq!(mesh.client.ended_count(), 1);
        assert!(mesh.client.failure_counts().is_empty());
    });
}

#[test]
fn an_early_response_arrives_while_the_body_is_sent() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.read_head().await.unwrap();
            client.read_exactly(1).await;
            client.send_bytes("HTTP/1.1 413 Too Much\r\ncontent-length: 3\r\n\r\nno!").await;
        });
        let mesh = Mesh::permissive(app.await.address).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n").await;
        client.send_bytes(vec![b'x'; 100_000]).await;
        let response = client.read_response().await;
        assert_eq!((response.status, response.body_text()), (413, "no!"));
        assert_eq!(client.read_end().await, End::Clean);
        // Bytes in flight are drained: a reset could overtake the response.
        for _ in 0..10 {
            client.send_bytes(vec![b'x'; 100_000]).await;
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn http10_clients_get_responses_without_chunks_and_a_close() {
    run(async {
        let app = Application::respond_with(|_| {
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n"
                .to_owned()
        });
        let mesh = Mesh::permissive(app.await.address).await;
        for connection_field in ["", "connection: keep-alive\r\n"] {
            let mut client = Client::connect(mesh.listener).await;
            let response =
                client.send_request(&format!("GET / HTTP/1.0\r\n{connection_field}\r\n")).await;
            assert_eq!(
                (response.body_text(), response.field_value("transfer-encoding")),
                ("abc", None)
            );
            assert_eq!(response.field_value("connection"), Some("close"));
        }
    });
}

#[test]
fn a_response_that_ends_with_its_connection_is_chunked() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.read_head().await.unwrap();
            client.send_bytes("HTTP/1.0 200 OK\r\n\r\nto the end").await;
        });
        let mesh = Mesh::permissive(app.await.address).await;
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..2 {
            let response = client.send_request(GET).await;
            assert_eq!(response.body_text(), "to the end");
            assert_eq!(response.field_value("transfer-encoding"), Some("chunked"));
        }
    });
}

#[test]
fn a_truncated_response_is_truncated_for_the_client() {
    run(async {
        for (head, request) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345", GET),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n12345\r\n", GET),
            // Without a length only a reset indicates missing bytes.
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n12345\r\n",
                "GET / HTTP/1.0\r\nhost: x\r\n\r\n",
            ),
        ] {
            let app = Application::start(move |mut client| async move {
                client.read_head().await.unwrap();
                client.send_bytes(head).await;
            });
            let mesh = Mesh::permissive(app.await.address).await;
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(request).await;
            let (received, end) = client.read_rest().await;
            assert_eq!(end, End::Reset, "{head} {}", String::from_utf8_lossy(&received));
            assert_eq!(mesh.server.failure_counts(), [("upstream-reset", 1)].into());
            wait_until(|| mesh.client.ended_count() == 1).await;
            assert_eq!(mesh.client.failure_counts(), [("upstream-reset", 1)].into());
        }
    });
}

#[test]
fn a_client_that_disconnects_in_its_body_ends_the_request_at_the_application() {
    run(async {
        let app = Application::start(|mut client| async move {
            let mut request = client.read_head().await.unwrap();
            assert!(client.read_body(&mut request).await.is_none());
        })
        .await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc").await;
        wait_until(|| app.accepted.get() == 1).await;
        drop(client);
        for sidecar in [&mesh.client, &mesh.server] {
            wait_until(|| sidecar.ended_count() == 1).await;
            assert_eq!(sidecar.failure_counts(), [("downstream-closed", 1)].into());
        }
    });
}

#[test]
fn a_client_that_stops_waiting_ends_the_request_at_the_application() {
    run(async {
        let app = Application::start(|mut client| async move {
            let mut request = client.read_head().await.unwrap();
            client.read_body(&mut request).await.unwrap();
            // The application never responds, but reads to the end of the connection.
            assert_eq!(client.read_end().await, End::Clean);
        })
        .await;
        let mesh = Mesh::permissive(app.address).await;
        for request in [GET, "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"] {
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(request).await;
            let count_before = app.accepted.get();
            wait_until(|| app.accepted.get() > count_before).await;
            client.abandon();
            wait_until(|| mesh.client.worker.connections.snapshot(0).0 == 0).await;
        }
        wait_until(|| mesh.server.ended_count() == 2).await;
        assert_eq!(mesh.client.failure_counts(), [("downstream-closed", 2)].into());
        assert_eq!(mesh.server.failure_counts(), [("downstream-closed", 2)].into());
    });
}

#[test]
fn an_unrequested_upgrade_is_an_invalid_response() {
    run(async {
        let app = Application::with_response("HTTP/1.1 101 Switching Protocols\r\n\r\n").await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(GET).await.verdict(), (502, Some("upstream-malformed")));
    });
}

fn ok_response(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

const EXPECT: &str =
    "POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n";
