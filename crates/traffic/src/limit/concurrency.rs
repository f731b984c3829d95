//! How many requests may be under way at once, and how that number follows what the application can take.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leno_model::{AdaptiveConcurrency, Concurrency};

use super::nanoseconds;

/// A number of places for requests. Threads share it.
#[derive(Debug)]
pub(super) struct Places {
    /// How many requests have a place, until their answers are whole.
    taken: AtomicU32,
    requests: u32,
    adaptive: Option<Adaptive>,
}

/// How many of them may wait for their answers to begin, which is what shows how busy the application is.
/// Who has not sent all of a request does not wait yet, and who reads a stream or a WebSocket does not any more.
#[derive(Debug)]
struct Adaptive {
    waiting: AtomicU32,
    most: AtomicU32,
    /// Until when three quarters of the places are closed, in nanoseconds.
    quartered_until: AtomicU64,
    least: u32,
    tuning: Mutex<Tuning>,
}

/// What is heard of a request that has a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// Its answer has begun, and is one that takes what answers take.
    Answer,
    /// Its answer is an error. That may be far faster than an answer, and is slow only where answers are.
    Error,
    /// There was none: its client gave up, or the application did.
    GivenUp,
}

impl Places {
    pub(super) fn new(rule: &Concurrency) -> Self {
        let adaptive = rule.adaptive.map(|adaptive| Adaptive::new(adaptive, rule.requests));
        Self { taken: AtomicU32::new(0), requests: rule.requests, adaptive }
    }

    /// Takes a place, if there is one. `waits`: all of the request is there.
    pub(super) fn take(&self, waits: bool, now: Duration) -> bool {
        if !take_of(&self.taken, self.requests) {
            return false;
        }
        let has_room = self.adaptive.as_ref().is_none_or(|it| match waits {
            true => take_of(&it.waiting, it.most(now)),
            false => it.waiting.load(Ordering::Relaxed) < it.most(now),
        });
        if !has_room {
            self.taken.fetch_sub(1, Ordering::Relaxed);
        }
        has_room
    }

