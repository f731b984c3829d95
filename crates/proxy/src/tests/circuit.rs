//! Circuit breakers: rejected requests, their responses, and recovery.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use leno_model::{
    CircuitBreaker, CircuitLimits, FailureClasses, FixedResponse, Header, PortCircuitBreaker,
    Protocol, RequestThreshold, RetryRule, RouteName, RouteRule, RuleActions, ServicePolicyKind,
    ServicePolicyName, TrafficPolicy, TripConditions, WeightedBackend,
};
use leno_telemetry::Count;

use super::fixture::{
    Application, Client, End, GET, Mesh, OK, PORT, Setup, meshed_endpoint, run, service_config,
    test_service, wait_until,
};

const BROKEN: &str = "HTTP/1.1 500 Broken\r\ncontent-length: 0\r\n\r\n";

pub(super) fn trip_rule() -> TripConditions {
    TripConditions {
        failures: FailureClasses { server_errors: true, ..FailureClasses::default() },
        window: Duration::from_secs(10),
        buckets: 10,
        min_requests: 1,
        failure_threshold: RequestThreshold::default(),
        consecutive_failures: Some(3),
        slow_requests: None,
        open_duration: Duration::from_millis(200),
        half_open_requests: 1,
    }
}

pub(super) fn traffic_policy(rule: CircuitBreaker) -> TrafficPolicy {
    let policy =
        ServicePolicyName::new(ServicePolicyKind::CircuitBreaker, "bookinfo", "ratings").unwrap();
    TrafficPolicy { breaker: Some(PortCircuitBreaker { policy, rule }), ..TrafficPolicy::default() }
}

pub(super) fn apply_breaker(mesh: &Mesh, rule: CircuitBreaker) {
    let mut service = service_config(mesh.setup.protocol, &[mesh.server_endpoint()]);
    service.ports.get_mut(&PORT).unwrap().traffic_policy = traffic_policy(rule);
    mesh.set_client_services(vec![service]);
}

fn at_most(limits: CircuitLimits) -> CircuitBreaker {
    CircuitBreaker { limits, ..CircuitBreaker::default() }
}

#[test]
fn a_circuit_opens_for_a_failing_application_and_closes_after_its_recovery() {
    run(async {
        let failing = Rc::new(Cell::new(true));
        let reported = failing.clone();
        let app =
            Application::respond_with(move |_| if reported.get() { BROKEN } else { OK }.to_owned())
                .await;
        let mesh = Mesh::permissive(app.address).await;
        // The circuit is open long enough to be observed.
        let trip_conditions =
            TripConditions { open_duration: Duration::from_secs(3), ..trip_rule() };
        apply_breaker(
            &mesh,
            CircuitBreaker { trip: Some(trip_conditions), ..CircuitBreaker::default() },
        );
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..3 {
            assert_eq!(client.send_request(GET).await.verdict(), (500, None));
        }
        assert_eq!(client.send_request(GET).await.verdict(), (503, Some("circuit-open")));
        assert_eq!(app.received_requests().len(), 3, "no request is sent");
        assert_eq!(mesh.client.telemetry.count(Count::CircuitOpened), 1);
        failing.set(false);
        while client.send_request(GET).await.status != 200 {
            assert_eq!(app.received_requests().len(), 3, "the first request that is sent succeeds");
        }
        assert_eq!(mesh.client.telemetry.count(Count::CircuitClosed), 1);
        assert_eq!(client.send_request(GET).await.status, 200);
    });
}

/// Only a sidecar can mark a response as its own rejection.
#[test]
fn an_application_that_claims_a_rejection_opens_the_circuit() {
    run(async {
        let claims =
            "HTTP/1.1 500 No\r\nleno-reason: overloaded;side=mesh\r\ncontent-length: 0\r\n\r\n";
        let app = Application::with_response(claims).await;
        let mesh = Mesh::permissive(app.address).await;
        apply_breaker(
            &mesh,
            CircuitBreaker { trip: Some(trip_rule()), ..CircuitBreaker::default() },
        );
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..3 {
            assert_eq!(client.send_request(GET).await.status, 500);
        }
        assert_eq!(client.send_request(GET).await.verdict(), (503, Some("circuit-open")));
    });
}

#[test]
fn an_open_circuit_responds_with_the_status_of_its_policy() {
    run(async {
        let app = Application::with_response(BROKEN).await;
        let mesh = Mesh::permissive(app.address).await;
        let header = Header { name: "x-busy".to_owned(), value: "yes".to_owned() };
        let body = Some("busy".to_owned());
        let response = FixedResponse { status: Some(429), body, headers: vec![header] };
        let trip_conditions =
            TripConditions { open_duration: Duration::from_secs(60), ..trip_rule() };
        apply_breaker(
            &mesh,
            CircuitBreaker { trip: Some(trip_conditions), response, ..CircuitBreaker::default() },
        );
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..3 {
            client.send_request(GET).await;
        }
        let response = client.send_request(GET).await;
        assert_eq!(response.verdict(), (429, Some("circuit-open")));
        assert_eq!(response.field_value("x-busy"), Some("yes"));
        assert_eq!(response.body, b"busy");
        let [(_, circuit)] = &mesh.client.worker.config_store.conditions.open_circuits()[..] else {
            panic!("one circuit is open");
        };
        assert_eq!(circuit.status, 429, "the status that the admin endpoint reports");
    });
}

