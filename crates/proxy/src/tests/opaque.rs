//! Opaque bytes at ports with policies that decide by request.

use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::Response;
use leno_model::{
    Authorization, CheckService, CheckServiceAddress, Concurrency, Descriptor, DescriptorEntry,
    DescriptorValue, FailureMode, FaultAbort, FaultRule, FixedResponse, GlobalLimit, InboundPolicy,
    JwtValidation, MtlsMode, PathMatch, PolicyAction, PolicyName, PolicyRule, PortCheck,
    PortFaults, PortLimits, PortSet, Protocol, Rate, RateLimitKey, RateLimits, RateRule,
    RequestCheck, RequestMatch, Server, ServicePolicyKind, ServicePolicyName, TokenRequirement,
    TrafficPolicy, WorkloadConfig,
};
use leno_wire::link::{LinkEvent, ResetCode, StreamKind};
use tokio::io::{AsyncRead, AsyncWrite};

use super::fixture::{
    Application, Client, End, GET, Mesh, OK, Peer, Setup, run, service_config, test_credential,
    wait_until,
};
use super::http2;

async fn protocol_mesh(application: std::net::SocketAddr, protocol: Protocol) -> Mesh {
    Mesh::new(application, Setup { protocol, ..Setup::default() }).await
}

fn policy_name(kind: ServicePolicyKind) -> ServicePolicyName {
    ServicePolicyName::new(kind, "bookinfo", "guard").unwrap()
}

pub(super) fn port_limits(limits: RateLimits) -> PortLimits {
    PortLimits { policy: policy_name(ServicePolicyKind::RateLimit), limits }
}

/// A burst of `size`, and one more each hour.
fn hourly_rate(size: u32) -> Rate {
    Rate { count: 1, period: Duration::from_secs(3600), burst: size }
}

pub(super) fn rate_rule(size: u32) -> RateRule {
    RateRule {
        name: "rule".to_owned(),
        requests: Vec::new(),
        peers: Vec::new(),
        key: RateLimitKey::None,
        rate: hourly_rate(size),
        stop: false,
        response: FixedResponse::default(),
    }
}

fn test_service() -> CheckService {
    let check_service_address =
        CheckServiceAddress::External(Server::parse("http://127.0.0.1:9").unwrap());
    CheckService {
        address: check_service_address,
        timeout: Duration::from_millis(200),
        failure_mode: FailureMode::Deny,
    }
}

pub(super) fn denying_policy() -> InboundPolicy {
    let request =
        RequestMatch { path: PathMatch::Prefix("/admin".to_owned()), ..RequestMatch::default() };
    let rule = PolicyRule {
        policy: PolicyName::new("bookinfo", "guard").unwrap(),
        name: "closed".to_owned(),
        action: PolicyAction::Deny,
        peers: Vec::new(),
        requests: vec![request],
        claims: Vec::new(),
        ports: PortSet::All,
    };
    InboundPolicy { rules: vec![rule], ..InboundPolicy::default() }
}

type Change = Box<dyn Fn(WorkloadConfig) -> WorkloadConfig>;

/// Returns all policies that may decide by request at a port, and whether each allows bytes at a port declared
/// `TCP`.
fn request_policies(port: u16) -> Vec<(&'static str, bool, Change)> {
    let limited = |limits: RateLimits| {
        move |workload_config| WorkloadConfig {
            limits: [(port, vec![port_limits(limits.clone())])].into(),
            ..workload_config
        }
    };
    let guarded = |kind, guard: RequestCheck| {
        let guard = PortCheck { policy: policy_name(kind), check: guard };
        move |workload_config| WorkloadConfig {
            request_checks: [(port, vec![guard.clone()])].into(),
            ..workload_config
        }
    };
    let tokens =
        |required| RequestCheck::Tokens(Box::new(JwtValidation { issuers: Vec::new(), required }));
    let authorization = RequestCheck::Authorization(Box::new(Authorization {
        check_service: test_service(),
        requests: Vec::new(),
        headers: None,
        context_extensions: Vec::new(),
        body: None,
    }));
    let entry = DescriptorEntry { key: "path".to_owned(), value: DescriptorValue::Path };
    let global_limit = GlobalLimit {
        check_service: test_service(),
        domain: "shop".to_owned(),
        descriptors: vec![Descriptor {
            requests: Vec::new(),
            entries: vec![entry],
            hits_addend: 1,
        }],
        response: FixedResponse::default(),
        rate_limit_headers: false,
    };
    let no_limits = RateLimits::default;
    let connections = Some(hourly_rate(1000));
    let concurrency_limit = Some(Concurrency { requests: 1, ..Concurrency::default() });
    let (jwt, external) =
        (ServicePolicyKind::JwtValidation, ServicePolicyKind::ExternalAuthorization);
    vec![
        (
            "rules",
            true,
            Box::new(limited(RateLimits { rules: vec![rate_rule(2)], connections, ..no_limits() })),
        ),
        (
            "concurrency",
            true,
            Box::new(limited(RateLimits { concurrency: concurrency_limit, ..no_limits() })),
        ),
        (
            "global",
            true,
            Box::new(limited(RateLimits { global: Some(Box::new(global_limit)), ..no_limits() })),
        ),
        ("optional tokens", true, Box::new(guarded(jwt, tokens(TokenRequirement::Never)))),
        ("required tokens", false, Box::new(guarded(jwt, tokens(TokenRequirement::Always)))),
        ("authorization", false, Box::new(guarded(external, authorization))),
        (
            "denial",
            true,
            Box::new(|workload_config| WorkloadConfig {
                inbound: denying_policy(),
                ..workload_config
            }),
        ),
    ]
}

