//! Observes the ports of an application: whether it listens on them, whether its readiness check succeeds, and
//! whether another process listens there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use leno_control::{PORT_NOT_LISTENING, PORT_UNREADY};
use leno_model::Workload;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::descendants::ApplicationRun;
use super::procfs::{self, ListeningSocket};

/// The state of one port of a running application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ObservedPort {
    /// No process listens on the port yet, or the first readiness check has not succeeded.
    Starting,
    /// The port has been starting for longer than requests wait for the start. The problem is reported.
    Overdue(&'static str),
    /// The application listens on the port, and its readiness check succeeds.
    Ready,
    /// No process listens on the port, although the port was ready before or the start timeout has expired.
    NotListening,
    /// The application listens on the port, and its readiness check fails.
    Unready,
    /// Another process, with this description, listens on the port.
    Taken(String),
}

impl ObservedPort {
    /// Returns a description of the problem; `None` if the port is served, or is not overdue yet.
    pub(super) fn describe_problem(&self) -> Option<String> {
        match self {
            Self::Starting | Self::Ready => None,
            Self::Overdue(problem) => Some((*problem).to_owned()),
            Self::NotListening => Some(PORT_NOT_LISTENING.to_owned()),
            Self::Unready => Some(PORT_UNREADY.to_owned()),
            Self::Taken(process) => Some(format!("{process} listens there")),
        }
    }

    /// True while requests wait for the port.
    fn is_starting(&self) -> bool {
        matches!(self, Self::Starting | Self::Overdue(_))
    }
}

/// The port states of an application, by port number.
pub(super) type Ports = BTreeMap<u16, ObservedPort>;

/// An application with observed ports, with the listening sockets from before its start.
#[derive(Debug, Clone)]
pub(super) struct ObservedApplication {
    /// The ID of the application's first process.
    pub(super) pid: i32,
    /// The current configuration of the workload.
    pub(super) workload_receiver: watch::Receiver<Arc<Workload>>,
    /// The inodes of the sockets that were listening before the application started.
    pub(super) listening_before: BTreeSet<u64>,
    /// True if the application runs in its own network namespace.
    pub(super) has_own_namespace: bool,
}

/// The results of earlier port checks that the next check needs.
#[derive(Debug, Clone, Default)]
struct PortCheckState {
    /// The inodes of the application's own sockets.
    own_sockets: BTreeSet<u64>,
    /// The inodes of other processes' sockets, with descriptions of the processes.
    other_sockets: BTreeMap<u64, String>,
    /// The number of consecutive failures of the readiness check.
    failures: u32,
    /// True if all ports have been ready at the same time.
    was_ready: bool,
    /// True if the readiness check has succeeded once.
    has_passed: bool,
}

/// Returns the inodes of the listening sockets in the network namespace of this process.
pub(super) fn listening_inodes() -> BTreeSet<u64> {
    let own_pid = i32::try_from(std::process::id()).unwrap_or_default();
    procfs::listening_sockets(own_pid).into_iter().map(|socket| socket.inode).collect()
}

/// Publishes the states of the application's ports until dropped.
pub(super) async fn observe_ports(
    observed: ObservedApplication,
    port_states: &watch::Sender<Ports>,
) {
    let start = Instant::now();
    let mut check_state = PortCheckState::default();
    let mut delay = FIRST_CHECK_DELAY;
    loop {
        let (application, mut next_check_state) = (observed.clone(), check_state.clone());
        let age = start.elapsed();
        let check_task = spawn_blocking(move || {
            let ports = check_ports(&application, &mut next_check_state, age);
            (ports, next_check_state)
        });
        let Ok((ports, updated_check_state)) = check_task.await else { return };
        check_state = updated_check_state;
        let has_started = !ports.values().any(ObservedPort::is_starting);
        port_states.send_if_modified(|published_ports| {
            let has_changed = *published_ports != ports;
            *published_ports = ports;
            has_changed
        });
        delay = if has_started { CHECK_INTERVAL } else { (delay * 2).min(STARTUP_CHECK_INTERVAL) };
        sleep(delay).await;
    }
}

