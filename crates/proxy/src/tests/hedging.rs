//! Hedging: a second attempt in parallel to a slow first one.

use std::sync::Arc;
use std::time::Duration;

use leno_model::{
    BalanceAlgorithm, EjectionTime, Endpoint, FailureClasses, HedgeMethod, HedgeRule,
    LoadBalancing, OutlierAlgorithm, OutlierDetection, PersistenceType, PortHedging,
    PortLoadBalancing, PortOutlierDetection, Protocol, RetryRule, RouteRule, RuleActions,
    ServicePolicyKind, ServicePolicyName, SessionPersistence, TrafficPolicy,
};
use leno_telemetry::{Count, Gauge};
use tokio::sync::watch;

use super::fixture::{
    Application, Client, GET, Mesh, PORT, Sidecar, run, service_config, wait_until,
    wait_until_stable,
};
use super::routes::{path_rule, routed_services};
use crate::record::Hedge;

fn hedging_rule(methods: &[&str]) -> PortHedging {
    let policy = ServicePolicyName::new(ServicePolicyKind::Hedging, "bookinfo", "x").unwrap();
    let methods = methods.iter().filter_map(|method| HedgeMethod::new(method)).collect();
    PortHedging { policy, rule: HedgeRule { after: HEDGE_DELAY, methods } }
}

const HEDGE_DELAY: Duration = Duration::from_millis(1);
/// A delay in which a first attempt arrives, and gets its response if the application responds.
const LONG_HEDGE_DELAY: Duration = Duration::from_secs(3);

/// An application that responds with its name once it is released.
struct ReleasableApplication {
    app: Application,
    release: watch::Sender<bool>,
}

async fn start_releasable(name: &'static str, is_released: bool) -> ReleasableApplication {
    let (release, release_receiver) = watch::channel(is_released);
    let app = Application::start(move |mut client| {
        let mut release_receiver = release_receiver.clone();
        async move {
            while let Some(mut request) = client.read_head().await {
                if client.read_body(&mut request).await.is_none() {
                    return;
                }
                if release_receiver.wait_for(|is_released| *is_released).await.is_err() {
                    return;
                }
                let body = String::from_utf8_lossy(&request.body);
                let text = format!("{name} {body}{}", request.trailers);
                let length = text.len();
                client
                    .send_bytes(format!(
                        "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{text}"
                    ))
                    .await;
            }
        }
    });
    ReleasableApplication { app: app.await, release }
}

/// Starts the servers `one` and `two`. Those in `responding` respond at once, the others after their release.
async fn start_two_applications(
    responding: &[&str],
) -> (Mesh, Endpoint, ReleasableApplication, ReleasableApplication, Sidecar) {
    let first_app = start_releasable("one", responding.contains(&"one")).await;
    let second_app = start_releasable("two", responding.contains(&"two")).await;
    let mesh = Mesh::permissive(first_app.app.address).await;
    let (server, endpoint) = mesh.start_server("ratings-2", second_app.app.address).await;
    (mesh, endpoint, first_app, second_app, server)
}

fn apply_policy(mesh: &Mesh, traffic_policy: TrafficPolicy, endpoints: &[Endpoint]) {
    let mut service = service_config(Protocol::Http, endpoints);
    service.ports.get_mut(&PORT).unwrap().traffic_policy = traffic_policy;
    mesh.set_client_services(vec![service]);
}

fn hedging_policy(methods: &[&str]) -> TrafficPolicy {
    TrafficPolicy {
        hedging: Some(hedging_rule(methods)),
        balancing: Some(balancing_without_latency()),
        ..TrafficPolicy::default()
    }
}

/// Balancing that ignores latency: a slow endpoint is selected again.
fn balancing_without_latency() -> PortLoadBalancing {
    let kind = ServicePolicyKind::LoadBalancing;
    let policy = ServicePolicyName::new(kind, "bookinfo", "heedless").unwrap();
    let algorithm = BalanceAlgorithm::LeastRequest { choices: 2 };
    PortLoadBalancing { policy, rule: LoadBalancing { algorithm, slow_start: None } }
}

fn client_count(mesh: &Mesh, count: Count) -> u64 {
    mesh.client.telemetry.count(count)
}

