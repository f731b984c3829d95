//! Concurrency limits: the slots of a policy. Their number is fixed or adapts to the latency of the application.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leno_model::{AdaptiveConcurrency, Concurrency};

use super::to_nanos;

/// The slots of one concurrency limit. All data threads share them.
#[derive(Debug)]
pub(super) struct ConcurrencySlots {
    /// The number of acquired slots. A request holds its slot until the end of the response.
    acquired_slots: AtomicU32,
    /// The maximum number of acquired slots.
    max_requests: u32,
    /// The adaptive limit, if configured.
    adaptive_limit: Option<AdaptiveLimit>,
}

/// The adaptive limit of waiting requests. A request waits from the time when it is completely sent until its response
/// starts. The number of waiting requests is a measure of the application's load; requests that are still being sent,
/// streams and WebSockets are not counted.
#[derive(Debug)]
struct AdaptiveLimit {
    /// The number of waiting requests.
    waiting_count: AtomicU32,
    /// The current limit of waiting requests outside probes.
    limit: AtomicU32,
    /// The end of the current probe, in nanoseconds. During a probe the limit is a quarter of `limit`.
    probe_until: AtomicU64,
    /// The minimum limit.
    min_limit: u32,
    /// The computation of the limit from the recorded latencies.
    tuning: Mutex<Tuning>,
}

/// The result of a request with a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseOutcome {
    /// A successful response started. Its latency is a sample.
    Success,
    /// An error response started. Its latency is a sample only if it is high, because errors may be much faster
    /// than successful responses.
    Error,
    /// There was no response: the client or the application abandoned the request.
    Abandoned,
}

impl ConcurrencySlots {
    pub(super) fn new(rule: &Concurrency) -> Self {
        let adaptive_limit =
            rule.adaptive.map(|settings| AdaptiveLimit::new(settings, rule.requests));
        Self { acquired_slots: AtomicU32::new(0), max_requests: rule.requests, adaptive_limit }
    }

    /// Acquires a slot; false if none is available. `is_waiting` is true if the request was completely sent.
    pub(super) fn try_acquire(&self, is_waiting: bool, now: Duration) -> bool {
        if !increment_below(&self.acquired_slots, self.max_requests) {
            return false;
        }
        let is_available =
            self.adaptive_limit.as_ref().is_none_or(|adaptive_limit| match is_waiting {
                true => increment_below(
                    &adaptive_limit.waiting_count,
                    adaptive_limit.current_limit(now),
                ),
                false => {
                    adaptive_limit.waiting_count.load(Ordering::Relaxed)
                        < adaptive_limit.current_limit(now)
                }
            });
        if !is_available {
            self.acquired_slots.fetch_sub(1, Ordering::Relaxed);
        }
        is_available
    }

    /// Releases a slot. `is_waiting` is true if the request was completely sent and the response has not started.
    pub(super) fn release(&self, is_waiting: bool) {
        self.acquired_slots.fetch_sub(1, Ordering::Relaxed);
        if is_waiting {
            self.finish_waiting();
        }
    }

