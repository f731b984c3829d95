//! Instruction counts of decisions among ten rules of a kind and among ten thousand; more than 3 % above the
//! measured count fails.
//!
//! The third rule from the end decides. All rules are indexed, and the cost hardly depends on their number.
//! Benchmarks in `instructions.rs` and `rules.rs` (routes by exact paths and prefixes, and tags) are not
//! repeated here. The counts are measured in the same way.
#![allow(
    clippy::allow_attributes_without_reason,
    missing_docs,
    unused_qualifications,
    reason = "the macros of gungraun generate code that violates these lints"
)]

mod many;
mod measure;
mod member;
mod sample;

use std::hint::black_box;
use std::time::Duration;

use gungraun::{library_benchmark, library_benchmark_group};
use leno_model::{MatchedBy, PolicyAction, ServiceAccount};
use leno_traffic::fault::CompiledFaults;
use leno_traffic::route::{PortRoutes, RouteChoice};
use leno_traffic::{CompiledLimits, EgressRules, Lanes, RequestView, TlsChoice, TlsRoutes};

use self::many::{
    AccessAndOrigin, AccessAndPeer, AccessAndPermit, OUTSIDE, PORT, RequestAndHost,
    access_policies, caller_of_rule, egress_rules, header_lanes, header_routes, host_of_rule,
    ingress_rules, ingress_rules_by_address, limits_below, limits_of_callers, path_faults,
    path_limits, policies_of_peers, regex_routes, request_below_path, request_below_shop,
    request_for_rule, service_account, shared_policies, tls_routes, to_host, traffic_targets,
};
use self::measure::limited_to;
use self::sample::{RANDOM_NUMBER, SampleRequest};

/// A request and its caller.
type RequestAndCaller = (SampleRequest, ServiceAccount);

// Routes with one path, which differ in the exact value of a header.
#[library_benchmark]
#[bench::of_10(args = (header_routes(10), request_for_rule(10)), config = limited_to(2_821))]
#[bench::of_10000(args = (header_routes(10_000), request_for_rule(10_000)), config = limited_to(1_042))]
fn route_by_header(routes: PortRoutes, sample: SampleRequest) -> (PortRoutes, SampleRequest) {
    let choice = routes.choose_backend(&sample.request_view(), black_box(RANDOM_NUMBER));
    assert!(matches!(black_box(choice), RouteChoice::To { .. }));
    (routes, sample)
}

// Routes with a regular expression each; the matching one has not run before, so its lazy initialization is
// counted.
#[library_benchmark]
#[bench::of_10(args = (regex_routes(10), request_below_path(10)), config = limited_to(49_404))]
#[bench::of_10000(args = (regex_routes(10_000), request_below_path(10_000)), config = limited_to(58_983))]
fn route_by_regex(routes: PortRoutes, sample: SampleRequest) -> (PortRoutes, SampleRequest) {
    let choice = routes.choose_backend(&sample.request_view(), black_box(RANDOM_NUMBER));
    assert!(matches!(black_box(choice), RouteChoice::To { .. }));
    (routes, sample)
}

// Access policies that allow one exact path each to the peer.
#[library_benchmark]
#[bench::of_10(args = (access_policies(10, PolicyAction::Allow), request_below_path(10)), config = limited_to(934))]
#[bench::of_10000(args = (access_policies(10_000, PolicyAction::Allow), request_below_path(10_000)), config = limited_to(676))]
fn access_policy(
    input: AccessAndPermit,
    sample: SampleRequest,
) -> (AccessAndPermit, SampleRequest) {
    let (access, permit) = &input;
    let decision = access.authorize_request(permit, &sample.request_view());
    assert!(black_box(decision).is_ok());
    (input, sample)
}

// Access policies that allow one exact path each, half of them to the peer.
#[library_benchmark]
#[bench::of_10(args = (shared_policies(10), request_below_path(10)), config = limited_to(614))]
#[bench::of_10000(args = (shared_policies(10_000), request_below_path(10_000)), config = limited_to(834))]
fn shared_policy(
    input: AccessAndPermit,
    sample: SampleRequest,
) -> (AccessAndPermit, SampleRequest) {
    let (access, permit) = &input;
    let decision = access.authorize_request(permit, &sample.request_view());
    assert!(black_box(decision).is_ok());
    (input, sample)
}

