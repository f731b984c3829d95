//! Latency of endpoints as a data thread measures it, and the outcomes that do not count.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_model::{
    BalanceAlgorithm, CircuitBreaker, CircuitLimits, Endpoint, FailureSide, HashKey, LoadBalancing,
    PortCircuitBreaker, PortLoadBalancing, Protocol, Reason, RouteRule, ServicePolicyKind,
    ServicePolicyName, TrafficPolicy,
};

use super::fixture::{
    Application, Client, GET, Mesh, OK, PORT, meshed_endpoint, run, service_config, wait_until,
};
use super::routes::{path_rule, routed_services};
use crate::upstream::{ConnectWait, Upstream};

const LONG: Duration = Duration::from_secs(1);
/// The value of `EndpointLatency::latency_log2` for a response time of [`LONG`].
const LONG_STEP: u8 = 19;

/// Returns the client's state of an endpoint.
fn client_upstream(mesh: &Mesh, endpoint: Endpoint) -> Rc<Upstream> {
    mesh.client.worker.upstream_for(&Arc::new(endpoint))
}

/// Returns the latency step of an endpoint; `None` before the first measurement.
fn latency_log2(upstream: &Upstream) -> Option<u8> {
    upstream.load(None, Some(Instant::now())).latency_log2
}

/// Returns the failure count of an endpoint; no request may be in progress.
fn failure_count(upstream: &Upstream) -> u32 {
    upstream.load(None, Some(Instant::now())).effective_requests
}

/// Returns another endpoint at the same address: a single endpoint is not measured.
fn twin_endpoint(endpoint: &Endpoint) -> Endpoint {
    meshed_endpoint("ratings-9", endpoint.address, "ratings")
}

/// Returns the failures of all these endpoints.
fn total_failures(mesh: &Mesh, endpoints: &[Endpoint]) -> u32 {
    endpoints.iter().map(|endpoint| failure_count(&client_upstream(mesh, endpoint.clone()))).sum()
}

/// Records that the endpoint was selected `ago`.
fn record_choice(upstream: &Upstream, ago: Duration) {
    upstream.record_pick(Instant::now().checked_sub(ago));
}

#[test]
fn connection_setup_does_not_count_for_the_latency_of_an_endpoint() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let upstream = client_upstream(&mesh, mesh.server_endpoint());
        record_choice(&upstream, LONG);
        let (slow_attempt, connecting) =
            (upstream.start_timed_attempt(), upstream.start_timed_attempt());
        assert!(
            upstream
                .acquire(&mesh.client.worker, Some(&connecting), ConnectWait::Full)
                .await
                .is_ok()
        );
        connecting.record_response(200);
        assert!(latency_log2(&upstream) < Some(LONG_STEP));
        slow_attempt.record_response(200);
        assert!(latency_log2(&upstream) >= Some(LONG_STEP));
    });
}

#[test]
fn a_single_endpoint_is_not_measured() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(GET).await.status, 200);
        assert_eq!(latency_log2(&client_upstream(&mesh, mesh.server_endpoint())), None);
        let endpoints = [mesh.server_endpoint(), twin_endpoint(&mesh.server_endpoint())];
        mesh.route_to(&endpoints);
        for _ in 0..16 {
            assert_eq!(client.send_request(GET).await.status, 200);
        }
        assert!(
            endpoints.iter().any(|endpoint| latency_log2(&client_upstream(
                &mesh,
                endpoint.clone()
            ))
            .is_some())
        );
    });
}

#[test]
fn failures_of_others_do_not_count_for_an_endpoint() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        for reason in Reason::ALL {
            let upstream = Rc::new(Upstream::new(Arc::new(mesh.server_endpoint())));
            record_choice(&upstream, Duration::ZERO);
            upstream.start_timed_attempt().record_failure(*reason);
            let is_upstream_failure = reason.side() == FailureSide::Upstream;
            assert_eq!(failure_count(&upstream), u32::from(is_upstream_failure), "{reason:?}");
            // The outcome is unknown.
            drop(upstream.start_timed_attempt());
            assert_eq!(failure_count(&upstream), u32::from(is_upstream_failure), "{reason:?}");
            // The endpoint has responded, so a later failure does not count.
            let attempt = upstream.start_timed_attempt();
            attempt.record_response(200);
            attempt.record_failure(*reason);
            drop(attempt);
            assert_eq!(failure_count(&upstream), 0, "{reason:?}");
        }
    });
}

