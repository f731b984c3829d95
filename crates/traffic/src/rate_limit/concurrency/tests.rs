//! Event-based simulation of adaptive concurrency with various applications.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::*;

/// An application with workers, and clients with random arrivals. Times are in microseconds.
struct Application {
    workers: usize,
    /// The average service time of a request that starts now.
    serves: fn(u64) -> u64,
    differs: Differs,
    /// The number of requests per second.
    come: fn(u64) -> f64,
    /// The client timeout; the application is not informed.
    max_wait: u64,
}

impl Application {
    fn new(workers: usize, serves: fn(u64) -> u64, come: fn(u64) -> f64) -> Self {
        Self { workers, serves, differs: Differs::Little, come, max_wait: u64::MAX }
    }
}

/// The distribution of service times.
#[derive(Clone, Copy)]
enum Differs {
    /// Within a third of the average.
    Little,
    /// Log-normal, with this standard deviation of the logarithms.
    Much(f64),
    /// One in twenty takes this many times as long as the others.
    Rarely(f64),
}

/// The results of requests in a period.
#[derive(Debug)]
struct Seen {
    served: u64,
    refused: u64,
    /// The minimum and maximum limit of waiting requests outside probes.
    most: (u32, u32),
    slowest: u64,
}

enum Event {
    Comes,
    /// The number of the request.
    Served(u64),
    GivesUp(u64),
}

/// The age of the sidecar when a policy arrives.
const BEGINS: u64 = 3_600_000_000;

struct Simulation {
    application: Application,
    places: ConcurrencySlots,
    now: u64,
    random: u64,
    /// By time, then by order of creation.
    events: BinaryHeap<Reverse<(u64, u64)>>,
    what: HashMap<u64, Event>,
    queue: VecDeque<u64>,
    busy: usize,
    /// The start of the wait of each request with a present client.
    waits: HashMap<u64, u64>,
    made: u64,
}

impl Simulation {
    fn new(application: Application, rule: (u32, u32)) -> Self {
        let (least, requests) = rule;
        let adaptive =
            Some(AdaptiveConcurrency { min_concurrency: least, latency_tolerance_percent: 50 });
        let places =
            ConcurrencySlots::new(&Concurrency { requests, adaptive, ..Concurrency::default() });
        let mut all = Self {
            application,
            places,
            now: BEGINS,
            random: 0x9E37_79B9_7F4A_7C15,
            events: BinaryHeap::new(),
            what: HashMap::new(),
            queue: VecDeque::new(),
            busy: 0,
            waits: HashMap::new(),
            made: 0,
        };
        all.schedule_event(0, |_| Event::Comes);
        all
    }

