//! Responses of applications are parsed as tolerantly as RFC 9112 allows by the first proxy, which normalizes
//! them.

use std::cell::Cell;
use std::rc::Rc;

use leno_model::Endpoint;

use super::fixture::{Application, Client, GET, Mesh, meshed_endpoint, run};

#[test]
fn responses_of_the_own_application_are_normalized() {
    run(async {
        for (response, status, body) in [
            ("HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", 204, ""),
            ("HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n", 304, ""),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", 200, "ok"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", 200, "ok"),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
                200,
                "ok",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nleft",
                200,
                "ok",
            ),
            ("HTTP/1.1 200\r\nX : a\r\n b\r\nContent-Length: 2\r\n\r\nok", 200, "ok"),
            ("HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 200, "ok"),
        ] {
            let app = Application::respond_with(move |_| response.to_owned()).await;
            let mesh = Mesh::permissive(app.address).await;
            let plain = meshed_endpoint("ratings-2", app.address, "ratings");
            let mut client = Client::connect(mesh.listener).await;
            for is_plain in [false, false, true, true] {
                if is_plain {
                    // If the server has no sidecar, the client's sidecar normalizes the response.
                    mesh.route_to(&[Endpoint { account: None, ..plain.clone() }]);
                }
                let reply = client.send_request(GET).await;
                assert_eq!((reply.status, reply.body_text()), (status, body), "{response}");
                if status == 200 {
                    let expected_count = usize::from(reply.field_value("content-length").is_some());
                    assert_eq!(
                        reply.head.matches("ontent-").count(),
                        expected_count,
                        "{}",
                        reply.head
                    );
                }
            }
            assert!(
                mesh.client.failure_counts().is_empty() && mesh.server.failure_counts().is_empty()
            );
        }
    });
}

#[test]
fn ambiguous_responses_are_rejected() {
    run(async {
        for response in [
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 2\r\n\r\nok",
            "HTTP/1.1 200 OK\r\nA\0: b\r\nContent-Length: 2\r\n\r\nok",
        ] {
            let app = Application::respond_with(move |_| response.to_owned()).await;
            let mesh = Mesh::permissive(app.address).await;
            let reply = Client::connect(mesh.listener).await.send_request(GET).await;
            assert_eq!(reply.verdict(), (502, Some("upstream-malformed")), "{response}");
        }
    });
}

#[test]
fn a_safe_request_with_a_body_is_sent_again_if_its_connection_closes() {
    run(async {
        let served = Rc::new(Cell::new(0));
        let count = served.clone();
        let app = Application::start(move |mut client| {
            let count = count.clone();
            async move {
                // The second request of a connection finds it closed.
                for is_first in [true, false] {
                    let Some(mut request) = client.read_head().await else { return };
                    if client.read_body(&mut request).await.is_none() || !is_first {
                        return;
                    }
                    count.set(count.get() + 1);
                    let body = String::from_utf8(request.body).unwrap();
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                    client.send_bytes(head + &body).await;
                }
            }
        })
        .await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        for method in ["GET", "PUT", "DELETE"] {
            let request = format!("{method} / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc");
            let response = client.send_request(&request).await;
            assert_eq!((response.status, response.body_text()), (200, "abc"), "{method}");
        }
        assert_eq!(served.get(), 3);
        assert!(mesh.client.failure_counts().is_empty() && mesh.server.failure_counts().is_empty());
    });
}
