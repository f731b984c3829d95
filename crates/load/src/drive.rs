//! Executes a load plan on one thread. Workers send the requests; each has at most one request in progress.

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

/// Sends the requests of a plan and reports their results. `progress_sender` is updated ten times a second.
///
/// Everything runs on the calling thread: use a dedicated current-thread runtime, or
/// [`drive_on_threads`](crate::drive_on_threads). Dropping the future ends the run without a report.
///
/// # Errors
/// [`DriveError`] if the plan is invalid or no timer is available.
pub async fn drive_load(
    plan: LoadPlan,
    progress_sender: watch::Sender<ProgressCounters>,
) -> Result<LoadReport, DriveError> {
    plan.validate()?;
    let task = ThreadTask {
        plan,
        share: ThreadShare::WHOLE,
        stop: StopHandle::default(),
        progress_sender,
    };
    task.run_task(SystemEnvironment).await
}

/// The reason why a run has no report.
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

/// The work of one thread: the plan of the run, and the thread's share in it.
#[derive(Debug)]
pub(crate) struct ThreadTask {
    /// The plan, already validated.
    pub(crate) plan: LoadPlan,
    pub(crate) share: ThreadShare,
    pub(crate) stop: StopHandle,
    pub(crate) progress_sender: watch::Sender<ProgressCounters>,
}

impl ThreadTask {
    /// Runs the task to its end and returns the report of the thread.
    pub(crate) async fn run_task<E: Environment>(
        self,
        environment: E,
    ) -> Result<LoadReport, DriveError> {
        let mut worker_factory = WorkerFactory::new(&self.plan, self.share)?;
        let thread_state = Rc::new(ThreadState::new(&self.plan, self.share, environment)?);
        let local_set = LocalSet::new();
        local_set.run_until(self.run_workers(&thread_state, &mut worker_factory)).await;
        drop(local_set);
        let thread_state = Rc::into_inner(thread_state).expect("all workers have ended");
        Ok(thread_state.into_report(&self.progress_sender))
    }

    /// Runs the workers until all of them have ended. Meanwhile takes the snapshots at the start and at the end of the
    /// measurement, reports the progress, and ends the schedule if the run is stopped.
    async fn run_workers<E: Environment>(
        &self,
        thread_state: &Rc<ThreadState<E>>,
        worker_factory: &mut WorkerFactory,
    ) {
        let mut worker_tasks = JoinSet::new();
        let warm_up = self.plan.warm_up;
        if warm_up.is_zero() {
            thread_state.record_snapshot();
        }
        worker_factory.create_workers(thread_state, |worker| {
            drop(worker_tasks.spawn_local(worker.send_requests()))
        });
        let mut progress_tick = interval(PROGRESS_INTERVAL);
        progress_tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            // The first snapshot is taken at the end of the warm-up, the second at the end of the schedule, which a stop
            // may move.
            let (snapshot_count, end_time) =
                (thread_state.snapshots.borrow().len(), thread_state.schedule.borrow().end_time());
            let next_snapshot = if snapshot_count == 0 { warm_up.min(end_time) } else { end_time };
            tokio::select! {
                join_result = worker_tasks.join_next() => match join_result {
                    None => return,
                    Some(Err(error)) if error.is_panic() => resume_unwind(error.into_panic()),
                    Some(_) => {}
                },
                () = sleep_until(thread_state.thread_context.clock.to_instant(next_snapshot)), if snapshot_count < 2 => thread_state.record_snapshot(),
                _ = progress_tick.tick() => {
                    let now = thread_state.thread_context.clock.now();
                    self.progress_sender
                        .send_replace(thread_state.statistics.borrow().counters_at(now));
                    if self.stop.is_stopped() {
                        thread_state.schedule.borrow_mut().end_at(now);
                    }
                }
            }
        }
    }
}

/// Creates the workers of a thread: one per connection with HTTP/1.1, and one per stream with HTTP/2.
struct WorkerFactory {
    connection_count: u64,
    streams_per_connection: usize,
    prepared_requests: PreparedRequests,
}

/// The prepared requests of the workers.
enum PreparedRequests {
    Http1(http1::Http1Requests),
    Http2(http2::Http2Requests),
}