#[test]
fn the_first_response_wins_and_the_other_attempt_is_canceled() {
    run(async {
        let (mesh, second, first_app, _two, server) = start_two_applications(&["two"]).await;
        let mut traffic_policy = hedging_policy(&[]);
        // An attempt that has not reached its endpoint needs no cancellation.
        traffic_policy.hedging.as_mut().unwrap().rule.after = LONG_HEDGE_DELAY;
        apply_policy(&mesh, traffic_policy, &[mesh.server_endpoint(), second]);
        let mut client = Client::connect(mesh.listener).await;
        while first_app.app.accepted.get() == 0 {
            assert_eq!(client.send_request(GET).await.body_text(), "two ");
        }
        assert_eq!(client_count(&mesh, Count::HedgesWon), 1);
        // The attempt was canceled: its sidecar counts it with a separate reason.
        wait_until(|| mesh.server.failure_counts().contains_key("attempt-abandoned")).await;
        assert!(!mesh.server.failure_counts().contains_key("downstream-closed"));
        assert!(server.failure_counts().is_empty());
        assert!(mesh.client.failure_counts().is_empty());
        // The slower attempt does not count as a failure.
        let slow_upstream = mesh.client.worker.upstream_for(&Arc::new(mesh.server_endpoint()));
        assert_eq!(slow_upstream.load(None, Some(std::time::Instant::now())).effective_requests, 0);
        // The connection continues to serve.
        assert_eq!(client.send_request(GET).await.body_text(), "two ");
    });
}

#[test]
fn the_access_log_records_second_attempts() {
    run(async {
        let (mut mesh, second, _one, _two, _server) = start_two_applications(&["two"]).await;
        let second_address = second.address;
        apply_policy(&mesh, hedging_policy(&[]), &[mesh.server_endpoint(), second]);
        let mut client = Client::connect(mesh.listener).await;
        while client_count(&mesh, Count::HedgesWon) == 0 {
            client.send_request(GET).await;
        }
        let (mut log, _) = mesh.client.take_receivers();
        loop {
            let line = log.recv().await.unwrap();
            if line.hedge == Some(Hedge::Won) {
                assert_eq!((line.retries, line.upstream), (1, Some(second_address)));
                break;
            }
        }
    });
}

/// A route with two endpoints: one delays its responses, the other sends responses that a rule retries.
async fn hedge_and_retry(
    retried_response: &'static str,
    retry: Option<RetryRule>,
    hedge_delay: Duration,
) -> (Mesh, ReleasableApplication, Sidecar) {
    let first_app = start_releasable("one", false).await;
    let second_app = Application::respond_with(move |_| retried_response.to_owned()).await;
    let mesh = Mesh::permissive(first_app.app.address).await;
    let (server, second) = mesh.start_server("ratings-2", second_app.address).await;
    let actions = RuleActions { retry, ..RuleActions::default() };
    let rule = RouteRule { actions, ..path_rule("/", &[("ratings-v2", 1)]) };
    let mut services = routed_services(&mesh, vec![rule]);
    let backend = services.last_mut().unwrap().ports.get_mut(&PORT).unwrap();
    backend.endpoints = [mesh.server_endpoint(), second].map(Arc::new).into();
    backend.traffic_policy = hedging_policy(&[]);
    backend.traffic_policy.hedging.as_mut().unwrap().rule.after = hedge_delay;
    mesh.set_client_services(services);
    (mesh, first_app, server)
}

/// The test repeats the request, since the balancer selects the endpoint of the first attempt.
#[test]
fn a_response_with_a_retried_status_does_not_win() {
    run(async {
        for _ in 0..8 {
            let retry = RetryRule { codes: vec![404], attempts: 2, backoff: Duration::ZERO };
            let (mesh, first_app, server) = hedge_and_retry(
                "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
                Some(retry),
                HEDGE_DELAY,
            )
            .await;
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(GET).await;
            wait_until(|| server.ended_count() > 0).await;
            first_app.release.send(true).unwrap();
            assert_eq!(client.read_response().await.body_text(), "one ");
            assert!(mesh.server.failure_counts().is_empty());
        }
    });
}

#[test]
fn an_error_of_the_second_attempt_does_not_win() {
    run(async {
        let (mesh, first_app, server) = hedge_and_retry(
            "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n",
            None,
            LONG_HEDGE_DELAY,
        )
        .await;
        let mut client = Client::connect(mesh.listener).await;
        for count in 1.. {
            client.send_bytes(GET).await;
            wait_until(|| server.ended_count() == count).await;
            if client_count(&mesh, Count::Hedges) == 1 {
                break;
            }
            assert_eq!(
                client.read_response().await.status,
                503,
                "the response of the first attempt"
            );
        }
        first_app.release.send(true).unwrap();
        assert_eq!(client.read_response().await.body_text(), "one ");
    });
}

