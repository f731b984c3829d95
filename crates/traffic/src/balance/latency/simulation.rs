//! A seeded simulation of callers and endpoints: slow or failing endpoints receive fewer requests.

use super::*;
use crate::balance::{Candidates, Load, pick_candidate};
use crate::hash::hash;

/// The latency of an endpoint; true if its responses are errors.
#[derive(Clone, Copy)]
struct Behavior {
    latency_base: Duration,
    fails: bool,
}

/// The endpoints with the load and latency that one thread has recorded.
struct ThreadView {
    endpoints: Vec<(EndpointLatency, u32)>,
    now: Duration,
}

impl Candidates for ThreadView {
    fn len(&self) -> usize {
        self.endpoints.len()
    }

    fn load(&self, index: usize) -> Load {
        let (latency, in_progress) = &self.endpoints[index];
        let effective_requests = in_progress + u32::from(latency.failure_count(self.now));
        Load { effective_requests, latency_log2: latency.latency_log2(self.now), weight: None }
    }

    fn is_usable(&self, _: usize) -> bool {
        true
    }
}

/// Returns the share of each endpoint, in percent, for this number of callers with one request after another
/// for a minute; each response takes its endpoint's time plus up to a quarter.
fn simulate_shares(behaviors: &[Behavior], callers: u32, seed: u64) -> Vec<u64> {
    let endpoint_count = behaviors.len();
    let mut view = ThreadView {
        endpoints: vec![(EndpointLatency::default(), 0); endpoint_count],
        now: Duration::ZERO,
    };
    let mut random_numbers = (0_u64..).map(|n| hash(seed ^ n, "draw"));
    let mut next_random = || random_numbers.next().unwrap_or_default();
    // The end of each caller's current request, its endpoint and its duration.
    let mut ends: Vec<(Duration, Option<(usize, Duration)>)> =
        (0..callers).map(|_| (Duration::from_micros(next_random() % 1000), None)).collect();
    let mut requests = vec![0_u64; endpoint_count];
    while view.now < Duration::from_secs(60) {
        let caller = ends.iter_mut().min_by_key(|(end, _)| *end).unwrap();
        view.now = caller.0;
        if let Some((endpoint, duration)) = caller.1 {
            let (latency, in_progress) = &mut view.endpoints[endpoint];
            *in_progress -= 1;
            match behaviors[endpoint].fails {
                true => latency.record_failure(duration, view.now),
                false => latency.record_response(duration, view.now),
            }
        }
        let endpoint = pick_candidate(&view, next_random()).unwrap();
        view.endpoints[endpoint].1 += 1;
        requests[endpoint] += 1;
        let latency_base = behaviors[endpoint].latency_base;
        let duration = latency_base + latency_base.mul_f64((next_random() % 1000) as f64 / 4000.0);
        *caller = (view.now + duration, Some((endpoint, duration)));
    }
    let request_total: u64 = requests.iter().sum();
    requests.iter().map(|count| count * 100 / request_total).collect()
}

fn healthy_endpoint(latency_base: u64) -> Behavior {
    Behavior { latency_base: Duration::from_millis(latency_base), fails: false }
}

const SEEDS: std::ops::Range<u64> = 0..16;

#[test]
fn an_endpoint_ten_times_slower_receives_less_than_a_tenth() {
    for seed in SEEDS {
        for callers in [1, 8, 24] {
            for fast_endpoints in [1, 3] {
                let mut behaviors = vec![healthy_endpoint(10); fast_endpoints];
                behaviors.push(healthy_endpoint(100));
                let shares = simulate_shares(&behaviors, callers, seed);
                assert!(shares[fast_endpoints] < 10, "{callers} callers, seed {seed}: {shares:?}");
            }
        }
    }
}

#[test]
fn equal_endpoints_receive_equal_shares() {
    for seed in SEEDS {
        for callers in [1, 8, 24] {
            let shares = simulate_shares(&[healthy_endpoint(10); 4], callers, seed);
            assert!(
                shares.iter().all(|share| (20..=30).contains(share)),
                "{callers}, {seed}: {shares:?}"
            );
        }
    }
}

#[test]
fn fast_failures_attract_no_requests() {
    let failing = Behavior { latency_base: Duration::from_millis(1), fails: true };
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
fn a_recovered_endpoint_receives_its_share_again() {
    let mut latency = EndpointLatency::default();
    latency.record_response(Duration::from_secs(5), Duration::ZERO);
    let mut now = Duration::ZERO;
    while latency.latency_log2(now) > Some(13) {
        now += Duration::from_millis(100);
        latency.record_response(Duration::from_millis(10), now);
        assert!(now < Duration::from_secs(90), "{latency:?}");
    }
}