impl WorkerFactory {
    fn new(plan: &LoadPlan, share: ThreadShare) -> Result<Self, InvalidPlan> {
        let prepared_requests = match plan.protocol {
            LoadProtocol::Http1 => PreparedRequests::Http1(http1::Http1Requests::new(plan)?),
            LoadProtocol::Http2 { .. } | LoadProtocol::Grpc { .. } => {
                PreparedRequests::Http2(http2::Http2Requests::new(plan)?)
            }
        };
        let connection_count = share.part_of(plan.load_model.connection_count() as u64);
        Ok(Self {
            connection_count,
            streams_per_connection: plan.protocol.streams_per_connection(),
            prepared_requests,
        })
    }

    fn create_workers<E: Environment>(
        &self,
        thread_state: &Rc<ThreadState<E>>,
        mut start_worker: impl FnMut(LoadWorker<E>),
    ) {
        let thread_context = &thread_state.thread_context;
        for _ in 0..self.connection_count {
            match &self.prepared_requests {
                PreparedRequests::Http1(requests) => {
                    let transport = LoadTransport::Http1(http1::Http1Connections::new(
                        requests,
                        thread_context,
                    ));
                    start_worker(LoadWorker { thread_state: Rc::clone(thread_state), transport });
                }
                PreparedRequests::Http2(requests) => {
                    let shared_connections =
                        Rc::new(http2::SharedConnections::new(thread_context.address_count()));
                    for _ in 0..self.streams_per_connection {
                        let streams =
                            http2::Http2Streams::new(requests, &shared_connections, thread_context);
                        let transport = LoadTransport::Http2(streams);
                        start_worker(LoadWorker {
                            thread_state: Rc::clone(thread_state),
                            transport,
                        });
                    }
                }
            }
        }
    }
}

/// The state that all workers of a thread share.
struct ThreadState<E> {
    thread_context: ThreadContext<E>,
    schedule: RefCell<Schedule>,
    target_sampler: RefCell<TargetSampler>,
    /// The timer of the next request. Idle workers queue for its lock; the worker that holds the lock waits for the
    /// request.
    timer: Mutex<Timer>,
    /// The pause of a worker after a failed connection attempt; `None` in an open loop, where due times limit the rate.
    connect_pause: Option<Duration>,
    statistics: RefCell<RunStatistics>,
    /// The counters at the start and at the end of the measurement; empty until the measurement starts.
    snapshots: RefCell<Vec<CounterSnapshot>>,
}

/// A request assigned to a worker.
#[derive(Clone, Copy)]
struct AssignedRequest {
    target_index: usize,
    due_time: Duration,
    /// The time of the assignment.
    assigned_at: Duration,
    is_measured: bool,
}

impl<E: Environment> ThreadState<E> {
    fn new(plan: &LoadPlan, share: ThreadShare, environment: E) -> Result<Self, DriveError> {
        let timer = environment.create_timer().map_err(DriveError::Timer)?;
        let names = plan.targets.iter().map(|target| target.name.as_str());
        let weights = plan.targets.iter().map(|target| target.weight);
        // Each thread selects the targets in an order of its own.
        let seed = plan.seed.wrapping_add(share.index as u64);
        Ok(Self {
            schedule: RefCell::new(Schedule::new(plan, share)),
            target_sampler: RefCell::new(TargetSampler::new(weights, seed)),
            timer: Mutex::new(timer),
            connect_pause: matches!(plan.load_model, LoadModel::Closed { .. })
                .then_some(CONNECT_PAUSE),
            statistics: RefCell::new(RunStatistics::new(names, plan.warm_up)),
            snapshots: RefCell::default(),
            thread_context: ThreadContext::new(environment, plan),
        })
    }

    /// Waits until a request is due, and assigns it to the caller; `None` when the run is over. The current time is
    /// `now`.
    async fn next_request(&self, now: Duration) -> Option<AssignedRequest> {
        match self.assign_due_request(now) {
            Ok(assigned_request) => assigned_request,
            // No request is due yet.
            Err(_) => self.wait_for_request().await,
        }
    }

