//! Supervisor of a workload's sidecar: starts it, and restarts it while it is wanted.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as SocketPair;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use leno_control::ReplacedSidecars;
use leno_model::{Workload, WorkloadName};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::application::ApplicationProgress;
use super::child::{ChildProcess, StopOutcome, StopScope};
use super::console::LineSource;
use super::launcher::Launcher;
use super::placement::Placement;
use super::restart::Restarts;
use crate::output;
use crate::proxy::{SidecarReport, SupervisorOrder};

/// Keeps the sidecar of a workload running until `stop`. `reports` holds its last report while it runs, `None`
/// otherwise.
pub(super) async fn supervise(
    launcher: &Launcher,
    placement: &Placement,
    workload: &Workload,
    reports: &watch::Sender<Option<SidecarReport>>,
    mut on: SidecarTaskInputs,
) {
    let name = &workload.name;
    let mut restarts = Restarts::default();
    while !*on.stop.borrow() {
        let began = Instant::now();
        let ended = run(launcher, placement, workload, reports, &mut on).await;
        reports.send_replace(None);
        let reason = match ended {
            Ok(SidecarExit::Stopped(StopOutcome::Orderly)) => return,
            Ok(SidecarExit::Stopped(StopOutcome::Forced)) => {
                return tracing::warn!(%name, "the sidecar did not drain in time and was killed");
            }
            Ok(SidecarExit::Exited(status)) => status.to_string(),
            Ok(SidecarExit::Replaced) => REPLACED.to_owned(),
            Err(error) => output::format_error(&error),
        };
        let delay = restarts.delay_after(began.elapsed());
        tracing::warn!(%name, %reason, ?delay, "the sidecar exited; restarting it");
        tokio::select! {
            () = sleep(delay) => {}
            _ = on.stop.wait_for(|stop| *stop) => return,
        }
    }
}

/// Inputs of a sidecar's supervisor.
pub(super) struct SidecarTaskInputs {
    /// The state of its application.
    pub(super) application: watch::Receiver<ApplicationProgress>,
    /// True if the sidecar should report its requests in progress.
    pub(super) counting: watch::Receiver<bool>,
    /// True if it should stop permanently.
    pub(super) stop: watch::Receiver<bool>,
}

/// The end of a run.
enum SidecarExit {
    Stopped(StopOutcome),
    Exited(ExitStatus),
    /// Another sidecar joined in its place.
    Replaced,
}

async fn run(
    launcher: &Launcher,
    placement: &Placement,
    workload: &Workload,
    reports: &watch::Sender<Option<SidecarReport>>,
    on: &mut SidecarTaskInputs,
) -> anyhow::Result<SidecarExit> {
    let mut command = launcher.sidecar_command(workload, placement)?;
    let (ours, theirs) = SocketPair::pair().context("a socket for its reports")?;
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    let name = workload.name.to_string();
    let speaker = LineSource::new(format!("{name} sidecar"), &name);
    let mut child = ChildProcess::spawn(command, StopScope::Process, launcher.console(), &speaker)
        .context("the sidecar cannot be started")?;
    ours.set_nonblocking(true).context("the socket of its reports")?;
    let socket = UnixStream::from_std(ours).context("the socket of its reports")?;
    let (reading, writing) = socket.into_split();
    let listening = receive_reports(reading, reports);
    let ordering = send_orders(writing, on.application.clone(), on.counting.clone());
    let replaced = until_replaced(launcher.replaced_sidecars(), &workload.name);
    tokio::pin!(listening, ordering, replaced);
    let (mut listens, mut obeys) = (true, true);
    loop {
        tokio::select! {
            status = child.wait_until_ended() => {
                child.finish_output().await;
                return Ok(SidecarExit::Exited(status?));
            }
            _ = on.stop.wait_for(|stop| *stop) => {
                let max_wait = launcher.drain_timeout() + DRAIN_SLACK;
                return Ok(SidecarExit::Stopped(child.stop(max_wait).await));
            }
            () = &mut replaced => {
                let max_wait = launcher.drain_timeout() + DRAIN_SLACK;
                child.stop(max_wait).await;
                return Ok(SidecarExit::Replaced);
            }
            () = &mut listening, if listens => listens = false,
            () = &mut ordering, if obeys => obeys = false,
        }
    }
}

/// Resolves when the control plane rejects the running sidecar as replaced while no other one is connected.
async fn until_replaced(
    mut replaced: watch::Receiver<Arc<ReplacedSidecars>>,
    workload: &WorkloadName,
) {
    // The last rejection of the previous process.
    let former = replaced.borrow_and_update().get(workload).copied();
    let is_rejected = |all: &Arc<ReplacedSidecars>| {
        let last = all.get(workload).copied();
        last.is_some() && last != former
    };
    if replaced.wait_for(is_rejected).await.is_err() {
        std::future::pending().await
    }
}

/// Sends the sidecar each changed order, until the socket closes.
async fn send_orders(
    mut socket: OwnedWriteHalf,
    mut application: watch::Receiver<ApplicationProgress>,
    mut counting: watch::Receiver<bool>,
) {
    let mut last = None;
    loop {
        let ordered = application.borrow_and_update().to_order();
        let order = SupervisorOrder {
            count_requests: *counting.borrow_and_update() || ordered.count_requests,
            ..ordered
        };
        if last.as_ref() != Some(&order) {
            let Ok(line) = serde_json::to_string(&order) else { return };
            if socket.write_all(format!("{line}\n").as_bytes()).await.is_err() {
                return;
            }
            last = Some(order);
        }
        tokio::select! {
            Ok(()) = application.changed() => {}
            Ok(()) = counting.changed() => {}
            else => return,
        }
    }
}

/// Waits until `is_busy`, based on the latest reports of sidecars, stays false, for `max_wait` at most.
pub(super) async fn wait_until_quiet(is_busy: impl Fn() -> bool, max_wait: Duration) {
    let until = Instant::now() + max_wait;
    let mut idle = 0;
    while idle < QUIET_LOOKS && Instant::now() < until {
        idle = if is_busy() { 0 } else { idle + 1 };
        sleep(QUIET_EVERY).await;
    }
}

/// Receives reports until the sidecar ends or sends one that cannot be parsed.
async fn receive_reports(socket: OwnedReadHalf, reports: &watch::Sender<Option<SidecarReport>>) {
    let mut socket = BufReader::new(socket);
    let mut line = String::new();
    loop {
        line.clear();
        let mut bounded = (&mut socket).take(REPORT_BYTES_MAX);
        if bounded.read_line(&mut line).await.unwrap_or(0) == 0 {
            return;
        }
        match serde_json::from_str(&line) {
            Ok(report) => drop(reports.send_replace(Some(report))),
            Err(error) => return tracing::warn!(%error, "cannot parse a report of a sidecar"),
        }
    }
}

/// The interval between two checks of the requests in progress.
const QUIET_EVERY: Duration = Duration::from_millis(25);
/// Consecutive idle checks that are required: reports of different sidecars are of different times.
const QUIET_LOOKS: u32 = 5;
/// The reason for the restart of a replaced sidecar.
const REPLACED: &str =
    "another sidecar of the workload replaced it with a join token, and has disconnected since";
/// Enough for several hundred listeners.
const REPORT_BYTES_MAX: u64 = 64 * 1024;
/// The time that a sidecar needs to stop in addition to the drain timeout.
const DRAIN_SLACK: Duration = Duration::from_secs(2);
