//! External authorization and rate limits between two sidecars and a check service.

mod bodies;
mod goaway;
mod room;

use std::net::SocketAddr;
use std::time::Duration;

use leno_model::{
    Authorization, Descriptor, DescriptorEntry, DescriptorValue, FailureMode, FixedResponse,
    GlobalLimit, PathMatch, PortCheck, PortLimits, Protocol, RateLimits, RequestCheck,
    RequestMatch, Server, ServicePolicyKind, ServicePolicyName,
};
use leno_telemetry::Count;
use leno_wire::link::{LinkEvent, ResetCode, StreamKind};
use prost::Message as _;
use tokio::net::TcpListener;

use super::protobuf::{
    CheckRequest, CheckResponse, DeniedResponse, HeaderValue, HeaderValueOption, OkResponse,
    RateLimitRequest, RateLimitResponse, Status,
};
use super::*;
use crate::tests::fixture::{
    Application, Client, Mesh, OK, PORT, Peer, Setup, closed_port, concurrency_limit, run,
    service_config, test_credential, test_service, wait_until,
};

/// A gRPC server that records each check request, and responds to it or leaves it open.
struct RecordingService {
    address: SocketAddr,
    received_checks: Rc<RefCell<Vec<ReceivedCheck>>>,
    connections: Rc<Cell<usize>>,
}

/// A received check request.
#[derive(Clone)]
struct ReceivedCheck {
    path: String,
    message: Vec<u8>,
}

impl RecordingService {
    async fn respond_with(response: impl Fn(&[u8]) -> Option<Vec<u8>> + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (received_checks, connections) =
            (Rc::<RefCell<Vec<_>>>::default(), Rc::<Cell<_>>::default());
        let (requests, count, response) =
            (received_checks.clone(), connections.clone(), Rc::new(response));
        tokio::task::spawn_local(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                count.set(count.get() + 1);
                let (requests, response) = (requests.clone(), response.clone());
                tokio::task::spawn_local(async move {
                    let mut connection = h2::server::handshake(tcp).await.unwrap();
                    // Streams without a response stay open.
                    let mut open_streams = Vec::new();
                    while let Some(Ok((request, mut respond))) = connection.accept().await {
                        let (requests, response) = (requests.clone(), response.clone());
                        let (head, mut body) = request.into_parts();
                        let (stream_sender, stream_receiver) = tokio::sync::oneshot::channel();
                        open_streams.push(stream_receiver);
                        tokio::task::spawn_local(async move {
                            let mut message = Vec::new();
                            while let Some(chunk) = body.data().await {
                                let chunk = chunk.unwrap();
                                body.flow_control().release_capacity(chunk.len()).unwrap();
                                message.extend_from_slice(&chunk);
                            }
                            let check_message = &message[5..];
                            let path = head.uri.path().to_owned();
                            requests
                                .borrow_mut()
                                .push(ReceivedCheck { path, message: check_message.into() });
                            let Some(response) = response(check_message) else {
                                return drop(stream_sender.send((respond, body)));
                            };
                            let head = http::Response::builder()
                                .header("content-type", "application/grpc")
                                .body(())
                                .unwrap();
                            let mut stream = respond.send_response(head, false).unwrap();
                            stream.send_data(message::add_prefix(&response), false).unwrap();
                            let mut trailers = http::HeaderMap::new();
                            trailers.insert("grpc-status", "0".parse().unwrap());
                            stream.send_trailers(trailers).unwrap();
                        });
                    }
                });
            }
        });
        Self { address, received_checks, connections }
    }

    fn check_service(&self, failure_mode: FailureMode) -> CheckService {
        check_service_at(self.address, failure_mode)
    }

    fn check_requests(&self) -> Vec<CheckRequest> {
        let received_checks = self.received_checks.borrow();
        received_checks.iter().map(|check| CheckRequest::decode(&*check.message).unwrap()).collect()
    }
}

/// The timeout of checks, which a busy machine does not reach; tests of timeouts use a shorter one.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);