#[test]
fn opaque_bytes_do_not_bypass_policies_that_decide_by_request() {
    run(async {
        let protocols =
            [Protocol::Http, Protocol::Http2, Protocol::Grpc, Protocol::Detect, Protocol::Tcp];
        for protocol in protocols {
            let app = Application::with_response(OK).await;
            let mesh = protocol_mesh(app.address, protocol).await;
            let identity = test_credential(&mesh.authority, "productpage");
            for (policy, passes_tcp, enforced) in request_policies(app.address.port()) {
                let count_before =
                    mesh.server.failure_counts().get("denied-by-policy").copied().unwrap_or(0);
                mesh.change_server_config(&enforced);
                // A program that a mesh member runs in place of its sidecar.
                let mut peer = Peer::connect_link(mesh.inbound, &identity).await;
                let stream = peer.open_stream(StreamKind::Tcp, "", false);
                let mut response = peer.next().await.unwrap();
                if protocol == Protocol::Detect {
                    // The opaque bytes may be followed by requests.
                    assert!(matches!(response, LinkEvent::Head { .. }), "{policy}: {response:?}");
                    peer.send_data(stream, b"\0", false);
                    response = next_event(&mut peer).await;
                }
                if protocol == Protocol::Tcp && passes_tcp {
                    assert!(matches!(response, LinkEvent::Head { .. }), "{policy}: {response:?}");
                    expect_no_request_passes(&mesh, policy).await;
                    continue;
                }
                let expected = LinkEvent::Reset {
                    stream,
                    code: ResetCode::Denied,
                    reason: "denied-by-policy".into(),
                };
                assert_eq!(response, expected, "{policy} {protocol:?}");
                let denied_count = || mesh.server.failure_counts().get("denied-by-policy").copied();
                // An open connection of a `TCP` port may be closed at the same time.
                wait_until(|| denied_count() > Some(count_before)).await;
            }
            assert!(protocol == Protocol::Tcp || app.accepted.get() == 0, "{protocol:?}");
            assert!(app.requests.borrow().is_empty(), "{protocol:?}");
        }
    });
}

