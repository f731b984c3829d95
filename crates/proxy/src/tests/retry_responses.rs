//! Retry rules: the responses and failures that are retried, and the retry budget.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use leno_model::{
    Access, Endpoint, PolicyName, Protocol, RetryRule, RouteRule, RuleActions, ServiceName,
    ServiceRetry, WorkloadConfig,
};
use leno_telemetry::Count;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::fixture::{
    Application, Client, GET, Mesh, OK, PORT, proxy_config, run, service_config, test_service,
    wait_until,
};
use super::http2;
use super::routes::{path_rule, routed_services};

fn retry_rule(codes: &[u16], attempts: u8) -> RouteRule {
    let backoff = Duration::from_millis(1);
    let retry = RetryRule { codes: codes.to_vec(), attempts, backoff };
    let actions = RuleActions { retry: Some(retry), ..RuleActions::default() };
    RouteRule { actions, ..path_rule("/", &[("ratings-v2", 1)]) }
}

/// Applies the rule at the client, with the mesh's server and these endpoints.
fn apply_rule(mesh: &Mesh, rule: RouteRule, endpoints: &[Endpoint]) {
    let mut services = routed_services(mesh, vec![rule]);
    let backend = services.last_mut().unwrap().ports.get_mut(&PORT).unwrap();
    backend.endpoints.extend(endpoints.iter().cloned().map(Arc::new));
    mesh.set_client_services(services);
}

fn retry_counts(mesh: &Mesh) -> (u64, u64) {
    let count = |count| mesh.client.telemetry.count(count);
    (count(Count::Retries), count(Count::RetriesOverBudget))
}

const BUSY: &str = "HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy";

#[test]
fn a_response_that_the_rule_names_is_retried_at_another_endpoint() {
    run(async {
        let busy_app = Application::with_response(BUSY).await;
        let healthy_app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(busy_app.address).await;
        let (_server, other_endpoint) = mesh.start_server("ratings-2", healthy_app.address).await;
        apply_rule(&mesh, retry_rule(&[503], 1), &[other_endpoint]);
        let mut client = Client::connect(mesh.listener).await;
        const BODY: &str = "POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello";
        // The balancer sends one of them to the busy endpoint first.
        let mut request_count = 0;
        while busy_app.received_requests().is_empty() {
            assert_eq!(client.send_request(BODY).await.body_text(), "ok");
            request_count += 1;
        }
        // Both endpoints received the whole body.
        let has_complete_requests = |app: &Application| {
            app.received_requests().iter().all(|request| request.body == b"hello")
        };
        assert!(has_complete_requests(&busy_app) && has_complete_requests(&healthy_app));
        assert_eq!(
            (busy_app.received_requests().len(), healthy_app.received_requests().len()),
            (1, request_count)
        );
        assert_eq!(retry_counts(&mesh), (1, 0));
    });
}

/// The attempt of a retried response is counted as abandoned, not as a disconnected client.
#[test]
fn a_retried_attempt_is_counted_with_its_own_reason() {
    run(async {
        let busy_app = Application::start(|mut client| async move {
            while client.read_head().await.is_some() {
                client.send_bytes("HTTP/1.1 503 Busy\r\ncontent-length: 9\r\n\r\nbusy").await;
            }
        })
        .await;
        let mesh = Mesh::permissive(busy_app.address).await;
        let healthy_app = Application::with_response(OK).await;
        let (_server, other_endpoint) = mesh.start_server("ratings-2", healthy_app.address).await;
        apply_rule(&mesh, retry_rule(&[503], 1), &[other_endpoint]);
        let mut client = Client::connect(mesh.listener).await;
        while mesh.server.ended_count() == 0 {
            assert_eq!(client.send_request(GET).await.body_text(), "ok");
        }
        assert_eq!(mesh.server.failure_counts(), [("attempt-abandoned", 1)].into());
        assert!(mesh.client.failure_counts().is_empty());
    });
}

#[test]
fn the_client_gets_the_last_response_and_other_statuses_without_delay() {
    run(async {
        let busy_app = Application::with_response(BUSY).await;
        let mesh = Mesh::permissive(busy_app.address).await;
        for (rule, request_count) in [
            (retry_rule(&[503], 2), 3),
            (retry_rule(&[500, 502], 2), 1),
            (retry_rule(&[503], 0), 1),
        ] {
            apply_rule(&mesh, rule, &[]);
            busy_app.requests.borrow_mut().clear();
            let response = Client::connect(mesh.listener).await.send_request(GET).await;
            assert_eq!((response.status, response.body_text()), (503, "busy"));
            assert_eq!(busy_app.received_requests().len(), request_count);
        }
    });
}

