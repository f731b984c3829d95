//! Concurrency limits: the slots of a policy, in a fixed number or in one that adapts to the application's
//! latency.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leno_model::{AdaptiveConcurrency, Concurrency};

use super::to_nanos;

/// The slots of one concurrency limit. Shared by threads.
#[derive(Debug)]
pub(super) struct ConcurrencySlots {
    /// The number of requests with a slot; a request holds it until the end of the response.
    acquired: AtomicU32,
    /// The maximum number of requests with a slot.
    max_requests: u32,
    adaptive: Option<AdaptiveLimit>,
}

/// The adaptive limit of requests that wait for the start of their response, which measures the load of the
/// application. Requests that are still being sent, streams and WebSockets do not wait.
#[derive(Debug)]
struct AdaptiveLimit {
    /// The number of waiting requests.
    waiting: AtomicU32,
    /// The current limit of waiting requests outside probes.
    limit: AtomicU32,
    /// The end of the current probe, during which three quarters of the slots are withheld; in nanoseconds.
    probe_until: AtomicU64,
    /// The minimum limit.
    minimum: u32,
    tuning: Mutex<Tuning>,
}

/// The result of a request with a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseOutcome {
    /// A successful response started; its latency is a sample.
    Success,
    /// An error response started. Its latency is a sample only if it is high, because errors may be much faster
    /// than successful responses.
    Error,
    /// No response: the client or the application gave up.
    Abandoned,
}

impl ConcurrencySlots {
    pub(super) fn new(rule: &Concurrency) -> Self {
        let adaptive = rule.adaptive.map(|adaptive| AdaptiveLimit::new(adaptive, rule.requests));
        Self { acquired: AtomicU32::new(0), max_requests: rule.requests, adaptive }
    }

