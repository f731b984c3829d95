//! Instruction counts of a request under each kind of rule; more than 3 % above the measured count fails.
//!
//! Indexed rules are measured among ten and among ten thousand: the cost is the same. Measured like the
//! benchmarks in `instructions.rs`.
#![allow(
    clippy::allow_attributes_without_reason,
    missing_docs,
    unused_qualifications,
    reason = "what the macros of gungraun write keeps to none of these"
)]

mod asked;
mod candidates;
mod conditions;
mod kinds;
mod measure;
mod member;

use std::hint::black_box;
use std::time::{Duration, Instant};

use gungraun::{library_benchmark, library_benchmark_group};
use leno_model::{BalanceAlgorithm, Cors, HedgeRule, RateLimitKey, RetryRule, TcpRule};
use leno_traffic::balance::Balancer;
use leno_traffic::balance::hashing::{EndpointHashTable, hash_key};
use leno_traffic::budget::RetryBudget;
use leno_traffic::circuit_breaker::{Circuit, RequestOutcome};
use leno_traffic::cors::{CrossOrigin, apply_cors};
use leno_traffic::fault::CompiledFaults;
use leno_traffic::hedge::may_hedge;
use leno_traffic::outlier::{OutlierDetector, RequestResult};
use leno_traffic::request_checks::{CheckedClient as Named, CompiledChecks};
use leno_traffic::retry::retry_pause;
use leno_traffic::{
    AttemptFailure, CompiledLimits, CompiledTagRules, FieldEdits, Lanes, retry_by_rule, tcp_backend,
};

use self::asked::{Asked, DRAW};
use self::candidates::{Ten, ten_candidates};
use self::conditions::{
    ADDRESS, ATTEMPT, HEDGED, cors_rule, from_page, hedge_rule, now, port_guards, retry_rule,
};
use self::kinds::{
    Asking, PORT, at_once, compile_lanes, compile_limits, fault_plan, hash_places,
    outlier_detector, request_and_caller, request_with_version, sermant_removal,
    slow_start_balancer, tag_rules, tcp_rule, test_circuit,
};
use self::measure::limited_to;

// A TagRoute with this number of rules, each for one value of a header; the third from the end decides.
#[library_benchmark]
#[bench::of_10(args = (tag_rules(10), request_with_version("v-7")), config = limited_to(1_000))]
#[bench::of_10000(args = (tag_rules(10_000), request_with_version("v-9997")), config = limited_to(996))]
fn tag_route(plan: CompiledTagRules, asked: Asked) -> (CompiledTagRules, Asked) {
    let decision = plan.choose_instances(&asked.request_view(), &mut || black_box(DRAW));
    assert!(black_box(decision).endpoints.is_some());
    (plan, asked)
}

// A lane that marks 60 % of the requests.
#[library_benchmark]
#[bench::marks(args = (compile_lanes(), request_with_version("v-0")), config = limited_to(551))]
fn lane(lanes: Lanes, asked: Asked) -> (Lanes, Asked) {
    let marks = lanes.marks_for(PORT, &asked.request_view(), &mut || black_box(DRAW));
    assert!(black_box(marks).rule.is_some());
    (lanes, asked)
}

// An OutlierDetection, or a SermantRemoval, records a successful request to one of ten endpoints.
#[library_benchmark]
#[bench::success(args = (outlier_detector()), config = limited_to(139))]
#[bench::sermant(args = (sermant_removal()), config = limited_to(1_178))]
fn outlier_detection(mut detector: OutlierDetector) -> OutlierDetector {
    let now = Duration::from_millis(1);
    let mut events = Vec::new();
    detector.advance_time(now, DRAW, &mut events);
    black_box(detector.endpoint_state(black_box(3)));
    let probe = detector.start_request(black_box(3));
    let seen = RequestResult { failed: false, probe, now, draw: DRAW };
    detector.record_outcome(black_box(3), seen, &mut events);
    assert!(events.is_empty());
    detector
}

// A CircuitBreaker with a failure rate threshold admits a request, which succeeds.
#[library_benchmark]
#[bench::closed(args = (test_circuit()), config = limited_to(110))]
fn circuit_breaker(mut circuit: Circuit) -> Circuit {
    let now = Duration::from_millis(1);
    let ticket = circuit.admit_request(black_box(now)).expect("it is closed");
    let turn = circuit.record_result(ticket, RequestOutcome { failed: false, duration: now }, now);
    assert!(black_box(turn).is_none());
    circuit
}

// A RateLimit with one bucket for all, and with one for each client.
#[library_benchmark]
#[bench::for_all(args = (compile_limits(RateLimitKey::Nothing), request_and_caller()), config = limited_to(213))]
#[bench::for_each_client(args = (compile_limits(RateLimitKey::Client { buckets: 1024 }), request_and_caller()), config = limited_to(1_515))]
fn rate_limit(limits: CompiledLimits, asking: Asking) -> (CompiledLimits, Asking) {
    let (asked, caller) = &asking;
    let now = black_box(Duration::from_secs(7));
    assert!(limits.admit_request(PORT, &asked.request_view(), Some(caller), now).is_ok());
    (limits, asking)
}

