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
    Rate { count: 1, time: Duration::from_secs(3600), size }
}

pub(super) fn rate_rule(size: u32) -> RateRule {
    RateRule {
        name: "rule".to_owned(),
        requests: Vec::new(),
        peers: Vec::new(),
        key: RateLimitKey::Nothing,
        rate: hourly_rate(size),
        stop: false,
        response: FixedResponse::default(),
    }
}

fn test_service() -> CheckService {
    let at = CheckServiceAddress::External(Server::parse("http://127.0.0.1:9").unwrap());
    CheckService { at, timeout: Duration::from_millis(200), failure_mode: FailureMode::Deny }
}

pub(super) fn denies_some() -> InboundPolicy {
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
        move |plan| WorkloadConfig {
            limits: [(port, vec![port_limits(limits.clone())])].into(),
            ..plan
        }
    };
    let guarded = |kind, guard: RequestCheck| {
        let guard = PortCheck { policy: policy_name(kind), check: guard };
        move |plan| WorkloadConfig { request_checks: [(port, vec![guard.clone()])].into(), ..plan }
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
    let global = GlobalLimit {
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
    let all = RateLimits::default;
    let connections = Some(hourly_rate(1000));
    let at_once = Some(Concurrency { requests: 1, ..Concurrency::default() });
    let (jwt, external) =
        (ServicePolicyKind::JwtValidation, ServicePolicyKind::ExternalAuthorization);
    vec![
        (
            "rules",
            true,
            Box::new(limited(RateLimits { rules: vec![rate_rule(2)], connections, ..all() })),
        ),
        ("concurrency", true, Box::new(limited(RateLimits { concurrency: at_once, ..all() }))),
        ("global", true, Box::new(limited(RateLimits { global: Some(Box::new(global)), ..all() }))),
        ("optional tokens", true, Box::new(guarded(jwt, tokens(TokenRequirement::Never)))),
        ("required tokens", false, Box::new(guarded(jwt, tokens(TokenRequirement::Always)))),
        ("authorization", false, Box::new(guarded(external, authorization))),
        ("denial", true, Box::new(|plan| WorkloadConfig { inbound: denies_some(), ..plan })),
    ]
}

#[test]
fn bytes_get_past_no_policy_that_decides_by_request_whatever_the_port_declares() {
    run(async {
        let all =
            [Protocol::Http, Protocol::Http2, Protocol::Grpc, Protocol::Detect, Protocol::Tcp];
        for protocol in all {
            let app = Application::with_response(OK).await;
            let mesh = protocol_mesh(app.address, protocol).await;
            let identity = test_credential(&mesh.authority, "productpage");
            for (policy, passes_tcp, enforced) in request_policies(app.address.port()) {
                let before =
                    mesh.server.failure_counts().get("denied-by-policy").copied().unwrap_or(0);
                mesh.enforce_with(&enforced);
                // A program that a mesh member runs in place of its sidecar.
                let mut peer = Peer::connect_link(mesh.inbound, &identity).await;
                let stream = peer.open_stream(StreamKind::Tcp, "", false);
                let mut answer = peer.next().await.unwrap();
                if protocol == Protocol::Detect {
                    // Requests may follow.
                    assert!(matches!(answer, LinkEvent::Head { .. }), "{policy}: {answer:?}");
                    peer.send_data(stream, b"\0", false);
                    answer = reset_of(&mut peer).await;
                }
                if protocol == Protocol::Tcp && passes_tcp {
                    assert!(matches!(answer, LinkEvent::Head { .. }), "{policy}: {answer:?}");
                    no_request_passes(&mesh, policy).await;
                    continue;
                }
                let expected = LinkEvent::Reset {
                    stream,
                    code: ResetCode::Denied,
                    reason: "denied-by-policy".into(),
                };
                assert_eq!(answer, expected, "{policy} {protocol:?}");
                let denied = || mesh.server.failure_counts().get("denied-by-policy").copied();
                // An open connection of a `TCP` port may be closed at the same time.
                wait_until(|| denied() > Some(before)).await;
            }
            assert!(protocol == Protocol::Tcp || app.accepted.get() == 0, "{protocol:?}");
            assert!(app.seen.borrow().is_empty(), "{protocol:?}");
        }
    });
}

/// The program that a member runs in place of its sidecar sends requests to a port declared `TCP`.
async fn no_request_passes(mesh: &Mesh, policy: &str) {
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
fn requests_at_a_port_that_is_declared_tcp_are_cut_when_a_policy_has_to_see_them() {
    run(async {
        let app = Application::with_response(OK).await;
        for (policy, _, enforced) in request_policies(app.address.port()) {
            let mesh = protocol_mesh(app.address, Protocol::Tcp).await;
            let mut client = Client::connect(mesh.listener).await;
            assert_eq!(client.send_request(GET).await.status, 200, "{policy}");
            mesh.enforce_with(&enforced);
            assert_eq!(client.read_end().await, End::Reset, "{policy}");
            let mut later = Client::connect(mesh.listener).await;
            later.send_bytes(GET).await;
            assert_eq!(later.read_end().await, End::Reset, "{policy}");
        }
    });
}

#[test]
fn a_connection_that_is_open_is_cut_when_a_policy_has_to_see_requests() {
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
            mesh.enforce_with(&enforced);
            assert_eq!(client.read_end().await, End::Reset, "{policy}");
        }
    });
}

