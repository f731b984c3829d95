//! Request bodies that are sent to an authorization service.

use std::collections::BTreeMap;
use std::future::poll_fn;

use leno_model::{
    Access, BodyExcerpt, LongBodyAction, MtlsMode, RetryRule, RouteRule, RuleActions,
    WorkloadConfig, WorkloadPort,
};
use leno_telemetry::Gauge;

use super::super::protobuf::HttpRequest;
use super::*;
use crate::tests::fixture::{End, ReceivedMessage, proxy_config, wait_until_stable};
use crate::tests::http2;
use crate::tests::routes::{path_rule, routed_services};

const TEXT: BodyExcerpt =
    BodyExcerpt { max_bytes: 8, long_body: LongBodyAction::Reject, pack_as_bytes: false };
const PREFIX: BodyExcerpt = BodyExcerpt { long_body: LongBodyAction::SendPrefix, ..TEXT };
const BYTES: BodyExcerpt = BodyExcerpt { pack_as_bytes: true, ..TEXT };

fn check_with_body(check_service: CheckService, body: BodyExcerpt) -> PortCheck {
    port_check(Authorization { body: Some(body), ..authorization_rule(check_service) })
}

/// Returns the request that the service received, and the value of the partial body header.
fn received_request(recorder: &RecordingService) -> (HttpRequest, Option<String>) {
    let http =
        recorder.check_requests().pop().unwrap().attributes.unwrap().request.unwrap().http.unwrap();
    let mut reported =
        http.headers.iter().filter(|header| header.key == "x-envoy-auth-partial-body");
    let partial_header = reported.next().map(|header| header.value.clone());
    assert!(reported.next().is_none(), "the header is sent once");
    (http, partial_header)
}

/// Denies a body that contains `no`.
fn decide_by_body(question: &[u8]) -> Option<Vec<u8>> {
    let question = CheckRequest::decode(question).unwrap();
    let http = question.attributes.unwrap().request.unwrap().http.unwrap();
    Some(if http.body.contains("no") { deny_response() } else { allow_response() })
}

fn post_request(body: &str) -> String {
    let length = body.len();
    format!("POST /ratings/1 HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}")
}

#[test]
fn a_service_receives_the_body_and_the_application_gets_it_unchanged() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let recorder = RecordingService::respond_with(decide_by_body).await;
        mesh.set_checks(
            vec![check_with_body(recorder.check_service(FailureMode::Deny), TEXT)],
            Vec::new(),
        );
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(&post_request("yes")).await.status, 200);
        let (http, partial_header) = received_request(&recorder);
        assert_eq!(
            (http.body.as_str(), http.size, partial_header.as_deref()),
            ("yes", 3, Some("false"))
        );
        assert!(http.raw_body.is_empty());
        // The check request waits for the last byte, also with chunked encoding; trailers are forwarded.
        const CHUNKED: &str = "POST /ratings/1 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\
                               x-envoy-auth-partial-body: true\r\n\r\n";
        client.send_bytes(CHUNKED).await;
        for piece in ["1\r\na\r\n", "2\r\nbc\r\n", "5\r\ndefgh\r\n", "0\r\nx-sum: 8\r\n\r\n"] {
            assert_eq!(recorder.received_checks.borrow().len(), 1);
            client.send_bytes(piece).await;
            wait_until_stable(|| recorder.received_checks.borrow().len()).await;
        }
        assert_eq!(client.read_response().await.status, 200);
        let (http, partial_header) = received_request(&recorder);
        let reported = (http.body.as_str(), http.size, partial_header.as_deref());
        assert_eq!(reported, ("abcdefgh", 8, Some("false")));
        // Without a body no excerpt is sent, even if the client sets the header.
        let bare_request =
            "GET /ratings/1 HTTP/1.1\r\nhost: x\r\nx-envoy-auth-partial-body: true\r\n\r\n";
        assert_eq!(client.send_request(bare_request).await.status, 200);
        let (http, partial_header) = received_request(&recorder);
        assert_eq!((http.body.as_str(), http.size, partial_header), ("", -1, None));

        let requests = app.received_requests();
        let bodies: Vec<&str> = requests.iter().map(ReceivedMessage::body_text).collect();
        assert_eq!(bodies, ["yes", "abcdefgh", ""]);
        assert_eq!(requests[1].trailers, "x-sum: 8");
        assert_eq!(requests[0].field_value("x-user"), Some("ann"));
        // A denied request does not reach the application, and its connection stays open.
        let response = client.send_request(&post_request("no")).await;
        assert_eq!(response.verdict(), (401, Some("denied-by-service")));
        assert_eq!(client.send_request(&post_request("yes")).await.status, 200);
        assert_eq!(app.received_requests().len(), 4);
        assert_eq!(mesh.server.worker.check_services.buffered_bodies.total_bytes.get(), 0);
    });
}

