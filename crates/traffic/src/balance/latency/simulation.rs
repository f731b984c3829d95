//! Seeded simulation of callers and endpoints: slow or failing endpoints receive less.

use super::*;
use crate::balance::{Candidates, Load, pick_candidate};
use crate::hash::hash;

/// The latency of an endpoint; true if its responses are errors.
#[derive(Clone, Copy)]
struct Behaviour {
    takes: Duration,
    fails: bool,
}

/// Endpoints as one thread sees them.
struct Known {
    endpoints: Vec<(EndpointLatency, u32)>,
    now: Duration,
}

impl Candidates for Known {
    fn len(&self) -> usize {
        self.endpoints.len()
    }

    fn load(&self, index: usize) -> Load {
        let (latency, under_way) = &self.endpoints[index];
        let under_way = under_way + u32::from(latency.failure_count(self.now));
        Load { in_progress: under_way, step: latency.latency_step(self.now), weight: None }
    }

    fn is_usable(&self, _: usize) -> bool {
        true
    }
}

/// The share of each endpoint, in percent, for this number of callers with one request after another for a
/// minute; each response takes its endpoint's time plus up to a quarter.
fn simulate_shares(behaviours: &[Behaviour], callers: u32, seed: u64) -> Vec<u64> {
    let count = behaviours.len();
    let mut known =
        Known { endpoints: vec![(EndpointLatency::default(), 0); count], now: Duration::ZERO };
    let mut draws = (0_u64..).map(|n| hash(seed ^ n, "draw"));
    let mut draw = || draws.next().unwrap_or_default();
    // The end of each caller's current request, its endpoint and its duration.
    let mut ends: Vec<(Duration, Option<(usize, Duration)>)> =
        (0..callers).map(|_| (Duration::from_micros(draw() % 1000), None)).collect();
    let mut asked = vec![0_u64; count];
    while known.now < Duration::from_secs(60) {
        let caller = ends.iter_mut().min_by_key(|(at, _)| *at).unwrap();
        known.now = caller.0;
        if let Some((endpoint, took)) = caller.1 {
            let (latency, under_way) = &mut known.endpoints[endpoint];
            *under_way -= 1;
            match behaviours[endpoint].fails {
                true => latency.record_failure(took, known.now),
                false => latency.record_response(took, known.now),
            }
        }
        let endpoint = pick_candidate(&known, draw()).unwrap();
        known.endpoints[endpoint].1 += 1;
        asked[endpoint] += 1;
        let takes = behaviours[endpoint].takes;
        let took = takes + takes.mul_f64((draw() % 1000) as f64 / 4000.0);
        *caller = (known.now + took, Some((endpoint, took)));
    }
    let all: u64 = asked.iter().sum();
    asked.iter().map(|asked| asked * 100 / all).collect()
}

fn healthy_endpoint(takes: u64) -> Behaviour {
    Behaviour { takes: Duration::from_millis(takes), fails: false }
}

const SEEDS: std::ops::Range<u64> = 0..16;

#[test]
fn who_is_ten_times_slower_gets_less_than_a_tenth() {
    for seed in SEEDS {
        for callers in [1, 8, 24] {
            for others in [1, 3] {
                let mut behaviours = vec![healthy_endpoint(10); others];
                behaviours.push(healthy_endpoint(100));
                let shares = simulate_shares(&behaviours, callers, seed);
                assert!(shares[others] < 10, "{callers} callers, seed {seed}: {shares:?}");
            }
        }
    }
}

#[test]
fn equals_get_equal_shares() {
    for seed in SEEDS {
        for callers in [1, 8, 24] {
            let shares = simulate_shares(&[healthy_endpoint(10); 4], callers, seed);
            assert!(
                shares.iter().all(|it| (20..=30).contains(it)),
                "{callers}, {seed}: {shares:?}"
            );
        }
    }
}

#[test]
fn who_fails_fast_attracts_nothing() {
    let failing = Behaviour { takes: Duration::from_millis(1), fails: true };
    for seed in SEEDS {
        for callers in [1, 8, 24] {
            let shares = simulate_shares(
                &[healthy_endpoint(10), healthy_endpoint(10), healthy_endpoint(10), failing],
                callers,
                seed,
            );
            assert!(shares[3] < 25, "{callers} callers, seed {seed}: {shares:?}");
        }
    }
}

#[test]
fn who_recovers_gets_its_share_again() {
    let mut latency = EndpointLatency::default();
    latency.record_response(Duration::from_secs(5), Duration::ZERO);
    let mut now = Duration::ZERO;
    while latency.latency_step(now) > Some(13) {
        now += Duration::from_millis(100);
        latency.record_response(Duration::from_millis(10), now);
        assert!(now < Duration::from_secs(90), "{latency:?}");
    }
}
