//! Concurrency limits of an application.

use std::time::Duration;

use leno_model::{
    AdaptiveConcurrency, CircuitBreaker, Concurrency, Each, FixedAnswer, Rate, RateRule,
};

use super::circuit::{treat, trip};
use super::fixture::{Application, Client, GET, Mesh, OK, at_once, run, until};

fn bound(mesh: &Mesh, concurrency: Concurrency) {
    let mut limits = at_once("x", 1);
    limits.limits.concurrency = Some(concurrency);
    mesh.guard(Vec::new(), vec![limits]);
}

/// Sends a request that the application receives but does not answer.
async fn held(mesh: &Mesh, app: &Application) -> Client<tokio::net::TcpStream> {
    let mut client = Client::connect(mesh.listener).await;
    let before = app.accepted.get();
    client.send(GET).await;
    until(|| app.accepted.get() > before).await;
    client
}

#[test]
fn no_more_requests_are_given_to_the_application_at_once_than_the_policy_lets() {
    run(async {
        let app = Application::start(|mut client| async move { drop(client.last().await) }).await;
        let mesh = Mesh::permissive(app.address).await;
        mesh.guard(Vec::new(), vec![at_once("x", 2)]);
        let mut under_way = vec![held(&mesh, &app).await, held(&mesh, &app).await];
        let mut one_more = Client::connect(mesh.listener).await;
        assert_eq!(one_more.ask(GET).await.verdict(), (503, Some("overloaded")));
        assert_eq!(mesh.server.failures(), [("overloaded", 1)].into());
        // A client that leaves frees its permit.
        under_way.pop().unwrap().abandon();
        until(|| mesh.server.ended() == 2).await;
        one_more.send(GET).await;
        until(|| app.accepted.get() == 3).await;
    });
}

#[test]
fn a_request_that_is_answered_gives_its_place_back_and_the_policy_says_what_others_hear() {
    run(async {
        let app = Application::canned(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let adaptive = Some(AdaptiveConcurrency { least: 1, slower_percent: 50 });
        bound(&mesh, Concurrency { requests: 1, adaptive, ..Concurrency::default() });
        let mut client = Client::connect(mesh.listener).await;
        for _ in 0..50 {
            assert_eq!(client.ask(GET).await.verdict(), (200, None));
        }
        let slow = Application::start(|mut client| async move { drop(client.last().await) }).await;
        let mesh = Mesh::permissive(slow.address).await;
        let body = Some("later".to_owned());
        let answer = FixedAnswer { status: Some(529), body, ..FixedAnswer::default() };
        bound(&mesh, Concurrency { requests: 1, answer, ..Concurrency::default() });
        let _first = held(&mesh, &slow).await;
        let mut second = Client::connect(mesh.listener).await;
        let answer = second.ask(GET).await;
        assert_eq!((answer.verdict(), &*answer.body), ((529, Some("overloaded")), &b"later"[..]));
    });
}

#[test]
fn who_is_refused_spends_no_token_and_nobody_has_failed() {
    run(async {
        let app = Application::start(|mut client| async move { drop(client.last().await) }).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut limits = at_once("x", 1);
        limits.limits.rules.push(RateRule {
            name: "few".to_owned(),
            requests: Vec::new(),
            peers: Vec::new(),
            rate: Rate { count: 2, time: Duration::from_secs(3600), size: 2 },
            each: Each::Nothing,
            is_last: false,
            answer: FixedAnswer::default(),
        });
        mesh.guard(Vec::new(), vec![limits]);
        // Three failures open the circuit.
        treat(&mesh, CircuitBreaker { trip: Some(trip()), ..CircuitBreaker::default() });
        let first = held(&mesh, &app).await;
        for _ in 0..5 {
            let answer = Client::connect(mesh.listener).await.ask(GET).await;
            assert_eq!(answer.verdict(), (503, Some("overloaded")));
        }
        first.abandon();
        until(|| mesh.server.ended() == 6).await;
        // The token of the rejected requests.
        let _second = held(&mesh, &app).await;
        let answer = Client::connect(mesh.listener).await.ask(GET).await;
        assert_eq!(answer.verdict(), (429, Some("rate-limited")));
    });
}