#[test]
fn a_longer_body_is_rejected_without_a_check() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let recorder = RecordingService::respond_with(decide_by_body).await;
        mesh.set_checks(
            vec![check_with_body(recorder.check_service(FailureMode::Allow), TEXT)],
            Vec::new(),
        );
        // A body that declares its excessive length is rejected at once, without an interim response.
        const DECLARED_LENGTH: &str = "POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n\
                            content-length: 9\r\n\r\n";
        const CHUNKED_LENGTH: &str = "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n\
                             5\r\nabcde\r\n4\r\nfghi\r\n";
        for request in [DECLARED_LENGTH, CHUNKED_LENGTH] {
            let mut client = Client::connect(mesh.listener).await;
            let response = client.send_request(request).await;
            assert_eq!(response.verdict(), (413, Some("body-too-large")));
            assert!(
                response.body_text().contains("ExternalAuthorization bookinfo/ask"),
                "{response:?}"
            );
            assert_eq!(client.read_end().await, End::Clean);
        }
        assert!(recorder.received_checks.borrow().is_empty() && app.received_requests().is_empty());
        wait_until(|| mesh.server.failure_counts() == [("body-too-large", 2)].into()).await;
    });
}

/// An HTTP/2 application that echoes requests.
async fn echo_application() -> Application {
    http2::start_application(|request, mut respond| async move {
        let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
        let (received, _) = http2::read_body(request.into_body()).await;
        http2::send_data(&mut stream, received.into(), true).await;
    })
    .await
}

#[test]
fn a_grpc_call_with_a_longer_message_gets_a_grpc_status() {
    run(async {
        let mesh = http2::http2_mesh(echo_application().await.address, Protocol::Grpc).await;
        let recorder = RecordingService::respond_with(decide_by_body).await;
        mesh.set_checks(
            vec![check_with_body(recorder.check_service(FailureMode::Allow), TEXT)],
            Vec::new(),
        );
        let mut client = http2::connect_client(mesh.listener).await;
        let (response, mut stream) =
            client.send_request(http2::grpc_request("/Rate"), false).unwrap();
        http2::send_data(&mut stream, Bytes::from_static(b"too long a message"), false).await;
        let response = response.await.unwrap();
        assert_eq!(
            (response.status().as_u16(), response.headers()["grpc-status"].as_bytes()),
            (200, &b"8"[..])
        );
        assert!(recorder.received_checks.borrow().is_empty());
    });
}

#[test]
fn a_service_may_decide_by_the_prefix_of_a_body() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let recorder = RecordingService::respond_with(decide_by_body).await;
        mesh.set_checks(
            vec![check_with_body(recorder.check_service(FailureMode::Deny), PREFIX)],
            Vec::new(),
        );
        let mut client = Client::connect(mesh.listener).await;
        for (body, reported, partial) in [
            ("yes", "yes", "false"),
            ("12345678", "12345678", "false"),
            ("123456789", "12345678", "true"),
            // The excerpt ends before a character that the limit would truncate.
            ("1234567\u{e9}", "1234567", "true"),
        ] {
            assert_eq!(client.send_request(&post_request(body)).await.status, 200);
            let (http, partial_header) = received_request(&recorder);
            assert_eq!((http.body.as_str(), partial_header.as_deref()), (reported, Some(partial)));
            assert_eq!(http.size, i64::try_from(body.len()).unwrap());
            assert_eq!(app.received_requests().last().unwrap().body_text(), body);
        }
        // Once the excerpt is complete, the rest of the body is not awaited.
        client.send_bytes("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n").await;
        client.send_bytes("8\r\n12345678\r\n").await;
        wait_until(|| recorder.received_checks.borrow().len() == 5).await;
        let (http, partial_header) = received_request(&recorder);
        assert_eq!((http.size, partial_header.as_deref()), (-1, Some("true")));
        client.send_bytes("2\r\nno\r\n0\r\n\r\n").await;
        assert_eq!(client.read_response().await.status, 200);
        assert_eq!(app.received_requests().last().unwrap().body_text(), "12345678no");
        // A denied request gets its response while its body is in progress.
        let partial_request = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\nno, no, no";
        let response = client.send_request(partial_request).await;
        assert_eq!(response.verdict(), (401, Some("denied-by-service")));
        assert_eq!(client.read_end().await, End::Clean);
    });
}

