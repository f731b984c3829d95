//! Instruction counts of decisions among ten rules of a kind and among ten thousand; more than 3 % above the
//! measured count fails.
//!
//! The third rule from the end decides. All are indexed, and the cost hardly depends on their number.
//! Benchmarks in `instructions.rs` and `rules.rs` (routes by exact paths and prefixes, and tags) are not
//! repeated here. Measured in the same way.
#![allow(
    clippy::allow_attributes_without_reason,
    missing_docs,
    unused_qualifications,
    reason = "what the macros of gungraun write keeps to none of these"
)]

mod asked;
mod many;
mod measure;
mod member;

use std::hint::black_box;
use std::time::Duration;

use gungraun::{library_benchmark, library_benchmark_group};
use leno_model::{MatchedBy, PolicyAction, ServiceAccount};
use leno_traffic::fault::CompiledFaults;
use leno_traffic::route::{PortRoutes, RouteChoice};
use leno_traffic::{CompiledLimits, EgressRules, Lanes, RequestView, TlsChoice, TlsRoutes};

use self::asked::{Asked, DRAW};
use self::many::{
    Coming, Judged, OUTSIDE, PORT, Sent, Visited, access_policies, at_a_place, caller_of_rule,
    egress_rules, header_lanes, header_routes, host_of_rule, in_the_shop, ingress_rules,
    limits_below, limits_of_callers, openings_by_address, path_faults, path_limits,
    policies_of_peers, regex_routes, request_for_rule, service_account, shared_policies,
    tls_routes, to_host, traffic_targets,
};
use self::measure::limited_to;

/// A request and its caller.
type Asking = (Asked, ServiceAccount);

// Routes with one path, which differ in the exact value of a header.
#[library_benchmark]
#[bench::of_10(args = (header_routes(10), request_for_rule(10)), config = limited_to(2_821))]
#[bench::of_10000(args = (header_routes(10_000), request_for_rule(10_000)), config = limited_to(1_042))]
fn route_by_header(routes: PortRoutes, asked: Asked) -> (PortRoutes, Asked) {
    let choice = routes.choose_backend(&asked.request_view(), black_box(DRAW));
    assert!(matches!(black_box(choice), RouteChoice::To { .. }));
    (routes, asked)
}

// Routes with a regular expression each; the matching one has not run before, so its lazy initialization is
// counted.
#[library_benchmark]
#[bench::of_10(args = (regex_routes(10), at_a_place(10)), config = limited_to(49_404))]
#[bench::of_10000(args = (regex_routes(10_000), at_a_place(10_000)), config = limited_to(58_983))]
fn route_by_regex(routes: PortRoutes, asked: Asked) -> (PortRoutes, Asked) {
    let choice = routes.choose_backend(&asked.request_view(), black_box(DRAW));
    assert!(matches!(black_box(choice), RouteChoice::To { .. }));
    (routes, asked)
}

// Access policies that allow one exact path each to the peer.
#[library_benchmark]
#[bench::of_10(args = (access_policies(10, PolicyAction::Allow), at_a_place(10)), config = limited_to(934))]
#[bench::of_10000(args = (access_policies(10_000, PolicyAction::Allow), at_a_place(10_000)), config = limited_to(676))]
fn access_policy(judged: Judged, asked: Asked) -> (Judged, Asked) {
    let (access, permit) = &judged;
    let decision = access.authorize_request(permit, &asked.request_view());
    assert!(black_box(decision).is_ok());
    (judged, asked)
}

// Access policies that allow one exact path each, half of them to the peer.
#[library_benchmark]
#[bench::of_10(args = (shared_policies(10), at_a_place(10)), config = limited_to(614))]
#[bench::of_10000(args = (shared_policies(10_000), at_a_place(10_000)), config = limited_to(834))]
fn shared_policy(judged: Judged, asked: Asked) -> (Judged, Asked) {
    let (access, permit) = &judged;
    let decision = access.authorize_request(permit, &asked.request_view());
    assert!(black_box(decision).is_ok());
    (judged, asked)
}

// Access policies that deny one exact path each to the peer.
#[library_benchmark]
#[bench::of_10(args = (access_policies(10, PolicyAction::Deny), at_a_place(10)), config = limited_to(1_538))]
#[bench::of_10000(args = (access_policies(10_000, PolicyAction::Deny), at_a_place(10_000)), config = limited_to(1_121))]
fn denying_policy(judged: Judged, asked: Asked) -> (Judged, Asked) {
    let (access, permit) = &judged;
    let decision = access.authorize_request(permit, &asked.request_view());
    assert!(black_box(decision).is_err());
    (judged, asked)
}

// Ingress backends that open one exact path each.
#[library_benchmark]
#[bench::of_10(args = (ingress_rules(10), at_a_place(10)), config = limited_to(900))]
#[bench::of_10000(args = (ingress_rules(10_000), at_a_place(10_000)), config = limited_to(614))]
fn opening(judged: Judged, asked: Asked) -> (Judged, Asked) {
    let (access, permit) = &judged;
    let decision = access.authorize_request(permit, &asked.request_view());
    assert!(black_box(decision).is_ok());
    (judged, asked)
}

// Access policies that allow everything to one peer each: once per connection.
#[library_benchmark]
#[bench::of_10(args = (policies_of_peers(10)), config = limited_to(5_623))]
#[bench::of_10000(args = (policies_of_peers(10_000)), config = limited_to(1_632))]
fn peer((access, peer): Coming) -> Coming {
    let permit = access.authorize_connection(Some(black_box(&peer)), PORT);
    assert!(black_box(permit).is_ok());
    (access, peer)
}

