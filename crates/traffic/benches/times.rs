//! Durations of the benchmarks in `instructions.rs`, `rules.rs` and `lookup.rs`. Informational, since load on
//! the machine changes them; only instruction counts are bounded.

mod candidates;
mod conditions;
mod decisions;
mod kinds;
mod many;
mod member;
mod sample;

use std::hint::black_box;
use std::time::Duration;

use divan::Bencher;
use leno_model::{BalanceAlgorithm, MatchedBy, PolicyAction, RateLimitKey};
use leno_traffic::balance::hashing::hash_key;
use leno_traffic::circuit_breaker::RequestOutcome;
use leno_traffic::hedge::may_hedge;
use leno_traffic::outlier::RequestResult;
use leno_traffic::request_checks::CheckedClient;
use leno_traffic::retry::retry_pause;
use leno_traffic::{
    AttemptFailure, FieldEdits, RequestView, may_retry_by_rule, pick_candidate, select_tcp_backend,
};

use self::sample::{RANDOM_NUMBER, sample_request};

fn main() {
    divan::main();
}

#[divan::bench(sample_size = 1000, args = ["/shop/carts/42", "/favicon.ico"])]
fn route(bencher: Bencher<'_, '_>, path: &str) {
    let (routes, sample) = (decisions::twenty_routes(), sample_request(path));
    bencher.bench_local(|| {
        black_box(routes.choose_backend(&sample.request_view(), black_box(RANDOM_NUMBER)))
    });
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn route_by_exact_path(bencher: Bencher<'_, '_>, rules: usize) {
    let routes = decisions::many_routes(rules, decisions::exact_path);
    let sample = sample_request(&format!("/shop/{}", rules - 3));
    bencher.bench_local(|| {
        black_box(routes.choose_backend(&sample.request_view(), black_box(RANDOM_NUMBER)))
    });
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn route_by_prefix(bencher: Bencher<'_, '_>, rules: usize) {
    let routes = decisions::many_routes(rules, decisions::path_prefix);
    let sample = sample_request(&format!("/shop/{}/42", rules - 3));
    bencher.bench_local(|| {
        black_box(routes.choose_backend(&sample.request_view(), black_box(RANDOM_NUMBER)))
    });
}

#[divan::bench(sample_size = 1000, args = ["/reviews/42", "/reports/42"])]
fn authorize(bencher: Bencher<'_, '_>, path: &str) {
    let ((access, permit), sample) = (decisions::compile_access(path), sample_request(path));
    bencher.bench_local(|| {
        black_box(access.authorize_request(&permit, &sample.request_view())).is_ok()
    });
}

#[divan::bench(sample_size = 1000)]
fn pick_endpoint(bencher: Bencher<'_, '_>) {
    let endpoints = candidates::ten_candidates();
    let mut random = RANDOM_NUMBER;
    bencher.bench_local(|| {
        random = random.wrapping_add(RANDOM_NUMBER);
        pick_candidate(black_box(&endpoints), random)
    });
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn tag_route(bencher: Bencher<'_, '_>, rules: usize) {
    let compiled = kinds::tag_rules(rules);
    let sample = kinds::request_with_version(&format!("v-{}", rules - 3));
    bencher.bench_local(|| {
        black_box(
            compiled.choose_instances(&sample.request_view(), &mut || black_box(RANDOM_NUMBER)),
        )
        .endpoints
        .is_some()
    });
}

#[divan::bench(sample_size = 1000)]
fn lane(bencher: Bencher<'_, '_>) {
    let (lanes, sample) = (kinds::compile_lanes(), kinds::request_with_version("v-0"));
    bencher.bench_local(|| {
        black_box(lanes.headers_for_request(kinds::PORT, &sample.request_view(), &mut || {
            black_box(RANDOM_NUMBER)
        }))
        .rule
        .is_some()
    });
}

#[divan::bench(sample_size = 1000, args = ["OutlierDetection", "SermantRemoval"])]
fn outlier_detection(bencher: Bencher<'_, '_>, kind: &str) {
    let mut detector = match kind {
        "OutlierDetection" => kinds::outlier_detector(),
        _ => kinds::sermant_removal(),
    };
    let now = Duration::from_millis(1);
    let mut events = Vec::new();
    bencher.bench_local(|| {
        detector.advance_time(now, RANDOM_NUMBER, &mut events);
        black_box(detector.endpoint_state(black_box(3)));
        let probe = detector.start_request(black_box(3));
        detector.record_result(
            black_box(3),
            RequestResult { failed: false, probe, now, random: RANDOM_NUMBER },
            &mut events,
        );
    });
}

#[divan::bench(sample_size = 1000)]
fn circuit_breaker(bencher: Bencher<'_, '_>) {
    let mut circuit = kinds::test_circuit();
    let now = Duration::from_millis(1);
    bencher.bench_local(|| {
        let ticket = circuit.admit_request(black_box(now));
        ticket.map(|ticket| {
            circuit.record_result(ticket, RequestOutcome { failed: false, duration: now }, now)
        })
    });
}

#[divan::bench(sample_size = 1000, args = ["all", "each client"])]
fn rate_limit(bencher: Bencher<'_, '_>, bucket_for: &str) {
    let key = match bucket_for {
        "all" => RateLimitKey::None,
        _ => RateLimitKey::Client { buckets: 1024 },
    };
    let (limits, (sample, caller)) = (kinds::compile_limits(key), kinds::request_and_caller());
    // Advances far enough that a token is always available.
    let mut now = Duration::from_secs(7);
    bencher.bench_local(|| {
        now += Duration::from_millis(10);
        limits.admit_request(kinds::PORT, &sample.request_view(), Some(&caller), now).is_ok()
    });
}

#[divan::bench(sample_size = 1000, args = ["fixed", "adaptive"])]
fn concurrency(bencher: Bencher<'_, '_>, kind: &str) {
    let limits = kinds::concurrency_limits(kind == "adaptive");
    let mut now = Duration::from_secs(7);
    bencher.bench_local(|| {
        now += Duration::from_millis(10);
        let slot = limits.acquire_slot(kinds::PORT, true, now).ok().flatten();
        slot.map(|slot| slot.record_response(now + Duration::from_millis(1)))
    });
}

#[divan::bench(sample_size = 1000)]
fn fault_injection(bencher: Bencher<'_, '_>) {
    let (faults, (sample, caller)) = (kinds::compile_faults(), kinds::request_and_caller());
    bencher.bench_local(|| {
        faults.select_faults(&sample.request_view(), &caller, &mut || black_box(u64::MAX)).is_some()
    });
}

#[divan::bench(sample_size = 1000, args = ["RingHash", "Maglev"])]
fn load_balancing(bencher: Bencher<'_, '_>, algorithm: &str) {
    let hash_table = match algorithm {
        "RingHash" => kinds::hash_table(BalanceAlgorithm::RingHash),
        _ => kinds::hash_table(BalanceAlgorithm::Maglev),
    };
    bencher.bench_local(|| hash_table.find_endpoint(hash_key(black_box("user-42")), |_| true));
}

#[divan::bench(sample_size = 1000)]
fn slow_start(bencher: Bencher<'_, '_>) {
    let (balancer, endpoints) = (kinds::slow_start_balancer(), candidates::ten_candidates());
    let age = |index| (index == 3).then_some(black_box(Duration::from_secs(30)));
    let mut random = RANDOM_NUMBER;
    bencher.bench_local(|| {
        random = random.wrapping_add(RANDOM_NUMBER);
        balancer.choose_candidate(black_box(&endpoints), None, age, random)
    });
}

#[divan::bench(sample_size = 1000)]
fn tcp_route(bencher: Bencher<'_, '_>) {
    let rule = kinds::tcp_rule();
    bencher
        .bench_local(|| select_tcp_backend(black_box(&rule), black_box(RANDOM_NUMBER)).is_some());
}

#[divan::bench(sample_size = 1000)]
fn retry(bencher: Bencher<'_, '_>) {
    let (rule, mut budget) = conditions::retry_rule();
    let mut now = conditions::now();
    bencher.bench_local(|| {
        // Advances far enough that a retry is always available.
        now += Duration::from_secs(1);
        budget.record_request();
        let may_retry = may_retry_by_rule(
            &rule,
            black_box(AttemptFailure::Response(503)),
            &conditions::ATTEMPT,
        );
        (may_retry && budget.withdraw_retry(now))
            .then(|| retry_pause(&rule, 0, black_box(RANDOM_NUMBER)))
    });
}

#[divan::bench(sample_size = 1000)]
fn hedge(bencher: Bencher<'_, '_>) {
    let rule = conditions::hedge_rule();
    bencher.bench_local(|| {
        may_hedge(black_box(&rule), None, &black_box(conditions::HEDGE_CONDITIONS))
    });
}

#[divan::bench(sample_size = 1000)]
fn cross_origin(bencher: Bencher<'_, '_>) {
    let (cors, sample) = (conditions::cors_rule(), conditions::cross_origin_request());
    bencher.bench_local(|| {
        leno_traffic::cors::apply_cors(&cors, &sample.request_view(), &FieldEdits::default())
    });
}

#[divan::bench(sample_size = 1000, args = ["token", "authorization", "limit"])]
fn request_check(bencher: Bencher<'_, '_>, kind: &str) {
    let (checks, (sample, account)) = (conditions::compile_checks(), kinds::request_and_caller());
    let port_checks = checks.for_port(kinds::PORT).expect("the port has checks");
    let client = CheckedClient { account: Some(&account), address: conditions::ADDRESS };
    match kind {
        "token" => bencher.bench_local(|| {
            port_checks
                .token_validations()
                .iter()
                .any(|validation| validation.is_required(&sample.request_view()))
        }),
        "authorization" => {
            bencher.bench_local(|| {
                port_checks.required_authorizations(&sample.request_view()).next().is_some()
            });
        }
        _ => bencher.bench_local(|| {
            port_checks.required_limits(&sample.request_view(), client).next().is_some()
        }),
    }
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn route_by_header(bencher: Bencher<'_, '_>, rules: usize) {
    let (routes, sample) = (many::header_routes(rules), many::request_for_rule(rules));
    bencher.bench_local(|| {
        black_box(routes.choose_backend(&sample.request_view(), black_box(RANDOM_NUMBER)))
    });
}

#[divan::bench(sample_size = 10, args = [10, 10_000])]
fn route_by_regex(bencher: Bencher<'_, '_>, rules: usize) {
    let (routes, sample) = (many::regex_routes(rules), many::request_below_path(rules));
    bencher.bench_local(|| {
        black_box(routes.choose_backend(&sample.request_view(), black_box(RANDOM_NUMBER)))
    });
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn rate_limit_by_path(bencher: Bencher<'_, '_>, rules: usize) {
    let (limits, sample) = (many::path_limits(rules), many::request_below_path(rules));
    // Advances far enough that a token is always available.
    let mut now = Duration::from_secs(7);
    bencher.bench_local(|| {
        now += Duration::from_millis(10);
        limits.admit_request(many::PORT, &sample.request_view(), None, now).is_ok()
    });
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn rate_limit_by_prefix(bencher: Bencher<'_, '_>, rules: usize) {
    let (limits, sample) = (many::limits_below(rules), many::request_below_shop(rules));
    let mut now = Duration::from_secs(7);
    bencher.bench_local(|| {
        now += Duration::from_millis(10);
        limits.admit_request(many::PORT, &sample.request_view(), None, now).is_ok()
    });
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn rate_limit_by_caller(bencher: Bencher<'_, '_>, rules: usize) {
    let (limits, sample) = (many::limits_of_callers(rules), many::request_below_path(rules));
    let (caller, mut now) = (many::caller_of_rule(rules), Duration::from_secs(7));
    bencher.bench_local(|| {
        now += Duration::from_millis(10);
        limits.admit_request(many::PORT, &sample.request_view(), Some(&caller), now).is_ok()
    });
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn connection_of_peer(bencher: Bencher<'_, '_>, rules: usize) {
    let (access, peer) = many::policies_of_peers(rules);
    bencher.bench_local(|| access.authorize_connection(Some(black_box(&peer)), many::PORT).is_ok());
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn connection_from_address(bencher: Bencher<'_, '_>, rules: usize) {
    let (access, origin) = many::ingress_rules_by_address(rules);
    bencher.bench_local(|| {
        access.authorize_connection_from(None, many::PORT, Some(black_box(origin.clone()))).is_ok()
    });
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn fault_injection_by_path(bencher: Bencher<'_, '_>, rules: usize) {
    let (faults, sample) = (many::path_faults(rules), many::request_below_path(rules));
    let caller = many::service_account();
    bencher.bench_local(|| {
        faults.select_faults(&sample.request_view(), &caller, &mut || black_box(u64::MAX)).is_some()
    });
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn access_policy(bencher: Bencher<'_, '_>, rules: usize) {
    authorize_request(bencher, many::access_policies(rules, PolicyAction::Allow), rules);
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn shared_policy(bencher: Bencher<'_, '_>, rules: usize) {
    authorize_request(bencher, many::shared_policies(rules), rules);
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn denying_policy(bencher: Bencher<'_, '_>, rules: usize) {
    authorize_request(bencher, many::access_policies(rules, PolicyAction::Deny), rules);
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn ingress_rule(bencher: Bencher<'_, '_>, rules: usize) {
    authorize_request(bencher, many::ingress_rules(rules), rules);
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn traffic_target(bencher: Bencher<'_, '_>, rules: usize) {
    authorize_request(bencher, many::traffic_targets(rules), rules);
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn lane_by_header(bencher: Bencher<'_, '_>, rules: usize) {
    let (lanes, sample) = (many::header_lanes(rules), many::request_for_rule(rules));
    bencher.bench_local(|| {
        black_box(lanes.headers_for_request(many::PORT, &sample.request_view(), &mut || {
            black_box(RANDOM_NUMBER)
        }))
        .rule
        .is_some()
    });
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn egress_rule_by_host(bencher: Bencher<'_, '_>, rules: usize) {
    let (egress_rules, (sample, authority)) =
        (many::egress_rules(rules, MatchedBy::Http), many::to_host(rules));
    bencher.bench_local(|| {
        let request = RequestView { authority: black_box(authority), ..sample.request_view() };
        egress_rules.policy_for_request(black_box(many::OUTSIDE), &request).is_some()
    });
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn egress_rule_by_server_name(bencher: Bencher<'_, '_>, rules: usize) {
    let (egress_rules, name) =
        (many::egress_rules(rules, MatchedBy::ServerName), many::host_of_rule(rules));
    bencher.bench_local(|| {
        egress_rules.policy_for_server_name(black_box(many::OUTSIDE), name).is_some()
    });
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn tls_route(bencher: Bencher<'_, '_>, rules: usize) {
    let (routes, name) = (many::tls_routes(rules), many::host_of_rule(rules));
    bencher.bench_local(|| {
        black_box(routes.choose_backend(Some(black_box(name)), black_box(RANDOM_NUMBER)))
    });
}

/// Measures the authorization of a request that matches the deciding rule.
fn authorize_request(
    bencher: Bencher<'_, '_>,
    (access, permit): many::AccessAndPermit,
    rules: usize,
) {
    let sample = many::request_below_path(rules);
    bencher.bench_local(|| {
        black_box(access.authorize_request(&permit, &sample.request_view())).is_ok()
    });
}
