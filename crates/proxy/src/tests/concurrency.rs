//! How many requests an application is given at once.

use leno_model::{
    AdaptiveConcurrency, Concurrency, FixedAnswer, PortLimits, RateLimits, ServicePolicyKind,
    ServicePolicyName,
};

use super::fixture::{Application, Client, GET, Mesh, OK, run, until};

fn bound(mesh: &Mesh, concurrency: Concurrency) {
    let policy = ServicePolicyName::new(ServicePolicyKind::RateLimit, "bookinfo", "x").unwrap();
    let limits = RateLimits { concurrency: Some(concurrency), ..RateLimits::default() };
    mesh.guard(Vec::new(), vec![PortLimits { policy, limits }]);
}

fn at_once(requests: u32) -> Concurrency {
    Concurrency { requests, ..Concurrency::default() }
}

#[test]
fn no_more_requests_are_given_to_the_application_at_once_than_the_policy_lets() {
    run(async {
        let app = Application::start(|mut client| async move { drop(client.last().await) }).await;
        let mesh = Mesh::permissive(app.address).await;
        bound(&mesh, at_once(2));
        let mut under_way = Vec::new();
        for accepted in 1..=2 {
            let mut client = Client::connect(mesh.door).await;
            client.send(GET).await;
            until(|| app.accepted.get() == accepted).await;
            under_way.push(client);
        }
        let mut one_more = Client::connect(mesh.door).await;
        assert_eq!(one_more.ask(GET).await.verdict(), (503, Some("overloaded")));
        assert_eq!(mesh.server.failures(), [("overloaded", 1)].into());
        // Who leaves makes room.
        under_way.pop();
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
        bound(&mesh, Concurrency { adaptive, ..at_once(1) });
        let mut client = Client::connect(mesh.door).await;
        for _ in 0..50 {
            assert_eq!(client.ask(GET).await.verdict(), (200, None));
        }
        let slow = Application::start(|mut client| async move { drop(client.last().await) }).await;
        let mesh = Mesh::permissive(slow.address).await;
        let body = Some("later".to_owned());
        let answer = FixedAnswer { status: Some(529), body, ..FixedAnswer::default() };
        bound(&mesh, Concurrency { answer, ..at_once(1) });
        let mut first = Client::connect(mesh.door).await;
        first.send(GET).await;
        until(|| slow.accepted.get() == 1).await;
        let mut second = Client::connect(mesh.door).await;
        let answer = second.ask(GET).await;
        assert_eq!((answer.verdict(), &*answer.body), ((529, Some("overloaded")), &b"later"[..]));
    });
}