/// Checks all ports once. `age` is the time since the start of the application.
fn check_ports(
    observed: &ObservedApplication,
    check_state: &mut PortCheckState,
    age: Duration,
) -> Ports {
    let workload = observed.workload_receiver.borrow().clone();
    let sockets = procfs::listening_sockets(observed.pid);
    let inodes: BTreeSet<u64> = sockets.iter().map(|socket| socket.inode).collect();
    check_state.own_sockets.retain(|inode| inodes.contains(inode));
    check_state.other_sockets.retain(|inode, _| inodes.contains(inode));
    let mut ports: Ports = BTreeMap::new();
    for port in &workload.ports {
        let address = SocketAddr::new(workload.address, port.port);
        let owner = find_owner(observed, check_state, &procfs::sockets_for(address, &sockets));
        let state = match owner {
            PortOwner::Unowned if age >= START_TIMEOUT || check_state.was_ready => {
                ObservedPort::NotListening
            }
            PortOwner::Unowned => starting_state(age, PORT_NOT_LISTENING),
            PortOwner::Application => ObservedPort::Ready,
            PortOwner::Other(process) => ObservedPort::Taken(process),
        };
        ports.insert(port.port, state);
    }
    if let Some(readiness) = &workload.run_options.readiness
        && ports.get(&readiness.port) == Some(&ObservedPort::Ready)
    {
        let address = SocketAddr::new(workload.address, readiness.port);
        ports.insert(
            readiness.port,
            check_readiness(observed, address, &readiness.path, check_state, age),
        );
    }
    check_state.was_ready |= ports.values().all(|port| *port == ObservedPort::Ready);
    ports
}

/// The owner of a port: the process that listens on it.
#[derive(Debug, PartialEq, Eq)]
enum PortOwner {
    /// No process listens on the port.
    Unowned,
    /// Only processes of the application listen on the port.
    Application,
    /// Another process, with this description, listens on the port.
    Other(String),
}

/// Returns the owner of the sockets at one address. The kernel distributes connections among several sockets
/// (`SO_REUSEPORT`), so that a single socket of another process makes that process the owner. A socket belongs
/// to the application if any of the application's processes has it open. If `/proc` shows no process with the
/// socket, it belongs to another process if it was listening before the application started, and else to the
/// application.
fn find_owner(
    observed: &ObservedApplication,
    check_state: &mut PortCheckState,
    sockets: &[&ListeningSocket],
) -> PortOwner {
    let is_known = |check_state: &PortCheckState, inode: u64| {
        check_state.own_sockets.contains(&inode) || check_state.other_sockets.contains_key(&inode)
    };
    let unknown_inodes: Vec<u64> = sockets
        .iter()
        .map(|socket| socket.inode)
        .filter(|inode| !is_known(check_state, *inode))
        .collect();
    let own_pids = if unknown_inodes.is_empty() {
        BTreeSet::new()
    } else {
        application_processes(observed.pid)
    };
    for inode in unknown_inodes {
        if procfs::find_socket_owner(inode, own_pids.iter().copied()).is_some() {
            check_state.own_sockets.insert(inode);
            continue;
        }
        let other_pids = procfs::all_pids().filter(|pid| !own_pids.contains(pid));
        let process = match procfs::find_socket_owner(inode, other_pids) {
            Some(pid) => procfs::describe_process(pid),
            None if observed.listening_before.contains(&inode) => "another process".to_owned(),
            None => continue,
        };
        check_state.other_sockets.insert(inode, process);
    }
    match sockets.iter().find_map(|socket| check_state.other_sockets.get(&socket.inode)) {
        Some(process) => PortOwner::Other(process.clone()),
        None if sockets.is_empty() => PortOwner::Unowned,
        None => PortOwner::Application,
    }
}

