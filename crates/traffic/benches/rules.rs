//! Instruction counts of a request under each kind of rule; more than 3 % above the measured count fails.
//!
//! Indexed rules are measured among ten and among ten thousand: the cost is the same. Measured like the
//! benchmarks in `instructions.rs`.
#![allow(
    clippy::allow_attributes_without_reason,
    missing_docs,
    unused_qualifications,
    reason = "the macros of gungraun generate code that violates these lints"
)]

mod candidates;
mod conditions;
mod kinds;
mod measure;
mod member;
mod sample;

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
use leno_traffic::request_checks::{CheckedClient, CompiledChecks};
use leno_traffic::retry::retry_pause;
use leno_traffic::{
    AttemptFailure, CompiledLimits, CompiledTagRules, FieldEdits, Lanes, may_retry_by_rule,
    select_tcp_backend,
};

use self::candidates::{TenCandidates, ten_candidates};
use self::conditions::{
    ADDRESS, ATTEMPT, HEDGE_CONDITIONS, compile_checks, cors_rule, cross_origin_request,
    hedge_rule, now, retry_rule,
};
use self::kinds::{
    PORT, RequestAndCaller, compile_faults, compile_lanes, compile_limits, concurrency_limits,
    hash_table, outlier_detector, request_and_caller, request_with_version, sermant_removal,
    slow_start_balancer, tag_rules, tcp_rule, test_circuit,
};
use self::measure::limited_to;
use self::sample::{RANDOM_NUMBER, SampleRequest};

// A TagRoute with this number of rules, each for one value of a header; the third from the end decides.
#[library_benchmark]
#[bench::of_10(args = (tag_rules(10), request_with_version("v-7")), config = limited_to(1_000))]
#[bench::of_10000(args = (tag_rules(10_000), request_with_version("v-9997")), config = limited_to(996))]
fn tag_route(
    compiled: CompiledTagRules,
    sample: SampleRequest,
) -> (CompiledTagRules, SampleRequest) {
    let decision =
        compiled.choose_instances(&sample.request_view(), &mut || black_box(RANDOM_NUMBER));
    assert!(black_box(decision).endpoints.is_some());
    (compiled, sample)
}

// A lane that marks 60 % of the requests.
#[library_benchmark]
#[bench::marks(args = (compile_lanes(), request_with_version("v-0")), config = limited_to(551))]
fn lane(lanes: Lanes, sample: SampleRequest) -> (Lanes, SampleRequest) {
    let marks =
        lanes.headers_for_request(PORT, &sample.request_view(), &mut || black_box(RANDOM_NUMBER));
    assert!(black_box(marks).rule.is_some());
    (lanes, sample)
}

// An OutlierDetection, or a SermantRemoval, records a successful request to one of ten endpoints.
#[library_benchmark]
#[bench::success(args = (outlier_detector()), config = limited_to(139))]
#[bench::sermant(args = (sermant_removal()), config = limited_to(1_178))]
fn outlier_detection(mut detector: OutlierDetector) -> OutlierDetector {
    let now = Duration::from_millis(1);
    let mut events = Vec::new();
    detector.advance_time(now, RANDOM_NUMBER, &mut events);
    black_box(detector.endpoint_state(black_box(3)));
    let probe = detector.start_request(black_box(3));
    let result = RequestResult { failed: false, probe, now, random: RANDOM_NUMBER };
    detector.record_result(black_box(3), result, &mut events);
    assert!(events.is_empty());
    detector
}

// A CircuitBreaker with a failure rate threshold admits a request, which succeeds.
#[library_benchmark]
#[bench::closed(args = (test_circuit()), config = limited_to(110))]
fn circuit_breaker(mut circuit: Circuit) -> Circuit {
    let now = Duration::from_millis(1);
    let ticket = circuit.admit_request(black_box(now)).expect("the circuit is closed");
    let transition =
        circuit.record_result(ticket, RequestOutcome { failed: false, duration: now }, now);
    assert!(black_box(transition).is_none());
    circuit
}

// A RateLimit with one bucket for all requests, and with one bucket for each client.
#[library_benchmark]
#[bench::for_all(args = (compile_limits(RateLimitKey::None), request_and_caller()), config = limited_to(213))]
#[bench::for_each_client(args = (compile_limits(RateLimitKey::Client { buckets: 1024 }), request_and_caller()), config = limited_to(1_515))]
fn rate_limit(
    limits: CompiledLimits,
    input: RequestAndCaller,
) -> (CompiledLimits, RequestAndCaller) {
    let (sample, caller) = &input;
    let now = black_box(Duration::from_secs(7));
    assert!(limits.admit_request(PORT, &sample.request_view(), Some(caller), now).is_ok());
    (limits, input)
}

// A RateLimit with a concurrency limit: one request acquires a slot, receives a response and releases it.
#[library_benchmark]
#[bench::fixed(args = (concurrency_limits(false)), config = limited_to(230))]
#[bench::adaptive(args = (concurrency_limits(true)), config = limited_to(511))]
fn concurrency(limits: CompiledLimits) -> CompiledLimits {
    let now = |ms| black_box(Duration::from_millis(ms));
    let slot = limits
        .acquire_slot(PORT, true, now(7))
        .expect("a slot is free")
        .expect("the port has a limit");
    slot.record_response(now(8));
    drop(slot);
    limits
}