#[test]
fn a_late_response_of_the_first_attempt_is_used() {
    run(async {
        let (mesh, second, first_app, second_app, _server) = start_two_applications(&[]).await;
        let mut traffic_policy = hedging_policy(&[]);
        // The delay suffices to determine which endpoint gets the first attempt.
        traffic_policy.hedging.as_mut().unwrap().rule.after = Duration::from_secs(1);
        apply_policy(&mesh, traffic_policy, &[mesh.server_endpoint(), second]);
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(GET).await;
        let apps = [("one", &first_app), ("two", &second_app)];
        wait_until(|| apps.iter().any(|(_, server)| server.app.accepted.get() > 0)).await;
        let first = apps.iter().find(|(_, server)| server.app.accepted.get() > 0).unwrap();
        assert_eq!(client_count(&mesh, Count::Hedges), 0);
        wait_until(|| apps.iter().all(|(_, server)| server.app.accepted.get() > 0)).await;
        first.1.release.send(true).unwrap();
        assert_eq!(client.read_response().await.body_text(), format!("{} ", first.0));
        assert_eq!(
            (client_count(&mesh, Count::Hedges), client_count(&mesh, Count::HedgesWon)),
            (1, 0)
        );
        wait_until(|| mesh.client.ended_count() == 1).await;
        assert!(mesh.client.failure_counts().is_empty());
    });
}

#[test]
fn both_attempts_receive_the_complete_body() {
    run(async {
        let (mesh, second, first_app, second_app, _server) = start_two_applications(&["two"]).await;
        apply_policy(&mesh, hedging_policy(&["POST"]), &[mesh.server_endpoint(), second]);
        let mut client = Client::connect(mesh.listener).await;
        const POST: &str = "POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello";
        const CHUNKED: &str = "POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n\
                               5\r\nhello\r\n0\r\n\r\n";
        for request in [POST, CHUNKED] {
            let count_before = client_count(&mesh, Count::HedgesWon);
            while client_count(&mesh, Count::HedgesWon) == count_before {
                assert_eq!(client.send_request(request).await.body_text(), "two hello");
            }
        }
        drop((first_app, second_app));
    });
}

/// A field that a route removes reaches no endpoint in a trailer section, neither by the first attempt nor by
/// the second one.
#[test]
fn second_attempts_have_no_trailers_that_a_route_removes() {
    run(async {
        let (mesh, second, first_app, second_app, _server) = start_two_applications(&["two"]).await;
        let mut actions = RuleActions::default();
        actions.request_headers.remove = vec!["x-user".to_owned()];
        let rule = RouteRule { actions, ..path_rule("/", &[("ratings-v2", 1)]) };
        let mut services = routed_services(&mesh, vec![rule]);
        let backend = services.last_mut().unwrap().ports.get_mut(&PORT).unwrap();
        backend.endpoints = [mesh.server_endpoint(), second].map(Arc::new).into();
        backend.traffic_policy = hedging_policy(&["POST"]);
        mesh.set_client_services(services);
        let mut client = Client::connect(mesh.listener).await;
        const POST: &str = "POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n\
                            5\r\nhello\r\n0\r\nX_User: root\r\nx-sum: 8\r\n\r\n";
        while client_count(&mesh, Count::HedgesWon) == 0 {
            assert_eq!(client.send_request(POST).await.body_text(), "two hellox-sum: 8");
        }
        drop((first_app, second_app));
    });
}

#[test]
fn non_idempotent_requests_are_not_hedged() {
    run(async {
        let (mesh, second, first_app, second_app, _server) = start_two_applications(&[]).await;
        let endpoints = [mesh.server_endpoint(), second];
        apply_policy(&mesh, hedging_policy(&[]), &endpoints);
        let request_count = || first_app.app.accepted.get() + second_app.app.accepted.get();
        const EXPECTS: &str = "PUT /x HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n\
                               content-length: 1\r\n\r\na";
        for request in ["POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n", EXPECTS] {
            let count_before = request_count();
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(request).await;
            wait_until(|| request_count() > count_before).await;
            wait_until_stable(request_count).await;
            assert_eq!(request_count(), count_before + 1, "{request}");
        }
        // There is no other endpoint.
        apply_policy(&mesh, hedging_policy(&[]), &endpoints[..1]);
        let count_before = request_count();
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(GET).await;
        wait_until(|| request_count() > count_before).await;
        wait_until_stable(request_count).await;
        assert_eq!((request_count(), client_count(&mesh, Count::Hedges)), (count_before + 1, 0));
    });
}