fn check_service_at(address: SocketAddr, failure_mode: FailureMode) -> CheckService {
    let server = Server::parse(&format!("http://{address}")).unwrap();
    CheckService {
        address: CheckServiceAddress::External(server),
        timeout: CHECK_TIMEOUT,
        failure_mode,
    }
}

fn authorization_rule(check_service: CheckService) -> Authorization {
    Authorization {
        check_service,
        requests: Vec::new(),
        headers: None,
        context_extensions: Vec::new(),
        body: None,
    }
}

fn port_check(rule: Authorization) -> PortCheck {
    let policy =
        ServicePolicyName::new(ServicePolicyKind::ExternalAuthorization, "bookinfo", "ask");
    PortCheck { policy: policy.unwrap(), check: RequestCheck::Authorization(Box::new(rule)) }
}

fn header_option(key: &str, value: &str) -> HeaderValueOption {
    let header = HeaderValue { key: key.to_owned(), value: value.to_owned(), raw_value: vec![] };
    HeaderValueOption { header: Some(header), append: None, append_action: 0 }
}

fn allow_response() -> Vec<u8> {
    let allow_message = OkResponse {
        headers: vec![header_option("x-user", "ann")],
        headers_to_remove: vec!["cookie".to_owned()],
        response_headers_to_add: vec![header_option("x-decided", "yes")],
        ..OkResponse::default()
    };
    CheckResponse { ok: Some(allow_message), ..CheckResponse::default() }.encode_to_vec()
}

fn deny_response() -> Vec<u8> {
    let deny_message = DeniedResponse {
        status: Some(Status { code: 401 }),
        headers: vec![header_option("www-authenticate", "Basic")],
        body: "who are you?".to_owned(),
    };
    let status = Some(Status { code: 7 });
    CheckResponse { status, denied: Some(deny_message), ..CheckResponse::default() }.encode_to_vec()
}

fn server_count(mesh: &Mesh, count: Count) -> u64 {
    mesh.server.telemetry.count(count)
}

/// Denies requests without `x-key`.
fn decide_by_key(check_message: &[u8]) -> Option<Vec<u8>> {
    let check_request = CheckRequest::decode(check_message).unwrap();
    let http = check_request.attributes.unwrap().request.unwrap().http.unwrap();
    let has_key = http.headers.iter().any(|header| header.key == "x-key");
    Some(if has_key { allow_response() } else { deny_response() })
}

const REQUEST_WITH_KEY: &str =
    "GET /ratings/1?a=b HTTP/1.1\r\nhost: x\r\nx-key: k\r\nx-user: eve\r\ncookie: c\r\n\r\n";
const REQUEST_WITHOUT_KEY: &str = "GET /ratings/1 HTTP/1.1\r\nhost: x\r\n\r\n";

#[test]
fn a_service_decides_and_changes_allowed_requests() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let recorder = RecordingService::respond_with(decide_by_key).await;
        let rule = Authorization {
            context_extensions: vec![("rule".to_owned(), "all".to_owned())],
            ..authorization_rule(recorder.check_service(FailureMode::Deny))
        };
        mesh.set_checks(vec![port_check(rule)], Vec::new());
        let mut client = Client::connect(mesh.listener).await;
        let response = client.send_request(REQUEST_WITH_KEY).await;
        assert_eq!((response.status, response.field_value("x-decided")), (200, Some("yes")));
        let request = app.received_requests().remove(0);
        assert_eq!(
            (request.field_value("x-user"), request.field_value("cookie")),
            (Some("ann"), None)
        );
        assert_eq!(request.head.matches("x-user").count(), 1);
        let response = client.send_request(REQUEST_WITHOUT_KEY).await;
        assert_eq!(response.verdict(), (401, Some("denied-by-service")));
        assert_eq!(response.field_value("www-authenticate"), Some("Basic"));
        assert_eq!(response.body, b"who are you?");
        // The connections to the service and of the client were reused.
        assert_eq!(client.send_request(REQUEST_WITH_KEY).await.status, 200);
        assert_eq!(recorder.connections.get(), 1);
        assert_eq!(app.received_requests().len(), 2);

        let path = recorder.received_checks.borrow()[0].path.clone();
        assert_eq!(path, "/envoy.service.auth.v3.Authorization/Check");
        let attributes = recorder.check_requests().remove(0).attributes.unwrap();
        let (source, destination) = (attributes.source.unwrap(), attributes.destination.unwrap());
        assert_eq!(source.principal, "spiffe://cluster.local/ns/bookinfo/sa/productpage");
        assert_eq!(destination.principal, "spiffe://cluster.local/ns/bookinfo/sa/ratings");
        assert_eq!(destination.service, "bookinfo/ratings");
        let port = destination.address.unwrap().socket_address.unwrap().port_value;
        assert_eq!(port, u32::from(app.address.port()));
        let http = attributes.request.unwrap().http.unwrap();
        assert_eq!((http.method.as_str(), http.path.as_str()), ("GET", "/ratings/1?a=b"));
        let reported = |name: &str| {
            http.headers.iter().find(|header| header.key == name).map(|header| &*header.value)
        };
        assert_eq!((reported("cookie"), reported(":path")), (Some("c"), Some("/ratings/1?a=b")));
        assert_eq!(attributes.context_extensions[0].value, "all");
        assert_eq!(server_count(&mesh, Count::AuthorizationAllowed), 2);
        assert_eq!(server_count(&mesh, Count::AuthorizationDenied), 1);
        wait_until(|| mesh.server.failure_counts() == [("denied-by-service", 1)].into()).await;
    });
}

