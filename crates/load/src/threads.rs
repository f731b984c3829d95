//! A run on several independent threads: each has its own connections, schedule share and results, which are
//! merged at the end.

use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::drive::{DriveError, Order};
use crate::plan::{InvalidPlan, Plan, THREADS_MAX};
use crate::report::Report;
use crate::share::Share;
use crate::statistics::Counters;
use crate::stop::Stop;
use crate::world::Machine;

/// Like [`drive`](crate::drive), on separate threads, and with an early stop. Uses at most one thread per
/// connection. Dropping the future ends the run soon.
///
/// # Errors
/// As [`drive`](crate::drive), or if a thread cannot be started.
pub async fn drive_on_threads(
    threads: usize,
    plan: Plan,
    stop: Stop,
    progress: watch::Sender<Counters>,
) -> Result<Report, DriveError> {
    plan.check()?;
    if threads == 0 || threads > THREADS_MAX {
        return Err(InvalidPlan::Threads.into());
    }
    let requests = usize::try_from(plan.requests.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let of = threads.min(plan.pace.connection_count()).min(requests);
    // The threads end with this call in any case; the caller's stop handle outlives it.
    let ended = Ended(Stop::default());
    let mut running = Vec::with_capacity(of);
    for index in 0..of {
        let share = Share { index, of };
        running.push(Running::start(plan.clone(), share, ended.0.clone())?);
    }
    let watched: Vec<watch::Receiver<Counters>> =
        running.iter().map(|thread| thread.counters.clone()).collect();
    tokio::select! {
        report = merge_reports(running) => {
            progress.send_replace(sum_counters(&watched));
            report
        }
        never = forward_progress(&watched, &progress, [&stop, &ended.0]) => match never {},
    }
}

/// One of the threads.
struct Running {
    counters: watch::Receiver<Counters>,
    report: oneshot::Receiver<Result<Report, DriveError>>,
}

impl Running {
    fn start(plan: Plan, share: Share, stop: Stop) -> Result<Self, DriveError> {
        let (progress, counters) = watch::channel(Counters::default());
        let (done, report) = oneshot::channel();
        let order = Order { plan, share, stop, progress };
        thread::Builder::new()
            .name(format!("load-{}", share.index))
            // The receiver may have been dropped.
            .spawn(move || drop(done.send(run(order))))
            .map_err(DriveError::Thread)?;
        Ok(Self { counters, report })
    }
}

fn run(order: Order) -> Result<Report, DriveError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(DriveError::Thread)?.block_on(order.carry_out(Machine))
}

/// Merges the reports of the threads.
async fn merge_reports(running: Vec<Running>) -> Result<Report, DriveError> {
    let mut total: Option<Report> = None;
    for thread in running {
        let report = thread.report.await.map_err(|_| DriveError::Failed)??;
        match &mut total {
            Some(total) => total.merge(&report),
            None => total = Some(report),
        }
    }
    total.ok_or(DriveError::Failed)
}

/// Sums the progress of the threads periodically, and forwards a stop.
async fn forward_progress(
    watched: &[watch::Receiver<Counters>],
    progress: &watch::Sender<Counters>,
    [asked, pass_on]: [&Stop; 2],
) -> std::convert::Infallible {
    let mut tick = interval(PROGRESS_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tick.tick().await;
        progress.send_replace(sum_counters(watched));
        if asked.is_asked() {
            pass_on.stop();
        }
    }
}

fn sum_counters(watched: &[watch::Receiver<Counters>]) -> Counters {
    watched.iter().map(|counters| *counters.borrow()).fold(Counters::default(), Counters::plus)
}

/// Stops the threads when the call is dropped.
struct Ended(Stop);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Short enough for a live display.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