#[test]
fn a_call_that_waits_for_a_response_is_checked_in_time() {
    run(async {
        let mesh = http2::http2_mesh(echo_application().await.address, Protocol::Grpc).await;
        let recorder = RecordingService::respond_with(decide_by_body).await;
        let max_wait = Duration::from_secs(2);
        let check_service =
            CheckService { timeout: max_wait, ..recorder.check_service(FailureMode::Deny) };
        mesh.set_checks(vec![check_with_body(check_service, PREFIX)], Vec::new());
        let mut client = http2::connect_client(mesh.listener).await;
        let (response, mut stream) =
            client.send_request(http2::grpc_request("/Rate"), false).unwrap();
        http2::send_data(&mut stream, Bytes::from_static(b"hey"), false).await;
        let response = response.await.unwrap();
        let (http, partial_header) = received_request(&recorder);
        assert_eq!((http.body.as_str(), partial_header.as_deref()), ("hey", Some("true")));
        http2::send_data(&mut stream, Bytes::from_static(b", more"), true).await;
        assert_eq!(http2::read_body(response.into_body()).await.0, b"hey, more");
    });
}

#[test]
fn a_body_is_sent_as_bytes_or_as_text() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let recorder = RecordingService::respond_with(decide_by_body).await;
        let non_utf8_request =
            [b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n", &b"a\xffb"[..]];
        for (body, text, bytes) in [(BYTES, "", &b"a\xffb"[..]), (TEXT, "a\u{fffd}b", b"")] {
            mesh.set_checks(
                vec![check_with_body(recorder.check_service(FailureMode::Deny), body)],
                Vec::new(),
            );
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(non_utf8_request.concat()).await;
            assert_eq!(client.read_response().await.status, 200);
            let (http, _) = received_request(&recorder);
            assert_eq!((http.body.as_str(), &*http.raw_body), (text, bytes));
            assert_eq!(app.received_requests().pop().unwrap().body, b"a\xffb");
        }
    });
}

#[test]
fn a_client_that_expects_100_continue_receives_it() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let recorder = RecordingService::respond_with(decide_by_body).await;
        mesh.set_checks(
            vec![check_with_body(recorder.check_service(FailureMode::Deny), TEXT)],
            Vec::new(),
        );
        const EXPECT: &str =
            "POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n";
        let mut client = Client::connect(mesh.listener).await;
        for (body, status) in [("yes", 200), ("no!", 401)] {
            assert_eq!(client.send_request(EXPECT).await.status, 100);
            assert_eq!(client.send_request(body).await.status, status);
        }
        let [request] = &app.received_requests()[..] else { panic!("one request") };
        // The sidecar has already sent 100 Continue; the application must not repeat it.
        assert_eq!((request.body_text(), request.field_value("expect")), ("yes", None));
    });
}

#[test]
fn an_http2_application_receives_the_changed_headers_without_expect() {
    run(async {
        let app = http2::start_application(|request, mut respond| async move {
            let (parts, body) = request.into_parts();
            let (received, _) = http2::read_body(body).await;
            let reported = |name: &str| {
                let values = parts.headers.get_all(name).iter();
                values.map(|value| value.to_str().unwrap()).collect::<Vec<_>>().join(",")
            };
            let head = http::Response::builder()
                .header("saw-user", reported("x-user"))
                .header("saw-cookie", reported("cookie"))
                .header("saw-expect", reported("expect"));
            let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
            http2::send_data(&mut stream, received.into(), true).await;
        });
        let mesh = http2::http2_mesh(app.await.address, Protocol::Http2).await;
        let recorder = RecordingService::respond_with(decide_by_body).await;
        mesh.set_checks(
            vec![check_with_body(recorder.check_service(FailureMode::Deny), TEXT)],
            Vec::new(),
        );
        let mut client = http2::connect_client(mesh.listener).await;
        let request = http::Request::post("http://ratings.bookinfo:9080/")
            .header("x-user", "eve")
            .header("cookie", "c")
            .header("expect", "100-continue");
        let request = request.body(()).unwrap();
        let (mut response, mut stream) = client.send_request(request, false).unwrap();
        let interim = poll_fn(|cx| response.poll_informational(cx)).await.unwrap().unwrap();
        assert_eq!(interim.status(), 100);
        http2::send_data(&mut stream, Bytes::from_static(b"yes"), true).await;
        assert!(
            poll_fn(|cx| response.poll_informational(cx)).await.is_none(),
            "100 Continue is sent once"
        );
        let response = response.await.unwrap();
        let reported = ["saw-user", "saw-cookie", "saw-expect", "x-decided"]
            .map(|name| response.headers()[name].to_str().unwrap().to_owned());
        assert_eq!(reported, ["ann", "", "", "yes"]);
        assert_eq!(http2::read_body(response.into_body()).await.0, b"yes");
    });
}

