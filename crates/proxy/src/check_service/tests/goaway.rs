//! Check services that send GOAWAY: unprocessed requests are sent again (RFC 9113 §6.8), others are not.

use leno_wire::link::GoAwayCode;

use super::*;
use crate::tests::fixture::frames::{
    self, DATA, END_HEADERS, END_STREAM, Frame, HEADERS, OPENING, PING, RST_STREAM, goaway_frame,
};
use crate::tests::fixture::{ShortConnectionServer, meshed_endpoint};

/// The frames of a response; true if the connection ends after them.
type Frames = (Vec<u8>, bool);

/// A check service that responds to each request, given its number and its stream, in handwritten frames.
/// Counts the requests.
async fn start_frame_service(
    respond: impl Fn(usize, u32) -> Frames + 'static,
) -> (Application, Rc<Cell<usize>>) {
    let (request_count, respond) = (Rc::<Cell<usize>>::default(), Rc::new(respond));
    let count = request_count.clone();
    let server = Application::start(move |mut client| {
        let (count, respond) = (count.clone(), respond.clone());
        async move {
            client.read_exactly(24).await;
            client.send_bytes(&OPENING[24..]).await;
            while let Some(Frame { kind, flags, stream, payload }) = client.read_frame().await {
                if kind == PING && flags == 0 {
                    client.send_bytes(frames::encode_frame(PING, 1, 0, &payload)).await;
                }
                if kind == DATA && flags & END_STREAM != 0 {
                    count.set(count.get() + 1);
                    let (bytes, ends) = respond(count.get(), stream);
                    client.send_bytes(bytes).await;
                    if ends {
                        return;
                    }
                }
            }
        }
    });
    (server.await, request_count)
}

pub(super) fn allow_frames(stream: u32) -> Vec<u8> {
    let status = frames::header_block(&[("grpc-status", "0")]);
    [
        frames::encode_frame(HEADERS, END_HEADERS, stream, &[0x88]),
        frames::encode_frame(DATA, 0, stream, &message::add_prefix(&allow_response())),
        frames::encode_frame(HEADERS, END_HEADERS | END_STREAM, stream, &status),
    ]
    .concat()
}

#[test]
fn a_check_that_the_server_did_not_process_is_sent_again() {
    run(async {
        let rejections: [fn(u32) -> Frames; 3] = [
            |stream| (goaway_frame(stream.saturating_sub(2)), false),
            |stream| (goaway_frame(stream.saturating_sub(2)), true),
            |stream| (frames::encode_frame(RST_STREAM, 0, stream, &7_u32.to_be_bytes()), false),
        ];
        for rejects in rejections {
            let app = Application::with_response(OK).await;
            let mesh = Mesh::permissive(app.address).await;
            let (server, request_count) = start_frame_service(move |number, stream| match number {
                1 => rejects(stream),
                _ => (allow_frames(stream), false),
            })
            .await;
            mesh.set_checks(
                vec![port_check(authorization_rule(check_service_at(
                    server.address,
                    FailureMode::Deny,
                )))],
                Vec::new(),
            );
            assert_eq!(
                Client::connect(mesh.listener)
                    .await
                    .send_request(REQUEST_WITHOUT_KEY)
                    .await
                    .verdict(),
                (200, None)
            );
            assert_eq!(request_count.get(), 2);
        }
    });
}

/// Returns the statuses of this many concurrent requests.
pub(super) async fn concurrent_statuses(mesh: &Mesh, requests: usize) -> Vec<u16> {
    let listener = mesh.listener;
    let tasks = (0..requests).map(|_| {
        tokio::task::spawn_local(async move {
            Client::connect(listener).await.send_request(REQUEST_WITHOUT_KEY).await.status
        })
    });
    let mut responses = Vec::new();
    for status in tasks.collect::<Vec<_>>() {
        responses.push(status.await.unwrap());
    }
    responses
}

#[test]
fn checks_are_sent_again_as_long_as_each_connection_processes_some() {
    run(async {
        for streams in [1, 3, 10] {
            let app = Application::with_response(OK).await;
            let mesh = Mesh::permissive(app.address).await;
            let server =
                ShortConnectionServer::with_responses(streams, |stream, _| allow_frames(stream))
                    .await;
            let check_service = check_service_at(server.application.address, FailureMode::Deny);
            mesh.set_checks(vec![port_check(authorization_rule(check_service))], Vec::new());
            assert_eq!(
                concurrent_statuses(&mesh, 60).await,
                [200; 60],
                "{streams} streams per connection"
            );
            assert!(
                server.take_refused() > 0,
                "the first connection got more streams than the server accepted"
            );
            assert_eq!(
                concurrent_statuses(&mesh, 60).await,
                [200; 60],
                "{streams} streams per connection"
            );
            assert_eq!(
                server.take_refused(),
                0,
                "each connection got as many streams as the server accepts"
            );
        }
    });
}