/// The program that a member runs in place of its sidecar sends requests to a port declared `TCP`.
async fn expect_no_request_passes(mesh: &Mesh, policy: &str) {
    let identity = test_credential(&mesh.authority, "productpage");
    for pieces in [
        &[GET][..],
        &["GE", "T /ratings HTTP/1.1\r\n\r\n"],
        &["\r\n", "get\t/ratings HTTP/1.1\r\n\r\n"],
        &["ANY  x HTTP/1.1\r\n\r\n"],
        &["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
    ] {
        let mut peer = Peer::connect_link(mesh.inbound, &identity).await;
        let stream = peer.open_stream(StreamKind::Tcp, "", false);
        assert!(matches!(peer.next().await, Some(LinkEvent::Head { .. })));
        for piece in pieces {
            peer.send_data(stream, piece.as_bytes(), false);
        }
        loop {
            match peer.next().await.unwrap() {
                LinkEvent::Reset { code, reason, .. } => {
                    assert_eq!((code, &*reason), (ResetCode::Denied, &b"denied-by-policy"[..]));
                    break;
                }
                LinkEvent::Credit { .. } => {}
                event => panic!("{policy} {pieces:?}: {event:?}"),
            }
        }
    }
}

#[test]
fn requests_at_a_tcp_port_are_reset_if_a_policy_decides_by_request() {
    run(async {
        let app = Application::with_response(OK).await;
        for (policy, _, enforced) in request_policies(app.address.port()) {
            let mesh = protocol_mesh(app.address, Protocol::Tcp).await;
            let mut client = Client::connect(mesh.listener).await;
            assert_eq!(client.send_request(GET).await.status, 200, "{policy}");
            mesh.change_server_config(&enforced);
            assert_eq!(client.read_end().await, End::Reset, "{policy}");
            let mut new_client = Client::connect(mesh.listener).await;
            new_client.send_bytes(GET).await;
            assert_eq!(new_client.read_end().await, End::Reset, "{policy}");
        }
    });
}

#[test]
fn an_open_connection_is_reset_once_a_policy_decides_by_request() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.send_bytes("hello").await;
            drop(client.read_rest().await);
        })
        .await;
        for (policy, _, enforced) in request_policies(app.address.port()) {
            let mesh = protocol_mesh(app.address, Protocol::Detect).await;
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes("\0").await;
            assert_eq!(client.read_exactly(5).await, b"hello", "{policy}");
            mesh.change_server_config(&enforced);
            assert_eq!(client.read_end().await, End::Reset, "{policy}");
        }
    });
}

#[test]
fn connections_are_limited_by_a_policy_without_request_limits() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.send_bytes("hello").await;
        })
        .await;
        for protocol in [Protocol::Tcp, Protocol::Detect] {
            let mesh = protocol_mesh(app.address, protocol).await;
            let limits = RateLimits { connections: Some(hourly_rate(2)), ..RateLimits::default() };
            mesh.set_checks(Vec::new(), vec![port_limits(limits)]);
            for let_in in [true, true, false] {
                let mut client = Client::connect(mesh.listener).await;
                client.send_bytes("\0").await;
                let expected = if let_in { b"hello".to_vec() } else { Vec::new() };
                assert_eq!(client.read_rest().await.0, expected, "{protocol:?}");
            }
        }
    });
}

#[test]
fn empty_lines_before_a_request_do_not_bypass_limits() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = protocol_mesh(app.address, Protocol::Detect).await;
        mesh.set_checks(
            Vec::new(),
            vec![port_limits(RateLimits { rules: vec![rate_rule(2)], ..RateLimits::default() })],
        );
        for status in [200, 200, 429] {
            let mut client = Client::connect(mesh.listener).await;
            assert_eq!(client.send_request(&format!("\r\n\r\n{GET}")).await.status, status);
        }
        // Some servers treat a bare line feed as an empty line: no such byte reaches one.
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(&format!("\n{GET}")).await.status, 400);
        assert_eq!(app.requests.borrow().len(), 2);
    });
}

/// Returns the response status of a call on a new connection; `None` if the call fails.
async fn call_status(listener: std::net::SocketAddr, path: &str) -> Option<u16> {
    call_status_on(&mut http2::connect_client(listener).await, path).await
}

/// Returns the response status of a call on an existing connection; `None` if the call fails.
pub(super) async fn call_status_on(client: &mut SendRequest<Bytes>, path: &str) -> Option<u16> {
    let uri = format!("http://ratings.bookinfo:9080{path}");
    let request = http::Request::get(uri).body(()).unwrap();
    let (response, _) = client.send_request(request, true).ok()?;
    Some(response.await.ok()?.status().as_u16())
}

pub(super) async fn start_http2_application() -> Application {
    http2::start_application(|_, mut respond| async move {
        drop(respond.send_response(Response::new(()), true).unwrap());
    })
    .await
}