#[test]
fn a_slow_client_does_not_bypass_the_check() {
    run(async {
        let app = Application::with_response(OK).await;
        let mut setup = Setup::default();
        setup.limits.body_stall_timeout = Duration::from_millis(100);
        let mesh = Mesh::new(app.address, setup).await;
        let recorder = RecordingService::respond_with(decide_by_body).await;
        // The server must be the one that times out, not the client's sidecar.
        let inbound_address = mesh.inbound;
        let check_service = CheckService {
            timeout: Duration::from_millis(10),
            ..recorder.check_service(FailureMode::Allow)
        };
        for body in [TEXT, PREFIX] {
            accept_unmeshed_clients(&mesh, vec![check_with_body(check_service.clone(), body)]);
            // On HTTP/1.1 the content type does not make a request a gRPC call.
            for kind in ["text/plain", "application/grpc"] {
                let partial_request = format!(
                    "POST / HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: 3\r\n\r\nab"
                );
                let mut client = Client::connect(inbound_address).await;
                let response = client.send_request(&partial_request).await;
                assert_eq!(response.verdict(), (408, Some("body-stalled")));
                assert_eq!(client.read_end().await, End::Clean);
            }
        }
        assert!(recorder.received_checks.borrow().is_empty() && app.received_requests().is_empty());
        // No check request is sent for a client that disconnects.
        let mut client = Client::connect(inbound_address).await;
        client.send_bytes("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nab").await;
        drop(client);
        wait_until(|| mesh.server.failure_counts().contains_key("downstream-closed")).await;
        assert!(recorder.received_checks.borrow().is_empty());
        assert_eq!(mesh.server.worker.check_services.buffered_bodies.total_bytes.get(), 0);
    });
}

#[test]
fn without_memory_for_bodies_unchecked_requests_are_denied() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let recorder = RecordingService::respond_with(decide_by_body).await;
        mesh.set_checks(
            vec![check_with_body(recorder.check_service(FailureMode::Allow), TEXT)],
            Vec::new(),
        );
        let buffered_bodies = mesh.server.worker.check_services.buffered_bodies.clone();
        buffered_bodies.total_bytes.set(16 << 20);
        let mut client = Client::connect(mesh.listener).await;
        let response = client.send_request(&post_request("yes")).await;
        assert_eq!(response.verdict(), (403, Some("authorization-unavailable")));
        assert_eq!(server_count(&mesh, Count::AuthorizationFailed), 1);
        buffered_bodies.total_bytes.set(0);
        assert_eq!(
            Client::connect(mesh.listener).await.send_request(&post_request("yes")).await.status,
            200
        );
    });
}

/// Makes the server accept unmeshed clients as well.
fn accept_unmeshed_clients(mesh: &Mesh, checks: Vec<PortCheck>) {
    let protocol = mesh.setup.protocol;
    let port = mesh.server.port;
    let ports = vec![WorkloadPort { name: None, port, protocol }];
    mesh.server.apply_config(
        WorkloadConfig {
            ports,
            port_services: BTreeMap::from([(port, test_service())]),
            mtls: MtlsMode::Permissive,
            request_checks: [(port, checks)].into(),
            ..proxy_config("ratings", Access::AllowAll)
        },
        Vec::new(),
    );
}