#[test]
fn a_server_that_processes_no_check_gets_few_connections() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let server =
            ShortConnectionServer::with_responses(0, |stream, _| allow_frames(stream)).await;
        let check_service = check_service_at(server.application.address, FailureMode::Deny);
        mesh.set_checks(vec![port_check(authorization_rule(check_service))], Vec::new());
        assert_eq!(concurrent_statuses(&mesh, 30).await, [403; 30]);
        assert_eq!(server.take_refused(), 30 * outside::MAX_ATTEMPTS as usize);
        let opened = server.application.accepted.get();
        assert!(opened <= 10, "{opened} connections");
    });
}

#[test]
fn a_connection_that_ends_before_any_check_loses_none() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let connections = Rc::<Cell<usize>>::default();
        let server = Application::start(move |mut client| {
            let number = connections.replace(connections.get() + 1);
            async move {
                client.read_exactly(24).await;
                if number < 4 {
                    return;
                }
                client.send_bytes(&OPENING[24..]).await;
                while let Some(Frame { kind, flags, stream, payload }) = client.read_frame().await {
                    if kind == PING && flags == 0 {
                        client.send_bytes(frames::encode_frame(PING, 1, 0, &payload)).await;
                    }
                    if kind == DATA && flags & END_STREAM != 0 {
                        client.send_bytes(allow_frames(stream)).await;
                    }
                }
            }
        })
        .await;
        mesh.set_checks(
            vec![port_check(authorization_rule(check_service_at(
                server.address,
                FailureMode::Deny,
            )))],
            Vec::new(),
        );
        assert_eq!(concurrent_statuses(&mesh, 10).await, [200; 10]);
        assert_eq!(server.accepted.get(), 5);
    });
}

#[test]
fn a_server_that_sends_goaway_after_each_response_loses_no_check() {
    run(async {
        for ends in [false, true] {
            let app = Application::with_response(OK).await;
            let mesh = Mesh::permissive(app.address).await;
            let (server, request_count) = start_frame_service(move |_, stream| {
                ([allow_frames(stream), goaway_frame(stream)].concat(), ends)
            })
            .await;
            mesh.set_checks(
                vec![port_check(authorization_rule(check_service_at(
                    server.address,
                    FailureMode::Deny,
                )))],
                Vec::new(),
            );
            let mut client = Client::connect(mesh.listener).await;
            for number in 1..=5 {
                assert_eq!(client.send_request(REQUEST_WITHOUT_KEY).await.verdict(), (200, None));
                assert_eq!((request_count.get(), server.accepted.get()), (number, number));
            }
        }
    });
}

#[test]
fn a_check_that_the_server_may_have_processed_is_sent_once() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let (server, request_count) = start_frame_service(|number, stream| match number {
            1 => (goaway_frame(stream), true),
            _ => (allow_frames(stream), false),
        })
        .await;
        mesh.set_checks(
            vec![port_check(authorization_rule(check_service_at(
                server.address,
                FailureMode::Deny,
            )))],
            Vec::new(),
        );
        let mut client = Client::connect(mesh.listener).await;
        let unavailable_response = (403, Some("authorization-unavailable"));
        assert_eq!(client.send_request(REQUEST_WITHOUT_KEY).await.verdict(), unavailable_response);
        assert_eq!(request_count.get(), 1);
        assert_eq!(client.send_request(REQUEST_WITHOUT_KEY).await.verdict(), (200, None));
    });
}

#[test]
fn a_check_on_a_link_with_goaway_has_a_limited_number_of_attempts() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let identity = Rc::new(test_credential(&mesh.authority, "ratings"));
        let request_count = Rc::<Cell<u32>>::default();
        let count = request_count.clone();
        let server = Application::start(move |client| {
            let (identity, count) = (identity.clone(), count.clone());
            async move {
                let mut peer = Peer::accept_link(client.stream, &identity).await;
                while let Some(event) = peer.next().await {
                    if let LinkEvent::Opened { stream, .. } = event {
                        count.set(count.get() + 1);
                        peer.link.reset_stream(stream, ResetCode::Refused);
                        peer.link.go_away(GoAwayCode::Drain);
                    }
                }
            }
        })
        .await;
        let services = vec![service_config(
            Protocol::Grpc,
            &[meshed_endpoint("authz-1", server.address, "ratings")],
        )];
        let check_service_address =
            CheckServiceAddress::Service { service: test_service(), port: PORT };
        let check_service = CheckService {
            address: check_service_address,
            timeout: CHECK_TIMEOUT,
            failure_mode: FailureMode::Deny,
        };
        mesh.set_checks_with_services(
            vec![port_check(authorization_rule(check_service))],
            Vec::new(),
            services,
        );
        let respond = Client::connect(mesh.listener).await.send_request(REQUEST_WITHOUT_KEY).await;
        assert_eq!(respond.verdict(), (403, Some("authorization-unavailable")));
        assert_eq!(request_count.get(), outside::MAX_ATTEMPTS);
    });
}