#[test]
fn http2_with_prior_knowledge_is_authorized_on_a_port_without_a_declared_protocol() {
    run(async {
        let app = start_http2_application().await;
        let mesh = protocol_mesh(app.address, Protocol::Detect).await;
        let mut first = http2::connect_client(mesh.listener).await;
        assert_eq!(call_status_on(&mut first, "/admin").await, Some(200));
        mesh.set_checks(
            Vec::new(),
            vec![port_limits(RateLimits { rules: vec![rate_rule(2)], ..RateLimits::default() })],
        );
        for status in [200, 200, 429] {
            assert_eq!(call_status(mesh.listener, "/ratings").await, Some(status));
        }
        mesh.change_server_config(&|workload_config| WorkloadConfig {
            inbound: denying_policy(),
            ..workload_config
        });
        for (path, status) in [("/ratings", 200), ("/admin", 403), ("/Admin/", 403)] {
            assert_eq!(call_status(mesh.listener, path).await, Some(status), "{path}");
        }
        assert_eq!(mesh.server.failure_counts().get("denied-by-policy"), Some(&2));
        assert_eq!(
            call_status_on(&mut first, "/ratings").await,
            Some(200),
            "the connection never carried opaque bytes"
        );
    });
}

/// Returns the next event other than credit.
async fn next_event<S: AsyncRead + AsyncWrite + Unpin>(peer: &mut Peer<S>) -> LinkEvent {
    loop {
        match peer.next().await.unwrap() {
            LinkEvent::Credit { .. } => {}
            event => break event,
        }
    }
}

#[test]
fn a_fake_http2_preface_does_not_bypass_policies() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = protocol_mesh(app.address, Protocol::Detect).await;
        let limits = RateLimits { rules: vec![rate_rule(2)], ..RateLimits::default() };
        mesh.set_checks(Vec::new(), vec![port_limits(limits)]);
        let identity = test_credential(&mesh.authority, "productpage");
        let mut peer = Peer::connect_link(mesh.inbound, &identity).await;
        let stream = peer.open_stream(StreamKind::Tcp, "h2", false);
        assert!(matches!(peer.next().await, Some(LinkEvent::Head { .. })));
        peer.send_data(stream, b"\0\r\n", false);
        let response = next_event(&mut peer).await;
        assert!(
            matches!(response, LinkEvent::Reset { code: ResetCode::Denied, .. }),
            "{response:?}"
        );
        assert_eq!(app.accepted.get(), 0);
    });
}

#[test]
fn policies_apply_to_plaintext_http2() {
    run(async {
        let app = start_http2_application().await;
        let mesh = protocol_mesh(app.address, Protocol::Detect).await;
        let allow_plaintext =
            |workload_config| WorkloadConfig { mtls: MtlsMode::Permissive, ..workload_config };
        mesh.change_server_config(&allow_plaintext);
        assert_eq!(call_status(mesh.inbound, "/admin").await, Some(200));
        mesh.change_server_config(&|workload_config| {
            allow_plaintext(WorkloadConfig { inbound: denying_policy(), ..workload_config })
        });
        for (path, status) in [("/ratings", 200), ("/admin", 403)] {
            assert_eq!(call_status(mesh.inbound, path).await, Some(status), "{path}");
        }
    });
}

/// Configures the client's sidecar to respond to each request with a fault.
pub(super) fn inject_faults(mesh: &Mesh, protocol: Protocol) {
    let mut service = service_config(protocol, &[mesh.server_endpoint()]);
    let abort = FaultAbort { share_ppm: 1_000_000, response: FixedResponse::default(), grpc: None };
    let rule = FaultRule {
        name: "rule".to_owned(),
        requests: Vec::new(),
        peers: Vec::new(),
        delay: None,
        abort: Some(abort),
    };
    let policy = policy_name(ServicePolicyKind::FaultInjection);
    let faults = Some(PortFaults { policy, rules: vec![rule] });
    for port in service.ports.values_mut() {
        port.traffic_policy = TrafficPolicy { faults: faults.clone(), ..TrafficPolicy::default() };
    }
    mesh.set_client_services(vec![service]);
}

#[test]
fn faults_are_injected_into_requests_and_opaque_bytes_are_rejected() {
    run(async {
        for (protocol, passes) in [(Protocol::Detect, false), (Protocol::Tcp, true)] {
            let app = Application::start(|mut client| async move {
                client.send_bytes("hello").await;
            })
            .await;
            let mesh = protocol_mesh(app.address, protocol).await;
            inject_faults(&mesh, protocol);
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes("\0").await;
            let expected = if passes { b"hello".to_vec() } else { Vec::new() };
            assert_eq!(client.read_rest().await.0, expected, "{protocol:?}");
            drop(client);
            wait_until(|| mesh.client.ended_count() == 1).await;
            let denied_count = mesh.client.failure_counts().get("denied-by-policy").copied();
            assert_eq!(denied_count, (!passes).then_some(1));
        }
    });
}
