//! A seeded simulation of outlier detection with random faults: the limits on ejections hold, failing endpoints are
//! ejected, and healthy endpoints return to service.

use std::time::Duration;

use leno_model::{EjectionTime, FailureRate, HealthCheck, HealthProbe, OutlierDetection};

use super::*;

const SEED_COUNT: u64 = 200;
const WINDOW: Duration = Duration::from_secs(2);
const BASE_EJECTION_TIME: Duration = Duration::from_secs(5);

struct SeededRandom(u64);

impl SeededRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below_bound(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn random_rule(random: &mut SeededRandom) -> OutlierDetection {
    let rate = FailureRate { percent: 50, min_requests: 5 };
    OutlierDetection {
        failures: FailureClasses { server_errors: true, ..FailureClasses::default() },
        window: WINDOW,
        buckets: 1 + random.below_bound(10) as u8,
        failure_rate: Some(rate),
        consecutive_failures: (random.below_bound(2) == 0).then_some(5),
        max_ejection_percent: random.below_bound(101) as u8,
        min_healthy: 1 + random.below_bound(3) as u32,
        ejection_time: EjectionTime {
            base: BASE_EJECTION_TIME,
            max: BASE_EJECTION_TIME * 4,
            jitter_percent: 50,
        },
        probe_requests: 1 + random.below_bound(3) as u32,
        health_check: (random.below_bound(2) == 0).then(|| {
            let probe = HealthProbe::Http { path: "/".to_owned() };
            let (failures, successes) =
                (1 + random.below_bound(3) as u32, 1 + random.below_bound(3) as u32);
            Box::new(HealthCheck { probe, interval: WINDOW, timeout: WINDOW, failures, successes })
        }),
    }
}

/// A service with temporarily failing endpoints, and a client that calls all available endpoints.
struct FaultSimulation {
    rule: OutlierDetection,
    detector: OutlierDetector,
    /// True for each endpoint that is failing.
    failing: Vec<bool>,
    /// The endpoints with a probe in progress.
    pending_probes: Vec<usize>,
    /// The number of probes that did not end immediately.
    lasting_probe_count: u32,
    now: Duration,
    seed: u64,
    random: SeededRandom,
}

impl FaultSimulation {
    fn new(seed: u64) -> Self {
        let mut random = SeededRandom(seed);
        let rule = random_rule(&mut random);
        let endpoint_count = 1 + random.below_bound(8) as usize;
        let detector =
            OutlierDetector::new(&OutlierAlgorithm::Native(rule.clone()), endpoint_count);
        let failing = vec![false; endpoint_count];
        Self {
            rule,
            detector,
            failing,
            pending_probes: Vec::new(),
            lasting_probe_count: 0,
            now: Duration::ZERO,
            seed,
            random,
        }
    }

    fn ejected_count(&self) -> usize {
        (0..self.failing.len())
            .filter(|slot| self.detector.endpoint_state(*slot) != EjectionState::InService)
            .count()
    }

    /// Returns the maximum number of endpoints that may be ejected at the same time.
    fn ejection_limit(&self) -> usize {
        let endpoint_count = self.failing.len();
        let share = endpoint_count * usize::from(self.rule.max_ejection_percent) / 100;
        share.min(endpoint_count.saturating_sub(self.rule.min_healthy as usize))
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(1 + self.random.below_bound(20));
            self.run_request();
            assert!(
                self.ejected_count() <= self.ejection_limit(),
                "seed {} at {:?}",
                self.seed,
                self.now
            );
        }
    }

    fn run_request(&mut self) {
        let mut events = Vec::new();
        let random_number = self.random.next();
        self.detector.advance_time(self.now, random_number, &mut events);
        if !self.pending_probes.is_empty() && self.random.below_bound(3) == 0 {
            let slot = self.pending_probes.swap_remove(0);
            self.complete_request(slot, true, random_number, &mut events);
        }
        let slot = self.random.below_bound(self.failing.len() as u64) as usize;
        if self.random.below_bound(4) == 0 {
            let evidence = if self.failing[slot] {
                FailureEvidence::Failure
            } else {
                FailureEvidence::Success
            };
            self.detector.record_check(slot, evidence, self.now, &mut events);
            return;
        }
        if self.detector.endpoint_state(slot) == EjectionState::Ejected {
            return;
        }
        let probe = self.detector.start_request(slot);
        assert!(!probe || !self.pending_probes.contains(&slot), "seed {}: two probes", self.seed);
        match self.random.below_bound(4) {
            // The client disconnects, so the request gives no evidence.
            0 if probe => self.detector.release_request(slot, true),
            1 if probe => {
                self.pending_probes.push(slot);
                self.lasting_probe_count += 1;
            }
            _ => self.complete_request(slot, probe, random_number, &mut events),
        }
    }

    fn complete_request(
        &mut self,
        slot: usize,
        probe: bool,
        random: u64,
        events: &mut Vec<EjectionEvent>,
    ) {
        let result = RequestResult { failed: self.failing[slot], probe, now: self.now, random };
        self.detector.record_result(slot, result, events);
    }
}

#[test]
fn limits_hold_and_only_failing_endpoints_are_ejected() {
    let (mut ejections, mut lasting_probes) = (0, 0);
    for seed in 0..SEED_COUNT {
        let mut simulation = FaultSimulation::new(seed);
        simulation.run_for(Duration::from_secs(3));
        assert_eq!(simulation.ejected_count(), 0, "seed {seed}: no endpoint failed");
        for slot in 0..simulation.failing.len() {
            simulation.failing[slot] = simulation.random.below_bound(3) == 0;
        }
        simulation.run_for(2 * WINDOW);
        let failing = simulation.failing.iter().filter(|failing| **failing).count();
        let ejected = (0..simulation.failing.len())
            .filter(|slot| {
                simulation.failing[*slot]
                    && simulation.detector.endpoint_state(*slot) != EjectionState::InService
            })
            .count();
        assert_eq!(
            ejected,
            failing.min(simulation.ejection_limit()),
            "seed {seed}: failing endpoints are ejected within two windows"
        );
        assert_eq!(
            simulation.ejected_count(),
            ejected,
            "seed {seed}: only failing endpoints are ejected"
        );
        ejections += ejected;
        simulation.failing.fill(false);
        simulation.run_for(BASE_EJECTION_TIME * 4 + Duration::from_secs(5));
        assert_eq!(
            simulation.ejected_count(),
            0,
            "seed {seed}: recovered endpoints return to service"
        );
        lasting_probes += simulation.lasting_probe_count;
    }
    assert!(ejections > 100, "{ejections}");
    assert!(lasting_probes > 100, "{lasting_probes}");
}

#[test]
fn the_same_seed_yields_the_same_result() {
    let final_state = |seed| {
        let mut simulation = FaultSimulation::new(seed);
        simulation.failing[0] = true;
        simulation.run_for(Duration::from_secs(30));
        format!("{:?}", simulation.detector)
    };
    assert_eq!(final_state(7), final_state(7));
}