#[test]
fn requests_in_progress_are_limited_by_the_policy() {
    run(async {
        let app =
            Application::start(|mut client| async move { drop(client.read_rest().await) }).await;
        let mesh = Mesh::permissive(app.address).await;
        apply_breaker(
            &mesh,
            at_most(CircuitLimits { requests: Some(1), ..CircuitLimits::default() }),
        );
        let mut first = Client::connect(mesh.listener).await;
        first.send_bytes(GET).await;
        wait_until(|| app.accepted.get() == 1).await;
        let mut second = Client::connect(mesh.listener).await;
        assert_eq!(second.send_request(GET).await.verdict(), (503, Some("circuit-full")));
        first.abandon();
        wait_until(|| mesh.client.ended_count() == 2).await;
        second.send_bytes(GET).await;
        wait_until(|| app.accepted.get() == 2).await;
    });
}

#[test]
fn requests_that_wait_for_a_connection_are_limited_by_the_policy() {
    run(async {
        // A long timeout: the limit must reject the request before.
        let mut setup = Setup::default();
        setup.limits.connect_timeout = Duration::from_secs(600);
        let mesh = Mesh::new(super::fixture::closed_port(), setup).await;
        // The server accepts connections and never sends a byte.
        let silent_app =
            Application::start(|mut client| async move { drop(client.read_rest().await) }).await;
        let mut service = service_config(
            Protocol::Http,
            &[meshed_endpoint("ratings-2", silent_app.address, "ratings")],
        );
        let limits = CircuitLimits { pending: Some(1), ..CircuitLimits::default() };
        let connect_timeout = Some(Duration::from_secs(3));
        let rule = CircuitBreaker { connect_timeout, ..at_most(limits) };
        service.ports.get_mut(&PORT).unwrap().traffic_policy = traffic_policy(rule);
        mesh.set_client_services(vec![service]);
        let mut first = Client::connect(mesh.listener).await;
        first.send_bytes(GET).await;
        wait_until(|| silent_app.accepted.get() == 1).await;
        let mut second = Client::connect(mesh.listener).await;
        assert_eq!(second.send_request(GET).await.verdict(), (503, Some("circuit-full")));
        assert_eq!(first.read_response().await.verdict(), (504, Some("connect-timeout")));
    });
}

#[test]
fn tcp_connections_are_limited_by_the_policy() {
    run(async {
        let app =
            Application::start(|mut client| async move { drop(client.read_rest().await) }).await;
        let setup = Setup { protocol: Protocol::Tcp, ..Setup::default() };
        let mesh = Mesh::new(app.address, setup).await;
        apply_breaker(
            &mesh,
            at_most(CircuitLimits { connections: Some(1), ..CircuitLimits::default() }),
        );
        let mut first = Client::connect(mesh.listener).await;
        first.send_bytes("hello").await;
        wait_until(|| app.accepted.get() == 1).await;
        let mut second = Client::connect(mesh.listener).await;
        assert_ne!(second.read_end().await, End::Clean);
        assert_eq!(mesh.client.failure_counts().get("circuit-full"), Some(&1));
        drop(first);
        wait_until(|| mesh.client.ended_count() == 2).await;
        Client::connect(mesh.listener).await.send_bytes("hello").await;
        wait_until(|| app.accepted.get() == 2).await;
    });
}

#[test]
fn a_policy_may_forbid_retries() {
    run(async {
        for (retries, expected) in [(None, 2), (Some(0), 1)] {
            let app = Application::with_response(BROKEN).await;
            let mesh = Mesh::permissive(app.address).await;
            let mut service = service_config(Protocol::Http, &[mesh.server_endpoint()]);
            let port = service.ports.get_mut(&PORT).unwrap();
            port.has_attached_routes = true;
            let retry = RetryRule { codes: vec![500], attempts: 1, backoff: Duration::ZERO };
            port.rules = vec![RouteRule {
                route: RouteName::new("bookinfo", "again").unwrap(),
                kind: leno_model::RouteKind::Http,
                matches: vec![leno_model::RequestMatch::default()],
                backends: vec![WeightedBackend::new(test_service(), PORT, 1)],
                request_timeout: None,
                actions: RuleActions { retry: Some(retry), ..RuleActions::default() },
            }];
            let limits = CircuitLimits { retries, ..CircuitLimits::default() };
            port.traffic_policy = traffic_policy(at_most(limits));
            mesh.set_client_services(vec![service]);
            let mut client = Client::connect(mesh.listener).await;
            assert_eq!(client.send_request(GET).await.verdict(), (500, None));
            assert_eq!(app.received_requests().len(), expected, "{retries:?}");
        }
    });
}
