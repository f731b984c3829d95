//! A workload's sidecar: started, watched, and started again for as long as it is wanted.

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as SocketPair;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use leno_model::Workload;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::child::{Child, End, Reach};
use super::console::Speaker;
use super::launcher::Launcher;
use super::placement::Placement;
use super::restart::Restarts;
use crate::proxy::Report;

/// Keeps the sidecar of a workload running until told to stop. `reports` holds what it reported
/// while it runs, nothing otherwise.
pub(super) async fn keep(
    through: (&Launcher, &Placement),
    workload: &Workload,
    reports: &watch::Sender<Option<Report>>,
    mut stop: watch::Receiver<bool>,
) {
    let name = &workload.name;
    let mut restarts = Restarts::default();
    while !*stop.borrow() {
        let began = Instant::now();
        let ended = run(through, workload, reports, &mut stop).await;
        reports.send_replace(None);
        let reason = match ended {
            Ok(Ended::Stopped(End::Orderly)) => return,
            Ok(Ended::Stopped(End::Forced)) => {
                return tracing::warn!(%name, "the sidecar did not drain in time and was killed");
            }
            Ok(Ended::Exited(status)) => status.to_string(),
            Err(error) => format!("{error:#}"),
        };
        let delay = restarts.after(began.elapsed());
        tracing::warn!(%name, %reason, ?delay, "the sidecar ended; it is started again");
        tokio::select! {
            () = sleep(delay) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

/// How a run came to its end.
enum Ended {
    Stopped(End),
    Exited(ExitStatus),
}

async fn run(
    (launcher, placement): (&Launcher, &Placement),
    workload: &Workload,
    reports: &watch::Sender<Option<Report>>,
    stop: &mut watch::Receiver<bool>,
) -> anyhow::Result<Ended> {
    let mut command = launcher.sidecar(workload, placement)?;
    let (ours, theirs) = SocketPair::pair().context("a socket for its reports")?;
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    let name = workload.name.to_string();
    let speaker = Speaker::new(format!("{name} sidecar"), &name);
    let mut child = Child::spawn(command, Reach::Process, launcher.console(), &speaker)
        .context("the sidecar cannot be started")?;
    let socket = receiver(ours).context("the socket of its reports")?;
    let listening = listen(socket, reports);
    tokio::pin!(listening);
    let mut listens = true;
    loop {
        tokio::select! {
            status = child.ended() => return Ok(Ended::Exited(status?)),
            _ = stop.wait_for(|stop| *stop) => {
                let patience = launcher.drain_timeout() + DRAIN_SLACK;
                return Ok(Ended::Stopped(child.stop(patience).await));
            }
            () = &mut listening, if listens => listens = false,
        }
    }
}

fn receiver(ours: SocketPair) -> std::io::Result<UnixStream> {
    ours.shutdown(Shutdown::Write)?;
    ours.set_nonblocking(true)?;
    UnixStream::from_std(ours)
}

/// Takes in reports until the sidecar ends or says what nobody understands.
async fn listen(socket: UnixStream, reports: &watch::Sender<Option<Report>>) {
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
            Err(error) => return tracing::warn!(%error, "a report of a sidecar is not readable"),
        }
    }
}

/// Some hundred doors.
const REPORT_BYTES_MAX: u64 = 64 * 1024;
/// What a sidecar needs beside the time that requests under way are given.
const DRAIN_SLACK: Duration = Duration::from_secs(2);