#[test]
fn connections_are_counted_where_nothing_else_is_bounded() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.send_bytes("hello").await;
        })
        .await;
        for protocol in [Protocol::Tcp, Protocol::Detect] {
            let mesh = protocol_mesh(app.address, protocol).await;
            let limits = RateLimits { connections: Some(hourly_rate(2)), ..RateLimits::default() };
            mesh.set_guards(Vec::new(), vec![port_limits(limits)]);
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
fn empty_lines_before_a_request_hide_it_from_no_limit() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = protocol_mesh(app.address, Protocol::Detect).await;
        mesh.set_guards(
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
        assert_eq!(app.seen.borrow().len(), 2);
    });
}

/// Returns the status of a call, as the application reported it.
async fn call_status(listener: std::net::SocketAddr, path: &str) -> Option<u16> {
    call_on(&mut http2::connect_client(listener).await, path).await
}

/// The same on a connection that stays open.
pub(super) async fn call_on(client: &mut SendRequest<Bytes>, path: &str) -> Option<u16> {
    let uri = format!("http://ratings.bookinfo:9080{path}");
    let request = http::Request::get(uri).body(()).unwrap();
    let (response, _) = client.send_request(request, true).ok()?;
    Some(response.await.ok()?.status().as_u16())
}

pub(super) async fn application_of_http2() -> Application {
    http2::start_application(|_, mut respond| async move {
        drop(respond.send_response(Response::new(()), true).unwrap());
    })
    .await
}

#[test]
fn http2_with_prior_knowledge_is_counted_and_judged_where_no_protocol_is_declared() {
    run(async {
        let app = application_of_http2().await;
        let mesh = protocol_mesh(app.address, Protocol::Detect).await;
        let mut first = http2::connect_client(mesh.listener).await;
        assert_eq!(call_on(&mut first, "/admin").await, Some(200));
        mesh.set_guards(
            Vec::new(),
            vec![port_limits(RateLimits { rules: vec![rate_rule(2)], ..RateLimits::default() })],
        );
        for status in [200, 200, 429] {
            assert_eq!(call_status(mesh.listener, "/ratings").await, Some(status));
        }
        mesh.enforce_with(&|plan| WorkloadConfig { inbound: denies_some(), ..plan });
        for (path, status) in [("/ratings", 200), ("/admin", 403), ("/Admin/", 403)] {
            assert_eq!(call_status(mesh.listener, path).await, Some(status), "{path}");
        }
        assert_eq!(mesh.server.failure_counts().get("denied-by-policy"), Some(&2));
        assert_eq!(call_on(&mut first, "/ratings").await, Some(200), "it was never one of bytes");
    });
}

/// Returns the next event other than credit.
async fn reset_of<S: AsyncRead + AsyncWrite + Unpin>(peer: &mut Peer<S>) -> LinkEvent {
    loop {
        match peer.next().await.unwrap() {
            LinkEvent::Credit { .. } => {}
            event => break event,
        }
    }
}

#[test]
fn what_only_says_that_it_is_http2_passes_no_policy() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = protocol_mesh(app.address, Protocol::Detect).await;
        let limits = RateLimits { rules: vec![rate_rule(2)], ..RateLimits::default() };
        mesh.set_guards(Vec::new(), vec![port_limits(limits)]);
        let identity = test_credential(&mesh.authority, "productpage");
        let mut peer = Peer::connect_link(mesh.inbound, &identity).await;
        let stream = peer.open_stream(StreamKind::Tcp, "h2", false);
        assert!(matches!(peer.next().await, Some(LinkEvent::Head { .. })));
        peer.send_data(stream, b"\0\r\n", false);
        let answer = reset_of(&mut peer).await;
        assert!(matches!(answer, LinkEvent::Reset { code: ResetCode::Denied, .. }), "{answer:?}");
        assert_eq!(app.accepted.get(), 0);
    });
}

#[test]
fn http2_in_clear_text_is_judged_as_well() {
    run(async {
        let app = application_of_http2().await;
        let mesh = protocol_mesh(app.address, Protocol::Detect).await;
        let in_clear = |plan| WorkloadConfig { mtls: MtlsMode::Permissive, ..plan };
        mesh.enforce_with(&in_clear);
        assert_eq!(call_status(mesh.inbound, "/admin").await, Some(200));
        mesh.enforce_with(&|plan| in_clear(WorkloadConfig { inbound: denies_some(), ..plan }));
        for (path, status) in [("/ratings", 200), ("/admin", 403)] {
            assert_eq!(call_status(mesh.inbound, path).await, Some(status), "{path}");
        }
    });
}

/// Makes the client's sidecar answer each request with a fault.
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
    mesh.client_knows(vec![service]);
}

#[test]
fn faults_are_injected_into_requests_and_nothing_else_passes() {
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
            let denied = mesh.client.failure_counts().get("denied-by-policy").copied();
            assert_eq!(denied, (!passes).then_some(1));
        }
    });
}