/// Returns the processes of the application with this first process, including those that left its process
/// tree, group and session.
fn application_processes(pid: i32) -> BTreeSet<i32> {
    let mut pids = procfs::process_tree(pid);
    if let Some(run) = ApplicationRun::from_first_process(pid) {
        pids.extend(procfs::all_pids().filter(|pid| run.has_variable(*pid)));
    }
    pids
}

/// Returns the state of a port on which the application listens, from its readiness check.
fn check_readiness(
    observed: &ObservedApplication,
    address: SocketAddr,
    path: &str,
    check_state: &mut PortCheckState,
    age: Duration,
) -> ObservedPort {
    let path = path.to_owned();
    let namespace_pid = observed.has_own_namespace.then_some(observed.pid);
    // The thread stays in the namespace that it enters.
    let thread_builder = std::thread::Builder::new().name("readiness".to_owned());
    let spawn_result = thread_builder.spawn(move || {
        if let Some(pid) = namespace_pid {
            let namespace_file = File::open(format!("/proc/{pid}/ns/net"))?;
            move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&namespace_file),
                Some(LinkNameSpaceType::Network),
            )?;
        }
        send_readiness_request(address, &path)
    });
    let is_ready = spawn_result.is_ok_and(|thread| matches!(thread.join(), Ok(Ok(true))));
    check_state.failures = if is_ready { 0 } else { check_state.failures.saturating_add(1) };
    check_state.has_passed |= is_ready;
    match is_ready {
        true => ObservedPort::Ready,
        false if check_state.has_passed && check_state.failures < MAX_FAILURES => {
            ObservedPort::Ready
        }
        false if check_state.has_passed || age >= START_TIMEOUT => ObservedPort::Unready,
        false => starting_state(age, PORT_UNREADY),
    }
}

/// Returns the state of a starting port: overdue from `OVERDUE_AGE` on. Requests wait in both states.
fn starting_state(age: Duration, problem: &'static str) -> ObservedPort {
    if age >= OVERDUE_AGE { ObservedPort::Overdue(problem) } else { ObservedPort::Starting }
}

/// Sends the readiness request; true if the status is 200 to 299.
fn send_readiness_request(address: SocketAddr, path: &str) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&address, READINESS_TIMEOUT)?;
    stream.set_read_timeout(Some(READINESS_TIMEOUT))?;
    stream.set_write_timeout(Some(READINESS_TIMEOUT))?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut status_line = [0; STATUS_BYTES];
    stream.read_exact(&mut status_line)?;
    // `HTTP/1.1 2xx`
    Ok(status_line.starts_with(b"HTTP/1.") && status_line.get(8..10) == Some(b" 2"))
}

