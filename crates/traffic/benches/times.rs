//! How long the stations of `instructions.rs` and `rules.rs` take, in time: figures for people.
//! Nothing fails by them, for a busy machine changes them; instructions are what is bounded.

mod asked;
mod decisions;
mod kinds;

use std::hint::black_box;
use std::time::Duration;

use divan::Bencher;
use leno_model::{BalanceAlgorithm, Each};
use leno_traffic::balance::hashing::key;
use leno_traffic::circuit::Shown;
use leno_traffic::pick;
use leno_traffic::removal::Seen;

use self::asked::{DRAW, asked};

fn main() {
    divan::main();
}

#[divan::bench(sample_size = 1000, args = ["/shop/carts/42", "/favicon.ico"])]
fn route(bencher: Bencher<'_, '_>, path: &str) {
    let (routes, asked) = (decisions::routes(), asked(path));
    bencher.bench_local(|| black_box(routes.choose(&asked.view(), black_box(DRAW))));
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn route_by_exact_path(bencher: Bencher<'_, '_>, rules: usize) {
    let routes = decisions::many(rules, decisions::exact);
    let asked = asked(&format!("/shop/{}", rules - 3));
    bencher.bench_local(|| black_box(routes.choose(&asked.view(), black_box(DRAW))));
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn route_by_prefix(bencher: Bencher<'_, '_>, rules: usize) {
    let routes = decisions::many(rules, decisions::prefix);
    let asked = asked(&format!("/shop/{}/42", rules - 3));
    bencher.bench_local(|| black_box(routes.choose(&asked.view(), black_box(DRAW))));
}

#[divan::bench(sample_size = 1000, args = ["/reviews/42", "/reports/42"])]
fn authorize(bencher: Bencher<'_, '_>, path: &str) {
    let ((access, permit), asked) = (decisions::access(path), asked(path));
    bencher.bench_local(|| black_box(access.request(&permit, &asked.view())).is_ok());
}

#[divan::bench(sample_size = 1000)]
fn pick_endpoint(bencher: Bencher<'_, '_>) {
    let endpoints = decisions::endpoints();
    let mut draw = DRAW;
    bencher.bench_local(|| {
        draw = draw.wrapping_add(DRAW);
        pick(black_box(&endpoints), draw)
    });
}

#[divan::bench(sample_size = 1000, args = [10, 10_000])]
fn tag_route(bencher: Bencher<'_, '_>, rules: usize) {
    let plan = kinds::tag_rules(rules);
    let asked = kinds::carries(&format!("v-{}", rules - 3));
    bencher.bench_local(|| {
        black_box(plan.choose(&asked.view(), &mut || black_box(DRAW))).endpoints.is_some()
    });
}

#[divan::bench(sample_size = 1000)]
fn lane(bencher: Bencher<'_, '_>) {
    let (lanes, asked) = (kinds::lanes(), kinds::carries("v-0"));
    bencher.bench_local(|| {
        black_box(lanes.mark(kinds::PORT, &asked.view(), &mut || black_box(DRAW))).rule.is_some()
    });
}

#[divan::bench(sample_size = 1000)]
fn outlier_removal(bencher: Bencher<'_, '_>) {
    let mut removal = kinds::removal();
    let now = Duration::from_millis(1);
    let mut events = Vec::new();
    bencher.bench_local(|| {
        removal.advance(now, DRAW, &mut events);
        black_box(removal.standing(black_box(3)));
        let probe = removal.begin(black_box(3));
        removal.learn(black_box(3), Seen { failed: false, probe, now, draw: DRAW }, &mut events);
    });
}

#[divan::bench(sample_size = 1000)]
fn circuit_breaker(bencher: Bencher<'_, '_>) {
    let mut circuit = kinds::circuit();
    let now = Duration::from_millis(1);
    bencher.bench_local(|| {
        let ticket = circuit.admit(black_box(now));
        ticket.map(|ticket| circuit.end(ticket, Shown { failed: false, took: now }, now))
    });
}

#[divan::bench(sample_size = 1000, args = ["all", "each client"])]
fn rate_limit(bencher: Bencher<'_, '_>, bucket_for: &str) {
    let each = match bucket_for {
        "all" => Each::Nothing,
        _ => Each::Client { buckets: 1024 },
    };
    let (limits, (asked, caller)) = (kinds::limits(each), kinds::asking());
    // So much later each time that there is always room.
    let mut now = Duration::from_secs(7);
    bencher.bench_local(|| {
        now += Duration::from_millis(10);
        limits.admit(kinds::PORT, (&asked.view(), Some(&caller)), now).is_ok()
    });
}

#[divan::bench(sample_size = 1000, args = ["fixed", "adaptive"])]
fn concurrency(bencher: Bencher<'_, '_>, kind: &str) {
    let limits = kinds::at_once(kind == "adaptive");
    let mut now = Duration::from_secs(7);
    bencher.bench_local(|| {
        now += Duration::from_millis(10);
        let place = limits.enter(kinds::PORT, true, now).ok().flatten();
        place.map(|place| place.answered(now + Duration::from_millis(1)))
    });
}

#[divan::bench(sample_size = 1000)]
fn fault_injection(bencher: Bencher<'_, '_>) {
    let (faults, (asked, caller)) = (kinds::faults(), kinds::asking());
    bencher.bench_local(|| {
        faults.inject(&asked.view(), &caller, &mut || black_box(u64::MAX)).is_some()
    });
}

#[divan::bench(sample_size = 1000, args = ["RingHash", "Maglev"])]
fn load_balancing(bencher: Bencher<'_, '_>, algorithm: &str) {
    let places = match algorithm {
        "RingHash" => kinds::places(BalanceAlgorithm::RingHash),
        _ => kinds::places(BalanceAlgorithm::Maglev),
    };
    bencher.bench_local(|| places.find(key(black_box("user-42")), |_| true));
}
