//! Latency of endpoints as a data thread measures it, and the outcomes that do not count.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_model::{
    BalanceAlgorithm, Balancing, Breaker, CircuitBreaker, CircuitLimits, Endpoint, HashKey,
    LoadBalancing, Protocol, Reason, RouteRule, ServicePolicyKind, ServicePolicyName, Side,
    TrafficPolicy,
};

use super::fixture::{Application, Client, GET, Mesh, OK, PORT, endpoint, run, until, view};
use super::routes::{routed, rule};
use crate::upstream::{Upstream, Wait};

const LONG: Duration = Duration::from_secs(1);
/// As `Latency::step` defines it.
const LONG_STEP: u8 = 19;

/// Returns the client's state of an endpoint.
fn known(mesh: &Mesh, endpoint: Endpoint) -> Rc<Upstream> {
    mesh.client.worker.upstream(&Arc::new(endpoint))
}

/// Returns its latency step.
fn step(upstream: &Upstream) -> Option<u8> {
    upstream.load(None, Some(Instant::now())).step
}

/// Returns its failures; no request may be in progress.
fn failures(upstream: &Upstream) -> u32 {
    upstream.load(None, Some(Instant::now())).under_way
}

/// Returns another endpoint at the same address: a single endpoint is not measured.
fn twin(of: &Endpoint) -> Endpoint {
    endpoint("ratings-9", of.address, "ratings")
}

/// Returns the failures of all these endpoints.
fn failed(mesh: &Mesh, endpoints: &[Endpoint]) -> u32 {
    endpoints.iter().map(|it| failures(&known(mesh, it.clone()))).sum()
}

/// Records a selection this long ago.
fn chosen(upstream: &Upstream, ago: Duration) {
    upstream.choose(Instant::now().checked_sub(ago));
}

