//! Processes without a free file descriptor: they wait without CPU usage, and recover.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{TestApplication, TestMesh, eventually, free_port, get_page};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// A process without a free descriptor until this value is dropped.
struct ExhaustedDescriptors {
    pid: u32,
    previous_limit: Rlimit,
}

impl ExhaustedDescriptors {
    /// Limits the process to its current descriptors: a new descriptor would get the lowest free number, which is the
    /// limit.
    fn new(pid: u32) -> Self {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs");
        let descriptors =
            descriptors.filter_map(|fd| fd.ok()?.file_name().to_str()?.parse::<u64>().ok());
        let used_descriptors: BTreeSet<u64> = descriptors.collect();
        let lowest_unused =
            (0..).find(|number| !used_descriptors.contains(number)).expect("an unused number");
        let limits =
            fs::read_to_string(format!("/proc/{pid}/limits")).expect("the process has limits");
        let files_line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        let hard_limit =
            files_line.and_then(|files_line| files_line.split_whitespace().nth(1)?.parse().ok());
        let limit = Rlimit { current: Some(lowest_unused), maximum: hard_limit };
        let previous_limit = prlimit(parse_pid(pid), Resource::Nofile, limit)
            .expect("the limit of the process can be set");
        Self { pid, previous_limit }
    }
}

fn parse_pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).expect("a pid"))
}

impl Drop for ExhaustedDescriptors {
    fn drop(&mut self) {
        prlimit(parse_pid(self.pid), Resource::Nofile, self.previous_limit)
            .expect("the limit of the process can be set");
    }
}

/// Returns the CPU time of a process in ticks of a hundredth of a second (proc(5)).
pub(super) fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    [fields[11], fields[12]].iter().filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Returns the process's share of one core while this connection waits for a response, as the minimum of three
/// periods of a second.
fn cpu_share(pid: u32, mut wait_for_response: impl FnMut() -> ErrorKind) -> f64 {
    let periods = (0..3).map(|_| {
        let (ticks_before, started_at) = (cpu_ticks(pid), Instant::now());
        assert!(matches!(wait_for_response(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
        (cpu_ticks(pid) - ticks_before) as f64 / 100.0 / started_at.elapsed().as_secs_f64()
    });
    periods.fold(f64::INFINITY, f64::min)
}

/// Opens more connections than there are descriptors, and measures while they wait.
fn measure_waiting(pid: u32, address: SocketAddr) -> f64 {
    let connect = || TcpStream::connect(address).expect("the kernel accepts it");
    let mut waiting_connections: Vec<TcpStream> = (0..40).map(|_| connect()).collect();
    let last_connection = waiting_connections.last_mut().expect("there are some");
    last_connection.set_read_timeout(Some(Duration::from_secs(1))).expect("a socket has timeouts");
    let core_share =
        cpu_share(pid, || last_connection.read(&mut [0]).expect_err("no response arrives").kind());
    drop(waiting_connections);
    core_share
}

#[test]
fn a_process_without_file_descriptors_waits_without_cpu_and_recovers() {
    let stock = TestApplication::start_echo();
    let manifests = [
        mesh_config("allow"),
        server_manifest("stock", stock.port(), &[]),
        client_manifest("web", &[], &[("stock", free_port())]),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let sidecar = mesh.sidecar("shop/stock-1");
    for address in
        [sidecar.admin, sidecar.inbound.expect("the sidecar has an inbound port"), sidecar.proxy]
    {
        let exhausted = ExhaustedDescriptors::new(sidecar.pid);
        let core_share = measure_waiting(sidecar.pid, address);
        assert!(core_share < 0.3, "{address}: {core_share} of a core");
        drop(exhausted);
        eventually("the admin endpoint responds", Duration::from_secs(20), || {
            (get_page(sidecar.admin, "/ready").ok()?.status == 200).then_some(())
        });
    }
    let control_pid = mesh.up.pid();
    let socket = mesh.data_directory().join("control.sock");
    let exhausted = ExhaustedDescriptors::new(control_pid);
    let mut waiting_connections: Vec<UnixStream> =
        (0..40).map_while(|_| UnixStream::connect(&socket).ok()).collect();
    let last_connection = waiting_connections.last_mut().expect("a waiting socket");
    last_connection.set_read_timeout(Some(Duration::from_secs(1))).expect("a socket has timeouts");
    let core_share = cpu_share(control_pid, || {
        last_connection.read(&mut [0]).expect_err("no response arrives").kind()
    });
    assert!(core_share < 0.3, "control.sock: {core_share} of a core");
    drop((waiting_connections, exhausted));
    eventually("the control plane responds", Duration::from_secs(20), || {
        mesh.run_leno(&["get", "status"]).status.success().then_some(())
    });
}
