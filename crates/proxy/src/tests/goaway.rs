//! Streams above the last one of a GOAWAY were not processed and are sent again (RFC 9113 §6.8).

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;

use leno_model::{Endpoint, Protocol};
use tokio::sync::Notify;

use super::fixture::frames::{
    self, DATA, END_STREAM, Frame, HEADERS, OPENING, RST_STREAM, goaway_frame,
};
use super::fixture::narrow::{Surplus, start_narrow};
use super::fixture::{
    Application, Client, Mesh, Short, meshed_endpoint, run, service_config, wait_until,
};
use super::http2::{http2_mesh, read_body, start_application};
use crate::http::replay;

/// Starts an HTTP/2 application that answers the first complete request with `rejects`, given its stream ID,
/// and others with 200 and the body.
async fn start_rejecting(rejects: fn(u32) -> Vec<u8>) -> Application {
    let is_first = Rc::new(Cell::new(true));
    Application::start(move |mut client| {
        let is_first = is_first.clone();
        async move {
            client.read_exactly(24).await;
            client.send_bytes(&OPENING[24..]).await;
            let mut body = Vec::new();
            while let Some(Frame { kind, flags, stream, payload }) = client.read_frame().await {
                if kind == frames::PING && flags == 0 {
                    client.send_bytes(frames::encode_frame(frames::PING, 1, 0, &payload)).await;
                }
                if kind == DATA {
                    body.extend(payload);
                }
                if !matches!(kind, HEADERS | DATA) || flags & END_STREAM == 0 {
                    continue;
                }
                if is_first.replace(false) {
                    body.clear();
                    client.send_bytes(rejects(stream)).await;
                } else {
                    let head = frames::encode_frame(HEADERS, frames::END_HEADERS, stream, &[0x88]);
                    let data =
                        frames::encode_frame(DATA, END_STREAM, stream, &std::mem::take(&mut body));
                    client.send_bytes([head, data].concat()).await;
                }
            }
        }
    })
    .await
}

async fn send_request(mesh: &Mesh, request: &str) -> (u16, Vec<u8>) {
    let answer = Client::connect(mesh.listener).await.send_request(request).await;
    (answer.status, answer.body)
}

#[test]
fn a_request_above_the_last_stream_is_sent_again_whatever_its_method() {
    run(async {
        let rejections: [fn(u32) -> Vec<u8>; 2] = [
            |stream| goaway_frame(stream.saturating_sub(2)),
            |stream| frames::encode_frame(RST_STREAM, 0, stream, &7_u32.to_be_bytes()),
        ];
        for rejects in rejections {
            for (request, body) in [
                ("GET / HTTP/1.1\r\nhost: x\r\n\r\n", &b""[..]),
                ("POST / HTTP/1.1\r\nhost: x\r\n\r\n", b""),
                ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc", b"abc"),
                ("DELETE / HTTP/1.1\r\nhost: x\r\n\r\n", b""),
            ] {
                let app = start_rejecting(rejects).await;
                let mesh = http2_mesh(app.address, Protocol::Http2).await;
                assert_eq!(send_request(&mesh, request).await, (200, body.to_vec()), "{request}");
                assert!(mesh.client.failure_counts().is_empty(), "{request}");
            }
        }
    });
}

#[test]
fn a_request_up_to_the_last_stream_is_sent_again_only_where_that_is_safe() {
    run(async {
        for (method, times) in [("POST", 1), ("GET", 2)] {
            // It may have begun the request before it closes the connection.
            let app = Application::start(|mut client| async move {
                client.read_exactly(24).await;
                client.send_bytes(&OPENING[24..]).await;
                while let Some(Frame { kind, flags, payload, .. }) = client.read_frame().await {
                    if kind == frames::PING && flags == 0 {
                        client.send_bytes(frames::encode_frame(frames::PING, 1, 0, &payload)).await;
                    }
                    if kind == HEADERS {
                        return client.send_bytes(goaway_frame(1)).await;
                    }
                }
            })
            .await;
            let mesh = http2_mesh(app.address, Protocol::Http2).await;
            let request = format!("{method} / HTTP/1.1\r\nhost: x\r\n\r\n");
            assert_eq!(send_request(&mesh, &request).await.0, 502, "{method}");
            assert_eq!(app.accepted.get(), times, "{method}");
        }
    });
}

/// The end of a connection on which the server processes no stream.
#[derive(Clone, Copy, Debug)]
enum Unused {
    Closed,
    Goaway,
    PongAndGoaway,
    GoawayAtFirstStream,
}

