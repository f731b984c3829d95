//! Runs a plan on one thread: workers take turns, each with one request in progress at a time.

use std::cell::RefCell;
use std::io;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};

use crate::clock::Alarm;
use crate::draw::Draw;
use crate::error_kind::ErrorKind;
use crate::plan::{InvalidPlan, Pace, Plan, Protocol, Reuse};
use crate::report::{Answer, Report};
use crate::schedule::{Schedule, Turn};
use crate::share::Share;
use crate::statistics::{Counters, Outcome, RunStatistics};
use crate::stop::Stop;
use crate::window::{Mark, Window};
use crate::world::{Machine, Surroundings, World};
use crate::{http1, http2};

/// Sends the requests of a plan and reports their results. `progress` is updated ten times a second.
///
/// Everything runs on the calling thread: use a dedicated current-thread runtime, or
/// [`drive_on_threads`](crate::drive_on_threads). Dropping the future ends the run without a report.
///
/// # Errors
/// [`DriveError`] if the plan is invalid or no timer is available.
pub async fn drive_load(
    plan: Plan,
    progress: watch::Sender<Counters>,
) -> Result<Report, DriveError> {
    plan.check()?;
    let order = Order { plan, share: Share::WHOLE, stop: Stop::default(), progress };
    order.carry_out(Machine).await
}

