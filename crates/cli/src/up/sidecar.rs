//! Supervises a workload's sidecar: starts it, restarts it after an exit until the workload stops, and
//! exchanges reports and orders with it.

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
use super::command_builder::CommandBuilder;
use super::console::LineSource;
use super::placement::Placement;
use super::restart::RestartBackoff;
use crate::output;
use crate::proxy::{SidecarReport, SupervisorOrder};

/// Keeps the sidecar of a workload running until it should stop. `report_sender` holds the last report while the
/// sidecar runs, `None` otherwise.
pub(super) async fn supervise(
    command_builder: &CommandBuilder,
    placement: &Placement,
    workload: &Workload,
    report_sender: &watch::Sender<Option<SidecarReport>>,
    mut inputs: SupervisorInputs,
) {
    let name = &workload.name;
    let mut restart_backoff = RestartBackoff::default();
    while !*inputs.stop_receiver.borrow() {
        let start = Instant::now();
        let exit =
            run_sidecar(command_builder, placement, workload, report_sender, &mut inputs).await;
        report_sender.send_replace(None);
        let reason = match exit {
            Ok(SidecarExit::Stopped(StopOutcome::Graceful)) => return,
            Ok(SidecarExit::Stopped(StopOutcome::Forced)) => {
                return tracing::warn!(%name, "the sidecar did not drain in time and was killed");
            }
            Ok(SidecarExit::Exited(status)) => status.to_string(),
            Ok(SidecarExit::Replaced) => REPLACED_REASON.to_owned(),
            Err(error) => output::format_error(&error),
        };
        let delay = restart_backoff.delay_after(start.elapsed());
        tracing::warn!(%name, %reason, ?delay, "the sidecar exited; restarting it");
        tokio::select! {
            () = sleep(delay) => {}
            _ = inputs.stop_receiver.wait_for(|stop| *stop) => return,
        }
    }
}

/// Inputs of a sidecar's supervisor.
pub(super) struct SupervisorInputs {
    /// The progress of the workload's application.
    pub(super) progress_receiver: watch::Receiver<ApplicationProgress>,
    /// True if the sidecar should report its number of requests in progress.
    pub(super) count_requests_receiver: watch::Receiver<bool>,
    /// True if the sidecar should stop permanently.
    pub(super) stop_receiver: watch::Receiver<bool>,
}

/// The reason why a run of a sidecar ended.
enum SidecarExit {
    /// The supervisor stopped the sidecar permanently.
    Stopped(StopOutcome),
    /// The sidecar exited by itself.
    Exited(ExitStatus),
    /// The supervisor stopped the sidecar, because another sidecar had joined in its place.
    Replaced,
}

/// Runs the sidecar once: until it exits, until it should stop, or until another sidecar has joined in its place.
async fn run_sidecar(
    command_builder: &CommandBuilder,
    placement: &Placement,
    workload: &Workload,
    report_sender: &watch::Sender<Option<SidecarReport>>,
    inputs: &mut SupervisorInputs,
) -> anyhow::Result<SidecarExit> {
    let mut command = command_builder.sidecar_command(workload, placement)?;
    // Reports and orders use a socket at the standard input of the sidecar.
    let (std_socket, child_socket) = SocketPair::pair().context("a socket for its reports")?;
    command.stdin(Stdio::from(OwnedFd::from(child_socket)));
    let name = workload.name.to_string();
    let line_source = LineSource::new(format!("{name} sidecar"), &name);
    let mut child =
        ChildProcess::spawn(command, StopScope::Process, command_builder.console(), &line_source)
            .context("the sidecar cannot be started")?;
    std_socket.set_nonblocking(true).context("the socket of its reports")?;
    let own_socket = UnixStream::from_std(std_socket).context("the socket of its reports")?;
    let (report_reader, order_writer) = own_socket.into_split();
    let receive_reports_task = receive_reports(report_reader, report_sender);
    let send_orders_task = send_orders(
        order_writer,
        inputs.progress_receiver.clone(),
        inputs.count_requests_receiver.clone(),
    );
    let replacement = wait_until_replaced(command_builder.replaced_sidecars(), &workload.name);
    tokio::pin!(receive_reports_task, send_orders_task, replacement);
    let (mut is_receiving, mut is_sending) = (true, true);
    loop {
        tokio::select! {
            status = child.wait_until_exited() => {
                child.finish_output().await;
                return Ok(SidecarExit::Exited(status?));
            }
            _ = inputs.stop_receiver.wait_for(|stop| *stop) => {
                let stop_timeout = command_builder.drain_timeout() + DRAIN_GRACE;
                return Ok(SidecarExit::Stopped(child.stop(stop_timeout).await));
            }
            () = &mut replacement => {
                let stop_timeout = command_builder.drain_timeout() + DRAIN_GRACE;
                child.stop(stop_timeout).await;
                return Ok(SidecarExit::Replaced);
            }
            () = &mut receive_reports_task, if is_receiving => is_receiving = false,
            () = &mut send_orders_task, if is_sending => is_sending = false,
        }
    }
}

