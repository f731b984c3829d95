//! Concurrency limits of an application.

use std::time::Duration;

use leno_model::{
    AdaptiveConcurrency, CircuitBreaker, Concurrency, FixedResponse, Rate, RateLimitKey, RateRule,
};

use super::circuit::{apply_breaker, trip_rule};
use super::fixture::{Application, Client, GET, Mesh, OK, at_once, run, wait_until};

fn limit_concurrency(mesh: &Mesh, concurrency: Concurrency) {
    let mut limits = at_once("x", 1);
    limits.limits.concurrency = Some(concurrency);
    mesh.set_guards(Vec::new(), vec![limits]);
}

/// Sends a request that the application receives but does not answer.
async fn hold_request(mesh: &Mesh, app: &Application) -> Client<tokio::net::TcpStream> {
    let mut client = Client::connect(mesh.listener).await;
    let before = app.accepted.get();
    client.send_bytes(GET).await;
    wait_until(|| app.accepted.get() > before).await;
    client
}

#[test]
fn no_more_requests_are_given_to_the_application_at_once_than_the_policy_lets() {
    run(async {
        let app =
            Application::start(|mut client| async move { drop(client.read_rest().await) }).await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.set_guards(Vec::new(), vec![at_once("x", 2)]);
        let mut under_way = vec![hold_request(&mesh, &app).await, hold_request(&mesh, &app).await];
        let mut one_more = Client::connect(mesh.listener).await;
        assert_eq!(one_more.send_request(GET).await.verdict(), (503, Some("overloaded")));
        assert_eq!(mesh.server.failure_counts(), [("overloaded", 1)].into());
        // A client that leaves frees its permit.
        under_way.pop().unwrap().abandon();
        wait_until(|| mesh.server.ended_count() == 2).await;
        one_more.send_bytes(GET).await;
        wait_until(|| app.accepted.get() == 3).await;
    });
}

#[test]
fn a_request_that_is_answered_gives_its_place_back_and_the_policy_says_what_others_hear() {
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
        let slow =
            Application::start(|mut client| async move { drop(client.read_rest().await) }).await;
        let mesh = Mesh::permissive(slow.address).await;
        let body = Some("later".to_owned());
        let answer = FixedResponse { status: Some(529), body, ..FixedResponse::default() };
        limit_concurrency(
            &mesh,
            Concurrency { requests: 1, response: answer, ..Concurrency::default() },
        );
        let _first = hold_request(&mesh, &slow).await;
        let mut second = Client::connect(mesh.listener).await;
        let answer = second.send_request(GET).await;
        assert_eq!((answer.verdict(), &*answer.body), ((529, Some("overloaded")), &b"later"[..]));
    });
}

#[test]
fn who_is_refused_spends_no_token_and_nobody_has_failed() {
    run(async {
        let app =
            Application::start(|mut client| async move { drop(client.read_rest().await) }).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut limits = at_once("x", 1);
        limits.limits.rules.push(RateRule {
            name: "few".to_owned(),
            requests: Vec::new(),
            peers: Vec::new(),
            rate: Rate { count: 2, time: Duration::from_secs(3600), size: 2 },
            key: RateLimitKey::Nothing,
            stop: false,
            response: FixedResponse::default(),
        });
        mesh.set_guards(Vec::new(), vec![limits]);
        // Three failures open the circuit.
        apply_breaker(
            &mesh,
            CircuitBreaker { trip: Some(trip_rule()), ..CircuitBreaker::default() },
        );
        let first = hold_request(&mesh, &app).await;
        for _ in 0..5 {
            let answer = Client::connect(mesh.listener).await.send_request(GET).await;
            assert_eq!(answer.verdict(), (503, Some("overloaded")));
        }
        first.abandon();
        wait_until(|| mesh.server.ended_count() == 6).await;
        // The token of the rejected requests.
        let _second = hold_request(&mesh, &app).await;
        let answer = Client::connect(mesh.listener).await.send_request(GET).await;
        assert_eq!(answer.verdict(), (429, Some("rate-limited")));
    });
}
