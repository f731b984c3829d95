//! Concurrency limit of requests, fixed or adapted to the application's latency.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leno_model::{AdaptiveConcurrency, Concurrency};

use super::to_nanos;

/// A number of concurrency permits. Shared by threads.
#[derive(Debug)]
pub(super) struct ConcurrencySlots {
    /// The number of requests with a permit; held until the end of the response.
    taken: AtomicU32,
    requests: u32,
    adaptive: Option<Adaptive>,
}

/// The limit of requests that wait for the start of their response, which measures the load of the application.
/// Requests that are still being sent, streams and WebSockets do not wait.
#[derive(Debug)]
struct Adaptive {
    waiting: AtomicU32,
    most: AtomicU32,
    /// The end of the current probe, in which three quarters of the permits are withheld; in nanoseconds.
    quartered_until: AtomicU64,
    least: u32,
    tuning: Mutex<Tuning>,
}

/// The result of a request with a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseOutcome {
    /// A successful response started; its latency is representative.
    Answer,
    /// An error response. Errors may be much faster than successful responses, and are slow only if those are.
    Error,
    /// No response: the client or the application gave up.
    GivenUp,
}

impl ConcurrencySlots {
    pub(super) fn new(rule: &Concurrency) -> Self {
        let adaptive = rule.adaptive.map(|adaptive| Adaptive::new(adaptive, rule.requests));
        Self { taken: AtomicU32::new(0), requests: rule.requests, adaptive }
    }