/// Starts an HTTP/2 application that ends connections without processing a stream, as `unused` determines by
/// their number. It processes one stream of each other one.
async fn start_ending(unused: impl Fn(usize) -> Option<Unused> + 'static) -> Application {
    let (count, unused) = (Cell::new(0), Rc::new(unused));
    Application::start(move |mut client| {
        count.set(count.get() + 1);
        let unused = unused(count.get());
        async move {
            client.read_exactly(24).await;
            if matches!(unused, Some(Unused::Closed)) {
                return;
            }
            client.send_bytes(&OPENING[24..]).await;
            if matches!(unused, Some(Unused::Goaway)) {
                // It does not close its side.
                client.send_bytes(goaway_frame(0)).await;
                return pending().await;
            }
            let mut is_over = false;
            while let Some(Frame { kind, flags, stream, payload }) = client.read_frame().await {
                if kind == frames::PING && flags == 0 {
                    let goaway = match unused {
                        Some(Unused::PongAndGoaway) => goaway_frame(0),
                        _ => Vec::new(),
                    };
                    let pong = frames::encode_frame(frames::PING, 1, 0, &payload);
                    client.send_bytes([pong, goaway].concat()).await;
                }
                if kind == HEADERS && unused.is_some() {
                    client.send_bytes(goaway_frame(0)).await;
                } else if matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0 && !is_over {
                    is_over = true;
                    let flags = frames::END_HEADERS | END_STREAM;
                    let head = frames::encode_frame(HEADERS, flags, stream, &[0x88]);
                    client.send_bytes([head, goaway_frame(stream)].concat()).await;
                }
            }
        }
    })
    .await
}

#[test]
fn a_connection_that_ends_before_any_stream_costs_no_request() {
    run(async {
        let request = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc";
        for unused in
            [Unused::Closed, Unused::Goaway, Unused::PongAndGoaway, Unused::GoawayAtFirstStream]
        {
            let app = start_ending(move |number| (number <= 4).then_some(unused)).await;
            let mesh = http2_mesh(app.address, Protocol::Http2).await;
            assert_eq!(send_request(&mesh, request).await.0, 200, "{unused:?}");
            assert!(
                mesh.client.failure_counts().is_empty() && mesh.server.failure_counts().is_empty()
            );
            assert_eq!(app.accepted.get(), 5, "{unused:?}");

            // Every other connection.
            let app = start_ending(move |number| (number % 2 == 0).then_some(unused)).await;
            let mesh = http2_mesh(app.address, Protocol::Http2).await;
            for _ in 0..24 {
                assert_eq!(send_request(&mesh, request).await.0, 200, "{unused:?}");
            }
            let given = send_requests(&mesh, 24, request).await;
            assert!(given.iter().all(|(status, _)| *status == 200), "{unused:?}: {given:?}");
            assert!(mesh.client.failure_counts().is_empty(), "{unused:?}");
        }
    });
}

