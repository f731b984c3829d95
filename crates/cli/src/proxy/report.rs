//! Reports a sidecar's listeners and requests in flight to its supervisor, `leno up`, and executes the
//! supervisor's orders. Each report and each order is a line of JSON over the socket at the sidecar's standard input.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use leno_proxy::{ApplicationPorts, ListenerStates, PortState, PortStates};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// The state of a sidecar, sent to the supervisor as one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SidecarReport {
    /// The process ID.
    pub(crate) pid: u32,
    /// The address of the admin endpoint.
    pub(crate) admin: SocketAddr,
    /// Open listeners by name.
    pub(crate) open_listeners: BTreeMap<String, SocketAddr>,
    /// Closed listeners, each with the cause.
    #[serde(default)]
    pub(crate) closed_listeners: BTreeMap<String, String>,
    /// The number of requests in flight; `None` unless the supervisor's last order requests the count.
    #[serde(default)]
    pub(crate) in_flight: Option<u64>,
}

/// An order of the supervisor, sent to the sidecar as one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct SupervisorOrder {
    /// The states of individual ports.
    pub(crate) ports: BTreeMap<u16, PortStateOrder>,
    /// The state of all other ports.
    pub(crate) otherwise: PortStateOrder,
    /// True if requests in flight are to be reported.
    pub(crate) count_requests: bool,
}

/// The handling of connections to an application port, as ordered by the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PortStateOrder {
    /// Connections are forwarded to the port.
    #[default]
    Open,
    /// The application is starting: connections wait for it.
    Starting,
    /// The application is not running or not ready: connections fail at once.
    Down,
    /// Another process, described by the text, listens on the port: connections fail, so that it receives none.
    Taken(String),
}

impl From<PortStateOrder> for PortState {
    fn from(order: PortStateOrder) -> Self {
        match order {
            PortStateOrder::Open => Self::Open,
            PortStateOrder::Starting => Self::Starting,
            PortStateOrder::Down => Self::Down,
            PortStateOrder::Taken(process) => Self::Taken { by: process },
        }
    }
}

impl From<SupervisorOrder> for PortStates {
    fn from(order: SupervisorOrder) -> Self {
        let ports = order.ports.into_iter().map(|(port, state)| (port, state.into()));
        Self { ports: ports.collect(), otherwise: order.otherwise.into() }
    }
}

impl SidecarReport {
    /// Returns the address of the HTTP proxy listener; `None` if the sidecar has no such listener, or it is closed.
    pub(crate) fn http_proxy(&self) -> Option<SocketAddr> {
        self.open_listeners.get("http-proxy").copied()
    }
}

/// The option, followed by the supervisor's process ID, that makes `leno proxy` report on its standard input
/// and end with its supervisor.
pub(crate) const SUPERVISOR_OPTION: &str = "--supervisor";

/// The sources of a sidecar's reports, and the application's ports, to which the supervisor's orders apply.
pub(super) struct ReportSources<F> {
    /// The states of the listeners; `None` until the first configuration is applied.
    pub(super) listeners: watch::Receiver<Option<Arc<ListenerStates>>>,
    /// The address of the admin endpoint.
    pub(super) admin: SocketAddr,
    /// Returns the number of requests in flight.
    pub(super) in_flight: F,
    /// The states of the application's ports, which the supervisor's orders change.
    pub(super) application_ports: ApplicationPorts,
}

/// Returns a future that reports the listeners on every change, and executes the supervisor's orders. It never
/// completes.
///
/// # Errors
/// If a supervisor is expected and standard input is not its socket.
pub(super) fn run_supervision<F: Fn() -> u64>(
    sources: ReportSources<F>,
    is_supervised: bool,
) -> anyhow::Result<impl Future<Output = Infallible>> {
    let supervisor = match is_supervised {
        true => Some(
            open_supervisor_socket().context("standard input is not the supervisor's socket")?,
        ),
        false => None,
    };
    Ok(report_changes(sources, supervisor))
}

