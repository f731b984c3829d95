//! An event-based simulation of the adaptive concurrency limit with applications of various capacities and latencies.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::*;

/// An application with workers, and clients with random arrivals. Times are in microseconds.
struct Application {
    workers: usize,
    /// The average service time of a request that starts now.
    service_time: fn(u64) -> u64,
    distribution: Distribution,
    /// The number of requests per second.
    arrivals_per_second: fn(u64) -> f64,
    /// The client timeout; the application continues with the request after it.
    max_wait: u64,
}

impl Application {
    fn new(
        workers: usize,
        service_time: fn(u64) -> u64,
        arrivals_per_second: fn(u64) -> f64,
    ) -> Self {
        Self {
            workers,
            service_time,
            distribution: Distribution::Narrow,
            arrivals_per_second,
            max_wait: u64::MAX,
        }
    }
}

/// The distribution of service times.
#[derive(Clone, Copy)]
enum Distribution {
    /// Uniform, within a third of the average.
    Narrow,
    /// Log-normal, with this standard deviation of the logarithms.
    LogNormal(f64),
    /// One request in twenty takes this many times as long as the others.
    Outliers(f64),
}

/// The results of requests in a period.
#[derive(Debug)]
struct Statistics {
    served: u64,
    rejected: u64,
    /// The minimum and maximum limit of waiting requests outside probes.
    limits: (u32, u32),
    slowest: u64,
}

enum Event {
    Arrival,
    /// The number of the request.
    Response(u64),
    ClientTimeout(u64),
}

/// The age of the sidecar when a policy arrives.
const START_TIME: u64 = 3_600_000_000;

struct Simulation {
    application: Application,
    slots: ConcurrencySlots,
    now: u64,
    random: u64,
    /// The future events, by time, then by order of creation.
    events: BinaryHeap<Reverse<(u64, u64)>>,
    pending_events: HashMap<u64, Event>,
    queue: VecDeque<u64>,
    busy: usize,
    /// The start of the wait of each request whose client has not timed out.
    waiting_since: HashMap<u64, u64>,
    event_count: u64,
}

impl Simulation {
    fn new(application: Application, rule: (u32, u32)) -> Self {
        let (min_concurrency, requests) = rule;
        let adaptive = Some(AdaptiveConcurrency { min_concurrency, latency_tolerance_percent: 50 });
        let slots =
            ConcurrencySlots::new(&Concurrency { requests, adaptive, ..Concurrency::default() });
        let mut simulation = Self {
            application,
            slots,
            now: START_TIME,
            random: 0x9E37_79B9_7F4A_7C15,
            events: BinaryHeap::new(),
            pending_events: HashMap::new(),
            queue: VecDeque::new(),
            busy: 0,
            waiting_since: HashMap::new(),
            event_count: 0,
        };
        simulation.schedule_event(0, |_| Event::Arrival);
        simulation
    }