    fn random_share(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn schedule_event(&mut self, after: u64, event: impl FnOnce(u64) -> Event) -> u64 {
        self.made += 1;
        self.events.push(Reverse((self.now.saturating_add(after), self.made)));
        self.what.insert(self.made, event(self.made));
        self.made
    }

    fn start_request(&mut self, request: u64) {
        self.busy += 1;
        let share = match self.application.differs {
            Differs::Little => 0.7 + 0.6 * self.random_share(),
            Differs::Much(deviation) => {
                let (radius, angle) = (1.0 - self.random_share(), self.random_share());
                let normal = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
                (deviation * normal - deviation * deviation / 2.0).exp()
            }
            Differs::Rarely(times) => {
                let is_slow = self.random_share() < 0.05;
                (if is_slow { times } else { 1.0 }) / (0.95 + 0.05 * times)
            }
        };
        let takes = ((self.application.serves)(self.now - BEGINS) as f64 * share) as u64;
        self.schedule_event(takes, |_| Event::Served(request));
    }

    fn heard_of(&mut self, request: u64, heard: ResponseOutcome) -> Option<u64> {
        let sent = self.waits.remove(&request)?;
        let [sent_at, now] = [sent, self.now].map(Duration::from_micros);
        self.places.record_outcome(sent_at, heard, now);
        self.places.release(true);
        Some(self.now - sent)
    }

    /// Advances the time, and returns the results.
    fn go_on(&mut self, seconds: u64) -> Seen {
        let end = self.now + seconds * 1_000_000;
        let mut seen = Seen { served: 0, refused: 0, most: (u32::MAX, 0), slowest: 0 };
        while let Some(Reverse((at, number))) = self.events.peek().copied() {
            if at > end {
                break;
            }
            self.events.pop();
            self.now = at;
            match self.what.remove(&number).unwrap() {
                Event::Comes => self.handle_arrival(number, &mut seen),
                Event::Served(request) => {
                    if let Some(took) = self.heard_of(request, ResponseOutcome::Answer) {
                        seen.served += 1;
                        seen.slowest = seen.slowest.max(took);
                    }
                    self.busy -= 1;
                    if let Some(next) = self.queue.pop_front() {
                        self.start_request(next);
                    }
                }
                Event::GivesUp(request) => {
                    self.heard_of(request, ResponseOutcome::GivenUp);
                }
            }
            self.record_limit(&mut seen);
        }
        self.now = end;
        seen
    }

    fn handle_arrival(&mut self, request: u64, seen: &mut Seen) {
        let each_second = (self.application.come)(self.now - BEGINS);
        if each_second == 0.0 {
            self.schedule_event(1_000_000, |_| Event::Comes);
            return;
        }
        if self.places.try_acquire(true, Duration::from_micros(self.now)) {
            self.waits.insert(request, self.now);
            if self.application.max_wait < u64::MAX {
                self.schedule_event(self.application.max_wait, |_| Event::GivesUp(request));
            }
            match self.busy < self.application.workers {
                true => self.start_request(request),
                false => self.queue.push_back(request),
            }
        } else {
            seen.refused += 1;
        }
        let pause = -(1.0 - self.random_share()).ln() * 1e6 / each_second;
        self.schedule_event(pause as u64, |_| Event::Comes);
    }

    fn record_limit(&self, seen: &mut Seen) {
        let adaptive = self.places.adaptive.as_ref().unwrap();
        let most = adaptive.most.load(Ordering::Relaxed);
        seen.most = (seen.most.0.min(most), seen.most.1.max(most));
    }
}

#[test]
fn it_finds_what_an_application_can_take_and_wastes_little_of_it() {
    let cases: [(Application, _, _); 5] = [
        (Application::new(4, |_| 20_000, |_| 400.0), 200, 4..=14),
        (Application::new(1, |_| 10_000, |_| 300.0), 100, 1..=6),
        (Application::new(10, |_| 300_000, |_| 60.0), 33, 10..=30),
        (Application::new(100, |_| 1_000_000, |_| 150.0), 100, 95..=170),
        (Application::new(64, |_| 5_000, |_| 15_000.0), 12_800, 64..=130),
    ];
    for (application, capacity, range) in cases {
        let pace = (application.serves)(0);
        let mut all = Simulation::new(application, (1, 1000));
        all.go_on(60);
        let seen = all.go_on(30);
        assert!(range.contains(&seen.most.0) && range.contains(&seen.most.1), "{seen:?}");
        assert!(seen.served >= 30 * capacity * 9 / 10, "{capacity}: {seen:?}");
        assert!(seen.slowest <= pace * 4, "{capacity}: {seen:?}");
    }
}

#[test]
fn who_is_not_overloaded_refuses_next_to_nothing() {
    for (application, until) in [
        (Application::new(20, |_| 10_000, |_| 1000.0), 5),
        (Application::new(100, |_| 1_000_000, |_| 80.0), 60),
    ] {
        let mut all = Simulation::new(application, (1, 1000));
        all.go_on(until);
        let seen = all.go_on(120);
        // Requests that arrive during a probe.
        assert!(seen.refused * 1000 <= seen.served, "{seen:?}");
    }
}

#[test]
fn requests_that_differ_are_no_queue() {
    let cases = [
        (Application::new(200, |_| 200_000, |_| 300.0), Differs::Much(1.0)),
        (Application::new(40, |_| 100_000, |_| 100.0), Differs::Much(1.0)),
        (Application::new(100, |_| 10_000, |_| 2000.0), Differs::Rarely(20.0)),
    ];
    for (application, differs) in cases {
        let mut all = Simulation::new(Application { differs, ..application }, (4, 1000));
        all.go_on(60);
        let seen = all.go_on(240);
        assert!(seen.refused * 100 <= seen.served * 4, "{seen:?}");
    }
}

#[test]
fn answers_that_take_half_a_minute_are_answers_too() {
    let mut all = Simulation::new(Application::new(100, |_| 30_000_000, |_| 3.0), (4, 1000));
    all.go_on(1200);
    let seen = all.go_on(600);
    assert!(seen.refused * 20 <= seen.served, "{seen:?}");
}

#[test]
fn after_seconds_it_knows_better_than_in_the_beginning() {
    let mut all = Simulation::new(Application::new(4, |_| 20_000, |_| 400.0), (1, 1000));
    all.go_on(4);
    let seen = all.go_on(4);
    assert!(seen.most.1 <= 12, "{seen:?}");
}

#[test]
fn it_does_not_drift() {
    let mut all = Simulation::new(Application::new(10, |_| 10_000, |_| 1500.0), (1, 1000));
    all.go_on(60);
    let first = all.go_on(60);
    all.go_on(600);
    let last = all.go_on(60);
    assert!(last.most.1 <= first.most.1 * 5 / 4, "{first:?} → {last:?}");
    assert!(last.served * 10 >= first.served * 9, "{first:?} → {last:?}");
}

#[test]
fn a_release_that_is_five_times_as_slow_is_soon_given_what_it_can_take() {
    let serves = |now| if now > 40_000_000 { 50_000 } else { 10_000 };
    for least in [1, 10] {
        let mut all = Simulation::new(Application::new(20, serves, |_| 3000.0), (least, 1000));
        all.go_on(60);
        let seen = all.go_on(20);
        assert!(seen.served >= 20 * 400 * 9 / 10, "{least}: {seen:?}");
    }
}

#[test]
fn the_pace_of_the_night_is_forgotten_by_morning() {
    const MORNING: u64 = 3_600_000_000;
    let serves = |now| if now < MORNING { 5_000 } else { 20_000 };
    let come = |now| match now {
        ..50_000_000 => 20.0,
        50_000_000..MORNING => 0.0,
        _ => 450.0,
    };
    let mut all = Simulation::new(Application::new(10, serves, come), (1, 1000));
    all.go_on(3600);
    let seen = all.go_on(60);
    assert!(seen.most.0 >= 10, "{seen:?}");
    assert!(seen.served >= 60 * 450 * 9 / 10, "{seen:?}");
}

#[test]
fn clients_that_give_up_tell_that_it_is_slow() {
    // A second each: 4 workers have 50 requests waiting by then.
    let application =
        Application { max_wait: 300_000, ..Application::new(4, |_| 100_000, |_| 400.0) };
    let mut all = Simulation::new(application, (1, 1000));
    all.go_on(30);
    let seen = all.go_on(30);
    assert!(seen.most.1 <= 16, "{seen:?}");
    assert!(seen.served >= 30 * 40 * 8 / 10, "{seen:?}");
}

#[test]
fn fast_errors_are_no_pace() {
    let rule = AdaptiveConcurrency { min_concurrency: 1, latency_tolerance_percent: 50 };
    let mut tuning = Tuning::new(rule, 1000);
    let mut now = Duration::from_secs(1);
    let mut hear = |heard, took: u64, count| {
        for _ in 0..count {
            now += Duration::from_millis(5);
            tuning.add_sample(now - Duration::from_micros(took), heard, 20, now);
        }
        tuning.waiting_limit()
    };
    let before = hear(ResponseOutcome::Answer, 20_000, 200);
    hear(ResponseOutcome::Error, 100, 2000);
    assert!(hear(ResponseOutcome::Answer, 20_000, 200) >= before);
}

#[test]
fn it_keeps_to_its_bounds_and_does_not_grow_unused() {
    let hardly = Application::new(1, |_| 10_000, |_| 1000.0);
    let mut all = Simulation::new(hardly, (7, 1000));
    all.go_on(15);
    let seen = all.go_on(15);
    assert!(seen.most.0 >= 7, "{seen:?}");
    let mut all = Simulation::new(Application::new(1000, |_| 10_000, |_| 10_000.0), (1, 64));
    all.go_on(10);
    assert_eq!(all.go_on(10).most, (64, 64));
    let mut all = Simulation::new(Application::new(1000, |_| 10_000, |_| 200.0), (1, 1000));
    assert_eq!(all.go_on(30).most.1, START);
}

#[test]
fn a_place_is_one_request_and_no_more_than_there_are_is_given() {
    let places = ConcurrencySlots::new(&Concurrency { requests: 2, ..Concurrency::default() });
    let take = || places.try_acquire(true, Duration::ZERO);
    assert_eq!([take(), take(), take()], [true, true, false]);
    places.release(true);
    assert_eq!([take(), take()], [true, false]);
}

#[test]
fn streams_that_go_on_keep_no_place_of_those_who_wait() {
    let adaptive = Some(AdaptiveConcurrency { min_concurrency: 1, latency_tolerance_percent: 50 });
    let rule = Concurrency { requests: START + 2, adaptive, ..Concurrency::default() };
    let places = ConcurrencySlots::new(&rule);
    let take = || places.try_acquire(true, Duration::ZERO);
    assert!((0..START).all(|_| take()) && !take());
    (0..START).for_each(|_| places.is_heard());
    // They are still in progress, and others soon are too.
    assert_eq!([take(), take(), take()], [true, true, false]);
    places.release(false);
    assert_eq!([take(), take()], [true, false]);
}

#[test]
fn who_is_sending_does_not_wait_yet() {
    let adaptive = Some(AdaptiveConcurrency { min_concurrency: 1, latency_tolerance_percent: 50 });
    let rule = Concurrency { requests: 1000, adaptive, ..Concurrency::default() };
    let places = ConcurrencySlots::new(&rule);
    let take = |waits| places.try_acquire(waits, Duration::ZERO);
    assert!((0..100).all(|_| take(false)) && take(true));
    places.release(true);
    // All of them complete.
    (0..100).for_each(|_| places.mark_waiting());
    assert_eq!([take(true), take(false)], [false, false]);
    (0..100).for_each(|_| places.release(true));
    assert!((0..START).all(|_| take(true)) && !take(true));
}

#[test]
fn closed_places_open_again_though_nothing_is_heard() {
    let adaptive = Some(AdaptiveConcurrency { min_concurrency: 1, latency_tolerance_percent: 50 });
    let rule = Concurrency { requests: 1000, adaptive, ..Concurrency::default() };
    let places = ConcurrencySlots::new(&rule);
    let adaptive = places.adaptive.as_ref().unwrap();
    adaptive.quartered_until.store(1_000, Ordering::Relaxed);
    let most = |now| adaptive.current_limit(Duration::from_nanos(now));
    assert_eq!([most(999), most(1_000)], [START / 4, START]);
}