// Access policies that deny one exact path each to the peer.
#[library_benchmark]
#[bench::of_10(args = (access_policies(10, PolicyAction::Deny), request_below_path(10)), config = limited_to(1_538))]
#[bench::of_10000(args = (access_policies(10_000, PolicyAction::Deny), request_below_path(10_000)), config = limited_to(1_121))]
fn denying_policy(
    input: AccessAndPermit,
    sample: SampleRequest,
) -> (AccessAndPermit, SampleRequest) {
    let (access, permit) = &input;
    let decision = access.authorize_request(permit, &sample.request_view());
    assert!(black_box(decision).is_err());
    (input, sample)
}

// Ingress backends that open one exact path each.
#[library_benchmark]
#[bench::of_10(args = (ingress_rules(10), request_below_path(10)), config = limited_to(900))]
#[bench::of_10000(args = (ingress_rules(10_000), request_below_path(10_000)), config = limited_to(614))]
fn ingress_rule(input: AccessAndPermit, sample: SampleRequest) -> (AccessAndPermit, SampleRequest) {
    let (access, permit) = &input;
    let decision = access.authorize_request(permit, &sample.request_view());
    assert!(black_box(decision).is_ok());
    (input, sample)
}

// Access policies that allow everything to one peer each: once per connection.
#[library_benchmark]
#[bench::of_10(args = (policies_of_peers(10)), config = limited_to(5_623))]
#[bench::of_10000(args = (policies_of_peers(10_000)), config = limited_to(1_632))]
fn connection_of_peer((access, peer): AccessAndPeer) -> AccessAndPeer {
    let permit = access.authorize_connection(Some(black_box(&peer)), PORT);
    assert!(black_box(permit).is_ok());
    (access, peer)
}

// Ingress backends that allow one address each: once per connection.
#[library_benchmark]
#[bench::of_10(args = (ingress_rules_by_address(10)), config = limited_to(2_014))]
#[bench::of_10000(args = (ingress_rules_by_address(10_000)), config = limited_to(2_553))]
fn connection_from_address((access, origin): AccessAndOrigin) -> AccessAndOrigin {
    let permit = access.authorize_connection_from(None, PORT, Some(black_box(origin.clone())));
    assert!(black_box(permit).is_ok());
    (access, origin)
}

// Traffic targets that allow paths below one prefix each to the peer, by a regular expression.
#[library_benchmark]
#[bench::of_10(args = (traffic_targets(10), request_below_path(10)), config = limited_to(1_115))]
#[bench::of_10000(args = (traffic_targets(10_000), request_below_path(10_000)), config = limited_to(671))]
fn traffic_target(
    input: AccessAndPermit,
    sample: SampleRequest,
) -> (AccessAndPermit, SampleRequest) {
    let (access, permit) = &input;
    let decision = access.authorize_request(permit, &sample.request_view());
    assert!(black_box(decision).is_ok());
    (input, sample)
}

// A RateLimit with rules for one exact path each.
#[library_benchmark]
#[bench::of_10(args = (path_limits(10), request_below_path(10)), config = limited_to(1_561))]
#[bench::of_10000(args = (path_limits(10_000), request_below_path(10_000)), config = limited_to(1_150))]
fn rate_limit(limits: CompiledLimits, sample: SampleRequest) -> (CompiledLimits, SampleRequest) {
    let now = black_box(Duration::from_secs(7));
    assert!(limits.admit_request(PORT, &sample.request_view(), None, now).is_ok());
    (limits, sample)
}

// The same, each for paths below one prefix in a shop.
#[library_benchmark]
#[bench::of_10(args = (limits_below(10), request_below_shop(10)), config = limited_to(1_625))]
#[bench::of_10000(args = (limits_below(10_000), request_below_shop(10_000)), config = limited_to(1_250))]
fn rate_limit_by_prefix(
    limits: CompiledLimits,
    sample: SampleRequest,
) -> (CompiledLimits, SampleRequest) {
    let now = black_box(Duration::from_secs(7));
    assert!(limits.admit_request(PORT, &sample.request_view(), None, now).is_ok());
    (limits, sample)
}