    fn random_share(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn schedule_event(&mut self, after: u64, event: impl FnOnce(u64) -> Event) -> u64 {
        self.event_count += 1;
        self.events.push(Reverse((self.now.saturating_add(after), self.event_count)));
        self.pending_events.insert(self.event_count, event(self.event_count));
        self.event_count
    }

    fn start_request(&mut self, request: u64) {
        self.busy += 1;
        let share = match self.application.distribution {
            Distribution::Narrow => 0.7 + 0.6 * self.random_share(),
            Distribution::LogNormal(deviation) => {
                let (radius, angle) = (1.0 - self.random_share(), self.random_share());
                let normal = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
                (deviation * normal - deviation * deviation / 2.0).exp()
            }
            Distribution::Outliers(times) => {
                let is_slow = self.random_share() < 0.05;
                (if is_slow { times } else { 1.0 }) / (0.95 + 0.05 * times)
            }
        };
        let takes = ((self.application.service_time)(self.now - START_TIME) as f64 * share) as u64;
        self.schedule_event(takes, |_| Event::Response(request));
    }

    fn finish_request(&mut self, request: u64, outcome: ResponseOutcome) -> Option<u64> {
        let sent_at = self.waiting_since.remove(&request)?;
        self.slots.record_outcome(
            Duration::from_micros(sent_at),
            outcome,
            Duration::from_micros(self.now),
        );
        self.slots.release(true);
        Some(self.now - sent_at)
    }

    /// Advances the time, and returns the results.
    fn run_for(&mut self, seconds: u64) -> Statistics {
        let end = self.now + seconds * 1_000_000;
        let mut statistics =
            Statistics { served: 0, rejected: 0, limits: (u32::MAX, 0), slowest: 0 };
        while let Some(Reverse((at, number))) = self.events.peek().copied() {
            if at > end {
                break;
            }
            self.events.pop();
            self.now = at;
            match self.pending_events.remove(&number).unwrap() {
                Event::Arrival => self.handle_arrival(number, &mut statistics),
                Event::Response(request) => {
                    if let Some(latency) = self.finish_request(request, ResponseOutcome::Success) {
                        statistics.served += 1;
                        statistics.slowest = statistics.slowest.max(latency);
                    }
                    self.busy -= 1;
                    if let Some(next) = self.queue.pop_front() {
                        self.start_request(next);
                    }
                }
                Event::ClientTimeout(request) => {
                    self.finish_request(request, ResponseOutcome::Abandoned);
                }
            }
            self.record_limit(&mut statistics);
        }
        self.now = end;
        statistics
    }

    fn handle_arrival(&mut self, request: u64, statistics: &mut Statistics) {
        let arrival_rate = (self.application.arrivals_per_second)(self.now - START_TIME);
        if arrival_rate == 0.0 {
            self.schedule_event(1_000_000, |_| Event::Arrival);
            return;
        }
        if self.slots.try_acquire(true, Duration::from_micros(self.now)) {
            self.waiting_since.insert(request, self.now);
            if self.application.max_wait < u64::MAX {
                self.schedule_event(self.application.max_wait, |_| Event::ClientTimeout(request));
            }
            match self.busy < self.application.workers {
                true => self.start_request(request),
                false => self.queue.push_back(request),
            }
        } else {
            statistics.rejected += 1;
        }
        let pause = -(1.0 - self.random_share()).ln() * 1e6 / arrival_rate;
        self.schedule_event(pause as u64, |_| Event::Arrival);
    }

    fn record_limit(&self, statistics: &mut Statistics) {
        let adaptive = self.slots.adaptive_limit.as_ref().unwrap();
        let limit = adaptive.limit.load(Ordering::Relaxed);
        let (lowest, highest) = statistics.limits;
        statistics.limits = (lowest.min(limit), highest.max(limit));
    }
}

#[test]
fn the_limit_approaches_the_capacity_of_the_application() {
    let cases: [(Application, _, _); 5] = [
        (Application::new(4, |_| 20_000, |_| 400.0), 200, 4..=14),
        (Application::new(1, |_| 10_000, |_| 300.0), 100, 1..=6),
        (Application::new(10, |_| 300_000, |_| 60.0), 33, 10..=30),
        (Application::new(100, |_| 1_000_000, |_| 150.0), 100, 95..=170),
        (Application::new(64, |_| 5_000, |_| 15_000.0), 12_800, 64..=130),
    ];
    for (application, capacity, range) in cases {
        let service_time_at_start = (application.service_time)(0);
        let mut simulation = Simulation::new(application, (1, 1000));
        simulation.run_for(60);
        let statistics = simulation.run_for(30);
        assert!(
            range.contains(&statistics.limits.0) && range.contains(&statistics.limits.1),
            "{statistics:?}"
        );
        assert!(statistics.served >= 30 * capacity * 9 / 10, "{capacity}: {statistics:?}");
        assert!(statistics.slowest <= service_time_at_start * 4, "{capacity}: {statistics:?}");
    }
}

#[test]
fn an_application_without_overload_rejects_almost_no_request() {
    for (application, until) in [
        (Application::new(20, |_| 10_000, |_| 1000.0), 5),
        (Application::new(100, |_| 1_000_000, |_| 80.0), 60),
    ] {
        let mut simulation = Simulation::new(application, (1, 1000));
        simulation.run_for(until);
        let statistics = simulation.run_for(120);
        // Requests that arrive during a probe.
        assert!(statistics.rejected * 1000 <= statistics.served, "{statistics:?}");
    }
}

#[test]
fn varying_latencies_are_not_taken_for_a_queue() {
    let cases = [
        (Application::new(200, |_| 200_000, |_| 300.0), Distribution::LogNormal(1.0)),
        (Application::new(40, |_| 100_000, |_| 100.0), Distribution::LogNormal(1.0)),
        (Application::new(100, |_| 10_000, |_| 2000.0), Distribution::Outliers(20.0)),
    ];
    for (application, distribution) in cases {
        let mut simulation =
            Simulation::new(Application { distribution, ..application }, (4, 1000));
        simulation.run_for(60);
        let statistics = simulation.run_for(240);
        assert!(statistics.rejected * 100 <= statistics.served * 4, "{statistics:?}");
    }
}

#[test]
fn responses_that_take_half_a_minute_are_samples() {
    let mut simulation = Simulation::new(Application::new(100, |_| 30_000_000, |_| 3.0), (4, 1000));
    simulation.run_for(1200);
    let statistics = simulation.run_for(600);
    assert!(statistics.rejected * 20 <= statistics.served, "{statistics:?}");
}

#[test]
fn the_limit_falls_within_seconds_of_the_start() {
    let mut simulation = Simulation::new(Application::new(4, |_| 20_000, |_| 400.0), (1, 1000));
    simulation.run_for(4);
    let statistics = simulation.run_for(4);
    assert!(statistics.limits.1 <= 12, "{statistics:?}");
}

#[test]
fn the_limit_does_not_drift_under_constant_load() {
    let mut simulation = Simulation::new(Application::new(10, |_| 10_000, |_| 1500.0), (1, 1000));
    simulation.run_for(60);
    let first_minute = simulation.run_for(60);
    simulation.run_for(600);
    let last_minute = simulation.run_for(60);
    assert!(
        last_minute.limits.1 <= first_minute.limits.1 * 5 / 4,
        "{first_minute:?} → {last_minute:?}"
    );
    assert!(
        last_minute.served * 10 >= first_minute.served * 9,
        "{first_minute:?} → {last_minute:?}"
    );
}

#[test]
fn the_limit_adapts_to_an_application_that_becomes_five_times_slower() {
    let service_time = |now| if now > 40_000_000 { 50_000 } else { 10_000 };
    for min_concurrency in [1, 10] {
        let mut simulation = Simulation::new(
            Application::new(20, service_time, |_| 3000.0),
            (min_concurrency, 1000),
        );
        simulation.run_for(60);
        let statistics = simulation.run_for(20);
        assert!(statistics.served >= 20 * 400 * 9 / 10, "{min_concurrency}: {statistics:?}");
    }
}

#[test]
fn a_baseline_from_hours_of_low_load_expires() {
    const MORNING: u64 = 3_600_000_000;
    let service_time = |now| if now < MORNING { 5_000 } else { 20_000 };
    let arrivals_per_second = |now| match now {
        ..50_000_000 => 20.0,
        50_000_000..MORNING => 0.0,
        _ => 450.0,
    };
    let mut simulation =
        Simulation::new(Application::new(10, service_time, arrivals_per_second), (1, 1000));
    simulation.run_for(3600);
    let statistics = simulation.run_for(60);
    assert!(statistics.limits.0 >= 10, "{statistics:?}");
    assert!(statistics.served >= 60 * 450 * 9 / 10, "{statistics:?}");
}

#[test]
fn client_timeouts_lower_the_limit() {
    // Each request takes a second, so that 50 requests wait for the 4 workers.
    let application =
        Application { max_wait: 300_000, ..Application::new(4, |_| 100_000, |_| 400.0) };
    let mut simulation = Simulation::new(application, (1, 1000));
    simulation.run_for(30);
    let statistics = simulation.run_for(30);
    assert!(statistics.limits.1 <= 16, "{statistics:?}");
    assert!(statistics.served >= 30 * 40 * 8 / 10, "{statistics:?}");
}

#[test]
fn fast_errors_do_not_lower_the_baseline() {
    let rule = AdaptiveConcurrency { min_concurrency: 1, latency_tolerance_percent: 50 };
    let mut tuning = Tuning::new(rule, 1000);
    let mut now = Duration::from_secs(1);
    let mut record_samples = |outcome, latency: u64, count| {
        for _ in 0..count {
            now += Duration::from_millis(5);
            tuning.add_sample(now - Duration::from_micros(latency), outcome, 20, now);
        }
        tuning.waiting_limit()
    };
    let before = record_samples(ResponseOutcome::Success, 20_000, 200);
    record_samples(ResponseOutcome::Error, 100, 2000);
    assert!(record_samples(ResponseOutcome::Success, 20_000, 200) >= before);
}

#[test]
fn the_limit_stays_within_its_bounds_and_does_not_grow_unused() {
    let hardly = Application::new(1, |_| 10_000, |_| 1000.0);
    let mut simulation = Simulation::new(hardly, (7, 1000));
    simulation.run_for(15);
    let statistics = simulation.run_for(15);
    assert!(statistics.limits.0 >= 7, "{statistics:?}");
    let mut simulation = Simulation::new(Application::new(1000, |_| 10_000, |_| 10_000.0), (1, 64));
    simulation.run_for(10);
    assert_eq!(simulation.run_for(10).limits, (64, 64));
    let mut simulation = Simulation::new(Application::new(1000, |_| 10_000, |_| 200.0), (1, 1000));
    assert_eq!(simulation.run_for(30).limits.1, INITIAL_LIMIT);
}

#[test]
fn no_more_slots_than_configured_are_acquired() {
    let slots = ConcurrencySlots::new(&Concurrency { requests: 2, ..Concurrency::default() });
    let take = || slots.try_acquire(true, Duration::ZERO);
    assert_eq!([take(), take(), take()], [true, true, false]);
    slots.release(true);
    assert_eq!([take(), take()], [true, false]);
}

#[test]
fn streams_do_not_count_as_waiting_requests() {
    let adaptive = Some(AdaptiveConcurrency { min_concurrency: 1, latency_tolerance_percent: 50 });
    let rule = Concurrency { requests: INITIAL_LIMIT + 2, adaptive, ..Concurrency::default() };
    let slots = ConcurrencySlots::new(&rule);
    let take = || slots.try_acquire(true, Duration::ZERO);
    assert!((0..INITIAL_LIMIT).all(|_| take()) && !take());
    (0..INITIAL_LIMIT).for_each(|_| slots.finish_waiting());
    // The abandoned requests are still in progress in the application, and further requests will be.
    assert_eq!([take(), take(), take()], [true, true, false]);
    slots.release(false);
    assert_eq!([take(), take()], [true, false]);
}

#[test]
fn incomplete_requests_do_not_count_as_waiting() {
    let adaptive = Some(AdaptiveConcurrency { min_concurrency: 1, latency_tolerance_percent: 50 });
    let rule = Concurrency { requests: 1000, adaptive, ..Concurrency::default() };
    let slots = ConcurrencySlots::new(&rule);
    let take = |is_waiting| slots.try_acquire(is_waiting, Duration::ZERO);
    assert!((0..100).all(|_| take(false)) && take(true));
    slots.release(true);
    // All of them complete.
    (0..100).for_each(|_| slots.mark_waiting());
    assert_eq!([take(true), take(false)], [false, false]);
    (0..100).for_each(|_| slots.release(true));
    assert!((0..INITIAL_LIMIT).all(|_| take(true)) && !take(true));
}

#[test]
fn a_probe_ends_without_further_responses() {
    let adaptive = Some(AdaptiveConcurrency { min_concurrency: 1, latency_tolerance_percent: 50 });
    let rule = Concurrency { requests: 1000, adaptive, ..Concurrency::default() };
    let slots = ConcurrencySlots::new(&rule);
    let adaptive = slots.adaptive_limit.as_ref().unwrap();
    adaptive.probe_until.store(1_000, Ordering::Relaxed);
    let limit = |now| adaptive.current_limit(Duration::from_nanos(now));
    assert_eq!([limit(999), limit(1_000)], [INITIAL_LIMIT / 4, INITIAL_LIMIT]);
}