    /// A place that was taken is free again. `waits`: its answer has not begun.
    pub(super) fn leave(&self, waits: bool) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
        if waits {
            self.is_heard();
        }
    }

    /// All of a request is there that took a place before: it waits from now on.
    pub(super) fn waits(&self) {
        if let Some(adaptive) = &self.adaptive {
            adaptive.waiting.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One less waits.
    pub(super) fn is_heard(&self) {
        if let Some(adaptive) = &self.adaptive {
            adaptive.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// One that waits since `sent` is heard of, before [`Self::is_heard`].
    pub(super) fn learn(&self, sent: Duration, (heard, now): (Heard, Duration)) {
        let Some(adaptive) = &self.adaptive else { return };
        let waiting = adaptive.waiting.load(Ordering::Relaxed);
        let mut tuning = adaptive.tuning.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(quartered_until) = tuning.sample((sent, heard), waiting, now) {
            adaptive.quartered_until.store(nanoseconds(quartered_until), Ordering::Relaxed);
            adaptive.most.store(tuning.most(), Ordering::Relaxed);
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
            most: AtomicU32::new(tuning.most()),
            quartered_until: AtomicU64::new(0),
            least: rule.least.clamp(1, ceiling.max(1)),
            tuning: Mutex::new(tuning),
        }
    }

    fn most(&self, now: Duration) -> u32 {
        let most = self.most.load(Ordering::Relaxed);
        match nanoseconds(now) < self.quartered_until.load(Ordering::Relaxed) {
            true => (most / 4).max(self.least),
            false => most,
        }
    }
}

/// Looks for the most requests that the application answers nearly as fast as when it has little to do.
///
/// How long answers take is averaged over windows, and the lowest average of the last minute is the
/// pace of an application without a queue. While answers take much longer than that there is a queue
/// in it, and fewer are let in; while they do not, and the places are used, a few more. Now and then
/// three quarters of the places are closed for a moment, or the queue would become the pace. Where it has
/// let in a quarter, and answers became hardly faster, there was no queue: that is the pace from now on.
///
/// Answers differ, and so do averages of a few of them. The lowest of many averages is far below what an
/// answer takes, so what cannot be told apart by its standard error counts as the same.
#[derive(Debug)]
struct Tuning {
    rule: AdaptiveConcurrency,
    ceiling: u32,
    /// How many may wait, as it is reckoned.
    most: f64,
    window: Window,
    /// The average of the last window in which all places were open, in seconds.
    average: f64,
    /// The lowest averages of the last stretches of time; this one is the first.
    lowest: [f64; STRETCHES],
    stretch: Stretch,
    quartered: Option<Quartered>,
    /// How many could wait, and the average then, when it began to let in fewer.
    shrinks_from: Option<(f64, f64)>,
    /// It has let in fewer at least once: there is something to be found, and not far away.
    has_shrunk: bool,
}

#[derive(Debug, Default)]
struct Window {
    began: Duration,
    seconds: f64,
    /// The sum of their squares.
    squares: f64,
    answers: u32,
    /// How many of them were given up.
    given_up: u32,
    /// The most requests that waited.
    peak: u32,
}

#[derive(Debug)]
struct Stretch {
    /// With the first answer.
    began: Option<Duration>,
    lasts: Duration,
    /// All places were taken in it.
    was_full: bool,
}

/// Three quarters of the places are closed.
#[derive(Debug, Clone, Copy)]
struct Quartered {
    /// What was sent before may have waited in a queue.
    believed_from: Duration,
    until: Duration,
}

impl Window {
    fn at(began: Duration) -> Self {
        Self { began, ..Self::default() }
    }

    fn average(&self) -> f64 {
        self.seconds / f64::from(self.answers)
    }

    fn hear(&mut self, took: f64) {
        self.seconds += took;
        self.squares += took * took;
        self.answers += 1;
    }

    /// By how much the average may be wrong: its standard error.
    fn doubt(&self) -> f64 {
        let (answers, average) = (f64::from(self.answers), self.average());
        let variance = (self.squares / answers - average * average).max(0.0);
        (variance / answers).sqrt()
    }

    /// Whether half of them were given up: what they would have taken nobody knows.
    fn is_given_up(&self) -> bool {
        self.given_up * 2 >= self.answers
    }
}

impl Tuning {
    fn new(rule: AdaptiveConcurrency, ceiling: u32) -> Self {
        Self {
            rule,
            ceiling: ceiling.max(1),
            most: START.max(rule.least).min(ceiling).into(),
            window: Window::default(),
            average: 0.0,
            lowest: [f64::INFINITY; STRETCHES],
            stretch: Stretch { began: None, lasts: STRETCH_FIRST, was_full: false },
            quartered: None,
            shrinks_from: None,
            has_shrunk: false,
        }
    }

    /// One that waited since `sent`, with `waiting - 1` others, is heard of. Until when three quarters of
    /// the places are closed, when something has changed.
    fn sample(
        &mut self,
        (sent, heard): (Duration, Heard),
        waiting: u32,
        now: Duration,
    ) -> Option<Duration> {
        let took = now.saturating_sub(sent).as_secs_f64();
        let pace = self.pace();
        let tells = match heard {
            Heard::Answer => true,
            Heard::GivenUp if pace.is_infinite() => took > WINDOW.as_secs_f64(),
            Heard::Error | Heard::GivenUp => took > pace,
        };
        if !tells {
            return None;
        }
        match self.quartered {
            Some(quartered) if now >= quartered.until => {
                self.quartered = None;
                self.window = Window::at(now);
            }
            Some(quartered) if sent < quartered.believed_from => return None,
            _ => {}
        }
        let slowest = self.average.max(self.window.average()).max(took);
        let longest = seconds(slowest * 2.0 * f64::from(ANSWERS_MIN)).max(STRETCH);
        if now.saturating_sub(self.window.began) > longest {
            // Too little came to tell anything.
            self.window = Window::at(now);
        }
        self.window.hear(took);
        self.window.given_up += u32::from(heard == Heard::GivenUp);
        self.window.peak = self.window.peak.max(waiting);
        self.is_over(now).then(|| {
            let window = std::mem::replace(&mut self.window, Window::at(now));
            self.conclude(&window, now);
            self.quartered.map_or(Duration::ZERO, |quartered| quartered.until)
        })
    }

    /// What is let in now shows in answers only when they come: a window is twice as long as they take.
    fn is_over(&self, now: Duration) -> bool {
        if self.quartered.is_some() {
            return self.window.answers >= FEW;
        }
        let lasts = seconds(2.0 * self.window.average()).clamp(WINDOW, STRETCH);
        let is_long = now.saturating_sub(self.window.began) >= lasts;
        is_long && (self.window.answers >= ANSWERS_MIN || self.window.given_up >= FEW)
    }

    fn conclude(&mut self, window: &Window, now: Duration) {
        let average = window.average();
        let was_quartered = self.quartered.take().is_some();
        if !was_quartered {
            self.average = average;
            self.stretch.was_full |= window.peak >= self.most();
            let began = *self.stretch.began.get_or_insert(now);
            let passed = now.saturating_sub(began).as_secs_f64();
            if passed >= self.stretch.lasts.as_secs_f64() {
                self.next_stretch(passed / self.stretch.lasts.as_secs_f64(), now);
            }
        }
        if !window.is_given_up() {
            let [lowest, ..] = &mut self.lowest;
            *lowest = lowest.min(average + 2.0 * window.doubt());
        }
        if !was_quartered {
            self.adjust(window);
        }
    }

    /// Begins a stretch, after so many of the length of the last one.
    fn next_stretch(&mut self, passed: f64, now: Duration) {
        for _ in (0..STRETCHES).take_while(|stretch| passed >= *stretch as f64 + 1.0) {
            self.lowest.rotate_right(1);
            let [lowest, ..] = &mut self.lowest;
            *lowest = f64::INFINITY;
        }
        let was_full = self.stretch.was_full;
        let lasts = STRETCH.max(seconds(self.average * 20.0));
        self.stretch = Stretch { began: Some(now), lasts, was_full: false };
        if was_full {
            let believed_from = now.saturating_add(seconds(self.average));
            let until = now.saturating_add(WINDOW).saturating_add(seconds(self.average * 2.0));
            self.quartered = Some(Quartered { believed_from, until });
        }
    }

    fn adjust(&mut self, window: &Window) {
        let (average, peak) = (window.average(), window.peak);
        if !window.is_given_up() && self.shrinks_in_vain(average) {
            self.lowest = [f64::INFINITY; STRETCHES];
            let [lowest, ..] = &mut self.lowest;
            *lowest = average;
            self.shrinks_from = None;
        }
        let slower = 1.0 + f64::from(self.rule.slower_percent) / 100.0;
        let share = match window.is_given_up() {
            true => 0.5,
            false => {
                let at_least = (average - window.doubt()).max(f64::MIN_POSITIVE);
                (self.pace() * slower + SLACK) / at_least
            }
        };
        let wanted = if share < 1.0 {
            self.has_shrunk = true;
            self.shrinks_from.get_or_insert((self.most, average));
            self.most * share.max(0.5)
        } else {
            self.shrinks_from = None;
            let is_far = !self.has_shrunk && peak >= self.most();
            self.most + if is_far { self.most } else { self.most.sqrt() }
        };
        let is_used = f64::from(peak) >= self.most / 2.0;
        if wanted < self.most || is_used {
            let ceiling = f64::from(self.ceiling);
            self.most = f64::midpoint(self.most, wanted).min(ceiling).max(self.least());
        }
    }

    /// Whether answers take as long as before, though far fewer wait: a queue would be shorter now.
    fn shrinks_in_vain(&mut self, average: f64) -> bool {
        let Some((most, before)) = self.shrinks_from else { return false };
        let is_least = self.most <= self.least();
        if self.most < 2.0 || (is_least && self.most * 2.0 <= most && average > before * 0.8) {
            // Who is alone waits for nobody.
            return true;
        }
        if self.most * 4.0 > most {
            return false;
        }
        self.shrinks_from = Some((self.most, average));
        average > before / 2.0
    }

    /// How long an answer takes without a queue, in seconds.
    fn pace(&self) -> f64 {
        self.lowest.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn least(&self) -> f64 {
        f64::from(self.rule.least.clamp(1, self.ceiling))
    }

    /// How many may wait while all places are open.
    fn most(&self) -> u32 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is bounded"
        )]
        let most = self.most as u32;
        most
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(STRETCH)
}

/// How many are let in before anything is known.
const START: u32 = 20;
/// How long a window is at least, and how many answers it has.
const WINDOW: Duration = Duration::from_millis(100);
const ANSWERS_MIN: u32 = 50;
/// How many do while places are closed, or when they were given up.
const FEW: u32 = 10;
/// A pace is believed for a minute, in stretches: it is looked for anew in each. Where answers take
/// longer than half a second, so do stretches.
const STRETCHES: usize = 6;
const STRETCH: Duration = Duration::from_secs(10);
/// Whatever is known at first may be the pace of a queue.
const STRETCH_FIRST: Duration = Duration::from_secs(1);
/// Seconds that prove nothing, however fast an application is: others run on its machine.
const SLACK: f64 = 0.001;

#[cfg(test)]
mod tests;