#[test]
fn a_connection_that_is_opened_is_no_part_of_its_attempt_and_says_nothing_of_others() {
    run(async {
        let app = Application::canned(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let upstream = known(&mesh, mesh.endpoint());
        chosen(&upstream, LONG);
        let (slow, connecting) = (upstream.time(), upstream.time());
        assert!(upstream.lease(&mesh.client.worker, Some(&connecting), Wait::Whole).await.is_ok());
        connecting.answers(200);
        assert!(step(&upstream) < Some(LONG_STEP));
        slow.answers(200);
        assert!(step(&upstream) >= Some(LONG_STEP));
    });
}

#[test]
fn who_is_alone_is_not_measured() {
    run(async {
        let app = Application::canned(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.ask(GET).await.status, 200);
        assert_eq!(step(&known(&mesh, mesh.endpoint())), None);
        let both = [mesh.endpoint(), twin(&mesh.endpoint())];
        mesh.route_to(&both);
        for _ in 0..16 {
            assert_eq!(client.ask(GET).await.status, 200);
        }
        assert!(both.iter().any(|it| step(&known(&mesh, it.clone())).is_some()));
    });
}

#[test]
fn what_is_not_the_endpoints_fault_is_no_failure_of_it() {
    run(async {
        let app = Application::canned(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        for reason in Reason::ALL {
            let upstream = Rc::new(Upstream::new(Arc::new(mesh.endpoint())));
            chosen(&upstream, Duration::ZERO);
            upstream.time().ends(*reason);
            let is_its = reason.side() == Side::Upstream;
            assert_eq!(failures(&upstream), u32::from(is_its), "{reason:?}");
            // The outcome is unknown.
            drop(upstream.time());
            assert_eq!(failures(&upstream), u32::from(is_its), "{reason:?}");
            // It did respond, whatever failed afterwards.
            let answered = upstream.time();
            answered.answers(200);
            answered.ends(*reason);
            drop(answered);
            assert_eq!(failures(&upstream), 0, "{reason:?}");
        }
    });
}

#[test]
fn a_client_that_goes_away_is_held_against_no_endpoint() {
    run(async {
        let app = Application::start(|mut client| async move { drop(client.last().await) }).await;
        let mesh = Mesh::permissive(app.address).await;
        let both = [mesh.endpoint(), twin(&mesh.endpoint())];
        mesh.route_to(&both);
        let mut client = Client::connect(mesh.listener).await;
        client.send(GET).await;
        until(|| app.accepted.get() == 1).await;
        client.abandon();
        until(|| mesh.client.failures().contains_key("downstream-closed")).await;
        assert_eq!(failed(&mesh, &both), 0);
    });
}

#[test]
fn a_request_that_finds_no_room_to_wait_is_held_against_no_endpoint() {
    run(async {
        let app = Application::canned(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let kind = ServicePolicyKind::CircuitBreaker;
        let policy = ServicePolicyName::new(kind, "bookinfo", "ratings").unwrap();
        let limits = CircuitLimits { pending: Some(0), ..CircuitLimits::default() };
        let rule = CircuitBreaker { limits, ..CircuitBreaker::default() };
        let both = [mesh.endpoint(), twin(&mesh.endpoint())];
        let mut view = view(Protocol::Http, &both);
        view.ports.get_mut(&PORT).unwrap().traffic_policy =
            TrafficPolicy { breaker: Some(Breaker { policy, rule }), ..TrafficPolicy::default() };
        mesh.client_knows(vec![view]);
        let answer = Client::connect(mesh.listener).await.ask(GET).await;
        assert_eq!(answer.verdict(), (503, Some("circuit-full")));
        assert_eq!(failed(&mesh, &both), 0);
    });
}

#[test]
fn who_does_not_answer_in_time_has_failed() {
    run(async {
        let app = Application::start(|mut client| async move { drop(client.last().await) }).await;
        let mesh = Mesh::permissive(app.address).await;
        let to_it = || rule("/", &[("ratings-v2", 1)]);
        let soon = Duration::from_millis(20);
        let whole = RouteRule { request_timeout: Some(soon), ..to_it() };
        let mut each = to_it();
        each.actions.attempt_timeout = Some(soon);
        for (rule, reason) in [(whole, "request-timeout"), (each, "attempt-timeout")] {
            let mut views = routed(&mesh, vec![rule]);
            let endpoints = &mut views.last_mut().unwrap().ports.get_mut(&PORT).unwrap().endpoints;
            endpoints.push(Arc::new(twin(&endpoints[0])));
            let both: Vec<Endpoint> = endpoints.iter().map(|it| (**it).clone()).collect();
            mesh.client_knows(views);
            let answer = Client::connect(mesh.listener).await.ask(GET).await;
            assert_eq!(answer.verdict(), (504, Some(reason)));
            assert_eq!(failed(&mesh, &both), 1, "{reason}");
            // Reset the measurements.
            for it in &both {
                known(&mesh, it.clone()).forget_times();
            }
        }
    });
}

#[test]
fn who_shows_no_key_goes_where_answers_are_soon() {
    run(async {
        let app = Application::canned(OK).await;
        let other = Application::canned(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let (_server, second) = mesh.server("ratings-2", other.address).await;
        let algorithms: [fn(HashKey) -> BalanceAlgorithm; 2] =
            [BalanceAlgorithm::RingHash, BalanceAlgorithm::Maglev];
        for algorithm in algorithms {
            let kind = ServicePolicyKind::LoadBalancing;
            let policy = ServicePolicyName::new(kind, "bookinfo", "keys").unwrap();
            let algorithm = algorithm(HashKey::Header("x-user".to_owned()));
            let rule = LoadBalancing { algorithm, warm_up: None };
            let mut view = view(Protocol::Http, &[mesh.endpoint(), second.clone()]);
            view.ports.get_mut(&PORT).unwrap().traffic_policy = TrafficPolicy {
                balancing: Some(Balancing { policy, rule }),
                ..TrafficPolicy::default()
            };
            mesh.client_knows(vec![view]);
            let slow = known(&mesh, mesh.endpoint());
            chosen(&slow, 10 * LONG);
            slow.time().answers(200);
            let quick = known(&mesh, second.clone());
            chosen(&quick, Duration::ZERO);
            quick.time().answers(200);
            let mut client = Client::connect(mesh.listener).await;
            for _ in 0..16 {
                assert_eq!(client.ask(GET).await.status, 200);
            }
        }
        assert_eq!((app.requests().len(), other.requests().len()), (0, 32));
    });
}