    /// Acquires a slot, if one is available. `is_waiting` is true if the request is complete.
    pub(super) fn try_acquire(&self, is_waiting: bool, now: Duration) -> bool {
        if !increment_below(&self.acquired, self.max_requests) {
            return false;
        }
        let has_room = self.adaptive.as_ref().is_none_or(|adaptive| match is_waiting {
            true => increment_below(&adaptive.waiting, adaptive.current_limit(now)),
            false => adaptive.waiting.load(Ordering::Relaxed) < adaptive.current_limit(now),
        });
        if !has_room {
            self.acquired.fetch_sub(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Releases a slot. `is_waiting` is true if the request is complete and the response has not started.
    pub(super) fn release(&self, is_waiting: bool) {
        self.acquired.fetch_sub(1, Ordering::Relaxed);
        if is_waiting {
            self.finish_waiting();
        }
    }

    /// Records that a request with a slot is complete: it waits from now on.
    pub(super) fn mark_waiting(&self) {
        if let Some(adaptive) = &self.adaptive {
            adaptive.waiting.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that one request no longer waits.
    pub(super) fn finish_waiting(&self) {
        if let Some(adaptive) = &self.adaptive {
            adaptive.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Records the result of a request that waited since `sent`; called before [`Self::finish_waiting`].
    pub(super) fn record_outcome(&self, sent: Duration, outcome: ResponseOutcome, now: Duration) {
        let Some(adaptive) = &self.adaptive else { return };
        let waiting = adaptive.waiting.load(Ordering::Relaxed);
        let mut tuning = adaptive.tuning.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(probe_until) = tuning.add_sample(sent, outcome, waiting, now) {
            adaptive.probe_until.store(to_nanos(probe_until), Ordering::Relaxed);
            adaptive.limit.store(tuning.waiting_limit(), Ordering::Relaxed);
        }
    }
}

/// Increments a counter if it is below a limit. Returns true if it was incremented.
fn increment_below(counter: &AtomicU32, limit: u32) -> bool {
    let next_count = |count: u32| (count < limit).then(|| count + 1);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next_count).is_ok()
}

impl AdaptiveLimit {
    fn new(rule: AdaptiveConcurrency, ceiling: u32) -> Self {
        let tuning = Tuning::new(rule, ceiling);
        Self {
            waiting: AtomicU32::new(0),
            limit: AtomicU32::new(tuning.waiting_limit()),
            probe_until: AtomicU64::new(0),
            minimum: rule.min_concurrency.clamp(1, ceiling.max(1)),
            tuning: Mutex::new(tuning),
        }
    }

    /// Returns the limit of waiting requests at this time.
    fn current_limit(&self, now: Duration) -> u32 {
        let limit = self.limit.load(Ordering::Relaxed);
        match to_nanos(now) < self.probe_until.load(Ordering::Relaxed) {
            true => (limit / 4).max(self.minimum),
            false => limit,
        }
    }
}

/// Searches for the highest concurrency at which the application responds almost as fast as when it is idle.
///
/// Latency is averaged over windows, and the lowest average of the last minute is the baseline: the latency of
/// an application without a queue. While latency is much higher the application has a queue, and the limit is
/// lowered; while it is not, and the limit is reached, it is raised slightly. At intervals three quarters of
/// the slots are withheld for a moment (a probe); otherwise the latency of a queue would become the baseline.
/// If the limit was reduced to a quarter and latency hardly improved, there was no queue: the current latency
/// becomes the baseline.
///
/// Latencies vary, and so do averages of a few samples. The lowest of many averages is far below the typical
/// latency, so differences within the standard error are ignored.
#[derive(Debug)]
struct Tuning {
    rule: AdaptiveConcurrency,
    ceiling: u32,
    /// The current limit of waiting requests.
    limit: f64,
    window: Window,
    /// The average of the last window outside probes, in seconds.
    average: f64,
    /// The lowest average of each of the last intervals, the current one first; in seconds.
    lowest_averages: [f64; INTERVAL_COUNT],
    interval: Interval,
    probe: Option<Probe>,
    /// The limit and the average at the start of the current reduction.
    reduced_from: Option<(f64, f64)>,
    /// True if the limit was reduced at least once. Then an optimum exists, and the limit is near it.
    was_reduced: bool,
}

/// The samples over which latency is averaged.
#[derive(Debug, Default)]
struct Window {
    started: Duration,
    /// The sum of the latencies, in seconds.
    total: f64,
    /// The sum of the squared latencies.
    total_of_squares: f64,
    /// The number of samples.
    samples: u32,
    /// The number of abandoned requests among the samples.
    abandoned: u32,
    /// The maximum number of waiting requests.
    peak: u32,
}

/// The time between two probes.
#[derive(Debug)]
struct Interval {
    /// The end of its first window.
    started: Option<Duration>,
    /// The minimum length.
    length: Duration,
    /// True if the number of waiting requests reached the limit.
    was_full: bool,
}

/// A probe, during which three quarters of the slots are withheld.
#[derive(Debug, Clone, Copy)]
struct Probe {
    /// The earliest start of a sample: requests sent before this time may have waited in a queue.
    samples_from: Duration,
    until: Duration,
}

impl Window {
    fn starting_at(started: Duration) -> Self {
        Self { started, ..Self::default() }
    }

    fn average_latency(&self) -> f64 {
        self.total / f64::from(self.samples)
    }

    fn add_sample(&mut self, latency: f64) {
        self.total += latency;
        self.total_of_squares += latency * latency;
        self.samples += 1;
    }

    /// Returns the standard error of the average latency.
    fn standard_error(&self) -> f64 {
        let (samples, average) = (f64::from(self.samples), self.average_latency());
        let variance = (self.total_of_squares / samples - average * average).max(0.0);
        (variance / samples).sqrt()
    }

    /// True if at least half of the requests were abandoned: their latency is unknown.
    fn is_mostly_abandoned(&self) -> bool {
        self.abandoned * 2 >= self.samples
    }
}

impl Tuning {
    fn new(rule: AdaptiveConcurrency, ceiling: u32) -> Self {
        Self {
            rule,
            ceiling: ceiling.max(1),
            limit: INITIAL_LIMIT.max(rule.min_concurrency).min(ceiling).into(),
            window: Window::default(),
            average: 0.0,
            lowest_averages: [f64::INFINITY; INTERVAL_COUNT],
            interval: Interval { started: None, length: MIN_FIRST_INTERVAL, was_full: false },
            probe: None,
            reduced_from: None,
            was_reduced: false,
        }
    }

    /// Records the result of a request that waited since `sent`, with `waiting - 1` others. Returns the end of
    /// the probe, if it changed.
    fn add_sample(
        &mut self,
        sent: Duration,
        outcome: ResponseOutcome,
        waiting: u32,
        now: Duration,
    ) -> Option<Duration> {
        let latency = now.saturating_sub(sent).as_secs_f64();
        let baseline = self.baseline_latency();
        let is_sample = match outcome {
            ResponseOutcome::Success => true,
            ResponseOutcome::Abandoned if baseline.is_infinite() => {
                latency > MIN_WINDOW.as_secs_f64()
            }
            ResponseOutcome::Error | ResponseOutcome::Abandoned => latency > baseline,
        };
        if !is_sample {
            return None;
        }
        match self.probe {
            Some(probe) if now >= probe.until => {
                self.probe = None;
                self.window = Window::starting_at(now);
            }
            Some(probe) if sent < probe.samples_from => return None,
            _ => {}
        }
        let slowest_average = self.average.max(self.window.average_latency()).max(latency);
        let window_max =
            from_seconds(slowest_average * 2.0 * f64::from(MIN_SAMPLES)).max(MIN_INTERVAL);
        if now.saturating_sub(self.window.started) > window_max {
            // There are too few samples for a conclusion.
            self.window = Window::starting_at(now);
        }
        self.window.add_sample(latency);
        self.window.abandoned += u32::from(outcome == ResponseOutcome::Abandoned);
        self.window.peak = self.window.peak.max(waiting);
        self.is_window_over(now).then(|| {
            let window = std::mem::replace(&mut self.window, Window::starting_at(now));
            self.finish_window(&window, now);
            self.probe.map_or(Duration::ZERO, |probe| probe.until)
        })
    }

    /// True if the window is over. A new limit shows in responses only after one latency, so a window lasts at
    /// least two.
    fn is_window_over(&self, now: Duration) -> bool {
        if self.probe.is_some() {
            return self.window.samples >= MIN_PROBE_SAMPLES;
        }
        let length =
            from_seconds(2.0 * self.window.average_latency()).clamp(MIN_WINDOW, MIN_INTERVAL);
        let is_long = now.saturating_sub(self.window.started) >= length;
        is_long
            && (self.window.samples >= MIN_SAMPLES || self.window.abandoned >= MIN_PROBE_SAMPLES)
    }

    fn finish_window(&mut self, window: &Window, now: Duration) {
        let average = window.average_latency();
        let was_probe = self.probe.take().is_some();
        if !was_probe {
            self.average = average;
            self.interval.was_full |= window.peak >= self.waiting_limit();
            let started = *self.interval.started.get_or_insert(now);
            let elapsed = now.saturating_sub(started).as_secs_f64();
            if elapsed >= self.interval.length.as_secs_f64() {
                self.start_interval(elapsed / self.interval.length.as_secs_f64(), now);
            }
        }
        if !window.is_mostly_abandoned() {
            let [lowest, ..] = &mut self.lowest_averages;
            *lowest = lowest.min(average + 2.0 * window.standard_error());
        }
        if !was_probe {
            self.adjust_limit(window);
        }
    }

    /// Starts an interval. `lengths_passed` is the elapsed time as a multiple of the previous interval's
    /// length.
    fn start_interval(&mut self, lengths_passed: f64, now: Duration) {
        for _ in (0..INTERVAL_COUNT).take_while(|interval| lengths_passed >= *interval as f64 + 1.0)
        {
            self.lowest_averages.rotate_right(1);
            let [lowest, ..] = &mut self.lowest_averages;
            *lowest = f64::INFINITY;
        }
        let was_full = self.interval.was_full;
        let length = MIN_INTERVAL.max(from_seconds(self.average * 20.0));
        self.interval = Interval { started: Some(now), length, was_full: false };
        if was_full {
            let samples_from = now.saturating_add(from_seconds(self.average));
            let until =
                now.saturating_add(MIN_WINDOW).saturating_add(from_seconds(self.average * 2.0));
            self.probe = Some(Probe { samples_from, until });
        }
    }

    fn adjust_limit(&mut self, window: &Window) {
        let (average, peak) = (window.average_latency(), window.peak);
        if !window.is_mostly_abandoned() && self.is_reduction_ineffective(average) {
            self.lowest_averages = [f64::INFINITY; INTERVAL_COUNT];
            let [lowest, ..] = &mut self.lowest_averages;
            *lowest = average;
            self.reduced_from = None;
        }
        let tolerated_factor = 1.0 + f64::from(self.rule.latency_tolerance_percent) / 100.0;
        let factor = match window.is_mostly_abandoned() {
            true => 0.5,
            false => {
                let average_min = (average - window.standard_error()).max(f64::MIN_POSITIVE);
                (self.baseline_latency() * tolerated_factor + TOLERANCE_SECONDS) / average_min
            }
        };
        let target = if factor < 1.0 {
            self.was_reduced = true;
            self.reduced_from.get_or_insert((self.limit, average));
            self.limit * factor.max(0.5)
        } else {
            self.reduced_from = None;
            let may_double = !self.was_reduced && peak >= self.waiting_limit();
            self.limit + if may_double { self.limit } else { self.limit.sqrt() }
        };
        let is_used = f64::from(peak) >= self.limit / 2.0;
        if target < self.limit || is_used {
            let ceiling = f64::from(self.ceiling);
            self.limit = f64::midpoint(self.limit, target).min(ceiling).max(self.minimum_limit());
        }
    }

    /// True if latency has not fallen although far fewer requests wait: so there was no queue.
    fn is_reduction_ineffective(&mut self, average: f64) -> bool {
        let Some((limit_before, average_before)) = self.reduced_from else { return false };
        let is_minimum = self.limit <= self.minimum_limit();
        if self.limit < 2.0
            || (is_minimum && self.limit * 2.0 <= limit_before && average > average_before * 0.8)
        {
            // A single request does not wait for another.
            return true;
        }
        if self.limit * 4.0 > limit_before {
            return false;
        }
        self.reduced_from = Some((self.limit, average));
        average > average_before / 2.0
    }

    /// Returns the baseline latency, in seconds.
    fn baseline_latency(&self) -> f64 {
        self.lowest_averages.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Returns the minimum limit.
    fn minimum_limit(&self) -> f64 {
        f64::from(self.rule.min_concurrency.clamp(1, self.ceiling))
    }

    /// Returns the limit of waiting requests outside probes.
    fn waiting_limit(&self) -> u32 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the limit is between 1 and the configured maximum"
        )]
        let limit = self.limit as u32;
        limit
    }
}

fn from_seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(MIN_INTERVAL)
}

/// The initial limit.
const INITIAL_LIMIT: u32 = 20;
/// The minimum duration of a window.
const MIN_WINDOW: Duration = Duration::from_millis(100);
/// The minimum number of samples of a window.
const MIN_SAMPLES: u32 = 50;
/// The minimum number of samples of a probe, and of abandoned requests that end a window early.
const MIN_PROBE_SAMPLES: u32 = 10;
/// The number of intervals that the baseline covers, with one probe each: a minute. Intervals are longer if
/// latency exceeds half a second.
const INTERVAL_COUNT: usize = 6;
/// The minimum length of an interval.
const MIN_INTERVAL: Duration = Duration::from_secs(10);
/// The first interval is short: the initial baseline may include a queue.
const MIN_FIRST_INTERVAL: Duration = Duration::from_secs(1);
/// Latency differences below this number of seconds are ignored, however fast the application is: other
/// processes share its machine.
const TOLERANCE_SECONDS: f64 = 0.001;

#[cfg(test)]
mod tests;