#[test]
fn requests_with_session_affinity_are_not_hedged() {
    run(async {
        let (mesh, second, first_app, second_app, _server) =
            start_two_applications(&["one", "two"]).await;
        let persistence = SessionPersistence {
            name: Some("x-cart".into()),
            kind: PersistenceType::Header,
            absolute_timeout: None,
            idle_timeout: None,
            path: None,
        };
        let mut rule = path_rule("/", &[("ratings-v2", 1)]);
        rule.actions.persistence = Some(persistence);
        let mut services = routed_services(&mesh, vec![rule]);
        let port = services.last_mut().unwrap().ports.get_mut(&PORT).unwrap();
        port.endpoints.push(Arc::new(second));
        port.traffic_policy = hedging_policy(&[]);
        mesh.set_client_services(services);
        let mut client = Client::connect(mesh.listener).await;
        let response = client.send_request(GET).await;
        let value = response.field_value("x-cart").unwrap();
        let (winner, _) = response.body_text().split_once(' ').unwrap();
        let (winner, other_app) =
            if winner == "one" { (&first_app, &second_app) } else { (&second_app, &first_app) };
        winner.release.send(false).unwrap();
        let counts_before = (client_count(&mesh, Count::Hedges), other_app.app.accepted.get());
        client
            .send_bytes(format!("GET /ratings/1 HTTP/1.1\r\nhost: x\r\nx-cart: {value}\r\n\r\n"))
            .await;
        wait_until_stable(|| other_app.app.accepted.get()).await;
        assert_eq!(
            (client_count(&mesh, Count::Hedges), other_app.app.accepted.get()),
            counts_before
        );
        winner.release.send(true).unwrap();
        assert_eq!(client.read_response().await.body_text(), response.body_text());
    });
}

#[test]
fn second_attempts_spend_the_retry_budget_and_affect_no_outlier_detection() {
    run(async {
        let (mesh, second, _one, _two, _server) = start_two_applications(&["two"]).await;
        let policy =
            ServicePolicyName::new(ServicePolicyKind::OutlierDetection, "bookinfo", "x").unwrap();
        let failures = FailureClasses {
            reset: true,
            timeout: true,
            connect: true,
            ..FailureClasses::default()
        };
        let rule = OutlierDetection {
            failures,
            window: Duration::from_secs(10),
            buckets: 10,
            failure_rate: None,
            consecutive_failures: Some(1),
            max_ejection_percent: 50,
            min_healthy: 1,
            ejection_time: EjectionTime {
                base: Duration::from_secs(60),
                max: Duration::from_secs(60),
                jitter_percent: 0,
            },
            probe_requests: 1,
            health_check: None,
        };
        let outlier_detection =
            PortOutlierDetection { policy, algorithm: OutlierAlgorithm::Native(rule) };
        let traffic_policy =
            TrafficPolicy { outlier_detection: Some(outlier_detection), ..hedging_policy(&[]) };
        apply_policy(&mesh, traffic_policy, &[mesh.server_endpoint(), second]);
        // The budget begins with ten retries and refills slowly.
        let started = std::time::Instant::now();
        let mut clients = Vec::new();
        while client_count(&mesh, Count::RetriesOverBudget) == 0 {
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(GET).await;
            clients.push(client);
            let is_over_budget = || {
                mesh.client.ended_count() as usize == clients.len()
                    || client_count(&mesh, Count::RetriesOverBudget) > 0
            };
            wait_until(is_over_budget).await;
        }
        let permitted_hedges = clients.len() as u64 / 5 + started.elapsed().as_secs() + 11;
        assert!((10..=permitted_hedges).contains(&client_count(&mesh, Count::Hedges)));
        assert_eq!(mesh.client.telemetry.gauge(Gauge::EndpointsEjected), 0);
    });
}