/// The base of the growing interval between checks while the application starts.
const FIRST_CHECK_DELAY: Duration = Duration::from_millis(10);
/// The maximum interval between checks while the application starts.
const STARTUP_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The interval between checks after the start.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The age from which a port that is not ready is reported as a problem. Requests wait for 10 s at most and
/// then fail.
const OVERDUE_AGE: Duration = Duration::from_secs(12);
/// The time for an application to start, after which a port that is not ready counts as down.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of consecutive failures of the readiness check after which connections are not forwarded.
const MAX_FAILURES: u32 = 3;
/// The timeout of connecting, of each write and of each read in a readiness check.
const READINESS_TIMEOUT: Duration = Duration::from_secs(1);
/// The length of `HTTP/1.1 200`, in bytes.
const STATUS_BYTES: usize = 12;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    fn observe_process(pid: i32, port: u16) -> ObservedApplication {
        let text = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: a-1, namespace: b}}\n\
             spec: {{ports: [{{port: {port}}}], run: [\"true\"]}}\n"
        );
        let (objects, _) = leno_registry::read_str("test", &text);
        let Some((leno_model::Object::Workload(workload), _)) = objects.into_iter().next() else {
            panic!("it is a workload")
        };
        let listening_before = BTreeSet::new();
        let workload_receiver = watch::channel(Arc::new(workload)).1;
        ObservedApplication { pid, workload_receiver, listening_before, has_own_namespace: false }
    }

    #[test]
    fn a_port_is_ready_only_for_the_process_tree_that_listens_there() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let own_pid = i32::try_from(std::process::id()).unwrap();
        let mut check_state = PortCheckState::default();
        let ports = check_ports(&observe_process(own_pid, port), &mut check_state, Duration::ZERO);
        assert_eq!(ports[&port], ObservedPort::Ready);
        // The test process is outside the tree of the child.
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let other_pid = i32::try_from(child.id()).unwrap();
        let ports = check_ports(
            &observe_process(other_pid, port),
            &mut PortCheckState::default(),
            Duration::ZERO,
        );
        let ObservedPort::Taken(holder) = &ports[&port] else { panic!("{ports:?}") };
        assert!(holder.contains(&format!("process {own_pid}")), "{holder}");
        drop(socket);
        let ports = check_ports(
            &observe_process(other_pid, port),
            &mut PortCheckState::default(),
            Duration::ZERO,
        );
        assert_eq!(ports[&port], ObservedPort::Starting);
        // Requests fail after 10 s; the start timeout is 60 s.
        let ports = check_ports(
            &observe_process(other_pid, port),
            &mut PortCheckState::default(),
            OVERDUE_AGE,
        );
        assert_eq!(ports[&port], ObservedPort::Overdue(PORT_NOT_LISTENING));
        assert_eq!(ports[&port].describe_problem().as_deref(), Some(PORT_NOT_LISTENING));
        let ports = check_ports(
            &observe_process(other_pid, port),
            &mut PortCheckState::default(),
            START_TIMEOUT,
        );
        assert_eq!(ports[&port], ObservedPort::NotListening);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts a process with `socket` as its standard input, and with `variable` in its environment.
    fn start_holder(socket: TcpListener, variable: Option<(&str, &str)>) -> std::process::Child {
        let mut holder = std::process::Command::new("sleep");
        holder.arg("60").envs(variable).stdin(std::os::fd::OwnedFd::from(socket)).spawn().unwrap()
    }

    #[test]
    fn a_port_is_ready_for_a_process_with_the_variable_of_the_application() {
        let mut leader = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(leader.id()).unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let mut daemon = start_holder(
            socket,
            ApplicationRun::from_first_process(pid).unwrap().environment_variable(),
        );
        let ports = check_ports(
            &observe_process(pid, port),
            &mut PortCheckState::default(),
            Duration::ZERO,
        );
        assert_eq!(ports[&port], ObservedPort::Ready);
        for child in [&mut leader, &mut daemon] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// The kernel distributes connections between both.
    #[test]
    fn a_port_shared_with_another_process_is_taken() {
        let bind_shared = |port: u16| {
            let (domain, kind, flags) =
                (AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC);
            let socket = rustix::net::socket_with(domain, kind, flags, None).unwrap();
            rustix::net::sockopt::set_socket_reuseport(&socket, true).unwrap();
            rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
            rustix::net::listen(&socket, 1).unwrap();
            TcpListener::from(socket)
        };
        let first = bind_shared(0);
        let port = first.local_addr().unwrap().port();
        let mut holder_process = start_holder(first, None);
        let pid = i32::try_from(holder_process.id()).unwrap();
        let mut check_state = PortCheckState::default();
        let mut check_state_of_port = || {
            check_ports(&observe_process(pid, port), &mut check_state, Duration::ZERO)[&port]
                .clone()
        };
        assert_eq!(check_state_of_port(), ObservedPort::Ready);
        let _second = bind_shared(port);
        let ObservedPort::Taken(holder) = check_state_of_port() else { panic!("it is taken") };
        assert!(holder.contains(&format!("process {}", std::process::id())), "{holder}");
        holder_process.kill().unwrap();
        holder_process.wait().unwrap();
    }
}