#[test]
fn the_retry_budget_permits_a_fifth_more_requests_above_its_minimum() {
    run(async {
        let busy_app = Application::with_response(BUSY).await;
        let mesh = Mesh::permissive(busy_app.address).await;
        apply_rule(&mesh, retry_rule(&[503], 3), &[]);
        let mut client = Client::connect(mesh.listener).await;
        let started = std::time::Instant::now();
        for _ in 0..100 {
            assert_eq!(client.send_request(GET).await.status, 503);
        }
        let floor = 10 + started.elapsed().as_secs();
        let (retries, over) = retry_counts(&mesh);
        assert!((30..=20 + floor).contains(&retries), "{retries} retries");
        assert!(over >= 60, "{over} retries were denied");
        assert_eq!(busy_app.received_requests().len() as u64, 100 + retries);
    });
}

#[test]
fn a_body_over_the_buffer_limit_is_not_sent_again() {
    run(async {
        let busy_app = Application::with_response(BUSY).await;
        let mesh = Mesh::permissive(busy_app.address).await;
        apply_rule(&mesh, retry_rule(&[503], 1), &[]);
        for (bytes, request_count) in [(60 * 1024, 2), (80 * 1024, 1)] {
            busy_app.requests.borrow_mut().clear();
            let mut client = Client::connect(mesh.listener).await;
            let head = format!("PUT /x HTTP/1.1\r\nhost: x\r\ncontent-length: {bytes}\r\n\r\n");
            client.send_bytes(head).await;
            client.send_bytes(vec![b'a'; bytes]).await;
            assert_eq!(client.read_response().await.status, 503);
            assert_eq!(busy_app.received_requests().len(), request_count, "{bytes} bytes");
        }
    });
}

#[test]
fn an_attempt_that_takes_too_long_is_retried_at_another_endpoint() {
    run(async {
        let silent_app =
            Application::start(
                |mut client| async move { while client.read_head().await.is_some() {} },
            );
        let silent_app = silent_app.await;
        let healthy_app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(silent_app.address).await;
        let (_server, other_endpoint) = mesh.start_server("ratings-2", healthy_app.address).await;
        let limited = |codes: &[u16], attempts| {
            let mut rule = retry_rule(codes, attempts);
            rule.actions.attempt_timeout = Some(Duration::from_secs(1));
            rule
        };
        apply_rule(&mesh, limited(&[], 1), &[other_endpoint]);
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..4 {
            assert_eq!(client.send_request(GET).await.status, 200);
        }
        assert!(retry_counts(&mesh).0 > 0, "the silent endpoint was selected at least once");
        // If there is no other endpoint, the client gets the timeout.
        apply_rule(&mesh, limited(&[], 0), &[]);
        assert_eq!(client.send_request(GET).await.verdict(), (504, Some("attempt-timeout")));
        wait_until(|| mesh.server.failure_counts().contains_key("attempt-abandoned")).await;
        assert_eq!(mesh.server.failure_counts().len(), 1);
        // The request may have had its effect: only a rule that names 504 repeats a POST.
        const POST: &str = "POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
        for (codes, retries) in [(&[][..], 0), (&[504][..], 1)] {
            let count_before = retry_counts(&mesh).0;
            apply_rule(&mesh, limited(codes, 1), &[]);
            let mut client = Client::connect(mesh.listener).await;
            assert_eq!(client.send_request(POST).await.verdict(), (504, Some("attempt-timeout")));
            assert_eq!(retry_counts(&mesh).0 - count_before, retries);
        }
    });
}