    /// Acquires a permit, if available. `waits`: the request is complete.
    pub(super) fn try_acquire(&self, waits: bool, now: Duration) -> bool {
        if !take_of(&self.taken, self.requests) {
            return false;
        }
        let has_room = self.adaptive.as_ref().is_none_or(|it| match waits {
            true => take_of(&it.waiting, it.current_limit(now)),
            false => it.waiting.load(Ordering::Relaxed) < it.current_limit(now),
        });
        if !has_room {
            self.taken.fetch_sub(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Releases a permit. `waits`: the response has not started.
    pub(super) fn release(&self, waits: bool) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
        if waits {
            self.is_heard();
        }
    }

    /// Records that a request with a permit is complete: it waits from now on.
    pub(super) fn mark_waiting(&self) {
        if let Some(adaptive) = &self.adaptive {
            adaptive.waiting.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that one request no longer waits.
    pub(super) fn is_heard(&self) {
        if let Some(adaptive) = &self.adaptive {
            adaptive.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Records the result of a request that waited since `sent`; called before [`Self::is_heard`].
    pub(super) fn record_outcome(&self, sent: Duration, heard: ResponseOutcome, now: Duration) {
        let Some(adaptive) = &self.adaptive else { return };
        let waiting = adaptive.waiting.load(Ordering::Relaxed);
        let mut tuning = adaptive.tuning.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(quartered_until) = tuning.add_sample(sent, heard, waiting, now) {
            adaptive.quartered_until.store(to_nanos(quartered_until), Ordering::Relaxed);
            adaptive.most.store(tuning.waiting_limit(), Ordering::Relaxed);
        }
    }
}

fn take_of(places: &AtomicU32, most: u32) -> bool {
    let more = |taken: u32| (taken < most).then(|| taken + 1);
    places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

impl Adaptive {
    fn new(rule: AdaptiveConcurrency, ceiling: u32) -> Self {
        let tuning = Tuning::new(rule, ceiling);
        Self {
            waiting: AtomicU32::new(0),
            most: AtomicU32::new(tuning.waiting_limit()),
            quartered_until: AtomicU64::new(0),
            least: rule.min_concurrency.clamp(1, ceiling.max(1)),
            tuning: Mutex::new(tuning),
        }
    }

    fn current_limit(&self, now: Duration) -> u32 {
        let most = self.most.load(Ordering::Relaxed);
        match to_nanos(now) < self.quartered_until.load(Ordering::Relaxed) {
            true => (most / 4).max(self.least),
            false => most,
        }
    }
}

/// Searches for the highest concurrency at which the application responds almost as fast as when it is idle.
///
/// Latency is averaged over windows, and the lowest average of the last minute is the baseline: the latency of
/// an application without a queue. While latency is much higher the application has a queue, and the limit is
/// lowered; while it is not, and the limit is reached, it is raised slightly. At intervals three quarters of
/// the permits are withheld for a moment (a probe); otherwise the latency of a queue would become the baseline.
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
    most: f64,
    window: Window,
    /// The average of the last window outside probes, in seconds.
    average: f64,
    /// The lowest averages of the last intervals; the first is the current one.
    lowest: [f64; STRETCHES],
    stretch: Stretch,
    quartered: Option<Quartered>,
    /// The limit and the average at the start of the current reduction.
    shrinks_from: Option<(f64, f64)>,
    /// The limit was reduced at least once: its optimum exists, and is near.
    has_shrunk: bool,
}

#[derive(Debug, Default)]
struct Window {
    began: Duration,
    seconds: f64,
    /// The sum of the squared latencies.
    squares: f64,
    answers: u32,
    /// The number of abandoned requests among them.
    given_up: u32,
    /// The maximum number of waiting requests.
    peak: u32,
}

#[derive(Debug)]
struct Stretch {
    /// The time of the first response.
    began: Option<Duration>,
    lasts: Duration,
    /// All permits were in use.
    was_full: bool,
}

/// A probe: three quarters of the permits are withheld.
#[derive(Debug, Clone, Copy)]
struct Quartered {
    /// Requests sent before this time may have waited in a queue.
    believed_from: Duration,
    until: Duration,
}

impl Window {
    fn starting_at(began: Duration) -> Self {
        Self { began, ..Self::default() }
    }

    fn average_latency(&self) -> f64 {
        self.seconds / f64::from(self.answers)
    }

    fn add_sample(&mut self, took: f64) {
        self.seconds += took;
        self.squares += took * took;
        self.answers += 1;
    }

    /// Returns the standard error of the average.
    fn standard_error(&self) -> f64 {
        let (answers, average) = (f64::from(self.answers), self.average_latency());
        let variance = (self.squares / answers - average * average).max(0.0);
        (variance / answers).sqrt()
    }

    /// True if at least half of the requests were abandoned: their latency is unknown.
    fn is_given_up(&self) -> bool {
        self.given_up * 2 >= self.answers
    }
}

impl Tuning {
    fn new(rule: AdaptiveConcurrency, ceiling: u32) -> Self {
        Self {
            rule,
            ceiling: ceiling.max(1),
            most: START.max(rule.min_concurrency).min(ceiling).into(),
            window: Window::default(),
            average: 0.0,
            lowest: [f64::INFINITY; STRETCHES],
            stretch: Stretch { began: None, lasts: STRETCH_FIRST, was_full: false },
            quartered: None,
            shrinks_from: None,
            has_shrunk: false,
        }
    }

    /// Records the result of a request that waited since `sent`, with `waiting - 1` others. Returns the end of
    /// the probe, if it changed.
    fn add_sample(
        &mut self,
        sent: Duration,
        heard: ResponseOutcome,
        waiting: u32,
        now: Duration,
    ) -> Option<Duration> {
        let took = now.saturating_sub(sent).as_secs_f64();
        let pace = self.baseline_latency();
        let tells = match heard {
            ResponseOutcome::Answer => true,
            ResponseOutcome::GivenUp if pace.is_infinite() => took > WINDOW.as_secs_f64(),
            ResponseOutcome::Error | ResponseOutcome::GivenUp => took > pace,
        };
        if !tells {
            return None;
        }
        match self.quartered {
            Some(quartered) if now >= quartered.until => {
                self.quartered = None;
                self.window = Window::starting_at(now);
            }
            Some(quartered) if sent < quartered.believed_from => return None,
            _ => {}
        }
        let slowest = self.average.max(self.window.average_latency()).max(took);
        let longest = from_seconds(slowest * 2.0 * f64::from(ANSWERS_MIN)).max(STRETCH);
        if now.saturating_sub(self.window.began) > longest {
            // There are too few samples for a conclusion.
            self.window = Window::starting_at(now);
        }
        self.window.add_sample(took);
        self.window.given_up += u32::from(heard == ResponseOutcome::GivenUp);
        self.window.peak = self.window.peak.max(waiting);
        self.is_over(now).then(|| {
            let window = std::mem::replace(&mut self.window, Window::starting_at(now));
            self.finish_window(&window, now);
            self.quartered.map_or(Duration::ZERO, |quartered| quartered.until)
        })
    }

    /// True if the window is over. A new limit shows in responses only after one latency, so a window lasts at
    /// least two.
    fn is_over(&self, now: Duration) -> bool {
        if self.quartered.is_some() {
            return self.window.answers >= FEW;
        }
        let lasts = from_seconds(2.0 * self.window.average_latency()).clamp(WINDOW, STRETCH);
        let is_long = now.saturating_sub(self.window.began) >= lasts;
        is_long && (self.window.answers >= ANSWERS_MIN || self.window.given_up >= FEW)
    }

    fn finish_window(&mut self, window: &Window, now: Duration) {
        let average = window.average_latency();
        let was_quartered = self.quartered.take().is_some();
        if !was_quartered {
            self.average = average;
            self.stretch.was_full |= window.peak >= self.waiting_limit();
            let began = *self.stretch.began.get_or_insert(now);
            let passed = now.saturating_sub(began).as_secs_f64();
            if passed >= self.stretch.lasts.as_secs_f64() {
                self.next_stretch(passed / self.stretch.lasts.as_secs_f64(), now);
            }
        }
        if !window.is_given_up() {
            let [lowest, ..] = &mut self.lowest;
            *lowest = lowest.min(average + 2.0 * window.standard_error());
        }
        if !was_quartered {
            self.adjust_limit(window);
        }
    }

    /// Starts an interval, after this many lengths of the last one.
    fn next_stretch(&mut self, passed: f64, now: Duration) {
        for _ in (0..STRETCHES).take_while(|stretch| passed >= *stretch as f64 + 1.0) {
            self.lowest.rotate_right(1);
            let [lowest, ..] = &mut self.lowest;
            *lowest = f64::INFINITY;
        }
        let was_full = self.stretch.was_full;
        let lasts = STRETCH.max(from_seconds(self.average * 20.0));
        self.stretch = Stretch { began: Some(now), lasts, was_full: false };
        if was_full {
            let believed_from = now.saturating_add(from_seconds(self.average));
            let until = now.saturating_add(WINDOW).saturating_add(from_seconds(self.average * 2.0));
            self.quartered = Some(Quartered { believed_from, until });
        }
    }

    fn adjust_limit(&mut self, window: &Window) {
        let (average, peak) = (window.average_latency(), window.peak);
        if !window.is_given_up() && self.shrinks_in_vain(average) {
            self.lowest = [f64::INFINITY; STRETCHES];
            let [lowest, ..] = &mut self.lowest;
            *lowest = average;
            self.shrinks_from = None;
        }
        let slower = 1.0 + f64::from(self.rule.latency_tolerance_percent) / 100.0;
        let share = match window.is_given_up() {
            true => 0.5,
            false => {
                let at_least = (average - window.standard_error()).max(f64::MIN_POSITIVE);
                (self.baseline_latency() * slower + SLACK) / at_least
            }
        };
        let wanted = if share < 1.0 {
            self.has_shrunk = true;
            self.shrinks_from.get_or_insert((self.most, average));
            self.most * share.max(0.5)
        } else {
            self.shrinks_from = None;
            let is_far = !self.has_shrunk && peak >= self.waiting_limit();
            self.most + if is_far { self.most } else { self.most.sqrt() }
        };
        let is_used = f64::from(peak) >= self.most / 2.0;
        if wanted < self.most || is_used {
            let ceiling = f64::from(self.ceiling);
            self.most = f64::midpoint(self.most, wanted).min(ceiling).max(self.lowest_latency());
        }
    }

    /// True if latency is unchanged although far fewer requests wait: a queue would be shorter now.
    fn shrinks_in_vain(&mut self, average: f64) -> bool {
        let Some((most, before)) = self.shrinks_from else { return false };
        let is_least = self.most <= self.lowest_latency();
        if self.most < 2.0 || (is_least && self.most * 2.0 <= most && average > before * 0.8) {
            // A single request does not wait for others.
            return true;
        }
        if self.most * 4.0 > most {
            return false;
        }
        self.shrinks_from = Some((self.most, average));
        average > before / 2.0
    }

    /// Returns the baseline latency, in seconds.
    fn baseline_latency(&self) -> f64 {
        self.lowest.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn lowest_latency(&self) -> f64 {
        f64::from(self.rule.min_concurrency.clamp(1, self.ceiling))
    }

    /// Returns the limit of waiting requests outside probes.
    fn waiting_limit(&self) -> u32 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is bounded"
        )]
        let most = self.most as u32;
        most
    }
}

fn from_seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(STRETCH)
}

/// The initial limit.
const START: u32 = 20;
/// The minimum duration of a window, and its minimum number of samples.
const WINDOW: Duration = Duration::from_millis(100);
const ANSWERS_MIN: u32 = 50;
/// The minimum number of samples during a probe, or if they were abandoned.
const FEW: u32 = 10;
/// The baseline is kept for a minute, in intervals with one probe each. Intervals are longer if latency exceeds
/// half a second.
const STRETCHES: usize = 6;
const STRETCH: Duration = Duration::from_secs(10);
/// The first interval is short: the initial baseline may include a queue.
const STRETCH_FIRST: Duration = Duration::from_secs(1);
/// Latency differences below this number of seconds are ignored, however fast the application is: other
/// processes share its machine.
const SLACK: f64 = 0.001;

#[cfg(test)]
mod tests;
