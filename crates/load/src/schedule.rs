//! Computes the due times of requests, and determines which requests are measured. All times are since the start of the
//! run.

use std::time::Duration;

use crate::plan::{LoadModel, LoadPlan};
use crate::thread_share::ThreadShare;

/// The schedule of requests. All times are since the start of the run.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    warm_up: Duration,
    end_time: Duration,
    /// The number of requests that may still be measured.
    remaining_measured: u64,
    arrival_model: ArrivalModel,
}

/// The due times of requests.
#[derive(Debug, Clone, Copy)]
enum ArrivalModel {
    /// Closed loop: a request is due whenever a worker is free.
    Closed,
    /// Open loop: requests are due at a constant rate. This thread sends every `stride`th request of the run, starting
    /// with `next_index`.
    Open { rate: u32, next_index: u64, stride: u64 },
}

/// The next action of a free worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextAction {
    /// Send the request with this due time, which has been reached.
    Due(Duration),
    /// Wait until this time and check again: no request is due earlier.
    Wait(Duration),
    /// The run has no more requests.
    Over,
}

impl Schedule {
    /// Creates the schedule of one thread's share of a plan.
    pub(crate) fn new(plan: &LoadPlan, share: ThreadShare) -> Self {
        let arrival_model = match plan.load_model {
            LoadModel::Closed { .. } => ArrivalModel::Closed,
            LoadModel::Open { rate, .. } => ArrivalModel::Open {
                rate,
                next_index: share.index as u64,
                stride: share.thread_count as u64,
            },
        };
        let remaining_measured = plan.requests.map_or(u64::MAX, |requests| share.part_of(requests));
        Self {
            warm_up: plan.warm_up,
            end_time: plan.warm_up + plan.duration,
            remaining_measured,
            arrival_model,
        }
    }

    /// Returns the time at which the schedule ends: no request is due at or after it.
    pub(crate) fn end_time(&self) -> Duration {
        self.end_time
    }

    /// Returns the next action of a worker that is free at `now`, and assigns a due request to this worker.
    pub(crate) fn next_action(&mut self, now: Duration) -> NextAction {
        if self.remaining_measured == 0 {
            return NextAction::Over;
        }
        match self.arrival_model {
            ArrivalModel::Closed if now >= self.end_time => NextAction::Over,
            ArrivalModel::Closed => self.assign_request(now),
            ArrivalModel::Open { rate, next_index, .. } => {
                let due_time = compute_due_time(rate, next_index);
                if due_time >= self.end_time || now >= self.end_time + MAX_START_DELAY {
                    NextAction::Over
                } else if due_time > now {
                    NextAction::Wait(due_time)
                } else {
                    self.assign_request(due_time)
                }
            }
        }
    }

    /// Returns the due time of the next request that no worker sent although it was due before the end; `None` if all
    /// were sent. Called after the run, until it returns `None`.
    pub(crate) fn next_unsent(&mut self) -> Option<Duration> {
        let ArrivalModel::Open { rate, next_index, .. } = self.arrival_model else {
            return None;
        };
        let due_time = compute_due_time(rate, next_index);
        if due_time >= self.end_time || self.remaining_measured == 0 {
            return None;
        }
        self.assign_request(due_time);
        Some(due_time)
    }

    /// Ends the schedule at `now`, or earlier if its end has passed.
    pub(crate) fn end_at(&mut self, now: Duration) {
        self.end_time = self.end_time.min(now);
    }

    /// True if a request with this due time is measured.
    pub(crate) fn is_measured(&self, due_time: Duration) -> bool {
        due_time >= self.warm_up
    }

    fn assign_request(&mut self, due_time: Duration) -> NextAction {
        if let ArrivalModel::Open { next_index, stride, .. } = &mut self.arrival_model {
            *next_index += *stride;
        }
        if self.is_measured(due_time) {
            self.remaining_measured -= 1;
        }
        NextAction::Due(due_time)
    }
}

/// Returns the due time of the request with this index. It is computed from the start of the run, not from the previous
/// request, so that rounding errors do not accumulate.
fn compute_due_time(rate: u32, index: u64) -> Duration {
    let rate = u64::from(rate);
    let nanoseconds = (index % rate) * NANOSECONDS_PER_SECOND / rate;
    Duration::from_secs(index / rate) + Duration::from_nanos(nanoseconds)
}

const NANOSECONDS_PER_SECOND: u64 = 1_000_000_000;