#[test]
fn only_matching_requests_are_checked_with_the_selected_headers() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let recorder = RecordingService::respond_with(decide_by_key).await;
        let admin = PathMatch::Prefix("/admin".to_owned());
        let rule = Authorization {
            requests: vec![RequestMatch { path: admin, ..RequestMatch::default() }],
            headers: Some(vec!["x-key".to_owned()]),
            ..authorization_rule(recorder.check_service(FailureMode::Deny))
        };
        mesh.set_checks(vec![port_check(rule)], Vec::new());
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(REQUEST_WITHOUT_KEY).await.status, 200);
        assert!(recorder.received_checks.borrow().is_empty());
        for path in ["/admin", "/%61dmin", "/x/../admin/users"] {
            let bare_request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
            assert_eq!(
                client.send_request(&bare_request).await.verdict(),
                (401, Some("denied-by-service"))
            );
        }
        let request = "GET /admin HTTP/1.1\r\nhost: x\r\nx-key: k\r\nauthorization: s\r\n\r\n";
        assert_eq!(client.send_request(request).await.status, 200);
        let http =
            recorder.check_requests().pop().unwrap().attributes.unwrap().request.unwrap().http;
        let reported: Vec<String> =
            http.unwrap().headers.into_iter().map(|header| header.key).collect();
        assert_eq!(reported, ["x-key"]);
    });
}

#[test]
fn the_failure_mode_decides_without_a_response_of_the_service() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let silent_service = RecordingService::respond_with(|_| None).await;
        let invalid_service = RecordingService::respond_with(|_| Some(vec![0xff; 9])).await;
        let short_timeout = Duration::from_millis(50);
        for (check_service, expected_mode, status) in [
            (check_service_at(closed_port(), FailureMode::Deny), FailureMode::Deny, 403),
            (check_service_at(closed_port(), FailureMode::Allow), FailureMode::Allow, 200),
            (
                CheckService {
                    timeout: short_timeout,
                    ..silent_service.check_service(FailureMode::Deny)
                },
                FailureMode::Deny,
                403,
            ),
            (
                CheckService {
                    timeout: short_timeout,
                    ..silent_service.check_service(FailureMode::Allow)
                },
                FailureMode::Allow,
                200,
            ),
            (invalid_service.check_service(FailureMode::Deny), FailureMode::Deny, 403),
            // The response may have been a denial.
            (invalid_service.check_service(FailureMode::Allow), FailureMode::Deny, 403),
        ] {
            let counts_before =
                [Count::AuthorizationFailed, Count::AuthorizationFailureModeAllowed]
                    .map(|count| server_count(&mesh, count));
            mesh.set_checks(vec![port_check(authorization_rule(check_service))], Vec::new());
            let response =
                Client::connect(mesh.listener).await.send_request(REQUEST_WITHOUT_KEY).await;
            let reason = (status == 403).then_some("authorization-unavailable");
            assert_eq!(response.verdict(), (status, reason));
            let counts_after = [Count::AuthorizationFailed, Count::AuthorizationFailureModeAllowed]
                .map(|count| server_count(&mesh, count));
            let expected_allowed = u64::from(expected_mode == FailureMode::Allow);
            assert_eq!(
                [counts_after[0] - counts_before[0], counts_after[1] - counts_before[1]],
                [1 - expected_allowed, expected_allowed]
            );
        }
        // The first request waits for a response that never comes, and holds no concurrency permit meanwhile;
        // the same thread serves other requests.
        let rule = Authorization {
            requests: vec![RequestMatch {
                path: PathMatch::Prefix("/slow".to_owned()),
                ..RequestMatch::default()
            }],
            ..authorization_rule(silent_service.check_service(FailureMode::Deny))
        };
        mesh.set_checks(vec![port_check(rule)], vec![concurrency_limit("x", 1)]);
        let request_count = silent_service.received_checks.borrow().len();
        let mut waiting_client = Client::connect(mesh.listener).await;
        waiting_client.send_bytes("GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await;
        wait_until(|| silent_service.received_checks.borrow().len() > request_count).await;
        assert_eq!(
            Client::connect(mesh.listener).await.send_request(REQUEST_WITHOUT_KEY).await.status,
            200
        );
    });
}

