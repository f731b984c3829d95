//! Streams above the last one of a GOAWAY were not processed and are sent again (RFC 9113 §6.8).

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;

use leno_model::{Endpoint, Protocol};
use tokio::sync::Notify;

use super::fixture::frames::{
    self, DATA, END_STREAM, Frame, HEADERS, OPENING, RST_STREAM, goaway_frame,
};
use super::fixture::single_stream::{FurtherConnections, start_single_stream_server};
use super::fixture::{
    Application, Client, Mesh, ShortConnectionServer, meshed_endpoint, run, service_config,
    wait_until,
};
use super::http2::{http2_mesh, read_body, start_application};
use crate::http::replay;

/// Starts an HTTP/2 application that responds to the first complete request with the frames of
/// `rejection_frames`, given its stream ID, and to others with 200 and the request body.
async fn start_rejecting(rejection_frames: fn(u32) -> Vec<u8>) -> Application {
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
                    client.send_bytes(rejection_frames(stream)).await;
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
    let response = Client::connect(mesh.listener).await.send_request(request).await;
    (response.status, response.body)
}

#[test]
fn a_request_above_the_last_stream_is_sent_again_with_any_method() {
    run(async {
        let rejections: [fn(u32) -> Vec<u8>; 2] = [
            |stream| goaway_frame(stream.saturating_sub(2)),
            |stream| frames::encode_frame(RST_STREAM, 0, stream, &7_u32.to_be_bytes()),
        ];
        for rejection_frames in rejections {
            for (request, body) in [
                ("GET / HTTP/1.1\r\nhost: x\r\n\r\n", &b""[..]),
                ("POST / HTTP/1.1\r\nhost: x\r\n\r\n", b""),
                ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc", b"abc"),
                ("DELETE / HTTP/1.1\r\nhost: x\r\n\r\n", b""),
            ] {
                let app = start_rejecting(rejection_frames).await;
                let mesh = http2_mesh(app.address, Protocol::Http2).await;
                assert_eq!(send_request(&mesh, request).await, (200, body.to_vec()), "{request}");
                assert!(mesh.client.failure_counts().is_empty(), "{request}");
            }
        }
    });
}

#[test]
fn a_request_up_to_the_last_stream_is_sent_again_only_if_that_is_safe() {
    run(async {
        for (method, expected_connections) in [("POST", 1), ("GET", 2)] {
            // The server may have started to process the request before it closes the connection.
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
            assert_eq!(app.accepted.get(), expected_connections, "{method}");
        }
    });
}

/// The end of a connection on which the server processes no stream.
#[derive(Clone, Copy, Debug)]
enum UnusedConnectionEnd {
    Closed,
    Goaway,
    PongAndGoaway,
    GoawayAtFirstStream,
}

