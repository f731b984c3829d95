//! Memory of an idle connection.

use std::time::Duration;

use leno_telemetry::{Gauge, read_stat_usage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixture::{Application, Client, GET, Mesh, OK, Setup, run, wait_until};

/// Runs [`measured_alone`] in a process without other tests.
#[test]
fn an_idle_connection_holds_no_buffers() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "tests::memory::measured_alone", "--ignored", "--nocapture"]);
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let kib_per_connection = text.lines().find_map(|line| line.strip_prefix(REPORT));
    let kib_per_connection: u64 =
        kib_per_connection.unwrap_or_else(|| panic!("no report: {text}")).parse().unwrap();
    assert!(kib_per_connection <= MAX_KIB, "{kib_per_connection} KiB for each idle connection");
}

#[test]
#[ignore = "started by `an_idle_connection_holds_no_buffers`, in a process of its own"]
fn measured_alone() {
    run(async {
        let app = Application::with_response(OK).await;
        let mut setup = Setup::default();
        setup.limits.rest_after = Duration::ZERO;
        let mesh = Mesh::new(app.address, setup).await;
        let open = async || {
            let mut client = Client::connect(mesh.listener).await.stream;
            client.write_all(GET.as_bytes()).await.unwrap();
            client.read_exact(&mut [0; OK.len()]).await.unwrap();
            client
        };
        // One-time allocations of the first connection are excluded.
        let mut clients = vec![open().await];
        let kib_before = own_kib();
        for _ in 0..CONNECTIONS {
            clients.push(open().await);
        }
        let downstream = || mesh.client.telemetry.gauge(Gauge::ConnectionsDownstream);
        wait_until(|| downstream() == CONNECTIONS + 1).await;
        let kib_after = own_kib();
        let kib_per_connection = kib_after.saturating_sub(kib_before).div_ceil(CONNECTIONS);
        let report = format!("\n{REPORT}{kib_per_connection}\n");
        std::io::Write::write_all(&mut std::io::stdout(), report.as_bytes()).unwrap();
    });
}

/// Returns the resident memory of this process without file-backed pages, in KiB. Pages of the program count as
/// private once the last other process of this program ends.
fn own_kib() -> u64 {
    read_stat_usage(std::process::id()).unwrap().own_kib
}

/// The number of connections. Each takes two file descriptors in this process, which has a limit of usually
/// 1024.
const CONNECTIONS: u64 = 300;
/// The maximum memory in KiB of both ends of a connection, since client and sidecar share the process: less
/// than one read buffer.
const MAX_KIB: u64 = 12;
const REPORT: &str = "KiB for each idle connection: ";
