//! Issue 26, case f02: streams above the last one of a GOAWAY were not processed and are sent again (RFC 9113 §6.8).

use std::cell::Cell;
use std::rc::Rc;

use leno_model::Protocol;

use super::fixture::frames::{self, DATA, END_STREAM, Frame, GOAWAY, HEADERS, OPENING, RST_STREAM};
use super::fixture::{Application, Client, Mesh, run};
use super::http2::mesh;

/// An application of HTTP/2 that answers the first whole request with `rejects`, given its number, and others with 200 and the body.
async fn rejecting(rejects: fn(u32) -> Vec<u8>) -> Application {
    let is_first = Rc::new(Cell::new(true));
    Application::start(move |mut client| {
        let is_first = is_first.clone();
        async move {
            client.bytes(24).await;
            client.send(&OPENING[24..]).await;
            let mut body = Vec::new();
            while let Some(Frame { kind, flags, stream, payload }) = client.frame().await {
                if kind == frames::PING && flags == 0 {
                    client.send(frames::frame(frames::PING, 1, 0, &payload)).await;
                }
                if kind == DATA {
                    body.extend(payload);
                }
                if !matches!(kind, HEADERS | DATA) || flags & END_STREAM == 0 {
                    continue;
                }
                if is_first.replace(false) {
                    body.clear();
                    client.send(rejects(stream)).await;
                } else {
                    let head = frames::frame(HEADERS, frames::END_HEADERS, stream, &[0x88]);
                    let data = frames::frame(DATA, END_STREAM, stream, &std::mem::take(&mut body));
                    client.send([head, data].concat()).await;
                }
            }
        }
    })
    .await
}

fn goaway(last: u32) -> Vec<u8> {
    frames::frame(GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat())
}

async fn answer(mesh: &Mesh, request: &str) -> (u16, Vec<u8>) {
    let answer = Client::connect(mesh.door).await.ask(request).await;
    (answer.status, answer.body)
}

#[test]
fn a_request_above_the_last_stream_is_sent_again_whatever_its_method() {
    run(async {
        let rejections: [fn(u32) -> Vec<u8>; 2] = [
            |stream| goaway(stream.saturating_sub(2)),
            |stream| frames::frame(RST_STREAM, 0, stream, &7_u32.to_be_bytes()),
        ];
        for rejects in rejections {
            for (request, body) in [
                ("GET / HTTP/1.1\r\nhost: x\r\n\r\n", &b""[..]),
                ("POST / HTTP/1.1\r\nhost: x\r\n\r\n", b""),
                ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc", b"abc"),
                ("DELETE / HTTP/1.1\r\nhost: x\r\n\r\n", b""),
            ] {
                let app = rejecting(rejects).await;
                let mesh = mesh(app.address, Protocol::Http2).await;
                assert_eq!(answer(&mesh, request).await, (200, body.to_vec()), "{request}");
                assert!(mesh.client.failures().is_empty(), "{request}");
            }
        }
    });
}

#[test]
fn a_request_up_to_the_last_stream_is_sent_again_only_where_that_is_safe() {
    run(async {
        for (method, times) in [("POST", 1), ("GET", 2)] {
            // It may have begun the request, and is gone.
            let app = Application::start(|mut client| async move {
                client.bytes(24).await;
                client.send(&OPENING[24..]).await;
                while let Some(Frame { kind, flags, payload, .. }) = client.frame().await {
                    if kind == frames::PING && flags == 0 {
                        client.send(frames::frame(frames::PING, 1, 0, &payload)).await;
                    }
                    if kind == HEADERS {
                        return client.send(goaway(1)).await;
                    }
                }
            })
            .await;
            let mesh = mesh(app.address, Protocol::Http2).await;
            let request = format!("{method} / HTTP/1.1\r\nhost: x\r\n\r\n");
            assert_eq!(answer(&mesh, &request).await.0, 502, "{method}");
            assert_eq!(app.accepted.get(), times, "{method}");
        }
    });
}