/// Starts an HTTP/2 application that ends connections without processing a stream, as `connection_end`
/// determines by their number. It processes one stream of each other connection.
async fn start_closing_application(
    connection_end: impl Fn(usize) -> Option<UnusedConnectionEnd> + 'static,
) -> Application {
    let (count, connection_end) = (Cell::new(0), Rc::new(connection_end));
    Application::start(move |mut client| {
        count.set(count.get() + 1);
        let connection_end = connection_end(count.get());
        async move {
            client.read_exactly(24).await;
            if matches!(connection_end, Some(UnusedConnectionEnd::Closed)) {
                return;
            }
            client.send_bytes(&OPENING[24..]).await;
            if matches!(connection_end, Some(UnusedConnectionEnd::Goaway)) {
                // The server does not close its side.
                client.send_bytes(goaway_frame(0)).await;
                return pending().await;
            }
            let mut has_responded = false;
            while let Some(Frame { kind, flags, stream, payload }) = client.read_frame().await {
                if kind == frames::PING && flags == 0 {
                    let goaway = match connection_end {
                        Some(UnusedConnectionEnd::PongAndGoaway) => goaway_frame(0),
                        _ => Vec::new(),
                    };
                    let pong = frames::encode_frame(frames::PING, 1, 0, &payload);
                    client.send_bytes([pong, goaway].concat()).await;
                }
                if kind == HEADERS && connection_end.is_some() {
                    client.send_bytes(goaway_frame(0)).await;
                } else if matches!(kind, HEADERS | DATA)
                    && flags & END_STREAM != 0
                    && !has_responded
                {
                    has_responded = true;
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
fn a_connection_that_ends_before_any_stream_loses_no_request() {
    run(async {
        let request = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc";
        for connection_end in [
            UnusedConnectionEnd::Closed,
            UnusedConnectionEnd::Goaway,
            UnusedConnectionEnd::PongAndGoaway,
            UnusedConnectionEnd::GoawayAtFirstStream,
        ] {
            let app =
                start_closing_application(move |number| (number <= 4).then_some(connection_end))
                    .await;
            let mesh = http2_mesh(app.address, Protocol::Http2).await;
            assert_eq!(send_request(&mesh, request).await.0, 200, "{connection_end:?}");
            assert!(
                mesh.client.failure_counts().is_empty() && mesh.server.failure_counts().is_empty()
            );
            assert_eq!(app.accepted.get(), 5, "{connection_end:?}");

            // Every other connection.
            let app = start_closing_application(move |number| {
                (number % 2 == 0).then_some(connection_end)
            })
            .await;
            let mesh = http2_mesh(app.address, Protocol::Http2).await;
            for _ in 0..24 {
                assert_eq!(send_request(&mesh, request).await.0, 200, "{connection_end:?}");
            }
            let responses = send_requests(&mesh, 24, request).await;
            assert!(
                responses.iter().all(|(status, _)| *status == 200),
                "{connection_end:?}: {responses:?}"
            );
            assert!(mesh.client.failure_counts().is_empty(), "{connection_end:?}");
        }
    });
}

#[test]
fn a_server_that_ends_all_connections_gets_few_of_them() {
    run(async {
        for connection_end in [
            UnusedConnectionEnd::Closed,
            UnusedConnectionEnd::Goaway,
            UnusedConnectionEnd::PongAndGoaway,
            UnusedConnectionEnd::GoawayAtFirstStream,
        ] {
            let app = start_closing_application(move |_| Some(connection_end)).await;
            let mesh = http2_mesh(app.address, Protocol::Http2).await;
            let responses = send_requests(&mesh, 60, "POST / HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert!(
                responses.iter().all(|(status, _)| *status == 503),
                "{connection_end:?}: {responses:?}"
            );
            let accepted = app.accepted.get();
            assert!((5..=64).contains(&accepted), "{connection_end:?}: {accepted} connections");
        }
    });
}

#[test]
fn requests_wait_for_a_stream_if_no_second_connection_can_be_opened() {
    run(async {
        for further_connections in [FurtherConnections::Closed, FurtherConnections::Silent] {
            let app = start_single_stream_server(
                further_connections,
                |Frame { kind, flags, stream, .. }| {
                    let is_complete = matches!(*kind, HEADERS | DATA) && flags & END_STREAM != 0;
                    let flags = frames::END_HEADERS | END_STREAM;
                    is_complete.then(|| frames::encode_frame(HEADERS, flags, *stream, &[0x88]))
                },
            )
            .await;
            let mesh = http2_mesh(app.address, Protocol::Http2).await;
            let responses = send_requests(&mesh, 40, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert!(
                responses.iter().all(|(status, _)| *status == 200),
                "{further_connections:?}: {responses:?}"
            );
            let accepted = app.accepted.get();
            assert!(
                (2..=20).contains(&accepted),
                "{further_connections:?}: {accepted} connections"
            );
            assert!(mesh.client.failure_counts().is_empty(), "{further_connections:?}");
        }
    });
}

async fn send_requests(mesh: &Mesh, count: usize, request: &str) -> Vec<(u16, Vec<u8>)> {
    let (listener, request) = (mesh.listener, Rc::<str>::from(request));
    let request_tasks = (0..count).map(|_| {
        let request = request.clone();
        tokio::task::spawn_local(async move {
            Client::connect(listener).await.send_request(&request).await
        })
    });
    let mut responses = Vec::new();
    for request_task in request_tasks.collect::<Vec<_>>() {
        let response = request_task.await.unwrap();
        responses.push((response.status, response.body));
    }
    responses
}

#[test]
fn requests_are_sent_again_as_long_as_each_connection_processes_some() {
    run(async {
        for max_streams in [1, 3, 10] {
            let app = ShortConnectionServer::start(max_streams).await;
            let mesh = http2_mesh(app.application.address, Protocol::Http2).await;
            for (request, body) in [
                ("GET / HTTP/1.1\r\nhost: x\r\n\r\n", &b""[..]),
                ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc", b"abc"),
            ] {
                let responses = send_requests(&mesh, 60, request).await;
                let wrong_results =
                    responses.iter().filter(|response| **response != (200, body.to_vec())).count();
                assert_eq!(wrong_results, 0, "{max_streams} streams per connection, {request}");
            }
            assert!(mesh.client.failure_counts().is_empty());
            assert!(
                app.take_refused() > 0,
                "the first connection got more streams than the server accepted"
            );
        }
    });
}

#[test]
fn a_connection_gets_no_more_streams_than_the_server_processed_before() {
    run(async {
        let app = ShortConnectionServer::start(5).await;
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
        let opened_connections = app.application.accepted.get();
        for _ in 0..20 {
            send_requests(&mesh, 40, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        }
        assert_eq!(
            app.application.accepted.get(),
            opened_connections,
            "no connection is opened any more"
        );
    });
}

/// A server that drains, or closes a connection for its age or as idle, refuses the streams in flight. Their
/// number implies no limit.
#[test]
fn a_single_connection_that_ended_early_sets_no_stream_limit() {
    run(async {
        let app = ShortConnectionServer::close_once(3).await;
        let mesh = http2_mesh(app.application.address, Protocol::Http2).await;
        for _ in 0..5 {
            let responses = send_requests(&mesh, 40, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert!(responses.iter().all(|(status, _)| *status == 200), "{responses:?}");
        }
        assert!(
            app.take_refused() > 0,
            "the first connection got more streams than the server accepted"
        );
        assert_eq!(
            app.application.accepted.get(),
            2,
            "the second connection takes all other streams"
        );
    });
}

/// Two servers, of which one refuses each POST and processes other requests.
#[test]
fn a_request_refused_by_one_server_is_sent_to_another_soon() {
    run(async {
        let refused_count = Rc::new(Cell::new(0));
        let start_server = async |refuses: bool| {
            let refused_count = refused_count.clone();
            start_application(move |request, mut respond| {
                let refused_count = refused_count.clone();
                async move {
                    if refuses && request.method() == "POST" {
                        refused_count.set(refused_count.get() + 1);
                        return respond.send_reset(h2::Reason::REFUSED_STREAM);
                    }
                    drop(respond.send_response(http::Response::new(()), true));
                }
            })
            .await
        };
        let (refusing_app, accepting_app) = (start_server(true).await, start_server(false).await);
        let mesh = http2_mesh(accepting_app.address, Protocol::Http2).await;
        let plaintext_endpoint = |name: &str, application: &Application| Endpoint {
            account: None,
            ..meshed_endpoint(name, application.address, "ratings")
        };
        let endpoints = [
            plaintext_endpoint("ratings-1", &refusing_app),
            plaintext_endpoint("ratings-2", &accepting_app),
        ];
        mesh.set_client_services(vec![service_config(Protocol::Http2, &endpoints)]);
        // The server processes the other streams of the connection.
        let (is_stopped, listener) = (Rc::new(Cell::new(false)), mesh.listener);
        let clients = (0..4).map(|_| {
            let is_stopped = is_stopped.clone();
            tokio::task::spawn_local(async move {
                let mut client = Client::connect(listener).await;
                while !is_stopped.get() {
                    client.send_request("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
                }
            })
        });
        let clients: Vec<_> = clients.collect();
        let post_count = 20;
        let request = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc";
        let responses = send_requests(&mesh, post_count, request).await;
        assert!(responses.iter().all(|(status, _)| *status == 200), "{responses:?}");
        assert!(refused_count.get() > 0, "some requests were sent to the refusing server");
        assert!(refused_count.get() <= post_count * 4, "{} refusals", refused_count.get());

        // Without another server, the number of attempts is limited as well.
        mesh.set_client_services(vec![service_config(Protocol::Http2, &endpoints[..1])]);
        refused_count.set(0);
        let responses = send_requests(&mesh, 1, request).await;
        assert_eq!(responses[0].0, 503, "{responses:?}");
        assert!(refused_count.get() <= 4 + 65, "{} refusals", refused_count.get());
        is_stopped.set(true);
        for client in clients {
            client.await.unwrap();
        }
    });
}

/// The response head ends the need for the copy of a body, also on a stream that was sent again.
#[test]
fn the_copy_of_a_body_is_released_when_the_response_starts() {
    run(async {
        let is_first = Rc::new(Cell::new(true));
        let end_signal = Rc::new(Notify::new());
        let app_end_signal = end_signal.clone();
        let app = start_application(move |request, mut respond| {
            let (is_first, app_end_signal) = (is_first.clone(), app_end_signal.clone());
            async move {
                let (body, _) = read_body(request.into_body()).await;
                assert_eq!(body, b"abc");
                if is_first.replace(false) {
                    return respond.send_reset(h2::Reason::REFUSED_STREAM);
                }
                let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
                app_end_signal.notified().await;
                stream.send_data("end".into(), true).unwrap();
            }
        })
        .await;
        // Over HTTP/1.1 the copy of a body is kept only if the connection has served a request before.
        let app_end_signal = end_signal.clone();
        let http1_app = Application::start(move |mut client| {
            let app_end_signal = app_end_signal.clone();
            async move {
                while let Some(mut request) = client.read_head().await {
                    client.read_body(&mut request).await.unwrap();
                    client.send_bytes("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n").await;
                    if !request.head.contains("/quick") {
                        app_end_signal.notified().await;
                    }
                    client.send_bytes("end").await;
                }
            }
        })
        .await;
        for (app, protocol) in [(&app, Protocol::Http2), (&http1_app, Protocol::Http)] {
            let mesh = http2_mesh(app.address, protocol).await;
            if protocol == Protocol::Http {
                assert_eq!(
                    send_request(&mesh, "GET /quick HTTP/1.1\r\nhost: x\r\n\r\n").await.0,
                    200
                );
            }
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes("PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc").await;
            wait_until(|| replay::buffered_piece_count() > 0).await;
            let mut response = client.read_head().await.unwrap();
            assert_eq!(response.status, 200);
            assert_eq!(replay::buffered_piece_count(), 0, "{protocol}");
            end_signal.notify_one();
            client.read_body(&mut response).await.unwrap();
        }
    });
}

#[test]
fn a_server_that_refuses_all_streams_gets_few_connections() {
    run(async {
        for has_learned_limit in [false, true] {
            let app = ShortConnectionServer::start(if has_learned_limit { 3 } else { 0 }).await;
            let mesh = http2_mesh(app.application.address, Protocol::Http2).await;
            if has_learned_limit {
                send_requests(&mesh, 20, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
                app.set_per_connection(0);
            }
            let count_before = app.application.accepted.get();
            let responses = send_requests(&mesh, 60, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert!(responses.iter().all(|(status, _)| *status == 503), "{responses:?}");
            let opened_connections = app.application.accepted.get() - count_before;
            assert!(opened_connections <= 20, "{opened_connections} connections");
        }
    });
}

#[test]
fn a_refused_stream_waits_until_the_connection_processes_another_one() {
    run(async {
        // The server processes two streams at once, and does not announce that limit.
        let busy_count = Rc::new(Cell::new(0));
        let app = start_application(move |_, mut respond| {
            let busy_count = busy_count.clone();
            async move {
                if busy_count.get() == 2 {
                    return respond.send_reset(h2::Reason::REFUSED_STREAM);
                }
                busy_count.set(busy_count.get() + 1);
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                busy_count.set(busy_count.get() - 1);
                drop(respond.send_response(http::Response::new(()), true));
            }
        })
        .await;
        let mesh = http2_mesh(app.address, Protocol::Http2).await;
        let responses = send_requests(&mesh, 30, "POST / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(responses.iter().all(|(status, _)| *status == 200), "{responses:?}");
        assert_eq!(app.accepted.get(), 1, "no further connection is needed");

        let refusing_app = start_application(|_, mut respond| async move {
            respond.send_reset(h2::Reason::REFUSED_STREAM);
        });
        let refusing_app = refusing_app.await;
        let mesh = http2_mesh(refusing_app.address, Protocol::Http2).await;
        let responses = send_requests(&mesh, 30, "POST / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(responses.iter().all(|(status, _)| *status == 503), "{responses:?}");
        assert_eq!(refusing_app.accepted.get(), 1);
    });
}