// A RateLimit with a concurrency limit: one request acquires a permit, is answered and releases it.
#[library_benchmark]
#[bench::fixed(args = (at_once(false)), config = limited_to(230))]
#[bench::adaptive(args = (at_once(true)), config = limited_to(511))]
fn concurrency(limits: CompiledLimits) -> CompiledLimits {
    let now = |ms| black_box(Duration::from_millis(ms));
    let place =
        limits.acquire_permit(PORT, true, now(7)).expect("there is room").expect("it is bounded");
    place.record_response(now(8));
    drop(place);
    limits
}

// A FaultInjection that matches the request without a fault being drawn.
#[library_benchmark]
#[bench::spared(args = (fault_plan(), request_and_caller()), config = limited_to(111))]
fn fault_injection(faults: CompiledFaults, asking: Asking) -> (CompiledFaults, Asking) {
    let (asked, caller) = &asking;
    let injected = faults.draw_faults(&asked.request_view(), caller, &mut || black_box(u64::MAX));
    assert!(black_box(injected).is_none());
    (faults, asking)
}

// A LoadBalancing by hash selects the endpoint of a key, among ten.
#[library_benchmark]
#[bench::ring(args = (hash_places(BalanceAlgorithm::RingHash)), config = limited_to(212))]
#[bench::maglev(args = (hash_places(BalanceAlgorithm::Maglev)), config = limited_to(77))]
fn load_balancing(places: EndpointHashTable) -> EndpointHashTable {
    assert!(places.find_endpoint(hash_key(black_box("user-42")), |_| true).is_some());
    places
}

// A LoadBalancing with slow start selects among ten endpoints, one of them halfway through it.
#[library_benchmark]
#[bench::half(args = (slow_start_balancer(), ten_candidates()), config = limited_to(179))]
fn warm_up(balancer: Balancer, endpoints: Ten) -> (Balancer, Ten) {
    let age = |index| (index == 3).then_some(black_box(Duration::from_secs(30)));
    assert!(balancer.choose_candidate(&endpoints, None, age, black_box(DRAW)).is_some());
    (balancer, endpoints)
}

// A TCPRoute, or a TrafficSplit, selects the backend of a connection.
#[library_benchmark]
#[bench::between_two(args = (tcp_rule()), config = limited_to(72))]
fn tcp_route(rule: TcpRule) -> TcpRule {
    assert!(tcp_backend(&rule, black_box(DRAW)).is_some());
    rule
}

// A Retry repeats an attempt that was answered with 503.
#[library_benchmark]
#[bench::again(args = (retry_rule(), now()), config = limited_to(208))]
fn retry((rule, mut budget): (RetryRule, RetryBudget), now: Instant) -> (RetryRule, RetryBudget) {
    budget.deposit();
    assert!(retry_by_rule(&rule, black_box(AttemptFailure::Response(503)), &ATTEMPT));
    assert!(budget.withdraw(black_box(now)));
    black_box(retry_pause(&rule, 0, black_box(DRAW)));
    (rule, budget)
}

// A Hedging matches a request.
#[library_benchmark]
#[bench::idempotent(args = (hedge_rule()), config = limited_to(57))]
fn hedge(rule: HedgeRule) -> HedgeRule {
    assert!(may_hedge(&rule, None, &black_box(HEDGED)));
    rule
}

// An HTTPRoute rule with CORS handles a cross-origin request.
#[library_benchmark]
#[bench::may(args = (cors_rule(), from_page()), config = limited_to(3_799))]
fn cross_origin(cors: Cors, asked: Asked) -> (Cors, Asked, Option<CrossOrigin>) {
    let said = apply_cors(&cors, &asked.request_view(), &FieldEdits::default());
    assert!(said.is_some());
    (cors, asked, said)
}

// A JwtValidation requires a token; its verification is measured elsewhere.
#[library_benchmark]
#[bench::required(args = (port_guards(), request_and_caller()), config = limited_to(395))]
fn token(guards: CompiledChecks, asking: Asking) -> (CompiledChecks, Asking) {
    let at = guards.for_port(PORT).expect("guards");
    assert!(at.token_validations().iter().any(|it| it.is_required(&asking.0.request_view())));
    (guards, asking)
}

// An ExternalAuthorization matches a request.
#[library_benchmark]
#[bench::asked(args = (port_guards(), request_and_caller()), config = limited_to(382))]
fn external_authorization(guards: CompiledChecks, asking: Asking) -> (CompiledChecks, Asking) {
    let at = guards.for_port(PORT).expect("guards");
    assert!(at.required_authorizations(&asking.0.request_view()).next().is_some());
    (guards, asking)
}

// The global part of a RateLimit creates the descriptor of a request.
#[library_benchmark]
#[bench::described(args = (port_guards(), request_and_caller()), config = limited_to(1_434))]
fn global_rate_limit(guards: CompiledChecks, asking: Asking) -> (CompiledChecks, Asking) {
    let (asked, account) = &asking;
    let at = guards.for_port(PORT).expect("guards");
    let named = Named { account: Some(account), address: ADDRESS };
    assert!(black_box(at.required_limits(&asked.request_view(), named).next()).is_some());
    (guards, asking)
}

library_benchmark_group!(
    name = rules,
    benchmarks = [
        tag_route,
        lane,
        outlier_detection,
        circuit_breaker,
        rate_limit,
        concurrency,
        fault_injection,
        load_balancing,
        warm_up,
        tcp_route,
        retry,
        hedge,
        cross_origin,
        token,
        external_authorization,
        global_rate_limit
    ]
);

gungraun::main!(library_benchmark_groups = rules);
