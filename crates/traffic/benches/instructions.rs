//! Instruction counts of `traffic` decisions; more than 3 % above the measured count fails.
//!
//! Measured with rustc 1.95.0 for x86-64, release profile. Another compiler, allocator or C library counts
//! differently: update the numbers in a separate commit. `./test instructions` prints the counts; copy each
//! into the `measured` of its benchmark.
#![allow(
    clippy::allow_attributes_without_reason,
    missing_docs,
    unused_qualifications,
    reason = "what the macros of gungraun write keeps to none of these"
)]

mod asked;
mod candidates;
mod decisions;
mod measure;

use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group};
use leno_traffic::pick_candidate;
use leno_traffic::route::{PortRoutes, RouteChoice};

use self::asked::{Asked, DRAW, sample_request};
use self::candidates::{Ten, ten_candidates};
use self::decisions::{
    Judged, compile_access, exact_path, many_routes, path_prefix, twenty_routes,
};
use self::measure::limited_to;

// Among twenty rules: by a prefix in the middle, or by the default.
#[library_benchmark]
#[bench::by_prefix(args = (twenty_routes(), sample_request("/shop/carts/42")), config = limited_to(761))]
#[bench::by_catch_all(args = (twenty_routes(), sample_request("/favicon.ico")), config = limited_to(385))]
fn route(routes: PortRoutes, asked: Asked) -> (PortRoutes, Asked) {
    let choice = routes.choose_backend(&asked.request_view(), black_box(DRAW));
    assert!(matches!(black_box(choice), RouteChoice::To { .. }));
    (routes, asked)
}

// Among ten and ten thousand rules, by an exact path or by a prefix: the cost is the same.
#[library_benchmark]
#[bench::exact_of_10(args = (many_routes(10, exact_path), sample_request("/shop/7")), config = limited_to(311))]
#[bench::exact_of_10000(args = (many_routes(10_000, exact_path), sample_request("/shop/9997")), config = limited_to(307))]
#[bench::prefix_of_10(args = (many_routes(10, path_prefix), sample_request("/shop/7/42")), config = limited_to(333))]
#[bench::prefix_of_10000(args = (many_routes(10_000, path_prefix), sample_request("/shop/9997/42")), config = limited_to(331))]
fn route_among(routes: PortRoutes, asked: Asked) -> (PortRoutes, Asked) {
    let choice = routes.choose_backend(&asked.request_view(), black_box(DRAW));
    assert!(matches!(black_box(choice), RouteChoice::To { .. }));
    (routes, asked)
}

// Against ten policies, three of which name the peer: the last of them allows the request, or none does.
#[library_benchmark]
#[bench::allowed(args = (compile_access("/reviews/42"), sample_request("/reviews/42")), config = limited_to(1_221))]
#[bench::denied(args = (compile_access("/reports/42"), sample_request("/reports/42")), config = limited_to(1_144))]
fn authorize(judged: Judged, asked: Asked) -> (Judged, Asked) {
    let (access, permit) = &judged;
    let decision = access.authorize_request(permit, &asked.request_view());
    assert_eq!(black_box(decision).is_ok(), asked.path == "/reviews/42");
    (judged, asked)
}

// A hundred times, among ten endpoints with one in back-off.
#[library_benchmark]
#[bench::hundred(args = (ten_candidates()), config = limited_to(4_129))]
fn pick_endpoint(endpoints: Ten) -> (Ten, usize) {
    let mut sum = 0;
    for turn in 0..100_u64 {
        let draw = turn.wrapping_mul(DRAW);
        sum += pick_candidate(black_box(&endpoints), draw).expect("there are endpoints");
    }
    (endpoints, sum)
}

library_benchmark_group!(
    name = stations,
    benchmarks = [route, route_among, authorize, pick_endpoint]
);

gungraun::main!(library_benchmark_groups = stations);