    /// Waits in the queue of idle workers until a request is due, and assigns it to the caller.
    async fn wait_for_request(&self) -> Option<AssignedRequest> {
        let mut timer = self.timer.lock().await;
        loop {
            let now = self.thread_context.clock.now();
            match self.assign_due_request(now) {
                Ok(assigned_request) => return assigned_request,
                Err(check_time) => timer.wait_for(check_time.saturating_sub(now)).await,
            }
        }
    }

    /// Assigns the request that is due; `None` if the run is over. If no request is due, the error is the time of the
    /// next check.
    fn assign_due_request(&self, now: Duration) -> Result<Option<AssignedRequest>, Duration> {
        let mut schedule = self.schedule.borrow_mut();
        match schedule.next_action(now) {
            NextAction::Over => Ok(None),
            NextAction::Wait(check_time) => Err(check_time),
            NextAction::Due(due_time) => {
                let is_measured = schedule.is_measured(due_time);
                Ok(Some(AssignedRequest {
                    target_index: self.target_sampler.borrow_mut().next_target_index(),
                    due_time,
                    assigned_at: now,
                    is_measured,
                }))
            }
        }
    }

    /// Reads the counters at the start or at the end of the measurement.
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
    fn into_report(self, progress_sender: &watch::Sender<ProgressCounters>) -> LoadReport {
        // The end of the measurement, unless the schedule ended before the last response: only two snapshots count.
        self.record_snapshot();
        let mut schedule = self.schedule.into_inner();
        let mut target_sampler = self.target_sampler.into_inner();
        let mut statistics = self.statistics.into_inner();
        while let Some(due_time) = schedule.next_unsent() {
            statistics.record_unsent(target_sampler.next_target_index(), due_time);
        }
        progress_sender.send_replace(statistics.counters_at(self.thread_context.clock.now()));
        let measured_window = match self.snapshots.into_inner().as_slice() {
            [first, last, ..] => MeasuredWindow::from_snapshots(first, last),
            // Stopped during the warm-up.
            _ => MeasuredWindow::default(),
        };
        statistics.into_report(&measured_window)
    }
}

/// A worker with at most one request in progress.
struct LoadWorker<E: Environment> {
    thread_state: Rc<ThreadState<E>>,
    transport: LoadTransport<E::Stream>,
}

/// The transport of requests.
enum LoadTransport<S> {
    Http1(http1::Http1Connections<S>),
    Http2(http2::Http2Streams),
}

impl<E: Environment> LoadWorker<E> {
    /// Sends one request after another until the run is over.
    async fn send_requests(mut self) {
        let thread_state = Rc::clone(&self.thread_state);
        let thread_context = &thread_state.thread_context;
        let mut now = thread_context.clock.now();
        while let Some(assigned_request) = thread_state.next_request(now).await {
            let result = self.send_request(assigned_request).await;
            now = thread_context.clock.now();
            let AssignedRequest { target_index, due_time, is_measured, .. } = assigned_request;
            let measurement = RequestMeasurement {
                target_index,
                due_time,
                completed_at: now,
                result,
                is_measured,
            };
            thread_state.statistics.borrow_mut().record_completed(&measurement);
            if thread_context.reuse == ConnectionReuse::Fresh {
                self.wait_for_close().await;
                now = thread_context.clock.now();
            }
            // A connection that timed out has already caused a pause.
            let connect_failed = matches!(result, Err(ErrorKind::Connect | ErrorKind::Exhausted));
            if let (true, Some(connect_pause)) = (connect_failed, thread_state.connect_pause) {
                sleep(connect_pause).await;
                now = thread_context.clock.now();
            }
        }
    }

    async fn send_request(
        &mut self,
        assigned_request: AssignedRequest,
    ) -> Result<ResponseStatus, ErrorKind> {
        let thread_context = &self.thread_state.thread_context;
        let AssignedRequest { target_index, assigned_at, .. } = assigned_request;
        match &mut self.transport {
            LoadTransport::Http1(connections) => {
                connections.send_request(thread_context, target_index, assigned_at).await
            }
            LoadTransport::Http2(streams) => {
                streams.send_request(thread_context, target_index).await
            }
        }
    }

    /// Waits until the server has closed an HTTP/1.1 connection that is not reused.
    async fn wait_for_close(&mut self) {
        match &mut self.transport {
            LoadTransport::Http1(connections) => {
                connections.wait_for_close(&self.thread_state.thread_context).await
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