/// The time after the end of the schedule in which requests that were due before the end are still sent. On a busy
/// machine workers wake late, which is not an error of the server.
const MAX_START_DELAY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn new_schedule(load_model: LoadModel, warm_up: Duration, duration: Duration) -> Schedule {
        let plan = LoadPlan { load_model, duration, warm_up, ..LoadPlan::new(Vec::new()) };
        Schedule::new(&plan, ThreadShare::WHOLE)
    }

    fn open_schedule(rate: u32, warm_up: Duration, duration: Duration) -> Schedule {
        new_schedule(LoadModel::Open { rate, connections: 1 }, warm_up, duration)
    }

    #[test]
    fn requests_are_due_at_a_constant_rate_without_drift() {
        for rate in [1, 3, 7, 1000, 999_983, 1_000_000] {
            for second in [0, 1, 86_399] {
                let index = u64::from(rate) * second;
                assert_eq!(compute_due_time(rate, index), Duration::from_secs(second));
            }
            let gap = compute_due_time(rate, 1);
            for index in 0..1000 {
                let drift = compute_due_time(rate, index + 1) - compute_due_time(rate, index);
                assert!(drift.abs_diff(gap) <= Duration::from_nanos(1));
            }
        }
    }

    #[test]
    fn no_request_is_sent_early_or_due_after_the_end() {
        let mut schedule = open_schedule(100, ms(0), ms(25));
        assert_eq!(schedule.next_action(ms(0)), NextAction::Due(ms(0)));
        assert_eq!(schedule.next_action(ms(0)), NextAction::Wait(ms(10)));
        assert_eq!(schedule.next_action(ms(9)), NextAction::Wait(ms(10)));
        assert_eq!(schedule.next_action(ms(10)), NextAction::Due(ms(10)));
        assert_eq!(
            schedule.next_action(ms(31)),
            NextAction::Due(ms(20)),
            "late, but due before the end"
        );
        assert_eq!(schedule.next_action(ms(31)), NextAction::Over);
        assert_eq!(schedule.next_unsent(), None);

        let mut closed = closed_schedule();
        assert_eq!(closed.next_action(ms(3)), NextAction::Due(ms(3)));
        assert_eq!(closed.next_action(ms(3)), NextAction::Due(ms(3)));
        assert_eq!(closed.next_action(ms(20)), NextAction::Over);
        assert_eq!(closed.next_unsent(), None);
    }

    fn closed_schedule() -> Schedule {
        new_schedule(LoadModel::Closed { connections: 1 }, ms(10), ms(10))
    }

    #[test]
    fn threads_share_a_rate_without_changing_it() {
        let plan = LoadPlan {
            load_model: LoadModel::Open { rate: 300, connections: 8 },
            duration: ms(1000),
            requests: Some(200),
            ..LoadPlan::new(Vec::new())
        };
        let mut due_times: Vec<Duration> = (0..4)
            .flat_map(|index| {
                let mut schedule = Schedule::new(&plan, ThreadShare { index, thread_count: 4 });
                std::iter::from_fn(move || schedule.next_unsent())
            })
            .collect();
        due_times.sort_unstable();
        assert_eq!(
            due_times,
            (0..200).map(|index| compute_due_time(300, index)).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_run_ends_after_the_requested_number_of_measured_requests() {
        for load_model in
            [LoadModel::Closed { connections: 1 }, LoadModel::Open { rate: 1000, connections: 1 }]
        {
            let plan = LoadPlan {
                load_model,
                warm_up: ms(5),
                duration: ms(100),
                requests: Some(3),
                ..LoadPlan::new(Vec::new())
            };
            let mut schedule = Schedule::new(&plan, ThreadShare::WHOLE);
            let actions: Vec<NextAction> =
                (0..20).map(|now| schedule.next_action(ms(now))).collect();
            let sent = actions.iter().filter(|action| matches!(action, NextAction::Due(_))).count();
            assert_eq!(sent, 5 + 3, "{actions:?}");
            assert_eq!(actions[8], NextAction::Over);
            assert_eq!(schedule.next_unsent(), None);
        }
    }

    #[test]
    fn no_request_is_due_after_a_stop() {
        let mut schedule = open_schedule(1000, ms(0), ms(100));
        schedule.end_at(ms(3));
        let unsent: Vec<Duration> = std::iter::from_fn(|| schedule.next_unsent()).collect();
        assert_eq!(unsent, (0..3).map(ms).collect::<Vec<_>>());
        assert_eq!(schedule.next_action(ms(2)), NextAction::Over);
        schedule.end_at(ms(50));
        assert_eq!(schedule.end_time(), ms(3));
    }

    #[test]
    fn requests_due_in_the_warm_up_are_not_measured() {
        let closed = closed_schedule();
        assert!(!closed.is_measured(ms(9)) && closed.is_measured(ms(10)));
    }

    #[test]
    fn unsent_due_requests_are_returned_one_by_one() {
        let mut schedule = open_schedule(1000, ms(0), ms(100));
        assert_eq!(schedule.next_action(ms(0)), NextAction::Due(ms(0)));
        // The only connection was busy until long after the end.
        assert_eq!(schedule.next_action(ms(250)), NextAction::Over);
        let unsent: Vec<Duration> = std::iter::from_fn(|| schedule.next_unsent()).collect();
        assert_eq!(unsent, (1..100).map(ms).collect::<Vec<_>>());
    }

    /// Returns the latencies of one connection to a server with 1 ms latency and a single stall of one second.
    fn stalled_latencies(mut schedule: Schedule) -> Vec<Duration> {
        let (mut now, mut latencies) = (ms(0), Vec::new());
        loop {
            match schedule.next_action(now) {
                NextAction::Over => return latencies,
                NextAction::Wait(until) => now = until,
                NextAction::Due(due_time) => {
                    now += if latencies.len() == 50 { ms(1000) } else { ms(1) };
                    latencies.push(now - due_time);
                }
            }
        }
    }

    #[test]
    fn a_stall_is_charged_to_every_request_that_was_due_meanwhile() {
        let slow_count = |latencies: &[Duration]| {
            latencies.iter().filter(|latency| **latency >= ms(500)).count()
        };
        // At 100 per second, a stall of a second delays the fifty requests due in its first half by at least
        // half a second, and then the connection must catch up.
        let open = stalled_latencies(open_schedule(100, ms(0), ms(3000)));
        assert_eq!(open.len(), 300);
        assert_eq!(open[50], ms(1000));
        assert_eq!(open[51], ms(991));
        assert!((50..60).contains(&slow_count(&open)), "{}", slow_count(&open));
        // The closed loop sends no requests meanwhile: coordinated omission.
        let closed =
            stalled_latencies(new_schedule(LoadModel::Closed { connections: 1 }, ms(0), ms(3000)));
        assert_eq!(slow_count(&closed), 1);
    }
}
