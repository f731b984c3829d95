//! Hedging: a second attempt in parallel to a slow first one.

use std::sync::Arc;
use std::time::Duration;

use leno_model::{
    BalanceAlgorithm, EjectionTime, Endpoint, FailureClasses, HedgeRule, LoadBalancing,
    OutlierAlgorithm, OutlierDetection, PersistenceType, PortHedging, PortLoadBalancing,
    PortOutlierDetection, Protocol, RetryRule, RouteRule, RuleActions, ServicePolicyKind,
    ServicePolicyName, SessionPersistence, TrafficPolicy,
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
    let methods = methods.iter().map(|method| (*method).to_owned()).collect();
    PortHedging { policy, rule: HedgeRule { after: SOON, methods } }
}

const SOON: Duration = Duration::from_millis(1);
/// Long enough for a first attempt to arrive, and to be answered if the application answers.
const LATE: Duration = Duration::from_secs(3);

/// An application that answers with its name once it is released.
struct Held {
    app: Application,
    release: watch::Sender<bool>,
}

async fn start_held(name: &'static str, released: bool) -> Held {
    let (release, held) = watch::channel(released);
    let app = Application::start(move |mut client| {
        let mut held = held.clone();
        async move {
            while let Some(mut request) = client.read_head().await {
                if client.read_body(&mut request).await.is_none() {
                    return;
                }
                if held.wait_for(|released| *released).await.is_err() {
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
    Held { app: app.await, release }
}

/// The servers `one` and `two`; only those in `answering` respond.
async fn start_two(answering: &[&str]) -> (Mesh, Endpoint, Held, Held, Sidecar) {
    let one = start_held("one", answering.contains(&"one")).await;
    let other = start_held("two", answering.contains(&"two")).await;
    let mesh = Mesh::permissive(one.app.address).await;
    let (server, endpoint) = mesh.start_server("ratings-2", other.app.address).await;
    (mesh, endpoint, one, other, server)
}

fn apply_policy(mesh: &Mesh, traffic_policy: TrafficPolicy, endpoints: &[Endpoint]) {
    let mut view = service_config(Protocol::Http, endpoints);
    view.ports.get_mut(&PORT).unwrap().traffic_policy = traffic_policy;
    mesh.client_knows(vec![view]);
}

fn hedging_policy(methods: &[&str]) -> TrafficPolicy {
    TrafficPolicy {
        hedging: Some(hedging_rule(methods)),
        balancing: Some(latency_blind()),
        ..TrafficPolicy::default()
    }
}

/// Balancing that ignores latency: a slow endpoint is selected again.
fn latency_blind() -> PortLoadBalancing {
    let kind = ServicePolicyKind::LoadBalancing;
    let policy = ServicePolicyName::new(kind, "bookinfo", "heedless").unwrap();
    let algorithm = BalanceAlgorithm::LeastRequest { choices: 2 };
    PortLoadBalancing { policy, rule: LoadBalancing { algorithm, slow_start: None } }
}

fn client_count(mesh: &Mesh, count: Count) -> u64 {
    mesh.client.telemetry.count(count)
}

#[test]
fn who_answers_first_is_heard_and_the_other_is_cancelled_at_once() {
    run(async {
        let (mesh, second, one, _two, server) = start_two(&["two"]).await;
        let mut traffic_policy = hedging_policy(&[]);
        // An attempt that has not reached its endpoint needs no cancellation.
        traffic_policy.hedging.as_mut().unwrap().rule.after = LATE;
        apply_policy(&mesh, traffic_policy, &[mesh.server_endpoint(), second]);
        let mut client = Client::connect(mesh.listener).await;
        while one.app.accepted.get() == 0 {
            assert_eq!(client.send_request(GET).await.body_text(), "two ");
        }
        assert_eq!(client_count(&mesh, Count::HedgesWon), 1);
        // Canceled, not left alone: its sidecar counts it under a reason of its own.
        wait_until(|| mesh.server.failure_counts().contains_key("attempt-abandoned")).await;
        assert!(!mesh.server.failure_counts().contains_key("downstream-closed"));
        assert!(server.failure_counts().is_empty());
        assert!(mesh.client.failure_counts().is_empty());
        // The slower attempt does not count as a failure.
        let slow = mesh.client.worker.upstream_for(&Arc::new(mesh.server_endpoint()));
        assert_eq!(slow.load(None, Some(std::time::Instant::now())).in_progress, 0);
        // The connection continues to serve.
        assert_eq!(client.send_request(GET).await.body_text(), "two ");
    });
}

#[test]
fn the_access_log_tells_of_second_attempts() {
    run(async {
        let (mut mesh, second, _one, _two, _server) = start_two(&["two"]).await;
        let there = second.address;
        apply_policy(&mesh, hedging_policy(&[]), &[mesh.server_endpoint(), second]);
        let mut client = Client::connect(mesh.listener).await;
        while client_count(&mesh, Count::HedgesWon) == 0 {
            client.send_request(GET).await;
        }
        let (mut log, _) = mesh.client.take_intakes();
        loop {
            let line = log.recv().await.unwrap();
            if line.hedge == Some(Hedge::Won) {
                assert_eq!((line.retries, line.upstream), (1, Some(there)));
                break;
            }
        }
    });
}

/// A route with two endpoints: one delays its responses, the other sends responses that a rule retries.
async fn hedge_and_retry(
    unwanted: &'static str,
    retry: Option<RetryRule>,
    after: Duration,
) -> (Mesh, Held, Sidecar) {
    let one = start_held("one", false).await;
    let busy = Application::respond_with(move |_| unwanted.to_owned()).await;
    let mesh = Mesh::permissive(one.app.address).await;
    let (server, second) = mesh.start_server("ratings-2", busy.address).await;
    let actions = RuleActions { retry, ..RuleActions::default() };
    let rule = RouteRule { actions, ..path_rule("/", &[("ratings-v2", 1)]) };
    let mut views = routed_services(&mesh, vec![rule]);
    let backend = views.last_mut().unwrap().ports.get_mut(&PORT).unwrap();
    backend.endpoints = [mesh.server_endpoint(), second].map(Arc::new).into();
    backend.traffic_policy = hedging_policy(&[]);
    backend.traffic_policy.hedging.as_mut().unwrap().rule.after = after;
    mesh.client_knows(views);
    (mesh, one, server)
}

/// Repeated, since the balancer selects the endpoint of the first attempt.
#[test]
fn an_answer_that_a_rule_retries_does_not_win() {
    run(async {
        for _ in 0..8 {
            let retry = RetryRule { codes: vec![404], attempts: 2, backoff: Duration::ZERO };
            let (mesh, one, server) = hedge_and_retry(
                "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
                Some(retry),
                SOON,
            )
            .await;
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(GET).await;
            wait_until(|| server.ended_count() > 0).await;
            one.release.send(true).unwrap();
            assert_eq!(client.read_response().await.body_text(), "one ");
            assert!(mesh.server.failure_counts().is_empty());
        }
    });
}

#[test]
fn an_error_of_the_second_attempt_does_not_win() {
    run(async {
        let (mesh, one, server) =
            hedge_and_retry("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", None, LATE).await;
        let mut client = Client::connect(mesh.listener).await;
        for answered in 1.. {
            client.send_bytes(GET).await;
            wait_until(|| server.ended_count() == answered).await;
            if client_count(&mesh, Count::Hedges) == 1 {
                break;
            }
            assert_eq!(client.read_response().await.status, 503, "that was the first attempt");
        }
        one.release.send(true).unwrap();
        assert_eq!(client.read_response().await.body_text(), "one ");
    });
}

#[test]
fn a_first_attempt_that_answers_after_all_is_heard() {
    run(async {
        let (mesh, second, one, two, _server) = start_two(&[]).await;
        let mut traffic_policy = hedging_policy(&[]);
        // Long enough to see which endpoint gets the first attempt.
        traffic_policy.hedging.as_mut().unwrap().rule.after = Duration::from_secs(1);
        apply_policy(&mesh, traffic_policy, &[mesh.server_endpoint(), second]);
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(GET).await;
        let both = [("one", &one), ("two", &two)];
        wait_until(|| both.iter().any(|(_, held)| held.app.accepted.get() > 0)).await;
        let first = both.iter().find(|(_, held)| held.app.accepted.get() > 0).unwrap();
        assert_eq!(client_count(&mesh, Count::Hedges), 0);
        wait_until(|| both.iter().all(|(_, held)| held.app.accepted.get() > 0)).await;
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
fn bodies_go_whole_to_both() {
    run(async {
        let (mesh, second, one, two, _server) = start_two(&["two"]).await;
        apply_policy(&mesh, hedging_policy(&["POST"]), &[mesh.server_endpoint(), second]);
        let mut client = Client::connect(mesh.listener).await;
        const POST: &str = "POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello";
        const CHUNKED: &str = "POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n\
                               5\r\nhello\r\n0\r\n\r\n";
        for request in [POST, CHUNKED] {
            let before = client_count(&mesh, Count::HedgesWon);
            while client_count(&mesh, Count::HedgesWon) == before {
                assert_eq!(client.send_request(request).await.body_text(), "two hello");
            }
        }
        drop((one, two));
    });
}

/// A field that a route removes reaches no endpoint in a trailer section, neither by the first attempt nor by
/// the second one.
#[test]
fn second_attempts_have_no_trailers_that_a_route_removes() {
    run(async {
        let (mesh, second, one, two, _server) = start_two(&["two"]).await;
        let mut actions = RuleActions::default();
        actions.request_headers.remove = vec!["x-user".to_owned()];
        let rule = RouteRule { actions, ..path_rule("/", &[("ratings-v2", 1)]) };
        let mut views = routed_services(&mesh, vec![rule]);
        let backend = views.last_mut().unwrap().ports.get_mut(&PORT).unwrap();
        backend.endpoints = [mesh.server_endpoint(), second].map(Arc::new).into();
        backend.traffic_policy = hedging_policy(&["POST"]);
        mesh.client_knows(views);
        let mut client = Client::connect(mesh.listener).await;
        const POST: &str = "POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n\
                            5\r\nhello\r\n0\r\nX_User: root\r\nx-sum: 8\r\n\r\n";
        while client_count(&mesh, Count::HedgesWon) == 0 {
            assert_eq!(client.send_request(POST).await.body_text(), "two hellox-sum: 8");
        }
        drop((one, two));
    });
}

#[test]
fn what_may_not_be_done_twice_is_sent_once() {
    run(async {
        let (mesh, second, one, two, _server) = start_two(&[]).await;
        let both = [mesh.server_endpoint(), second];
        apply_policy(&mesh, hedging_policy(&[]), &both);
        let asked = || one.app.accepted.get() + two.app.accepted.get();
        const EXPECTS: &str = "PUT /x HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n\
                               content-length: 1\r\n\r\na";
        for request in ["POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n", EXPECTS] {
            let before = asked();
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes(request).await;
            wait_until(|| asked() > before).await;
            wait_until_stable(asked).await;
            assert_eq!(asked(), before + 1, "{request}");
        }
        // There is no other endpoint.
        apply_policy(&mesh, hedging_policy(&[]), &both[..1]);
        let before = asked();
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(GET).await;
        wait_until(|| asked() > before).await;
        wait_until_stable(asked).await;
        assert_eq!((asked(), client_count(&mesh, Count::Hedges)), (before + 1, 0));
    });
}

#[test]
fn a_client_that_keeps_to_its_endpoint_waits_for_it() {
    run(async {
        let (mesh, second, one, two, _server) = start_two(&["one", "two"]).await;
        let persistence = SessionPersistence {
            name: Some("x-cart".into()),
            kind: PersistenceType::Header,
            absolute: None,
            idle: None,
            path: None,
        };
        let mut rule = path_rule("/", &[("ratings-v2", 1)]);
        rule.actions.persistence = Some(persistence);
        let mut views = routed_services(&mesh, vec![rule]);
        let port = views.last_mut().unwrap().ports.get_mut(&PORT).unwrap();
        port.endpoints.push(Arc::new(second));
        port.traffic_policy = hedging_policy(&[]);
        mesh.client_knows(views);
        let mut client = Client::connect(mesh.listener).await;
        let answer = client.send_request(GET).await;
        let value = answer.field_value("x-cart").unwrap();
        let (mine, _) = answer.body_text().split_once(' ').unwrap();
        let (mine, other) = if mine == "one" { (&one, &two) } else { (&two, &one) };
        mine.release.send(false).unwrap();
        let before = (client_count(&mesh, Count::Hedges), other.app.accepted.get());
        client
            .send_bytes(format!("GET /ratings/1 HTTP/1.1\r\nhost: x\r\nx-cart: {value}\r\n\r\n"))
            .await;
        wait_until_stable(|| other.app.accepted.get()).await;
        assert_eq!((client_count(&mesh, Count::Hedges), other.app.accepted.get()), before);
        mine.release.send(true).unwrap();
        assert_eq!(client.read_response().await.body_text(), answer.body_text());
    });
}

#[test]
fn second_attempts_are_paid_for_and_prove_nothing() {
    run(async {
        let (mesh, second, _one, _two, _server) = start_two(&["two"]).await;
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
            let over = || {
                mesh.client.ended_count() as usize == clients.len()
                    || client_count(&mesh, Count::RetriesOverBudget) > 0
            };
            wait_until(over).await;
        }
        let paid = clients.len() as u64 / 5 + started.elapsed().as_secs() + 11;
        assert!((10..=paid).contains(&client_count(&mesh, Count::Hedges)));
        assert_eq!(mesh.client.telemetry.gauge(Gauge::EndpointsEjected), 0);
    });
}