#[test]
fn access_policies_decide_first_and_opaque_bytes_are_rejected() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh =
            Mesh::with_access(app.address, leno_model::Access::AllowListed(Vec::new())).await;
        let recorder = RecordingService::respond_with(decide_by_key).await;
        let rule = port_check(authorization_rule(recorder.check_service(FailureMode::Deny)));
        mesh.set_checks(vec![rule], Vec::new());
        let response = Client::connect(mesh.listener).await.send_request(REQUEST_WITH_KEY).await;
        assert_eq!(response.verdict(), (403, Some("denied")));
        assert!(recorder.received_checks.borrow().is_empty());

        let mesh = Mesh::permissive(app.address).await;
        let rule = port_check(authorization_rule(recorder.check_service(FailureMode::Deny)));
        mesh.set_checks(vec![rule], Vec::new());
        let identity = test_credential(&mesh.authority, "productpage");
        let mut peer = Peer::connect_link(mesh.inbound, &identity).await;
        peer.open_stream(StreamKind::Tcp, "", false);
        let event = peer.next().await;
        assert!(
            matches!(event, Some(LinkEvent::Reset { code: ResetCode::Denied, .. })),
            "{event:?}"
        );
        assert_eq!(app.accepted.get(), 0);
    });
}

#[test]
fn a_service_of_the_mesh_is_called_over_links() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let recorder = RecordingService::respond_with(decide_by_key).await;
        let setup = Setup { protocol: Protocol::Grpc, ..Setup::default() };
        let (_sidecar, endpoint) =
            mesh.start_server_with("authz-1", recorder.address, &setup).await;
        let services = vec![service_config(Protocol::Grpc, &[endpoint])];
        let check_service_address =
            CheckServiceAddress::Service { service: test_service(), port: PORT };
        let check_service = CheckService {
            address: check_service_address,
            timeout: CHECK_TIMEOUT,
            failure_mode: FailureMode::Deny,
        };
        mesh.set_checks_with_services(
            vec![port_check(authorization_rule(check_service.clone()))],
            Vec::new(),
            services,
        );
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(REQUEST_WITH_KEY).await.status, 200);
        assert_eq!(
            client.send_request(REQUEST_WITHOUT_KEY).await.verdict(),
            (401, Some("denied-by-service"))
        );
        assert_eq!(recorder.received_checks.borrow().len(), 2);
        // The service has no endpoints from now on.
        let services_without_endpoints = vec![service_config(Protocol::Grpc, &[])];
        mesh.set_checks_with_services(
            vec![port_check(authorization_rule(check_service))],
            Vec::new(),
            services_without_endpoints,
        );
        let response = client.send_request(REQUEST_WITH_KEY).await;
        assert_eq!(response.verdict(), (403, Some("authorization-unavailable")));
    });
}