/// Sends a report on every change of the listeners, and of the requests in flight while the supervisor
/// requests their count. Without a supervisor only logs the listeners.
async fn report_changes<F: Fn() -> u64>(
    mut sources: ReportSources<F>,
    supervisor: Option<UnixStream>,
) -> Infallible {
    let (order_reader, mut report_writer) = match supervisor.map(UnixStream::into_split) {
        Some((order_reader, report_writer)) => (Some(order_reader), Some(report_writer)),
        None => (None, None),
    };
    let (counting_sender, mut counting_receiver) = watch::channel(false);
    let order_execution =
        execute_orders(order_reader, &sources.application_ports, &counting_sender);
    tokio::pin!(order_execution);
    let mut count_ticks = interval(COUNT_INTERVAL);
    count_ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Neither a log line nor a report is repeated without a change.
    let (mut logged_states, mut last_report) = (None, None);
    loop {
        let listeners = sources.listeners.borrow_and_update().clone();
        let in_flight = counting_receiver.borrow_and_update().then(&sources.in_flight);
        if let Some(states) = listeners {
            if logged_states.as_ref() != Some(&states) {
                for (name, address) in &states.open {
                    tracing::info!(name, %address, "listener open");
                }
                logged_states = Some(Arc::clone(&states));
            }
            let report = SidecarReport {
                pid: std::process::id(),
                admin: sources.admin,
                open_listeners: states.open.clone(),
                closed_listeners: states.closed.clone(),
                in_flight,
            };
            if last_report.as_ref() != Some(&report)
                && let Some(socket) = &mut report_writer
            {
                if let Err(error) = send_report(socket, &report).await {
                    tracing::warn!(%error, "cannot send to the supervisor");
                    report_writer = None;
                }
                last_report = Some(report);
            }
        }
        tokio::select! {
            Ok(()) = sources.listeners.changed() => {}
            Ok(()) = counting_receiver.changed() => {}
            _ = count_ticks.tick(), if in_flight.is_some() => {}
            never = &mut order_execution => match never {},
        }
    }
}

/// Executes orders of the supervisor; never returns.
async fn execute_orders(
    order_reader: Option<OwnedReadHalf>,
    application_ports: &ApplicationPorts,
    counting_sender: &watch::Sender<bool>,
) -> Infallible {
    let Some(order_reader) = order_reader else { return std::future::pending().await };
    let mut order_reader = BufReader::new(order_reader);
    let mut line = String::new();
    loop {
        line.clear();
        let mut limited_reader = (&mut order_reader).take(MAX_ORDER_BYTES);
        if limited_reader.read_line(&mut line).await.unwrap_or(0) == 0 {
            // End of input or a read error: the supervisor has ended, and the kernel ends this process with it.
            return std::future::pending().await;
        }
        match serde_json::from_str::<SupervisorOrder>(&line) {
            Ok(order) => {
                counting_sender.send_replace(order.count_requests);
                application_ports.set_states(order.into());
            }
            Err(error) => tracing::warn!(%error, "invalid message of the supervisor"),
        }
    }
}

fn open_supervisor_socket() -> io::Result<UnixStream> {
    let socket = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // Only sockets have a peer address, unlike files and terminals.
    socket.peer_addr()?;
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

async fn send_report(socket: &mut OwnedWriteHalf, report: &SidecarReport) -> io::Result<()> {
    let mut line = serde_json::to_string(report)?;
    line.push('\n');
    timeout(REPORT_TIMEOUT, socket.write_all(line.as_bytes())).await?
}

/// The timeout for sending a report. The supervisor reads continuously, and the kernel's buffer holds hundreds of
/// reports.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval between two counts of the requests in flight. Short, because `leno up` waits for a count of 0 before it
/// stops an application.
const COUNT_INTERVAL: Duration = Duration::from_millis(20);
/// The maximum size of an order, in bytes; an order names at most the 256 ports of a workload.
const MAX_ORDER_BYTES: u64 = 256 * 1024;