#[test]
fn a_disconnected_client_does_not_count_for_an_endpoint() {
    run(async {
        let app =
            Application::start(|mut client| async move { drop(client.read_rest().await) }).await;
        let mesh = Mesh::permissive(app.address).await;
        let endpoints = [mesh.server_endpoint(), twin_endpoint(&mesh.server_endpoint())];
        mesh.route_to(&endpoints);
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(GET).await;
        wait_until(|| app.accepted.get() == 1).await;
        client.abandon();
        wait_until(|| mesh.client.failure_counts().contains_key("downstream-closed")).await;
        assert_eq!(total_failures(&mesh, &endpoints), 0);
    });
}

#[test]
fn a_request_over_the_pending_limit_does_not_count_for_an_endpoint() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let kind = ServicePolicyKind::CircuitBreaker;
        let policy = ServicePolicyName::new(kind, "bookinfo", "ratings").unwrap();
        let limits = CircuitLimits { pending: Some(0), ..CircuitLimits::default() };
        let rule = CircuitBreaker { limits, ..CircuitBreaker::default() };
        let endpoints = [mesh.server_endpoint(), twin_endpoint(&mesh.server_endpoint())];
        let mut service = service_config(Protocol::Http, &endpoints);
        service.ports.get_mut(&PORT).unwrap().traffic_policy = TrafficPolicy {
            breaker: Some(PortCircuitBreaker { policy, rule }),
            ..TrafficPolicy::default()
        };
        mesh.set_client_services(vec![service]);
        let response = Client::connect(mesh.listener).await.send_request(GET).await;
        assert_eq!(response.verdict(), (503, Some("circuit-full")));
        assert_eq!(total_failures(&mesh, &endpoints), 0);
    });
}

#[test]
fn an_endpoint_without_a_response_in_time_has_failed() {
    run(async {
        let app =
            Application::start(|mut client| async move { drop(client.read_rest().await) }).await;
        let mesh = Mesh::permissive(app.address).await;
        let rule_to_second = || path_rule("/", &[("ratings-v2", 1)]);
        let short_timeout = Duration::from_millis(20);
        let rule_with_timeout =
            RouteRule { request_timeout: Some(short_timeout), ..rule_to_second() };
        let mut rule_with_attempt_timeout = rule_to_second();
        rule_with_attempt_timeout.actions.attempt_timeout = Some(short_timeout);
        for (rule, reason) in
            [(rule_with_timeout, "request-timeout"), (rule_with_attempt_timeout, "attempt-timeout")]
        {
            let mut services = routed_services(&mesh, vec![rule]);
            let endpoints =
                &mut services.last_mut().unwrap().ports.get_mut(&PORT).unwrap().endpoints;
            endpoints.push(Arc::new(twin_endpoint(&endpoints[0])));
            let all_endpoints: Vec<Endpoint> =
                endpoints.iter().map(|endpoint| (**endpoint).clone()).collect();
            mesh.set_client_services(services);
            let response = Client::connect(mesh.listener).await.send_request(GET).await;
            assert_eq!(response.verdict(), (504, Some(reason)));
            assert_eq!(total_failures(&mesh, &all_endpoints), 1, "{reason}");
            // Reset the measurements.
            for endpoint in &all_endpoints {
                client_upstream(&mesh, endpoint.clone()).reset_latency();
            }
        }
    });
}

#[test]
fn requests_without_a_hash_key_go_to_the_fastest_endpoint() {
    run(async {
        let app = Application::with_response(OK).await;
        let second_app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let (_server, second) = mesh.start_server("ratings-2", second_app.address).await;
        let algorithms: [fn(HashKey) -> BalanceAlgorithm; 2] =
            [BalanceAlgorithm::RingHash, BalanceAlgorithm::Maglev];
        for algorithm in algorithms {
            let kind = ServicePolicyKind::LoadBalancing;
            let policy = ServicePolicyName::new(kind, "bookinfo", "keys").unwrap();
            let algorithm = algorithm(HashKey::Header("x-user".to_owned()));
            let rule = LoadBalancing { algorithm, slow_start: None };
            let mut service =
                service_config(Protocol::Http, &[mesh.server_endpoint(), second.clone()]);
            service.ports.get_mut(&PORT).unwrap().traffic_policy = TrafficPolicy {
                balancing: Some(PortLoadBalancing { policy, rule }),
                ..TrafficPolicy::default()
            };
            mesh.set_client_services(vec![service]);
            let slow_upstream = client_upstream(&mesh, mesh.server_endpoint());
            record_choice(&slow_upstream, 10 * LONG);
            slow_upstream.start_timed_attempt().record_response(200);
            let quick_upstream = client_upstream(&mesh, second.clone());
            record_choice(&quick_upstream, Duration::ZERO);
            quick_upstream.start_timed_attempt().record_response(200);
            let mut client = Client::connect(mesh.listener).await;
            for _ in 0..16 {
                assert_eq!(client.send_request(GET).await.status, 200);
            }
        }
        assert_eq!((app.received_requests().len(), second_app.received_requests().len()), (0, 32));
    });
}