#[test]
fn a_server_that_ends_all_connections_before_any_stream_gets_few() {
    run(async {
        for unused in
            [Unused::Closed, Unused::Goaway, Unused::PongAndGoaway, Unused::GoawayAtFirstStream]
        {
            let app = start_ending(move |_| Some(unused)).await;
            let mesh = http2_mesh(app.address, Protocol::Http2).await;
            let given = send_requests(&mesh, 60, "POST / HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert!(given.iter().all(|(status, _)| *status == 503), "{unused:?}: {given:?}");
            let accepted = app.accepted.get();
            assert!((5..=64).contains(&accepted), "{unused:?}: {accepted} connections");
        }
    });
}

#[test]
fn requests_wait_for_room_where_no_second_connection_can_be_opened() {
    run(async {
        for surplus in [Surplus::Closed, Surplus::Silent] {
            let app = start_narrow(surplus, |Frame { kind, flags, stream, .. }| {
                let is_whole = matches!(*kind, HEADERS | DATA) && flags & END_STREAM != 0;
                let flags = frames::END_HEADERS | END_STREAM;
                is_whole.then(|| frames::encode_frame(HEADERS, flags, *stream, &[0x88]))
            })
            .await;
            let mesh = http2_mesh(app.address, Protocol::Http2).await;
            let given = send_requests(&mesh, 40, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert!(given.iter().all(|(status, _)| *status == 200), "{surplus:?}: {given:?}");
            let accepted = app.accepted.get();
            assert!((2..=20).contains(&accepted), "{surplus:?}: {accepted} connections");
            assert!(mesh.client.failure_counts().is_empty(), "{surplus:?}");
        }
    });
}

async fn send_requests(mesh: &Mesh, requests: usize, request: &str) -> Vec<(u16, Vec<u8>)> {
    let (listener, request) = (mesh.listener, Rc::<str>::from(request));
    let each = (0..requests).map(|_| {
        let request = request.clone();
        tokio::task::spawn_local(async move {
            Client::connect(listener).await.send_request(&request).await
        })
    });
    let mut given = Vec::new();
    for answer in each.collect::<Vec<_>>() {
        let answer = answer.await.unwrap();
        given.push((answer.status, answer.body));
    }
    given
}

#[test]
fn requests_are_sent_again_as_long_as_each_connection_takes_some() {
    run(async {
        for streams in [1, 3, 10] {
            let app = Short::start(streams).await;
            let mesh = http2_mesh(app.application.address, Protocol::Http2).await;
            for (request, body) in [
                ("GET / HTTP/1.1\r\nhost: x\r\n\r\n", &b""[..]),
                ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc", b"abc"),
            ] {
                let given = send_requests(&mesh, 60, request).await;
                let wrong = given.iter().filter(|it| **it != (200, body.to_vec())).count();
                assert_eq!(wrong, 0, "{streams} streams per connection, {request}");
            }
            assert!(mesh.client.failure_counts().is_empty());
            assert!(app.take_refused() > 0, "the first connection got more streams than it took");
        }
    });
}

#[test]
fn a_connection_gets_no_more_streams_than_the_server_took_before() {
    run(async {
        let app = Short::start(5).await;
        let mesh = http2_mesh(app.application.address, Protocol::Http2).await;
        send_requests(&mesh, 40, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        app.take_refused();
        send_requests(&mesh, 40, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert_eq!(app.take_refused(), 0, "each connection has got five streams");

        // A server that accepts more streams than before gets more.
        app.set_per_connection(usize::MAX);
        for _ in 0..20 {
            send_requests(&mesh, 40, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        }
        let opened = app.application.accepted.get();
        for _ in 0..20 {
            send_requests(&mesh, 40, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        }
        assert_eq!(app.application.accepted.get(), opened, "no connection is opened any more");
    });
}

/// A server that drains, or closes a connection for its age or as idle, refuses the streams in flight. Their
/// number implies no limit.
#[test]
fn one_connection_that_ended_after_few_streams_teaches_no_limit() {
    run(async {
        let app = Short::close_once(3).await;
        let mesh = http2_mesh(app.application.address, Protocol::Http2).await;
        for _ in 0..5 {
            let given = send_requests(&mesh, 40, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert!(given.iter().all(|(status, _)| *status == 200), "{given:?}");
        }
        assert!(app.take_refused() > 0, "the first connection got more streams than it took");
        assert_eq!(
            app.application.accepted.get(),
            2,
            "the second connection takes all other streams"
        );
    });
}

/// Two servers, of which one refuses each POST and processes other requests.
#[test]
fn a_request_that_one_server_refuses_is_sent_to_another_one_soon() {
    run(async {
        let refused = Rc::new(Cell::new(0));
        let serving = async |refuses: bool| {
            let refused = refused.clone();
            start_application(move |request, mut respond| {
                let refused = refused.clone();
                async move {
                    if refuses && request.method() == "POST" {
                        refused.set(refused.get() + 1);
                        return respond.send_reset(h2::Reason::REFUSED_STREAM);
                    }
                    drop(respond.send_response(http::Response::new(()), true));
                }
            })
            .await
        };
        let (refusing, other) = (serving(true).await, serving(false).await);
        let mesh = http2_mesh(other.address, Protocol::Http2).await;
        let plain = |name: &str, application: &Application| Endpoint {
            account: None,
            ..meshed_endpoint(name, application.address, "ratings")
        };
        let all = [plain("ratings-1", &refusing), plain("ratings-2", &other)];
        mesh.client_knows(vec![service_config(Protocol::Http2, &all)]);
        // Its other streams are processed throughout.
        let (is_over, listener) = (Rc::new(Cell::new(false)), mesh.listener);
        let asking = (0..4).map(|_| {
            let is_over = is_over.clone();
            tokio::task::spawn_local(async move {
                let mut client = Client::connect(listener).await;
                while !is_over.get() {
                    client.send_request("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
                }
            })
        });
        let asking: Vec<_> = asking.collect();
        let posts = 20;
        let request = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc";
        let given = send_requests(&mesh, posts, request).await;
        assert!(given.iter().all(|(status, _)| *status == 200), "{given:?}");
        assert!(refused.get() > 0, "some requests were sent to the one that refuses them");
        assert!(refused.get() <= posts * 4, "{} refusals", refused.get());

        // Without another server the refusals have a bound as well.
        mesh.client_knows(vec![service_config(Protocol::Http2, &all[..1])]);
        refused.set(0);
        let given = send_requests(&mesh, 1, request).await;
        assert_eq!(given[0].0, 503, "{given:?}");
        assert!(refused.get() <= 4 + 65, "{} refusals", refused.get());
        is_over.set(true);
        for client in asking {
            client.await.unwrap();
        }
    });
}

/// The response head ends the need for the copy of a body, also on a stream that was sent again.
#[test]
fn the_copy_of_a_body_is_released_when_the_response_begins() {
    run(async {
        let is_first = Rc::new(Cell::new(true));
        let begun = Rc::new(Notify::new());
        let ends = begun.clone();
        let app = start_application(move |request, mut respond| {
            let (is_first, ends) = (is_first.clone(), ends.clone());
            async move {
                let (body, _) = read_body(request.into_body()).await;
                assert_eq!(body, b"abc");
                if is_first.replace(false) {
                    return respond.send_reset(h2::Reason::REFUSED_STREAM);
                }
                let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
                ends.notified().await;
                stream.send_data("end".into(), true).unwrap();
            }
        })
        .await;
        // Over HTTP/1.1 a body is kept if the connection has served before.
        let ends = begun.clone();
        let other = Application::start(move |mut client| {
            let ends = ends.clone();
            async move {
                while let Some(mut request) = client.read_head().await {
                    client.read_body(&mut request).await.unwrap();
                    client.send_bytes("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n").await;
                    if !request.head.contains("/quick") {
                        ends.notified().await;
                    }
                    client.send_bytes("end").await;
                }
            }
        })
        .await;
        for (app, protocol) in [(&app, Protocol::Http2), (&other, Protocol::Http)] {
            let mesh = http2_mesh(app.address, protocol).await;
            if protocol == Protocol::Http {
                assert_eq!(
                    send_request(&mesh, "GET /quick HTTP/1.1\r\nhost: x\r\n\r\n").await.0,
                    200
                );
            }
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes("PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc").await;
            wait_until(|| replay::pieces_kept() > 0).await;
            let mut answer = client.read_head().await.unwrap();
            assert_eq!(answer.status, 200);
            assert_eq!(replay::pieces_kept(), 0, "{protocol}");
            begun.notify_one();
            client.read_body(&mut answer).await.unwrap();
        }
    });
}

#[test]
fn a_server_that_refuses_all_streams_gets_few_connections() {
    run(async {
        for learned in [false, true] {
            let app = Short::start(if learned { 3 } else { 0 }).await;
            let mesh = http2_mesh(app.application.address, Protocol::Http2).await;
            if learned {
                send_requests(&mesh, 20, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
                app.set_per_connection(0);
            }
            let before = app.application.accepted.get();
            let given = send_requests(&mesh, 60, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert!(given.iter().all(|(status, _)| *status == 503), "{given:?}");
            let opened = app.application.accepted.get() - before;
            assert!(opened <= 20, "{opened} connections");
        }
    });
}

#[test]
fn a_stream_refused_on_a_connection_that_goes_on_waits_until_another_one_is_processed() {
    run(async {
        // It processes two streams at once, and does not announce that.
        let busy = Rc::new(Cell::new(0));
        let app = start_application(move |_, mut respond| {
            let busy = busy.clone();
            async move {
                if busy.get() == 2 {
                    return respond.send_reset(h2::Reason::REFUSED_STREAM);
                }
                busy.set(busy.get() + 1);
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                busy.set(busy.get() - 1);
                drop(respond.send_response(http::Response::new(()), true));
            }
        })
        .await;
        let mesh = http2_mesh(app.address, Protocol::Http2).await;
        let given = send_requests(&mesh, 30, "POST / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(given.iter().all(|(status, _)| *status == 200), "{given:?}");
        assert_eq!(app.accepted.get(), 1, "no further connection is needed");

        let refusing = start_application(|_, mut respond| async move {
            respond.send_reset(h2::Reason::REFUSED_STREAM);
        });
        let refusing = refusing.await;
        let mesh = http2_mesh(refusing.address, Protocol::Http2).await;
        let given = send_requests(&mesh, 30, "POST / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(given.iter().all(|(status, _)| *status == 503), "{given:?}");
        assert_eq!(refusing.accepted.get(), 1);
    });
}