#[test]
fn a_call_with_status_unavailable_is_retried() {
    run(async {
        let calls = Rc::new(Cell::new(0));
        let counting = calls.clone();
        let app = http2::start_application(move |request, mut respond| {
            counting.set(counting.get() + 1);
            let status = if counting.get() == 1 { "14" } else { "5" };
            async move {
                let (body, _) = http2::read_body(request.into_body()).await;
                assert_eq!(body, b"message");
                let head = Response::builder().header("content-type", "application/grpc");
                let head = head.header("grpc-status", status).body(()).unwrap();
                respond.send_response(head, true).unwrap();
            }
        })
        .await;
        let mesh = http2::http2_mesh(app.address, Protocol::Grpc).await;
        apply_rule(&mesh, retry_rule(&[503], 3), &[]);
        let mut client = http2::connect_client(mesh.listener).await;
        let (response, mut stream) =
            client.send_request(http2::grpc_request("/a/B"), false).unwrap();
        http2::send_data(&mut stream, Bytes::from_static(b"message"), true).await;
        let response = response.await.unwrap();
        // NOT_FOUND is a response like any other.
        assert_eq!(response.headers().get("grpc-status").unwrap(), "5");
        assert_eq!(calls.get(), 2);
        assert_eq!(retry_counts(&mesh), (1, 0));
    });
}

#[test]
fn a_retry_policy_of_the_client_applies_without_a_retry_rule_of_the_route() {
    run(async {
        let busy_app = Application::with_response(BUSY).await;
        let mesh = Mesh::permissive(busy_app.address).await;
        let retry = ServiceRetry {
            policy: PolicyName::new("bookinfo", "again").unwrap(),
            rule: RetryRule { codes: vec![503], attempts: 5, backoff: Duration::from_millis(1) },
            response_timeout: None,
        };
        let under = |retries: BTreeMap<ServiceName, ServiceRetry>| {
            let workload_config =
                WorkloadConfig { retries, ..proxy_config("productpage", Access::AllowAll) };
            mesh.client.apply_config(
                workload_config,
                vec![service_config(Protocol::Http, &[mesh.server_endpoint()])],
            );
        };
        under([(test_service(), retry)].into());
        let response = Client::connect(mesh.listener).await.send_request(GET).await;
        assert_eq!((response.status, response.body_text()), (503, "busy"));
        assert_eq!((busy_app.received_requests().len(), retry_counts(&mesh)), (6, (5, 0)));
        let matches = mesh.client.telemetry.matched_rules().into_iter();
        let matches: Vec<_> =
            matches.map(|(rule, matches)| (rule.kind, rule.name.clone(), matches)).collect();
        assert_eq!(matches, [("Retry", "again".to_owned(), 5)]);
        under(BTreeMap::new());
        assert_eq!(Client::connect(mesh.listener).await.send_request(GET).await.status, 503);
        assert_eq!(busy_app.received_requests().len(), 7);
    });
}

#[test]
fn the_attempt_timeout_of_a_policy_ends_at_the_response_head() {
    run(async {
        let release = Rc::new(Notify::new());
        let release_notify = release.clone();
        let slow_app = Application::start(move |mut client| {
            let release = release_notify.clone();
            async move {
                let request = client.read_head().await.unwrap();
                if !request.head.contains("/never") {
                    client.send_bytes("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nsl").await;
                    release.notified().await;
                    client.send_bytes("ow").await;
                }
                while client.read_head().await.is_some() {}
            }
        });
        let mesh = Mesh::permissive(slow_app.await.address).await;
        let limit = Duration::from_secs(2);
        let retry = ServiceRetry {
            policy: PolicyName::new("bookinfo", "again").unwrap(),
            rule: RetryRule { codes: Vec::new(), attempts: 0, backoff: Duration::ZERO },
            response_timeout: Some(limit),
        };
        let retries = [(test_service(), retry)].into();
        let workload_config =
            WorkloadConfig { retries, ..proxy_config("productpage", Access::AllowAll) };
        mesh.client.apply_config(
            workload_config,
            vec![service_config(Protocol::Http, &[mesh.server_endpoint()])],
        );
        let mut client = Client::connect(mesh.listener).await;
        client.send_bytes(GET).await;
        assert_eq!(client.read_head().await.unwrap().status, 200);
        assert_eq!(client.read_exactly(2).await, b"sl");
        let next_bytes = timeout(limit * 2, client.read_exactly(2)).await;
        assert!(
            next_bytes.is_err(),
            "the rest was not sent yet, and nothing ended: {next_bytes:?}"
        );
        release.notify_one();
        assert_eq!(client.read_exactly(2).await, b"ow");
        let mut client = Client::connect(mesh.listener).await;
        let unmatched_response =
            client.send_request("GET /never HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert_eq!(unmatched_response.verdict(), (504, Some("attempt-timeout")));
    });
}