#[test]
fn requests_of_unmeshed_clients_are_checked_in_both_http_versions() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let recorder = RecordingService::respond_with(decide_by_body).await;
        let whole_body_excerpt = BodyExcerpt { max_bytes: BodyExcerpt::MAX_BYTES, ..TEXT };
        accept_unmeshed_clients(
            &mesh,
            vec![check_with_body(recorder.check_service(FailureMode::Deny), whole_body_excerpt)],
        );
        // A body that exceeds every window and buffer.
        let long_body = "abcdefg ".repeat(100_000);
        let mut client = Client::connect(mesh.inbound).await;
        for (body, status) in [("yes", 200), ("no", 401), (&*long_body, 200), ("yes", 200)] {
            assert_eq!(client.send_request(&post_request(body)).await.status, status);
        }
        assert_eq!(received_request(&recorder).0.body, "yes");
        let bodies: Vec<usize> =
            app.received_requests().iter().map(|request| request.body.len()).collect();
        assert_eq!(bodies, [3, long_body.len(), 3]);
        assert!(app.received_requests()[1].body_text() == long_body);
        assert_eq!(mesh.server.worker.check_services.buffered_bodies.total_bytes.get(), 0);

        let mesh = http2::http2_mesh(echo_application().await.address, Protocol::Grpc).await;
        accept_unmeshed_clients(
            &mesh,
            vec![check_with_body(recorder.check_service(FailureMode::Deny), whole_body_excerpt)],
        );
        let mut client = http2::connect_client(mesh.inbound).await;
        for (body, status) in [("yes", 200), ("no", 401), (&*long_body, 200)] {
            let request = http::Request::post("http://ratings/1").body(()).unwrap();
            let (response, mut stream) = client.send_request(request, false).unwrap();
            http2::send_data(&mut stream, body.to_owned().into(), true).await;
            let response = response.await.unwrap();
            assert_eq!(response.status(), status);
            assert!(received_request(&recorder).0.body == body);
            let (said, _) = http2::read_body(response.into_body()).await;
            assert!(status == 401 || said == body.as_bytes());
        }
        assert_eq!(mesh.server.worker.check_services.buffered_bodies.total_bytes.get(), 0);
    });
}

#[test]
fn each_attempt_is_checked_with_its_body() {
    run(async {
        const UNAVAILABLE: &str = "HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy";
        let first = Cell::new(true);
        let app = Application::respond_with(move |_| {
            if first.replace(false) { UNAVAILABLE.to_owned() } else { OK.to_owned() }
        })
        .await;
        let mesh = Mesh::permissive(app.address).await;
        let recorder = RecordingService::respond_with(decide_by_body).await;
        mesh.set_checks(
            vec![check_with_body(recorder.check_service(FailureMode::Deny), TEXT)],
            Vec::new(),
        );
        let retry = RetryRule { codes: vec![503], attempts: 1, backoff: Duration::from_millis(1) };
        let actions = RuleActions { retry: Some(retry), ..RuleActions::default() };
        let rule = RouteRule { actions, ..path_rule("/", &[("ratings-v2", 1)]) };
        mesh.set_client_services(routed_services(&mesh, vec![rule]));
        assert_eq!(
            Client::connect(mesh.listener)
                .await
                .send_request(&post_request("yes"))
                .await
                .body_text(),
            "ok"
        );
        assert_eq!(recorder.received_checks.borrow().len(), 2);
        assert_eq!(received_request(&recorder).0.body, "yes");
        assert!(
            app.received_requests().iter().all(|request| request.body_text() == "yes")
                && app.received_requests().len() == 2
        );
    });
}

#[test]
fn each_policy_has_its_own_limit_of_the_excerpt() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let [none, few, all] = [
            RecordingService::respond_with(decide_by_body).await,
            RecordingService::respond_with(decide_by_body).await,
            RecordingService::respond_with(decide_by_body).await,
        ];
        let checks = vec![
            port_check(authorization_rule(none.check_service(FailureMode::Deny))),
            check_with_body(
                few.check_service(FailureMode::Deny),
                BodyExcerpt { max_bytes: 2, ..PREFIX },
            ),
            check_with_body(all.check_service(FailureMode::Deny), TEXT),
        ];
        mesh.set_checks(checks, Vec::new());
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(&post_request("abcd")).await.status, 200);
        let reported = [&none, &few, &all].map(|recorder| {
            let (http, partial_header) = received_request(recorder);
            (http.body, partial_header)
        });
        let report = |body: &str, partial_header: Option<&str>| {
            (body.to_owned(), partial_header.map(str::to_owned))
        };
        assert_eq!(
            reported,
            [report("", None), report("ab", Some("true")), report("abcd", Some("false"))]
        );
        assert_eq!(app.received_requests()[0].body_text(), "abcd");
        // A request that waits for its body holds no concurrency permit meanwhile.
        mesh.set_checks(
            vec![check_with_body(all.check_service(FailureMode::Deny), TEXT)],
            vec![concurrency_limit("x", 1)],
        );
        let mut slow_client = Client::connect(mesh.listener).await;
        slow_client.send_bytes("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\na").await;
        wait_until(|| mesh.server.telemetry.gauge(Gauge::RequestsInFlight) == 1).await;
        assert_eq!(client.send_request(&post_request("abcd")).await.status, 200);
        slow_client.send_bytes("bc").await;
        assert_eq!(slow_client.read_response().await.status, 200);
    });
}
