//! Instruction counts of `traffic` decisions; more than 3 % above the measured count fails.
//!
//! Measured with rustc 1.95.0 for x86-64, release profile. Another compiler, allocator or C library counts
//! differently: update the numbers in a separate commit. `./test instructions` prints the counts; copy each
//! count into the `limited_to` of its benchmark.
#![allow(
    clippy::allow_attributes_without_reason,
    missing_docs,
    unused_qualifications,
    reason = "the macros of gungraun generate code that violates these lints"
)]

mod candidates;
mod decisions;
mod measure;
mod sample;

use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group};
use leno_traffic::pick_candidate;
use leno_traffic::route::{PortRoutes, RouteChoice};

use self::candidates::{TenCandidates, ten_candidates};
use self::decisions::{
    AccessAndPermit, compile_access, exact_path, many_routes, path_prefix, twenty_routes,
};
use self::measure::limited_to;
use self::sample::{RANDOM_NUMBER, SampleRequest, sample_request};

// Among twenty rules: by a prefix in the middle, or by the default.
#[library_benchmark]
#[bench::by_prefix(args = (twenty_routes(), sample_request("/shop/carts/42")), config = limited_to(761))]
#[bench::by_catch_all(args = (twenty_routes(), sample_request("/favicon.ico")), config = limited_to(385))]
fn route(routes: PortRoutes, sample: SampleRequest) -> (PortRoutes, SampleRequest) {
    let choice = routes.choose_backend(&sample.request_view(), black_box(RANDOM_NUMBER));
    assert!(matches!(black_box(choice), RouteChoice::To { .. }));
    (routes, sample)
}

// Among ten and ten thousand rules, by an exact path or by a prefix: the cost is the same.
#[library_benchmark]
#[bench::exact_of_10(args = (many_routes(10, exact_path), sample_request("/shop/7")), config = limited_to(311))]
#[bench::exact_of_10000(args = (many_routes(10_000, exact_path), sample_request("/shop/9997")), config = limited_to(307))]
#[bench::prefix_of_10(args = (many_routes(10, path_prefix), sample_request("/shop/7/42")), config = limited_to(333))]
#[bench::prefix_of_10000(args = (many_routes(10_000, path_prefix), sample_request("/shop/9997/42")), config = limited_to(331))]
fn route_among(routes: PortRoutes, sample: SampleRequest) -> (PortRoutes, SampleRequest) {
    let choice = routes.choose_backend(&sample.request_view(), black_box(RANDOM_NUMBER));
    assert!(matches!(black_box(choice), RouteChoice::To { .. }));
    (routes, sample)
}

// Authorization by ten policies, three of which name the peer: the last of the three allows the request, or none.
#[library_benchmark]
#[bench::allowed(args = (compile_access("/reviews/42"), sample_request("/reviews/42")), config = limited_to(1_221))]
#[bench::denied(args = (compile_access("/reports/42"), sample_request("/reports/42")), config = limited_to(1_144))]
fn authorize(input: AccessAndPermit, sample: SampleRequest) -> (AccessAndPermit, SampleRequest) {
    let (access, permit) = &input;
    let decision = access.authorize_request(permit, &sample.request_view());
    assert_eq!(black_box(decision).is_ok(), sample.path == "/reviews/42");
    (input, sample)
}

// A hundred times, among ten endpoints with one in back-off.
#[library_benchmark]
#[bench::hundred(args = (ten_candidates()), config = limited_to(4_129))]
fn pick_endpoint(endpoints: TenCandidates) -> (TenCandidates, usize) {
    let mut sum = 0;
    for turn in 0..100_u64 {
        let random = turn.wrapping_mul(RANDOM_NUMBER);
        sum += pick_candidate(black_box(&endpoints), random).expect("there are endpoints");
    }
    (endpoints, sum)
}

library_benchmark_group!(
    name = traffic_decisions,
    benchmarks = [route, route_among, authorize, pick_endpoint]
);

gungraun::main!(library_benchmark_groups = traffic_decisions);
