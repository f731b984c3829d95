//! How many requests may be under way at once, and how that number follows what the application can take.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leno_model::{AdaptiveConcurrency, Concurrency};

/// A number of places for requests. Threads share it.
#[derive(Debug)]
pub(super) struct Places {
    taken: AtomicU32,
    /// How many there are now.
    most: AtomicU32,
    tuning: Option<Mutex<Tuning>>,
}

impl Places {
    pub(super) fn new(rule: &Concurrency) -> Self {
        let tuning = rule.adaptive.map(|adaptive| Tuning::new(adaptive, rule.requests));
        Self {
            taken: AtomicU32::new(0),
            most: AtomicU32::new(tuning.as_ref().map_or(rule.requests, Tuning::most)),
            tuning: tuning.map(Mutex::new),
        }
    }

    /// Takes a place, if there is one.
    pub(super) fn take(&self) -> bool {
        let most = self.most.load(Ordering::Relaxed);
        let more = |taken: u32| (taken < most).then(|| taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// A place is free again.
    pub(super) fn leave(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }

    /// The answer to a request that has a place began after so long.
    pub(super) fn learn(&self, took: Duration, now: Duration) {
        let Some(tuning) = &self.tuning else { return };
        let taken = self.taken.load(Ordering::Relaxed);
        let mut tuning = tuning.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(most) = tuning.sample((took, taken), now) {
            self.most.store(most, Ordering::Relaxed);
        }
    }
}

/// Looks for the most requests that the application answers nearly as fast as when it has little to do.
///
/// How long answers take is averaged over windows, and the lowest average of the last minute is the
/// pace of an application without a queue. While answers take much longer than that there is a queue
/// in it, and fewer are let in; while they do not, and the places are used, a few more. Now and then
/// three quarters of the places are closed for a moment, or the queue would become the pace.
#[derive(Debug)]
struct Tuning {
    rule: AdaptiveConcurrency,
    ceiling: u32,
    /// How many may be under way, as it is reckoned.
    most: f64,
    window: Window,
    /// The lowest averages, in seconds, of the last stretches of time; this one is the first.
    lowest: [f64; STRETCHES],
    stretch_ends: Duration,
    /// All places were taken in this stretch.
    was_full: bool,
    /// For how many windows three quarters of the places are closed still.
    quartered: u32,
}

#[derive(Debug, Default)]
struct Window {
    ends: Duration,
    seconds: f64,
    answers: u32,
    /// The most requests that were under way.
    peak: u32,
}

impl Tuning {
    fn new(rule: AdaptiveConcurrency, ceiling: u32) -> Self {
        let most = START.max(rule.least).min(ceiling).into();
        Self {
            rule,
            ceiling,
            most,
            window: Window::default(),
            lowest: [f64::INFINITY; STRETCHES],
            stretch_ends: Duration::ZERO,
            was_full: false,
            quartered: 0,
        }
    }

    /// An answer took so long, while so many requests were under way. How many may be from now on, when
    /// that has changed.
    fn sample(&mut self, (took, taken): (Duration, u32), now: Duration) -> Option<u32> {
        self.window.seconds += took.as_secs_f64();
        self.window.answers += 1;
        self.window.peak = self.window.peak.max(taken);
        if now < self.window.ends || self.window.answers < ANSWERS_MIN {
            return None;
        }
        let ended = Window { ends: now.saturating_add(WINDOW), ..Window::default() };
        let Window { seconds, answers, peak, .. } = std::mem::replace(&mut self.window, ended);
        let average = seconds / f64::from(answers);
        self.was_full |= peak >= self.most();
        if now >= self.stretch_ends {
            self.next_stretch(now);
        }
        let [lowest, ..] = &mut self.lowest;
        *lowest = lowest.min(average);
        match self.quartered.checked_sub(1) {
            Some(left) => self.quartered = left,
            None => self.adjust(average, peak),
        }
        Some(self.most())
    }

    fn next_stretch(&mut self, now: Duration) {
        self.lowest.rotate_right(1);
        let [lowest, ..] = &mut self.lowest;
        *lowest = f64::INFINITY;
        self.stretch_ends = now.saturating_add(STRETCH);
        if std::mem::take(&mut self.was_full) {
            self.quartered = QUARTERED_WINDOWS;
        }
    }

    fn adjust(&mut self, average: f64, peak: u32) {
        let pace = self.lowest.iter().copied().fold(f64::INFINITY, f64::min);
        let slower = 1.0 + f64::from(self.rule.slower_percent) / 100.0;
        let share = ((pace * slower + SLACK) / average.max(f64::MIN_POSITIVE)).clamp(0.5, 1.0);
        let wanted = self.most * share + self.most.sqrt();
        let is_used = f64::from(peak) >= self.most / 2.0;
        if wanted < self.most || is_used {
            let (least, ceiling) = (f64::from(self.rule.least), f64::from(self.ceiling));
            self.most = f64::midpoint(self.most, wanted).min(ceiling).max(least.min(ceiling));
        }
    }

    /// How many may be under way now.
    fn most(&self) -> u32 {
        let most = if self.quartered > 0 { self.most / 4.0 } else { self.most };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is bounded"
        )]
        let most = most as u32;
        most.max(self.rule.least).clamp(1, self.ceiling.max(1))
    }
}

