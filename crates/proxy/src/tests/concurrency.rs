//! Concurrency limits of an application.

use std::time::Duration;

use leno_model::{
    AdaptiveConcurrency, CircuitBreaker, Concurrency, FixedResponse, Rate, RateLimitKey, RateRule,
};

use super::circuit::{apply_breaker, trip_rule};
use super::fixture::{Application, Client, GET, Mesh, OK, concurrency_limit, run, wait_until};

fn limit_concurrency(mesh: &Mesh, concurrency: Concurrency) {
    let mut limits = concurrency_limit("x", 1);
    limits.limits.concurrency = Some(concurrency);
    mesh.set_checks(Vec::new(), vec![limits]);
}

/// Sends a request that the application receives, without a response.
async fn hold_request(mesh: &Mesh, app: &Application) -> Client<tokio::net::TcpStream> {
    let mut client = Client::connect(mesh.listener).await;
    let count_before = app.accepted.get();
    client.send_bytes(GET).await;
    wait_until(|| app.accepted.get() > count_before).await;
    client
}

#[test]
fn concurrent_requests_to_the_application_are_limited_by_the_policy() {
    run(async {
        let app =
            Application::start(|mut client| async move { drop(client.read_rest().await) }).await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.set_checks(Vec::new(), vec![concurrency_limit("x", 2)]);
        let mut held_requests =
            vec![hold_request(&mesh, &app).await, hold_request(&mesh, &app).await];
        let mut third_client = Client::connect(mesh.listener).await;
        assert_eq!(third_client.send_request(GET).await.verdict(), (503, Some("overloaded")));
        assert_eq!(mesh.server.failure_counts(), [("overloaded", 1)].into());
        // A client that disconnects releases its permit.
        held_requests.pop().unwrap().abandon();
        wait_until(|| mesh.server.ended_count() == 2).await;
        third_client.send_bytes(GET).await;
        wait_until(|| app.accepted.get() == 3).await;
    });
}

#[test]
fn a_completed_request_releases_its_permit_and_others_get_the_response_of_the_policy() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let adaptive =
            Some(AdaptiveConcurrency { min_concurrency: 1, latency_tolerance_percent: 50 });
        limit_concurrency(&mesh, Concurrency { requests: 1, adaptive, ..Concurrency::default() });
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..50 {
            assert_eq!(client.send_request(GET).await.verdict(), (200, None));
        }
        let silent_app =
            Application::start(|mut client| async move { drop(client.read_rest().await) }).await;
        let mesh = Mesh::permissive(silent_app.address).await;
        let body = Some("later".to_owned());
        let response = FixedResponse { status: Some(529), body, ..FixedResponse::default() };
        limit_concurrency(&mesh, Concurrency { requests: 1, response, ..Concurrency::default() });
        let _held_request = hold_request(&mesh, &silent_app).await;
        let mut second_client = Client::connect(mesh.listener).await;
        let response = second_client.send_request(GET).await;
        assert_eq!(
            (response.verdict(), &*response.body),
            ((529, Some("overloaded")), &b"later"[..])
        );
    });
}

#[test]
fn a_rejected_request_spends_no_token_and_is_no_failure_of_an_endpoint() {
    run(async {
        let app =
            Application::start(|mut client| async move { drop(client.read_rest().await) }).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut limits = concurrency_limit("x", 1);
        limits.limits.rules.push(RateRule {
            name: "few".to_owned(),
            requests: Vec::new(),
            peers: Vec::new(),
            rate: Rate { count: 2, period: Duration::from_secs(3600), burst: 2 },
            key: RateLimitKey::None,
            stop: false,
            response: FixedResponse::default(),
        });
        mesh.set_checks(Vec::new(), vec![limits]);
        // Three failures open the circuit.
        apply_breaker(
            &mesh,
            CircuitBreaker { trip: Some(trip_rule()), ..CircuitBreaker::default() },
        );
        let held_request = hold_request(&mesh, &app).await;
        for _ in 0..5 {
            let response = Client::connect(mesh.listener).await.send_request(GET).await;
            assert_eq!(response.verdict(), (503, Some("overloaded")));
        }
        held_request.abandon();
        wait_until(|| mesh.server.ended_count() == 6).await;
        // The token that the rejected requests have not spent.
        let _second_request = hold_request(&mesh, &app).await;
        let response = Client::connect(mesh.listener).await.send_request(GET).await;
        assert_eq!(response.verdict(), (429, Some("rate-limited")));
    });
}