// Ingress backends that allow one address each: once per connection.
#[library_benchmark]
#[bench::of_10(args = (openings_by_address(10)), config = limited_to(2_014))]
#[bench::of_10000(args = (openings_by_address(10_000)), config = limited_to(2_553))]
fn pending_connection((access, origin): Visited) -> Visited {
    let permit = access.visit(None, PORT, Some(black_box(origin.clone())));
    assert!(black_box(permit).is_ok());
    (access, origin)
}

// Traffic targets that allow paths below one prefix each to the peer, by a regular expression.
#[library_benchmark]
#[bench::of_10(args = (traffic_targets(10), at_a_place(10)), config = limited_to(1_115))]
#[bench::of_10000(args = (traffic_targets(10_000), at_a_place(10_000)), config = limited_to(671))]
fn traffic_target(judged: Judged, asked: Asked) -> (Judged, Asked) {
    let (access, permit) = &judged;
    let decision = access.authorize_request(permit, &asked.request_view());
    assert!(black_box(decision).is_ok());
    (judged, asked)
}

// A RateLimit with rules for one exact path each.
#[library_benchmark]
#[bench::of_10(args = (path_limits(10), at_a_place(10)), config = limited_to(1_561))]
#[bench::of_10000(args = (path_limits(10_000), at_a_place(10_000)), config = limited_to(1_150))]
fn rate_limit(limits: CompiledLimits, asked: Asked) -> (CompiledLimits, Asked) {
    let now = black_box(Duration::from_secs(7));
    assert!(limits.admit_request(PORT, &asked.request_view(), None, now).is_ok());
    (limits, asked)
}

// The same, each for paths below one prefix in a shop.
#[library_benchmark]
#[bench::of_10(args = (limits_below(10), in_the_shop(10)), config = limited_to(1_625))]
#[bench::of_10000(args = (limits_below(10_000), in_the_shop(10_000)), config = limited_to(1_250))]
fn rate_limit_by_prefix(limits: CompiledLimits, asked: Asked) -> (CompiledLimits, Asked) {
    let now = black_box(Duration::from_secs(7));
    assert!(limits.admit_request(PORT, &asked.request_view(), None, now).is_ok());
    (limits, asked)
}

// The same, each for one account.
#[library_benchmark]
#[bench::of_10(args = (limits_of_callers(10), (at_a_place(10), caller_of_rule(10))), config = limited_to(4_369))]
#[bench::of_10000(args = (limits_of_callers(10_000), (at_a_place(10_000), caller_of_rule(10_000))), config = limited_to(1_526))]
fn rate_limit_by_caller(limits: CompiledLimits, asking: Asking) -> (CompiledLimits, Asking) {
    let (asked, caller) = &asking;
    let now = black_box(Duration::from_secs(7));
    assert!(limits.admit_request(PORT, &asked.request_view(), Some(caller), now).is_ok());
    (limits, asking)
}

// A FaultInjection with rules for one exact path each; no fault is drawn.
#[library_benchmark]
#[bench::of_10(args = (path_faults(10), (at_a_place(10), service_account())), config = limited_to(714))]
#[bench::of_10000(args = (path_faults(10_000), (at_a_place(10_000), service_account())), config = limited_to(457))]
fn fault_injection(faults: CompiledFaults, asking: Asking) -> (CompiledFaults, Asking) {
    let (asked, caller) = &asking;
    let injected = faults.draw_faults(&asked.request_view(), caller, &mut || black_box(u64::MAX));
    assert!(black_box(injected).is_none());
    (faults, asking)
}

// Lanes, each for the exact value of a header.
#[library_benchmark]
#[bench::of_10(args = (header_lanes(10), request_for_rule(10)), config = limited_to(3_160))]
#[bench::of_10000(args = (header_lanes(10_000), request_for_rule(10_000)), config = limited_to(907))]
fn lane(lanes: Lanes, asked: Asked) -> (Lanes, Asked) {
    let marks = lanes.marks_for(PORT, &asked.request_view(), &mut || black_box(DRAW));
    assert!(black_box(marks).rule.is_some());
    (lanes, asked)
}

// Egress policies for one host each, by request host.
#[library_benchmark]
#[bench::of_10(args = (egress_rules(10, MatchedBy::Http), to_host(10)), config = limited_to(1_064))]
#[bench::of_10000(args = (egress_rules(10_000, MatchedBy::Http), to_host(10_000)), config = limited_to(1_032))]
fn egress_rule_by_host(egress_rules: EgressRules, sent: Sent) -> (EgressRules, Sent) {
    let (asked, authority) = &sent;
    let request = RequestView { authority, ..asked.request_view() };
    let policy = egress_rules.by_request(black_box(OUTSIDE), &request);
    assert!(black_box(policy).is_some());
    (egress_rules, sent)
}

// The same by TLS server name.
#[library_benchmark]
#[bench::of_10(args = (egress_rules(10, MatchedBy::ServerName), host_of_rule(10)), config = limited_to(750))]
#[bench::of_10000(args = (egress_rules(10_000, MatchedBy::ServerName), host_of_rule(10_000)), config = limited_to(772))]
fn egress_rule_by_server_name(egress_rules: EgressRules, name: &'static str) -> EgressRules {
    let policy = egress_rules.by_server_name(black_box(OUTSIDE), name);
    assert!(black_box(policy).is_some());
    egress_rules
}

// Routes of application TLS sessions, each for one server name.
#[library_benchmark]
#[bench::of_10(args = (tls_routes(10), host_of_rule(10)), config = limited_to(604))]
#[bench::of_10000(args = (tls_routes(10_000), host_of_rule(10_000)), config = limited_to(626))]
fn tls_route(routes: TlsRoutes, name: &'static str) -> TlsRoutes {
    let choice = routes.choose_backend(Some(name), black_box(DRAW));
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
        opening,
        peer,
        pending_connection,
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
