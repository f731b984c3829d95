//! Outlier detection under random faults, by seed: the bounds hold, failing endpoints are ejected and healthy
//! ones return.

use std::time::Duration;

use leno_model::{EjectionTime, FailureRate, HealthCheck, HealthProbe, OutlierDetection};

use super::*;

const SEEDS: u64 = 200;
const WINDOW: Duration = Duration::from_secs(2);
const BASE: Duration = Duration::from_secs(5);

struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below_bound(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn random_rule(chance: &mut Chance) -> OutlierDetection {
    let rate = FailureRate { percent: 50, requests_min: 5 };
    OutlierDetection {
        failures: FailureClasses { server_errors: true, ..FailureClasses::default() },
        window: WINDOW,
        buckets: 1 + chance.below_bound(10) as u8,
        failure_rate: Some(rate),
        consecutive_failures: (chance.below_bound(2) == 0).then_some(5),
        max_ejection_percent: chance.below_bound(101) as u8,
        min_healthy: 1 + chance.below_bound(3) as u32,
        ejection_time: EjectionTime { base: BASE, max: BASE * 4, jitter_percent: 50 },
        probe_requests: 1 + chance.below_bound(3) as u32,
        health_check: (chance.below_bound(2) == 0).then(|| {
            let probe = HealthProbe::Http { path: "/".to_owned() };
            let (failures, successes) =
                (1 + chance.below_bound(3) as u32, 1 + chance.below_bound(3) as u32);
            Box::new(HealthCheck { probe, interval: WINDOW, timeout: WINDOW, failures, successes })
        }),
    }
}

/// One service with temporarily failing endpoints, and a client that calls all available ones.
struct World {
    rule: OutlierDetection,
    detector: OutlierDetector,
    sick: Vec<bool>,
    /// Probes in progress.
    probes: Vec<usize>,
    now: Duration,
    seed: u64,
    chance: Chance,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut chance = Chance(seed);
        let rule = random_rule(&mut chance);
        let endpoints = 1 + chance.below_bound(8) as usize;
        let detector = OutlierDetector::new(&OutlierAlgorithm::Native(rule.clone()), endpoints);
        let sick = vec![false; endpoints];
        Self { rule, detector, sick, probes: Vec::new(), now: Duration::ZERO, seed, chance }
    }

    fn ejected_count(&self) -> usize {
        (0..self.sick.len())
            .filter(|slot| self.detector.endpoint_state(*slot) != EjectionState::InService)
            .count()
    }

    /// The maximum number of ejected endpoints.
    fn ejection_limit(&self) -> usize {
        let all = self.sick.len();
        let share = all * usize::from(self.rule.max_ejection_percent) / 100;
        share.min(all.saturating_sub(self.rule.min_healthy as usize))
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(1 + self.chance.below_bound(20));
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
        let draw = self.chance.next();
        self.detector.advance_time(self.now, draw, &mut events);
        let slot = self.chance.below_bound(self.sick.len() as u64) as usize;
        if self.chance.below_bound(4) == 0 {
            let heard = if self.sick[slot] { FailureEvidence::Yes } else { FailureEvidence::No };
            self.detector.record_check(slot, heard, self.now, &mut events);
            return;
        }
        if self.detector.endpoint_state(slot) == EjectionState::Ejected {
            return;
        }
        let probe = self.detector.start_request(slot);
        assert!(!probe || !self.probes.contains(&slot), "seed {}: two probes", self.seed);
        if probe && self.chance.below_bound(4) == 0 {
            // Its client disconnects: no evidence.
            self.detector.release_request(slot, true);
            return;
        }
        let seen = RequestResult { failed: self.sick[slot], probe, now: self.now, draw };
        self.detector.record_outcome(slot, seen, &mut events);
    }
}

#[test]
fn bounds_hold_the_sick_go_and_the_well_come_back() {
    let mut ejections = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        world.run_for(Duration::from_secs(3));
        assert_eq!(world.ejected_count(), 0, "seed {seed}: no endpoint failed");
        for slot in 0..world.sick.len() {
            world.sick[slot] = world.chance.below_bound(3) == 0;
        }
        world.run_for(2 * WINDOW);
        let sick = world.sick.iter().filter(|sick| **sick).count();
        let gone = (0..world.sick.len())
            .filter(|slot| {
                world.sick[*slot]
                    && world.detector.endpoint_state(*slot) != EjectionState::InService
            })
            .count();
        assert_eq!(gone, sick.min(world.ejection_limit()), "seed {seed}: within two windows");
        assert_eq!(world.ejected_count(), gone, "seed {seed}: only the unhealthy");
        ejections += gone;
        world.sick.fill(false);
        world.run_for(BASE * 4 + Duration::from_secs(5));
        assert_eq!(world.ejected_count(), 0, "seed {seed}: all are healthy");
    }
    assert!(ejections > 100, "{ejections}");
}

#[test]
fn the_same_seed_tells_the_same_story() {
    let story = |seed| {
        let mut world = World::new(seed);
        world.sick[0] = true;
        world.run_for(Duration::from_secs(30));
        format!("{:?}", world.detector)
    };
    assert_eq!(story(7), story(7));
}