/// How many are let in before anything is known.
const START: u32 = 20;
/// How long a window is at least, and how many answers it has.
const WINDOW: Duration = Duration::from_millis(100);
const ANSWERS_MIN: u32 = 10;
/// A pace is believed for a minute, in stretches: it is looked for anew in each.
const STRETCHES: usize = 6;
const STRETCH: Duration = Duration::from_secs(10);
/// In the first window after places are closed, answers come of requests from before.
const QUARTERED_WINDOWS: u32 = 2;
/// Seconds that prove nothing, however fast an application is: others run on its machine.
const SLACK: f64 = 0.001;

#[cfg(test)]
mod tests {
    use super::*;

    /// An application that serves so many at once, each for so long; the others wait. As many as may
    /// come do, or as many as `come`.
    struct Application {
        workers: f64,
        serves: f64,
        come: u32,
    }

    /// How many may be under way after so long.
    fn after(tuning: &mut Tuning, from: Duration, seconds: u64, app: &Application) -> u32 {
        let mut now = from;
        let end = from + Duration::from_secs(seconds);
        while now < end {
            let taken = tuning.most().min(app.come);
            let took = app.serves * (f64::from(taken) / app.workers).max(1.0);
            tuning.sample((Duration::from_secs_f64(took), taken), now);
            now += Duration::from_secs_f64(took / f64::from(taken));
        }
        // Not that of a moment in which places are closed.
        tuning.quartered = 0;
        tuning.most()
    }

    fn tuning(least: u32, ceiling: u32) -> Tuning {
        Tuning::new(AdaptiveConcurrency { least, slower_percent: 50 }, ceiling)
    }

    #[test]
    fn it_finds_what_an_application_can_take() {
        for (workers, expected) in [(4.0, 6..=14), (10.0, 14..=26), (100.0, 140..=220)] {
            let app = Application { workers, serves: 0.010, come: u32::MAX };
            let most = after(&mut tuning(1, 1000), Duration::ZERO, 60, &app);
            assert!(expected.contains(&most), "{workers}: {most}");
        }
    }

    #[test]
    fn it_does_not_drift() {
        let app = Application { workers: 10.0, serves: 0.010, come: u32::MAX };
        let mut tuning = tuning(1, 1000);
        let first = after(&mut tuning, Duration::ZERO, 120, &app);
        let last = after(&mut tuning, Duration::from_secs(120), 3600, &app);
        assert!(last <= first * 5 / 4, "{first} → {last}");
    }

    #[test]
    fn it_follows_an_application_that_becomes_slow_and_fast_again() {
        let fast = Application { workers: 20.0, serves: 0.010, come: u32::MAX };
        let busy = Application { workers: 5.0, ..fast };
        let mut tuning = tuning(1, 1000);
        let before = after(&mut tuning, Duration::ZERO, 60, &fast);
        let meanwhile = after(&mut tuning, Duration::from_secs(60), 60, &busy);
        let again = after(&mut tuning, Duration::from_secs(120), 60, &fast);
        assert!(meanwhile * 2 < before, "{before} → {meanwhile}");
        assert!(again * 10 >= before * 8, "{before} → {again}");
    }

    #[test]
    fn a_new_pace_is_believed_after_a_minute() {
        let before = Application { workers: 20.0, serves: 0.010, come: u32::MAX };
        let mut tuning = tuning(1, 1000);
        let first = after(&mut tuning, Duration::ZERO, 60, &before);
        let release = Application { serves: 0.050, ..before };
        let last = after(&mut tuning, Duration::from_secs(60), 180, &release);
        assert!(last * 10 >= first * 8, "{first} → {last}");
    }

    #[test]
    fn it_keeps_to_its_bounds_and_does_not_grow_unused() {
        let well = Application { workers: 100.0, serves: 0.010, come: u32::MAX };
        let hardly = Application { workers: 1.0, ..well };
        let mut bounded = tuning(7, 1000);
        after(&mut bounded, Duration::ZERO, 30, &well);
        assert_eq!(after(&mut bounded, Duration::from_secs(30), 20, &hardly), 7);
        let all = Application { workers: 1e6, serves: 0.010, come: u32::MAX };
        assert_eq!(after(&mut tuning(1, 64), Duration::ZERO, 60, &all), 64);
        let few = Application { workers: 1e6, serves: 0.010, come: 5 };
        assert_eq!(after(&mut tuning(1, 1000), Duration::ZERO, 60, &few), START);
    }

    #[test]
    fn a_place_is_one_request_and_no_more_than_there_are_is_given() {
        let places = Places::new(&Concurrency { requests: 2, ..Concurrency::default() });
        assert_eq!([places.take(), places.take(), places.take()], [true, true, false]);
        places.leave();
        assert_eq!([places.take(), places.take()], [true, false]);
    }
}