// A FaultInjection that matches the request; no fault is selected.
#[library_benchmark]
#[bench::not_selected(args = (compile_faults(), request_and_caller()), config = limited_to(111))]
fn fault_injection(
    faults: CompiledFaults,
    input: RequestAndCaller,
) -> (CompiledFaults, RequestAndCaller) {
    let (sample, caller) = &input;
    let injected =
        faults.select_faults(&sample.request_view(), caller, &mut || black_box(u64::MAX));
    assert!(black_box(injected).is_none());
    (faults, input)
}

// A LoadBalancing by hash selects the endpoint of a key, among ten.
#[library_benchmark]
#[bench::ring(args = (hash_table(BalanceAlgorithm::RingHash)), config = limited_to(212))]
#[bench::maglev(args = (hash_table(BalanceAlgorithm::Maglev)), config = limited_to(77))]
fn load_balancing(hash_table: EndpointHashTable) -> EndpointHashTable {
    assert!(hash_table.find_endpoint(hash_key(black_box("user-42")), |_| true).is_some());
    hash_table
}

// A LoadBalancing with slow start selects among ten endpoints, one of which is halfway through its slow start.
#[library_benchmark]
#[bench::half(args = (slow_start_balancer(), ten_candidates()), config = limited_to(179))]
fn slow_start(balancer: Balancer, endpoints: TenCandidates) -> (Balancer, TenCandidates) {
    let age = |index| (index == 3).then_some(black_box(Duration::from_secs(30)));
    assert!(balancer.choose_candidate(&endpoints, None, age, black_box(RANDOM_NUMBER)).is_some());
    (balancer, endpoints)
}

// A TCPRoute, or a TrafficSplit, selects the backend of a connection.
#[library_benchmark]
#[bench::between_two(args = (tcp_rule()), config = limited_to(72))]
fn tcp_route(rule: TcpRule) -> TcpRule {
    assert!(select_tcp_backend(&rule, black_box(RANDOM_NUMBER)).is_some());
    rule
}

// A Retry permits another attempt after a 503 response.
#[library_benchmark]
#[bench::retried(args = (retry_rule(), now()), config = limited_to(208))]
fn retry((rule, mut budget): (RetryRule, RetryBudget), now: Instant) -> (RetryRule, RetryBudget) {
    budget.record_request();
    assert!(may_retry_by_rule(&rule, black_box(AttemptFailure::Response(503)), &ATTEMPT));
    assert!(budget.withdraw_retry(black_box(now)));
    black_box(retry_pause(&rule, 0, black_box(RANDOM_NUMBER)));
    (rule, budget)
}

// A Hedging matches a request.
#[library_benchmark]
#[bench::idempotent(args = (hedge_rule()), config = limited_to(57))]
fn hedge(rule: HedgeRule) -> HedgeRule {
    assert!(may_hedge(&rule, None, &black_box(HEDGE_CONDITIONS)));
    rule
}

// An HTTPRoute rule with CORS handles a cross-origin request.
#[library_benchmark]
#[bench::allowed(args = (cors_rule(), cross_origin_request()), config = limited_to(3_799))]
fn cross_origin(cors: Cors, sample: SampleRequest) -> (Cors, SampleRequest, Option<CrossOrigin>) {
    let result = apply_cors(&cors, &sample.request_view(), &FieldEdits::default());
    assert!(result.is_some());
    (cors, sample, result)
}

// A JwtValidation requires a token; its verification is measured elsewhere.
#[library_benchmark]
#[bench::required(args = (compile_checks(), request_and_caller()), config = limited_to(395))]
fn token(checks: CompiledChecks, input: RequestAndCaller) -> (CompiledChecks, RequestAndCaller) {
    let port_checks = checks.for_port(PORT).expect("the port has checks");
    assert!(
        port_checks
            .token_validations()
            .iter()
            .any(|validation| validation.is_required(&input.0.request_view()))
    );
    (checks, input)
}

// An ExternalAuthorization matches a request.
#[library_benchmark]
#[bench::checked(args = (compile_checks(), request_and_caller()), config = limited_to(382))]
fn external_authorization(
    checks: CompiledChecks,
    input: RequestAndCaller,
) -> (CompiledChecks, RequestAndCaller) {
    let port_checks = checks.for_port(PORT).expect("the port has checks");
    assert!(port_checks.required_authorizations(&input.0.request_view()).next().is_some());
    (checks, input)
}

// The global limit of a RateLimit creates the descriptor of a request.
#[library_benchmark]
#[bench::described(args = (compile_checks(), request_and_caller()), config = limited_to(1_434))]
fn global_rate_limit(
    checks: CompiledChecks,
    input: RequestAndCaller,
) -> (CompiledChecks, RequestAndCaller) {
    let (sample, account) = &input;
    let port_checks = checks.for_port(PORT).expect("the port has checks");
    let client = CheckedClient { account: Some(account), address: ADDRESS };
    assert!(
        black_box(port_checks.required_limits(&sample.request_view(), client).next()).is_some()
    );
    (checks, input)
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
        slow_start,
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
