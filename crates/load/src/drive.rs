//! Runs a plan on one thread: workers take turns, each with one request in progress at a time.

use std::cell::RefCell;
use std::io;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};

use crate::clock::Timer;
use crate::environment::{Environment, SystemEnvironment, ThreadContext};
use crate::error_kind::ErrorKind;
use crate::plan::{ConnectionReuse, InvalidPlan, LoadModel, LoadPlan, LoadProtocol};
use crate::report::{LoadReport, ResponseStatus};
use crate::schedule::{NextAction, Schedule};
use crate::statistics::{ProgressCounters, RequestMeasurement, RunStatistics};
use crate::stop::StopHandle;
use crate::target_sampler::TargetSampler;
use crate::thread_share::ThreadShare;
use crate::window::{CounterSnapshot, MeasuredWindow};
use crate::{http1, http2};

/// Sends the requests of a plan and reports their results. `progress` is updated ten times a second.
///
/// Everything runs on the calling thread: use a dedicated current-thread runtime, or
/// [`drive_on_threads`](crate::drive_on_threads). Dropping the future ends the run without a report.
///
/// # Errors
/// [`DriveError`] if the plan is invalid or no timer is available.
pub async fn drive_load(
    plan: LoadPlan,
    progress: watch::Sender<ProgressCounters>,
) -> Result<LoadReport, DriveError> {
    plan.check()?;
    let task =
        ThreadTask { plan, share: ThreadShare::WHOLE, stop: StopHandle::default(), progress };
    task.run_task(SystemEnvironment).await
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

/// The plan of a run, and the share of one thread in it.
#[derive(Debug)]
pub(crate) struct ThreadTask {
    /// A validated plan.
    pub(crate) plan: LoadPlan,
    pub(crate) share: ThreadShare,
    pub(crate) stop: StopHandle,
    pub(crate) progress: watch::Sender<ProgressCounters>,
}

impl ThreadTask {
    /// Runs the task to its end and returns the report of the thread.
    pub(crate) async fn run_task<E: Environment>(
        self,
        environment: E,
    ) -> Result<LoadReport, DriveError> {
        let mut workers = Workers::new(&self.plan, self.share)?;
        let thread = Rc::new(ThreadShared::new(&self.plan, self.share, environment)?);
        let local = LocalSet::new();
        local.run_until(self.run_workers(&thread, &mut workers)).await;
        drop(local);
        let thread = Rc::into_inner(thread).expect("all workers have ended");
        Ok(thread.into_report(&self.progress))
    }

    /// Runs the workers until the last one has ended.
    async fn run_workers<E: Environment>(
        &self,
        thread: &Rc<ThreadShared<E>>,
        workers: &mut Workers,
    ) {
        let mut running = JoinSet::new();
        let warm_up = self.plan.warm_up;
        if warm_up.is_zero() {
            thread.record_snapshot();
        }
        workers.create_workers(thread, |worker| drop(running.spawn_local(worker.run())));
        let mut progress_tick = interval(PROGRESS_INTERVAL);
        progress_tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let (snapshots, end) =
                (thread.snapshots.borrow().len(), thread.schedule.borrow().end());
            let next_snapshot = if snapshots == 0 { warm_up.min(end) } else { end };
            tokio::select! {
                ended = running.join_next() => match ended {
                    None => return,
                    Some(Err(error)) if error.is_panic() => resume_unwind(error.into_panic()),
                    Some(_) => {}
                },
                () = sleep_until(thread.thread_context.clock.to_instant(next_snapshot)), if snapshots < 2 => thread.record_snapshot(),
                _ = progress_tick.tick() => {
                    let now = thread.thread_context.clock.now();
                    self.progress.send_replace(thread.statistics.borrow().counters_at(now));
                    if self.stop.is_stopped() {
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
    requests: PreparedRequests,
}

/// The prepared requests of the workers.
enum PreparedRequests {
    Http1(http1::Http1Requests),
    Http2(http2::Http2Requests),
}

impl Workers {
    fn new(plan: &LoadPlan, share: ThreadShare) -> Result<Self, InvalidPlan> {
        let requests = match plan.protocol {
            LoadProtocol::Http1 => PreparedRequests::Http1(http1::Http1Requests::new(plan)?),
            LoadProtocol::Http2 { .. } | LoadProtocol::Grpc { .. } => {
                PreparedRequests::Http2(http2::Http2Requests::new(plan)?)
            }
        };
        let connections = share.part_of(plan.load_model.connection_count() as u64);
        Ok(Self { connections, streams: plan.protocol.streams_per_connection(), requests })
    }

    fn create_workers<E: Environment>(
        &self,
        thread: &Rc<ThreadShared<E>>,
        mut start_worker: impl FnMut(LoadWorker<E>),
    ) {
        let thread_context = &thread.thread_context;
        for _ in 0..self.connections {
            match &self.requests {
                PreparedRequests::Http1(requests) => {
                    let transport = LoadTransport::Http1(http1::Http1Connections::new(
                        requests,
                        thread_context,
                    ));
                    start_worker(LoadWorker { thread: Rc::clone(thread), transport });
                }
                PreparedRequests::Http2(requests) => {
                    let shared =
                        Rc::new(http2::SharedConnections::new(thread_context.address_count()));
                    for _ in 0..self.streams {
                        let streams = http2::Http2Streams::new(requests, &shared, thread_context);
                        let transport = LoadTransport::Http2(streams);
                        start_worker(LoadWorker { thread: Rc::clone(thread), transport });
                    }
                }
            }
        }
    }
}

/// The shared state of a thread's workers.
struct ThreadShared<E> {
    thread_context: ThreadContext<E>,
    schedule: RefCell<Schedule>,
    target_sampler: RefCell<TargetSampler>,
    /// Idle workers queue here; the first of them waits for the next request.
    timer: Mutex<Timer>,
    /// The pause of a worker after a failed connection attempt; absent in an open run, which the clock paces.
    pause: Option<Duration>,
    statistics: RefCell<RunStatistics>,
    /// The start and the end of the measurement, once reached.
    snapshots: RefCell<Vec<CounterSnapshot>>,
}

/// A request assigned to a worker.
#[derive(Clone, Copy)]
struct AssignedRequest {
    target: usize,
    due: Duration,
    now: Duration,
    measured: bool,
}

impl<E: Environment> ThreadShared<E> {
    fn new(plan: &LoadPlan, share: ThreadShare, environment: E) -> Result<Self, DriveError> {
        let timer = environment.create_timer().map_err(DriveError::Timer)?;
        let names = plan.targets.iter().map(|target| target.name.as_str());
        let weights = plan.targets.iter().map(|target| target.weight);
        let seed = plan.seed.wrapping_add(share.index as u64);
        Ok(Self {
            schedule: RefCell::new(Schedule::new(plan, share)),
            target_sampler: RefCell::new(TargetSampler::new(weights, seed)),
            timer: Mutex::new(timer),
            pause: matches!(plan.load_model, LoadModel::Closed { .. }).then_some(CONNECT_PAUSE),
            statistics: RefCell::new(RunStatistics::new(names, plan.warm_up)),
            snapshots: RefCell::default(),
            thread_context: ThreadContext::new(environment, plan),
        })
    }

    /// Waits for the next request until it is due; `None` when the run is over. The current time is `now`.
    async fn next_request(&self, now: Duration) -> Option<AssignedRequest> {
        match self.assign_due_request(now) {
            Ok(assigned) => assigned,
            // No request is due: rejoin the queue.
            Err(_) => self.wait_for_due().await,
        }
    }

    async fn wait_for_due(&self) -> Option<AssignedRequest> {
        let mut timer = self.timer.lock().await;
        loop {
            let now = self.thread_context.clock.now();
            match self.assign_due_request(now) {
                Ok(assigned) => return assigned,
                Err(until) => timer.wait_for(until.saturating_sub(now)).await,
            }
        }
    }

    /// Assigns the request that is due; `None` if the run is over. The error is the time of the next check.
    fn assign_due_request(&self, now: Duration) -> Result<Option<AssignedRequest>, Duration> {
        let mut schedule = self.schedule.borrow_mut();
        match schedule.next_action(now) {
            NextAction::Over => Ok(None),
            NextAction::Wait(until) => Err(until),
            NextAction::Due(due) => {
                let measured = schedule.is_measured(due);
                Ok(Some(AssignedRequest {
                    target: self.target_sampler.borrow_mut().next_target(),
                    due,
                    now,
                    measured,
                }))
            }
        }
    }

    /// Records the start or the end of the measurement.
    fn record_snapshot(&self) {
        let now = self.thread_context.clock.now();
        let snapshot = CounterSnapshot::read_counters(
            now,
            &self.statistics.borrow(),
            &self.thread_context.byte_counters,
        );
        self.snapshots.borrow_mut().push(snapshot);
    }

    /// Records due but unsent requests, and completes the report.
    fn into_report(self, progress: &watch::Sender<ProgressCounters>) -> LoadReport {
        self.record_snapshot();
        let mut schedule = self.schedule.into_inner();
        let mut target_sampler = self.target_sampler.into_inner();
        let mut statistics = self.statistics.into_inner();
        while let Some(due) = schedule.next_unsent() {
            statistics.record_unsent(target_sampler.next_target(), due);
        }
        progress.send_replace(statistics.counters_at(self.thread_context.clock.now()));
        let window = match self.snapshots.into_inner().as_slice() {
            [first, last, ..] => MeasuredWindow::from_snapshots(first, last),
            // Stopped during the warm-up.
            _ => MeasuredWindow::default(),
        };
        statistics.into_report(&window)
    }
}

/// A worker with at most one request in progress.
struct LoadWorker<E: Environment> {
    thread: Rc<ThreadShared<E>>,
    transport: LoadTransport<E::Stream>,
}

/// The transport of requests.
enum LoadTransport<S> {
    Http1(http1::Http1Connections<S>),
    Http2(http2::Http2Streams),
}

impl<E: Environment> LoadWorker<E> {
    async fn run(mut self) {
        let thread = Rc::clone(&self.thread);
        let thread_context = &thread.thread_context;
        let mut now = thread_context.clock.now();
        while let Some(assigned) = thread.next_request(now).await {
            let result = self.send_request(assigned).await;
            now = thread_context.clock.now();
            let AssignedRequest { target, due, measured, .. } = assigned;
            let measurement = RequestMeasurement { target, due, done: now, result, measured };
            thread.statistics.borrow_mut().record_completed(&measurement);
            if thread_context.reuse == ConnectionReuse::Fresh {
                self.wait_for_close().await;
                now = thread_context.clock.now();
            }
            let connect_failed = matches!(result, Err(ErrorKind::Connect | ErrorKind::Exhausted));
            if let (true, Some(pause)) = (connect_failed, thread.pause) {
                sleep(pause).await;
                now = thread_context.clock.now();
            }
        }
    }

    async fn send_request(
        &mut self,
        assigned: AssignedRequest,
    ) -> Result<ResponseStatus, ErrorKind> {
        let thread_context = &self.thread.thread_context;
        match &mut self.transport {
            LoadTransport::Http1(connections) => {
                connections.send_request(thread_context, assigned.target, assigned.now).await
            }
            LoadTransport::Http2(streams) => {
                streams.send_request(thread_context, assigned.target).await
            }
        }
    }

    async fn wait_for_close(&mut self) {
        match &mut self.transport {
            LoadTransport::Http1(connections) => {
                connections.wait_for_close(&self.thread.thread_context).await
            }
            LoadTransport::Http2(_) => {}
        }
    }
}

/// The interval of progress updates: short enough for a live display, too long to affect the measurement.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// The pause after a failed connection attempt. Without it, a closed run against a port without a listener
/// would fail as fast as the kernel can.
const CONNECT_PAUSE: Duration = Duration::from_millis(10);
