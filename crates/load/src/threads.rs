//! Executes a load plan on several independent threads. Each has its own connections, its share of the schedule and its
//! results; the results are merged at the end.

use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::drive::{DriveError, ThreadTask};
use crate::environment::SystemEnvironment;
use crate::plan::{InvalidPlan, LoadPlan, MAX_THREADS};
use crate::report::LoadReport;
use crate::statistics::ProgressCounters;
use crate::stop::StopHandle;
use crate::thread_share::ThreadShare;

/// Like [`drive_load`](crate::drive_load), on separate threads, and with an early stop. Uses at most as many threads as
/// the plan has connections or requests. Dropping the future ends the run at the next progress update of the threads.
///
/// # Errors
/// As [`drive_load`](crate::drive_load), or if a thread cannot be started.
pub async fn drive_on_threads(
    threads: usize,
    plan: LoadPlan,
    stop: StopHandle,
    progress_sender: watch::Sender<ProgressCounters>,
) -> Result<LoadReport, DriveError> {
    plan.validate()?;
    if threads == 0 || threads > MAX_THREADS {
        return Err(InvalidPlan::Threads.into());
    }
    let max_requests = usize::try_from(plan.requests.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let thread_count = threads.min(plan.load_model.connection_count()).min(max_requests);
    // The threads have a stop handle of their own, because they also end when this call is dropped.
    let stop_threads = StopOnDrop(StopHandle::default());
    let mut running_threads = Vec::with_capacity(thread_count);
    for index in 0..thread_count {
        let share = ThreadShare { index, thread_count };
        running_threads.push(LoadThread::start(plan.clone(), share, stop_threads.0.clone())?);
    }
    let progress_receivers: Vec<watch::Receiver<ProgressCounters>> =
        running_threads.iter().map(|thread| thread.progress_receiver.clone()).collect();
    tokio::select! {
        report = merge_reports(running_threads) => {
            progress_sender.send_replace(sum_counters(&progress_receivers));
            report
        }
        // Never completes: the reports end the call.
        never = forward_progress(&progress_receivers, &progress_sender, [&stop, &stop_threads.0]) => match never {},
    }
}

/// The progress and the report of one running thread.
struct LoadThread {
    progress_receiver: watch::Receiver<ProgressCounters>,
    report_receiver: oneshot::Receiver<Result<LoadReport, DriveError>>,
}

impl LoadThread {
    fn start(plan: LoadPlan, share: ThreadShare, stop: StopHandle) -> Result<Self, DriveError> {
        let (progress_sender, progress_receiver) = watch::channel(ProgressCounters::default());
        let (report_sender, report_receiver) = oneshot::channel();
        let task = ThreadTask { plan, share, stop, progress_sender };
        thread::Builder::new()
            .name(format!("load-{}", share.index))
            // The receiver may have been dropped.
            .spawn(move || drop(report_sender.send(run_on_this_thread(task))))
            .map_err(DriveError::Thread)?;
        Ok(Self { progress_receiver, report_receiver })
    }
}

/// Runs the task of a thread on that thread, with a runtime of its own.
fn run_on_this_thread(task: ThreadTask) -> Result<LoadReport, DriveError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(DriveError::Thread)?.block_on(task.run_task(SystemEnvironment))
}

/// Merges the reports of the threads.
async fn merge_reports(running_threads: Vec<LoadThread>) -> Result<LoadReport, DriveError> {
    let mut total: Option<LoadReport> = None;
    for thread in running_threads {
        let report = thread.report_receiver.await.map_err(|_| DriveError::Failed)??;
        match &mut total {
            Some(total) => total.merge(&report),
            None => total = Some(report),
        }
    }
    total.ok_or(DriveError::Failed)
}

/// Sums the progress of the threads periodically, and forwards a stop.
async fn forward_progress(
    progress_receivers: &[watch::Receiver<ProgressCounters>],
    progress_sender: &watch::Sender<ProgressCounters>,
    [caller_stop, thread_stop]: [&StopHandle; 2],
) -> std::convert::Infallible {
    let mut progress_tick = interval(PROGRESS_INTERVAL);
    progress_tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        progress_tick.tick().await;
        progress_sender.send_replace(sum_counters(progress_receivers));
        if caller_stop.is_stopped() {
            thread_stop.stop();
        }
    }
}

fn sum_counters(progress_receivers: &[watch::Receiver<ProgressCounters>]) -> ProgressCounters {
    progress_receivers
        .iter()
        .map(|progress_receiver| *progress_receiver.borrow())
        .fold(ProgressCounters::default(), ProgressCounters::plus)
}

/// Stops the threads when the call is dropped.
struct StopOnDrop(StopHandle);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// The interval of progress updates, short enough for a live display.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