fn port_limits(check_service: CheckService) -> PortLimits {
    let entry = DescriptorEntry { key: "client".to_owned(), value: DescriptorValue::Client };
    let descriptor = Descriptor { requests: Vec::new(), entries: vec![entry], hits_addend: 2 };
    let response = FixedResponse { body: Some("slowly".to_owned()), ..FixedResponse::default() };
    let domain = "shop".to_owned();
    let global_limit = GlobalLimit {
        check_service,
        domain,
        descriptors: vec![descriptor],
        response,
        rate_limit_headers: true,
    };
    let policy = ServicePolicyName::new(ServicePolicyKind::RateLimit, "bookinfo", "all").unwrap();
    PortLimits {
        policy,
        limits: RateLimits { global: Some(Box::new(global_limit)), ..RateLimits::default() },
    }
}

#[test]
fn a_rate_limit_service_limits_requests() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let room = Cell::new(2);
        let recorder = RecordingService::respond_with(move |_| {
            let overall_code = if room.replace(room.get() - 1) > 0 { 1 } else { 2 };
            let name = HeaderValue {
                key: "x-limited-by".to_owned(),
                value: "shop".to_owned(),
                raw_value: Vec::new(),
            };
            let response_headers_to_add = vec![name];
            let response =
                RateLimitResponse { overall_code, response_headers_to_add, ..Default::default() };
            Some(response.encode_to_vec())
        })
        .await;
        mesh.set_checks(Vec::new(), vec![port_limits(recorder.check_service(FailureMode::Allow))]);
        let mut client = Client::connect(mesh.listener).await;
        for (status, reason, body) in
            [(200, None, &b"ok"[..]), (200, None, b"ok"), (429, Some("rate-limited"), b"slowly")]
        {
            let response = client.send_request(REQUEST_WITHOUT_KEY).await;
            assert_eq!((response.verdict(), &*response.body), ((status, reason), body));
            assert_eq!(response.field_value("x-limited-by"), Some("shop"));
        }
        let ReceivedCheck { path, message } = recorder.received_checks.borrow()[0].clone();
        assert_eq!(path, "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        let rate_limit_request = RateLimitRequest::decode(&*message).unwrap();
        assert_eq!(
            (rate_limit_request.domain.as_str(), rate_limit_request.hits_addend),
            ("shop", 2)
        );
        let entry = &rate_limit_request.descriptors[0].entries[0];
        assert_eq!((&*entry.key, &*entry.value), ("client", "bookinfo/productpage"));
        assert_eq!(server_count(&mesh, Count::GlobalLimitAllowed), 2);
        assert_eq!(server_count(&mesh, Count::GlobalLimitDenied), 1);

        for (failure_mode, verdict) in [
            (FailureMode::Allow, (200, None)),
            (FailureMode::Deny, (500, Some("rate-limit-unavailable"))),
        ] {
            mesh.set_checks(
                Vec::new(),
                vec![port_limits(check_service_at(closed_port(), failure_mode))],
            );
            assert_eq!(client.send_request(REQUEST_WITHOUT_KEY).await.verdict(), verdict);
        }
        assert_eq!(server_count(&mesh, Count::GlobalLimitFailureModeAllowed), 1);
        assert_eq!(server_count(&mesh, Count::GlobalLimitFailed), 1);
    });
}

#[test]
fn a_response_over_the_size_limit_is_an_error() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let recorder = RecordingService::respond_with(|_| {
            let body = "a".repeat(message::MAX_RESPONSE_BYTES);
            let deny_message = DeniedResponse { body, ..DeniedResponse::default() };
            Some(
                CheckResponse { denied: Some(deny_message), ..CheckResponse::default() }
                    .encode_to_vec(),
            )
        })
        .await;
        mesh.set_checks(
            vec![port_check(authorization_rule(recorder.check_service(FailureMode::Deny)))],
            Vec::new(),
        );
        let response = Client::connect(mesh.listener).await.send_request(REQUEST_WITHOUT_KEY).await;
        assert_eq!(response.verdict(), (403, Some("authorization-unavailable")));
    });
}