// The same, each for one account.
#[library_benchmark]
#[bench::of_10(args = (limits_of_callers(10), (request_below_path(10), caller_of_rule(10))), config = limited_to(4_369))]
#[bench::of_10000(args = (limits_of_callers(10_000), (request_below_path(10_000), caller_of_rule(10_000))), config = limited_to(1_526))]
fn rate_limit_by_caller(
    limits: CompiledLimits,
    input: RequestAndCaller,
) -> (CompiledLimits, RequestAndCaller) {
    let (sample, caller) = &input;
    let now = black_box(Duration::from_secs(7));
    assert!(limits.admit_request(PORT, &sample.request_view(), Some(caller), now).is_ok());
    (limits, input)
}

// A FaultInjection with rules for one exact path each; no fault is selected.
#[library_benchmark]
#[bench::of_10(args = (path_faults(10), (request_below_path(10), service_account())), config = limited_to(714))]
#[bench::of_10000(args = (path_faults(10_000), (request_below_path(10_000), service_account())), config = limited_to(457))]
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

// Lanes, each for the exact value of a header.
#[library_benchmark]
#[bench::of_10(args = (header_lanes(10), request_for_rule(10)), config = limited_to(3_160))]
#[bench::of_10000(args = (header_lanes(10_000), request_for_rule(10_000)), config = limited_to(907))]
fn lane(lanes: Lanes, sample: SampleRequest) -> (Lanes, SampleRequest) {
    let marks =
        lanes.headers_for_request(PORT, &sample.request_view(), &mut || black_box(RANDOM_NUMBER));
    assert!(black_box(marks).rule.is_some());
    (lanes, sample)
}

// Egress policies for one host each, by request host.
#[library_benchmark]
#[bench::of_10(args = (egress_rules(10, MatchedBy::Http), to_host(10)), config = limited_to(1_064))]
#[bench::of_10000(args = (egress_rules(10_000, MatchedBy::Http), to_host(10_000)), config = limited_to(1_032))]
fn egress_rule_by_host(
    egress_rules: EgressRules,
    input: RequestAndHost,
) -> (EgressRules, RequestAndHost) {
    let (sample, authority) = &input;
    let request = RequestView { authority, ..sample.request_view() };
    let policy = egress_rules.policy_for_request(black_box(OUTSIDE), &request);
    assert!(black_box(policy).is_some());
    (egress_rules, input)
}

// The same by TLS server name.
#[library_benchmark]
#[bench::of_10(args = (egress_rules(10, MatchedBy::ServerName), host_of_rule(10)), config = limited_to(750))]
#[bench::of_10000(args = (egress_rules(10_000, MatchedBy::ServerName), host_of_rule(10_000)), config = limited_to(772))]
fn egress_rule_by_server_name(egress_rules: EgressRules, name: &'static str) -> EgressRules {
    let policy = egress_rules.policy_for_server_name(black_box(OUTSIDE), name);
    assert!(black_box(policy).is_some());
    egress_rules
}

// Routes of application TLS sessions, each for one server name.
#[library_benchmark]
#[bench::of_10(args = (tls_routes(10), host_of_rule(10)), config = limited_to(604))]
#[bench::of_10000(args = (tls_routes(10_000), host_of_rule(10_000)), config = limited_to(626))]
fn tls_route(routes: TlsRoutes, name: &'static str) -> TlsRoutes {
    let choice = routes.choose_backend(Some(name), black_box(RANDOM_NUMBER));
    assert!(matches!(black_box(choice), TlsChoice::To { .. }));
    routes
}

library_benchmark_group!(
    name = lookup,
    benchmarks = [
        route_by_header,
        route_by_regex,
        access_policy,
        shared_policy,
        denying_policy,
        ingress_rule,
        connection_of_peer,
        connection_from_address,
        traffic_target,
        rate_limit,
        rate_limit_by_prefix,
        rate_limit_by_caller,
        fault_injection,
        lane,
        egress_rule_by_host,
        egress_rule_by_server_name,
        tls_route
    ]
);

gungraun::main!(library_benchmark_groups = lookup);