    /// Records that a request with a slot was completely sent, so that it now waits.
    pub(super) fn mark_waiting(&self) {
        if let Some(adaptive_limit) = &self.adaptive_limit {
            adaptive_limit.waiting_count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that a request no longer waits.
    pub(super) fn finish_waiting(&self) {
        if let Some(adaptive_limit) = &self.adaptive_limit {
            adaptive_limit.waiting_count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Records the result of a request that waited since `sent_at`. Must be called before [`Self::finish_waiting`].
    pub(super) fn record_outcome(
        &self,
        sent_at: Duration,
        outcome: ResponseOutcome,
        now: Duration,
    ) {
        let Some(adaptive_limit) = &self.adaptive_limit else { return };
        let waiting_count = adaptive_limit.waiting_count.load(Ordering::Relaxed);
        let mut tuning = adaptive_limit.tuning.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(probe_until) = tuning.add_sample(sent_at, outcome, waiting_count, now) {
            adaptive_limit.probe_until.store(to_nanos(probe_until), Ordering::Relaxed);
            adaptive_limit.limit.store(tuning.waiting_limit(), Ordering::Relaxed);
        }
    }
}

/// Increments a counter if it is below a limit. Returns true if the counter was incremented. The order is relaxed,
/// because no other memory depends on the counters.
fn increment_below(counter: &AtomicU32, limit: u32) -> bool {
    let next_count = |count: u32| (count < limit).then(|| count + 1);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next_count).is_ok()
}

impl AdaptiveLimit {
    fn new(rule: AdaptiveConcurrency, max_limit: u32) -> Self {
        let tuning = Tuning::new(rule, max_limit);
        Self {
            waiting_count: AtomicU32::new(0),
            limit: AtomicU32::new(tuning.waiting_limit()),
            probe_until: AtomicU64::new(0),
            min_limit: rule.min_concurrency.clamp(1, max_limit.max(1)),
            tuning: Mutex::new(tuning),
        }
    }

    /// Returns the limit of waiting requests at this time.
    fn current_limit(&self, now: Duration) -> u32 {
        let limit = self.limit.load(Ordering::Relaxed);
        match to_nanos(now) < self.probe_until.load(Ordering::Relaxed) {
            true => (limit / 4).max(self.min_limit),
            false => limit,
        }
    }
}

/// Searches for the highest concurrency at which the application responds almost as fast as when it is idle.
///
/// Latency is averaged over windows. The lowest average of the last minute is the baseline: the latency of an
/// application without a queue. If the latency is much higher than the baseline, the application has a queue, and the
/// limit is reduced. Otherwise the limit is increased slightly when it is reached. At intervals, a probe reduces the
/// limit to a quarter for a short time; without probes, the latency of a permanent queue would become the baseline. If
/// the limit was reduced to a quarter and latency hardly improved, there was no queue, and the current latency becomes
/// the baseline.
///
/// Averages of a few samples vary, and the lowest of many averages is far below the typical latency. Differences within
/// the standard error are therefore ignored.
#[derive(Debug)]
struct Tuning {
    rule: AdaptiveConcurrency,
    /// The maximum limit.
    max_limit: u32,
    /// The current limit of waiting requests.
    limit: f64,
    /// The current window.
    window: Window,
    /// The average of the last window outside probes, in seconds.
    average: f64,
    /// The lowest average of each of the last intervals, the current interval first; in seconds.
    lowest_averages: [f64; INTERVAL_COUNT],
    /// The current interval.
    interval: Interval,
    /// The current probe, if any.
    probe: Option<Probe>,
    /// The limit and the average at the start of the current reduction.
    reduced_from: Option<(f64, f64)>,
    /// True if the limit was reduced at least once. It is then close to its optimum, and no longer doubled.
    was_reduced: bool,
}

/// The samples over which latency is averaged.
#[derive(Debug, Default)]
struct Window {
    started_at: Duration,
    /// The sum of the latencies, in seconds.
    latency_sum: f64,
    /// The sum of the squared latencies, in square seconds.
    squares_sum: f64,
    /// The number of samples.
    samples: u32,
    /// The number of abandoned requests among the samples.
    abandoned: u32,
    /// The maximum number of waiting requests.
    max_waiting: u32,
}

/// The time between two probes.
#[derive(Debug)]
struct Interval {
    /// The start of the interval: the end of its first window.
    started_at: Option<Duration>,
    /// The minimum length of the interval.
    length: Duration,
    /// True if the number of waiting requests reached the limit.
    was_full: bool,
}

/// A probe, during which the limit is reduced to a quarter.
#[derive(Debug, Clone, Copy)]
struct Probe {
    /// The earliest start of a sample. Requests that were sent before this time may have waited in a queue.
    samples_from: Duration,
    /// The end of the probe.
    until: Duration,
}

impl Window {
    fn starting_at(started_at: Duration) -> Self {
        Self { started_at, ..Self::default() }
    }

    fn average_latency(&self) -> f64 {
        self.latency_sum / f64::from(self.samples)
    }

    fn add_sample(&mut self, latency: f64) {
        self.latency_sum += latency;
        self.squares_sum += latency * latency;
        self.samples += 1;
    }

    /// Returns the standard error of the average latency.
    fn standard_error(&self) -> f64 {
        let (samples, average) = (f64::from(self.samples), self.average_latency());
        let variance = (self.squares_sum / samples - average * average).max(0.0);
        (variance / samples).sqrt()
    }

    /// True if at least half of the requests were abandoned, so that their latency is unknown.
    fn is_mostly_abandoned(&self) -> bool {
        self.abandoned * 2 >= self.samples
    }
}

impl Tuning {
    fn new(rule: AdaptiveConcurrency, max_limit: u32) -> Self {
        Self {
            rule,
            max_limit: max_limit.max(1),
            limit: INITIAL_LIMIT.max(rule.min_concurrency).min(max_limit).into(),
            window: Window::default(),
            average: 0.0,
            lowest_averages: [f64::INFINITY; INTERVAL_COUNT],
            interval: Interval { started_at: None, length: MIN_FIRST_INTERVAL, was_full: false },
            probe: None,
            reduced_from: None,
            was_reduced: false,
        }
    }

    /// Records the result of a request that waited since `sent_at`. `waiting_count` is the number of waiting requests,
    /// including this one. Returns the end of the current probe if a window ended, and the limit may have changed; zero
    /// if there is no probe.
    fn add_sample(
        &mut self,
        sent_at: Duration,
        outcome: ResponseOutcome,
        waiting_count: u32,
        now: Duration,
    ) -> Option<Duration> {
        let latency = now.saturating_sub(sent_at).as_secs_f64();
        let baseline = self.baseline_latency();
        let is_sample = match outcome {
            ResponseOutcome::Success => true,
            // Without a baseline, the short wait of an abandoned request is no evidence of the latency.
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
            Some(probe) if sent_at < probe.samples_from => return None,
            Some(_) | None => {}
        }
        // Requests that are sent one after another yield twice the minimum number of samples in this time.
        let slowest_average = self.average.max(self.window.average_latency()).max(latency);
        let max_window =
            from_seconds(slowest_average * 2.0 * f64::from(MIN_SAMPLES)).max(MIN_INTERVAL);
        if now.saturating_sub(self.window.started_at) > max_window {
            // The window has too few samples for a conclusion.
            self.window = Window::starting_at(now);
        }
        self.window.add_sample(latency);
        self.window.abandoned += u32::from(outcome == ResponseOutcome::Abandoned);
        self.window.max_waiting = self.window.max_waiting.max(waiting_count);
        self.is_window_over(now).then(|| {
            let window = std::mem::replace(&mut self.window, Window::starting_at(now));
            self.finish_window(&window, now);
            self.probe.map_or(Duration::ZERO, |probe| probe.until)
        })
    }

    /// True if the window is over. A new limit affects responses only after the latency of one request, so a window
    /// lasts at least twice the average latency.
    fn is_window_over(&self, now: Duration) -> bool {
        if self.probe.is_some() {
            return self.window.samples >= MIN_PROBE_SAMPLES;
        }
        let length =
            from_seconds(2.0 * self.window.average_latency()).clamp(MIN_WINDOW, MIN_INTERVAL);
        let is_long = now.saturating_sub(self.window.started_at) >= length;
        is_long
            && (self.window.samples >= MIN_SAMPLES || self.window.abandoned >= MIN_PROBE_SAMPLES)
    }

    /// Evaluates a window: updates the averages and the limit, and starts an interval if the current one is over.
    fn finish_window(&mut self, window: &Window, now: Duration) {
        let average = window.average_latency();
        let was_probe = self.probe.take().is_some();
        if !was_probe {
            self.average = average;
            self.interval.was_full |= window.max_waiting >= self.waiting_limit();
            let started_at = *self.interval.started_at.get_or_insert(now);
            let elapsed = now.saturating_sub(started_at).as_secs_f64();
            if elapsed >= self.interval.length.as_secs_f64() {
                self.start_interval(elapsed / self.interval.length.as_secs_f64(), now);
            }
        }
        if !window.is_mostly_abandoned() {
            // The lowest of many averages is too low by chance, which the standard errors compensate.
            let [lowest, ..] = &mut self.lowest_averages;
            *lowest = lowest.min(average + 2.0 * window.standard_error());
        }
        if !was_probe {
            self.adjust_limit(window);
        }
    }

    /// Starts an interval, with a probe if the limit was reached in the previous interval. `lengths_passed` is the
    /// elapsed time as a multiple of the previous interval's length.
    fn start_interval(&mut self, lengths_passed: f64, now: Duration) {
        // Several intervals end if no window ended in the meantime.
        for _ in (0..INTERVAL_COUNT).take_while(|interval| lengths_passed >= *interval as f64 + 1.0)
        {
            self.lowest_averages.rotate_right(1);
            let [lowest, ..] = &mut self.lowest_averages;
            *lowest = f64::INFINITY;
        }
        let was_full = self.interval.was_full;
        // With a high latency, a probe lasts about two latencies, a tenth of the interval.
        let length = MIN_INTERVAL.max(from_seconds(self.average * 20.0));
        self.interval = Interval { started_at: Some(now), length, was_full: false };
        if was_full {
            let samples_from = now.saturating_add(from_seconds(self.average));
            let until =
                now.saturating_add(MIN_WINDOW).saturating_add(from_seconds(self.average * 2.0));
            self.probe = Some(Probe { samples_from, until });
        }
    }

    /// Adjusts the limit by the latencies of a window. If the average latency is above the tolerated latency, the limit
    /// is reduced in proportion, to half at most. Otherwise it is increased by its square root, or doubled if it was
    /// never reduced and is reached. Half of the change is applied per window.
    fn adjust_limit(&mut self, window: &Window) {
        let (average, max_waiting) = (window.average_latency(), window.max_waiting);
        if !window.is_mostly_abandoned() && self.detect_ineffective_reduction(average) {
            self.lowest_averages = [f64::INFINITY; INTERVAL_COUNT];
            let [lowest, ..] = &mut self.lowest_averages;
            *lowest = average;
            self.reduced_from = None;
        }
        let tolerated_factor = 1.0 + f64::from(self.rule.latency_tolerance_percent) / 100.0;
        let factor = match window.is_mostly_abandoned() {
            // The latency is unknown, so the target is the lowest: half of the limit.
            true => 0.5,
            false => {
                let min_average = (average - window.standard_error()).max(f64::MIN_POSITIVE);
                (self.baseline_latency() * tolerated_factor + TOLERANCE_SECONDS) / min_average
            }
        };
        let target = if factor < 1.0 {
            self.was_reduced = true;
            self.reduced_from.get_or_insert((self.limit, average));
            self.limit * factor.max(0.5)
        } else {
            self.reduced_from = None;
            let may_double = !self.was_reduced && max_waiting >= self.waiting_limit();
            self.limit + if may_double { self.limit } else { self.limit.sqrt() }
        };
        // The limit is increased only while at least half of it is used.
        let is_used = f64::from(max_waiting) >= self.limit / 2.0;
        if target < self.limit || is_used {
            let max_limit = f64::from(self.max_limit);
            self.limit = f64::midpoint(self.limit, target).min(max_limit).max(self.min_limit());
        }
    }

    /// True if the latency hardly decreased although far fewer requests wait, so that there was no queue: it did not
    /// halve with a quarter of the limit, or decreased by less than a fifth with half of the limit, if that is the
    /// minimum. Otherwise, a reduction to a quarter becomes the start of the next comparison.
    fn detect_ineffective_reduction(&mut self, average: f64) -> bool {
        let Some((limit_before, average_before)) = self.reduced_from else { return false };
        // The minimum may prevent a reduction to a quarter.
        let is_minimum = self.limit <= self.min_limit();
        // With a limit below 2, a single request waits, and not behind other requests.
        if self.limit < 2.0
            || (is_minimum && self.limit * 2.0 <= limit_before && average > average_before * 0.8)
        {
            return true;
        }
        if self.limit * 4.0 > limit_before {
            return false;
        }
        self.reduced_from = Some((self.limit, average));
        average > average_before / 2.0
    }

    /// Returns the baseline latency, in seconds; infinite if it is unknown.
    fn baseline_latency(&self) -> f64 {
        self.lowest_averages.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Returns the minimum limit.
    fn min_limit(&self) -> f64 {
        f64::from(self.rule.min_concurrency.clamp(1, self.max_limit))
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

/// Converts seconds; a value that is no valid duration becomes [`MIN_INTERVAL`].
fn from_seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(MIN_INTERVAL)
}

/// The initial limit of waiting requests.
const INITIAL_LIMIT: u32 = 20;
/// The minimum duration of a window.
const MIN_WINDOW: Duration = Duration::from_millis(100);
/// The minimum number of samples of a window.
const MIN_SAMPLES: u32 = 50;
/// The minimum number of samples of a probe, and the number of abandoned requests that ends a window early.
const MIN_PROBE_SAMPLES: u32 = 10;
/// The number of intervals that the baseline covers, each with at most one probe. They last a minute together, or
/// longer if the latency exceeds half a second.
const INTERVAL_COUNT: usize = 6;
/// The minimum length of an interval.
const MIN_INTERVAL: Duration = Duration::from_secs(10);
/// The minimum length of the first interval, which is short because the initial baseline may include a queue.
const MIN_FIRST_INTERVAL: Duration = Duration::from_secs(1);
/// The latency difference in seconds below which differences are ignored, because other processes on the machine cause
/// them.
const TOLERANCE_SECONDS: f64 = 0.001;

#[cfg(test)]
mod tests;