/// The reason why a plan was not run.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The plan is invalid.
    #[error(transparent)]
    Plan(#[from] InvalidPlan),
    /// The kernel provided no timer.
    #[error("cannot create the timer that paces requests: raise the limit of open files")]
    Timer(#[source] io::Error),
    /// The kernel provided no thread, or no event queue for one.
    #[error("cannot start a thread of the load generator")]
    Thread(#[source] io::Error),
    /// A thread ended without a report.
    #[error("a thread of the load generator failed")]
    Failed,
}

/// The task of one thread.
#[derive(Debug)]
pub(crate) struct Order {
    /// A validated plan.
    pub(crate) plan: Plan,
    pub(crate) share: Share,
    pub(crate) stop: Stop,
    pub(crate) progress: watch::Sender<Counters>,
}

impl Order {
    /// Runs it.
    pub(crate) async fn carry_out<W: World>(self, world: W) -> Result<Report, DriveError> {
        let mut workers = Workers::new(&self.plan, self.share)?;
        let thread = Rc::new(ThreadShared::new(&self.plan, self.share, world)?);
        let local = LocalSet::new();
        local.run_until(self.run_workers(&thread, &mut workers)).await;
        drop(local);
        let thread = Rc::into_inner(thread).expect("all workers have ended");
        Ok(thread.into_report(&self.progress))
    }

    /// Runs the workers until the last one has ended.
    async fn run_workers<W: World>(&self, thread: &Rc<ThreadShared<W>>, workers: &mut Workers) {
        let mut running = JoinSet::new();
        let warm_up = self.plan.warm_up;
        if warm_up.is_zero() {
            thread.record_mark();
        }
        workers.create_workers(thread, |worker| drop(running.spawn_local(worker.run())));
        let mut tick = interval(PROGRESS_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let (marks, end) = (thread.marks.borrow().len(), thread.schedule.borrow().last_due());
            let next_mark = if marks == 0 { warm_up.min(end) } else { end };
            tokio::select! {
                ended = running.join_next() => match ended {
                    None => return,
                    Some(Err(error)) if error.is_panic() => resume_unwind(error.into_panic()),
                    Some(_) => {}
                },
                () = sleep_until(thread.around.clock.to_instant(next_mark)), if marks < 2 => thread.record_mark(),
                _ = tick.tick() => {
                    let now = thread.around.clock.now();
                    self.progress.send_replace(thread.statistics.borrow().counters_at(now));
                    if self.stop.is_asked() {
                        thread.schedule.borrow_mut().end_at(now);
                    }
                }
            }
        }
    }
}

/// The workers of a thread before they start.
struct Workers {
    connections: u64,
    streams: usize,
    requests: Requests,
}

/// The prepared requests of the workers.
enum Requests {
    Http1(http1::Requests),
    Http2(http2::Requests),
}

impl Workers {
    fn new(plan: &Plan, share: Share) -> Result<Self, InvalidPlan> {
        let requests = match plan.protocol {
            Protocol::Http1 => Requests::Http1(http1::Requests::new(plan)?),
            Protocol::Http2 { .. } | Protocol::Grpc { .. } => {
                Requests::Http2(http2::Requests::new(plan)?)
            }
        };
        let connections = share.part_of(plan.pace.connection_count() as u64);
        Ok(Self { connections, streams: plan.protocol.streams_per_connection(), requests })
    }

    fn create_workers<W: World>(
        &self,
        thread: &Rc<ThreadShared<W>>,
        mut begin: impl FnMut(Worker<W>),
    ) {
        let around = &thread.around;
        for _ in 0..self.connections {
            match &self.requests {
                Requests::Http1(requests) => {
                    let carrier = Carrier::Http1(http1::Lines::new(requests, around));
                    begin(Worker { thread: Rc::clone(thread), carrier });
                }
                Requests::Http2(requests) => {
                    let shared = Rc::new(http2::Shared::new(around.address_count()));
                    for _ in 0..self.streams {
                        let streams = http2::Streams::new(requests, &shared, around);
                        let carrier = Carrier::Http2(streams);
                        begin(Worker { thread: Rc::clone(thread), carrier });
                    }
                }
            }
        }
    }
}

/// The shared state of a thread's workers.
struct ThreadShared<W> {
    around: Surroundings<W>,
    schedule: RefCell<Schedule>,
    draw: RefCell<Draw>,
    /// Idle workers queue here; the first of them waits for the next request.
    alarm: Mutex<Alarm>,
    /// The pause of a worker after a failed connection attempt; an open run is paced by the clock anyway.
    pause: Option<Duration>,
    statistics: RefCell<RunStatistics>,
    /// The start and the end of the measurement, once reached.
    marks: RefCell<Vec<Mark>>,
}

/// A request assigned to a worker.
#[derive(Clone, Copy)]
struct Turned {
    target: usize,
    due: Duration,
    now: Duration,
    measured: bool,
}

impl<W: World> ThreadShared<W> {
    fn new(plan: &Plan, share: Share, world: W) -> Result<Self, DriveError> {
        let alarm = world.create_alarm().map_err(DriveError::Timer)?;
        let names = plan.targets.iter().map(|target| target.name.as_str());
        let weights = plan.targets.iter().map(|target| target.weight);
        let seed = plan.seed.wrapping_add(share.index as u64);
        Ok(Self {
            schedule: RefCell::new(Schedule::new(plan, share)),
            draw: RefCell::new(Draw::new(weights, seed)),
            alarm: Mutex::new(alarm),
            pause: matches!(plan.pace, Pace::Closed { .. }).then_some(CONNECT_PAUSE),
            statistics: RefCell::new(RunStatistics::new(names, plan.warm_up)),
            marks: RefCell::default(),
            around: Surroundings::new(world, plan),
        })
    }

    /// Returns the next request when it is due; `None` when the run is over. The current time is `now`.
    async fn next(&self, now: Duration) -> Option<Turned> {
        match self.next_due(now) {
            Ok(turned) => turned,
            // No request is due: rejoin the queue.
            Err(_) => self.wait_for_due().await,
        }
    }

    async fn wait_for_due(&self) -> Option<Turned> {
        let mut alarm = self.alarm.lock().await;
        loop {
            let now = self.around.clock.now();
            match self.next_due(now) {
                Ok(turned) => return turned,
                Err(until) => alarm.wait_for(until.saturating_sub(now)).await,
            }
        }
    }

    /// Returns the request that is due, `None` if the run is over, or the time of the next check.
    fn next_due(&self, now: Duration) -> Result<Option<Turned>, Duration> {
        let mut schedule = self.schedule.borrow_mut();
        match schedule.next_turn(now) {
            Turn::Over => Ok(None),
            Turn::Wait(until) => Err(until),
            Turn::Due(due) => {
                let measured = schedule.is_measured(due);
                Ok(Some(Turned { target: self.draw.borrow_mut().next(), due, now, measured }))
            }
        }
    }

    /// Records the start or the end of the measurement.
    fn record_mark(&self) {
        let now = self.around.clock.now();
        let mark = Mark::read_counters(now, &self.statistics.borrow(), &self.around.meter);
        self.marks.borrow_mut().push(mark);
    }

    /// Records due but unsent requests, and completes the report.
    fn into_report(self, progress: &watch::Sender<Counters>) -> Report {
        self.record_mark();
        let mut schedule = self.schedule.into_inner();
        let mut draw = self.draw.into_inner();
        let mut statistics = self.statistics.into_inner();
        while let Some(due) = schedule.left_over() {
            statistics.record_unsent(draw.next(), due);
        }
        progress.send_replace(statistics.counters_at(self.around.clock.now()));
        let window = match self.marks.into_inner().as_slice() {
            [first, last, ..] => Window::from_marks(first, last),
            // Stopped during the warm-up.
            _ => Window::default(),
        };
        statistics.into_report(&window)
    }
}

/// Has one request in progress at a time.
struct Worker<W: World> {
    thread: Rc<ThreadShared<W>>,
    carrier: Carrier<W::Stream>,
}

/// The transport of requests.
enum Carrier<S> {
    Http1(http1::Lines<S>),
    Http2(http2::Streams),
}

impl<W: World> Worker<W> {
    async fn run(mut self) {
        let thread = Rc::clone(&self.thread);
        let around = &thread.around;
        let mut now = around.clock.now();
        while let Some(turned) = thread.next(now).await {
            let result = self.send_request(turned).await;
            now = around.clock.now();
            let Turned { target, due, measured, .. } = turned;
            let outcome = Outcome { target, due, done: now, result, measured };
            thread.statistics.borrow_mut().record_outcome(&outcome);
            if around.reuse == Reuse::Fresh {
                self.wait_for_close().await;
                now = around.clock.now();
            }
            let failed = matches!(result, Err(ErrorKind::Connect | ErrorKind::Exhausted));
            if let (true, Some(pause)) = (failed, thread.pause) {
                sleep(pause).await;
                now = around.clock.now();
            }
        }
    }

    async fn send_request(&mut self, turned: Turned) -> Result<Answer, ErrorKind> {
        let around = &self.thread.around;
        match &mut self.carrier {
            Carrier::Http1(lines) => lines.send_request(around, turned.target, turned.now).await,
            Carrier::Http2(streams) => streams.send_request(around, turned.target).await,
        }
    }

    async fn wait_for_close(&mut self) {
        match &mut self.carrier {
            Carrier::Http1(lines) => lines.wait_for_close(&self.thread.around).await,
            Carrier::Http2(_) => {}
        }
    }
}

/// Short enough for a live display, too long to affect the measurement.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Without it, a closed run against a port without a listener would fail as fast as the kernel can.
const CONNECT_PAUSE: Duration = Duration::from_millis(10);