/// Resolves when the control plane rejects the running sidecar as replaced while no other one is connected.
async fn wait_until_replaced(
    mut replaced_sidecars: watch::Receiver<Arc<ReplacedSidecars>>,
    workload: &WorkloadName,
) {
    // A rejection that is present at the start concerns the previous process of the sidecar.
    let previous_rejection = replaced_sidecars.borrow_and_update().get(workload).copied();
    let is_rejected = |rejections: &Arc<ReplacedSidecars>| {
        let latest_rejection = rejections.get(workload).copied();
        latest_rejection.is_some() && latest_rejection != previous_rejection
    };
    if replaced_sidecars.wait_for(is_rejected).await.is_err() {
        std::future::pending().await
    }
}

/// Sends the sidecar each changed order, until the socket closes.
async fn send_orders(
    mut socket: OwnedWriteHalf,
    mut progress_receiver: watch::Receiver<ApplicationProgress>,
    mut count_requests_receiver: watch::Receiver<bool>,
) {
    let mut last_order = None;
    loop {
        let application_order = progress_receiver.borrow_and_update().to_order();
        let order = SupervisorOrder {
            count_requests: *count_requests_receiver.borrow_and_update()
                || application_order.count_requests,
            ..application_order
        };
        if last_order.as_ref() != Some(&order) {
            let Ok(line) = serde_json::to_string(&order) else { return };
            if socket.write_all(format!("{line}\n").as_bytes()).await.is_err() {
                return;
            }
            last_order = Some(order);
        }
        tokio::select! {
            Ok(()) = progress_receiver.changed() => {}
            Ok(()) = count_requests_receiver.changed() => {}
            else => return,
        }
    }
}

/// Waits until `is_busy`, which evaluates the latest reports of sidecars, is false in `MIN_IDLE_CHECKS` consecutive
/// checks, for `max_wait` at most.
pub(super) async fn wait_until_idle(is_busy: impl Fn() -> bool, max_wait: Duration) {
    let deadline = Instant::now() + max_wait;
    let mut idle_checks = 0;
    while idle_checks < MIN_IDLE_CHECKS && Instant::now() < deadline {
        idle_checks = if is_busy() { 0 } else { idle_checks + 1 };
        sleep(IDLE_CHECK_INTERVAL).await;
    }
}

/// Receives reports until the sidecar exits or sends a report that cannot be parsed.
async fn receive_reports(
    reader: OwnedReadHalf,
    report_sender: &watch::Sender<Option<SidecarReport>>,
) {
    let mut reader = BufReader::new(reader);
    let mut line = String::new();
    loop {
        line.clear();
        let mut limited_reader = (&mut reader).take(MAX_REPORT_BYTES);
        // End of input or a read error: the sidecar has exited.
        if limited_reader.read_line(&mut line).await.unwrap_or(0) == 0 {
            return;
        }
        match serde_json::from_str(&line) {
            Ok(report) => drop(report_sender.send_replace(Some(report))),
            Err(error) => return tracing::warn!(%error, "cannot parse a report of a sidecar"),
        }
    }
}

/// The interval between two checks of the requests in progress.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(25);
/// The number of consecutive checks without requests that count as idle: the sidecars report at different
/// times.
const MIN_IDLE_CHECKS: u32 = 5;
/// The reason for the restart of a replaced sidecar.
const REPLACED_REASON: &str =
    "another sidecar of the workload replaced it with a join token, and has disconnected since";
/// The maximum size of a report, in bytes; enough for several hundred listeners.
const MAX_REPORT_BYTES: u64 = 64 * 1024;
/// The time that a sidecar needs to stop in addition to the drain timeout.
const DRAIN_GRACE: Duration = Duration::from_secs(2);
