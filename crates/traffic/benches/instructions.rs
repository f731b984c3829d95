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
use leno_traffic::pick;
use leno_traffic::route::{PortRoutes, RouteChoice};

use self::asked::{Asked, DRAW, asked};
use self::candidates::{Ten, candidates};
use self::decisions::{Judged, access, exact, many, prefix, routes};
use self::measure::measured;

// Among twenty rules: by a prefix in the middle, or by the default.
#[library_benchmark]
#[bench::by_prefix(args = (routes(), asked("/shop/carts/42")), config = measured(761))]
#[bench::by_catch_all(args = (routes(), asked("/favicon.ico")), config = measured(385))]
fn route(routes: PortRoutes, asked: Asked) -> (PortRoutes, Asked) {
    let choice = routes.choose(&asked.view(), black_box(DRAW));
    assert!(matches!(black_box(choice), RouteChoice::To { .. }));
    (routes, asked)
}

// Among ten and ten thousand rules, by an exact path or by a prefix: the cost is the same.
#[library_benchmark]
#[bench::exact_of_10(args = (many(10, exact), asked("/shop/7")), config = measured(311))]
#[bench::exact_of_10000(args = (many(10_000, exact), asked("/shop/9997")), config = measured(307))]
#[bench::prefix_of_10(args = (many(10, prefix), asked("/shop/7/42")), config = measured(333))]
#[bench::prefix_of_10000(args = (many(10_000, prefix), asked("/shop/9997/42")), config = measured(331))]
fn route_among(routes: PortRoutes, asked: Asked) -> (PortRoutes, Asked) {
    let choice = routes.choose(&asked.view(), black_box(DRAW));
    assert!(matches!(black_box(choice), RouteChoice::To { .. }));
    (routes, asked)
}

// Against ten policies, three of which name the peer: the last of them allows the request, or none does.
#[library_benchmark]
#[bench::allowed(args = (access("/reviews/42"), asked("/reviews/42")), config = measured(1_221))]
#[bench::denied(args = (access("/reports/42"), asked("/reports/42")), config = measured(1_144))]
fn authorize(judged: Judged, asked: Asked) -> (Judged, Asked) {
    let (access, permit) = &judged;
    let decision = access.request(permit, &asked.view());
    assert_eq!(black_box(decision).is_ok(), asked.path == "/reviews/42");
    (judged, asked)
}

// A hundred times, among ten endpoints with one in back-off.
#[library_benchmark]
#[bench::hundred(args = (candidates()), config = measured(4_129))]
fn pick_endpoint(endpoints: Ten) -> (Ten, usize) {
    let mut sum = 0;
    for turn in 0..100_u64 {
        let draw = turn.wrapping_mul(DRAW);
        sum += pick(black_box(&endpoints), draw).expect("there are endpoints");
    }
    (endpoints, sum)
}

library_benchmark_group!(
    name = stations,
    benchmarks = [route, route_among, authorize, pick_endpoint]
);

gungraun::main!(library_benchmark_groups = stations);
