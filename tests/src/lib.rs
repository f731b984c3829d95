//! Fixtures for scenario tests: real processes on loopback, awaited by their observable behavior.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a fixture that cannot do its part fails the test that uses it"
)]

mod admin_endpoint;
mod application;
mod browser;
pub mod cluster;
mod collector;
mod connection;
mod descendants;
mod envoy;
mod http;
mod installed;
mod line_client;
mod load;
pub mod manifests;
mod mariadb;
mod mesh;
mod message;
mod nginx;
mod postgres;
mod program;
mod self_signed;
mod sidecar;
mod single_programs;
pub mod stream;

pub use admin_endpoint::AdminEndpoint;
pub use application::{ApplicationResponse, ReceivedRequest, TestApplication};
pub use browser::{PageElement, RenderedPage};
pub use collector::{CollectedPoint, CollectedRecord, CollectedSpan, OtlpCollector};
pub use connection::TestConnection;
pub use descendants::{ChildProcess, child_processes, is_running};
pub use envoy::{Envoy, EnvoyListener};
pub use http::{Response, exchange_bytes, get, get_page};
pub use installed::{
    cert_manager, check_service, go_program, java_programs, page_script, python_program,
    script_path, zipkin_path,
};
pub use line_client::LineClient;
pub use load::{BackgroundLoad, LoadOutcome};
pub use mariadb::MariaDb;
pub use mesh::{TestMesh, ratings_manifests};
pub use nginx::Nginx;
pub use postgres::Postgres;
pub use program::{Release, TestProgram, leno_command, signal_pid};
pub use self_signed::SelfSigned;
pub use sidecar::RunningSidecar;
pub use single_programs::{ControlProgram, SidecarProgram};
pub use stream::StreamingApplication;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::TcpListener;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Returns a free port that neither the kernel nor this function assigns again: it is below the ephemeral
/// range, and each port is returned once.
///
/// # Panics
/// If loopback has no free port.
#[must_use]
pub fn free_port() -> u16 {
    // A random start, so that concurrent test processes try different ports. The shift leaves room for increments.
    static NEXT_PORT_OFFSET: LazyLock<AtomicU64> =
        LazyLock::new(|| AtomicU64::new(RandomState::new().build_hasher().finish() >> 1));
    let port_range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first_ephemeral_port = port_range
        .ok()
        .and_then(|port_range| port_range.split_whitespace().next()?.parse::<u64>().ok());
    let port_end =
        first_ephemeral_port.unwrap_or(PORT_RANGE_END).clamp(MIN_PORT + 1, PORT_RANGE_END);
    let candidates = std::iter::repeat_with(|| {
        let port =
            MIN_PORT + NEXT_PORT_OFFSET.fetch_add(1, Ordering::Relaxed) % (port_end - MIN_PORT);
        u16::try_from(port).expect("a port is below the first ephemeral one")
    });
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    candidates.take(MAX_PORT_ATTEMPTS).find(is_free).expect("loopback has a free port")
}

/// The lowest assigned port: lower ones are used by well-known services.
const MIN_PORT: u64 = 10_000;
/// The end of the port range, exclusive: from here on, `leno bench` and `leno demo` search for ports independently.
const PORT_RANGE_END: u64 = 18_000;
/// The maximum number of ports tried, enough on a machine with many servers.
const MAX_PORT_ATTEMPTS: usize = 1000;

/// Polls until `attempt` returns a value; each attempt must do real work (a request, a read). Returns the value
/// and the elapsed time.
///
/// # Panics
/// After the timeout `max_wait`; `condition` describes the awaited condition.
pub fn eventually<T>(
    condition: &str,
    max_wait: Duration,
    mut attempt: impl FnMut() -> Option<T>,
) -> (T, Duration) {
    let started = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return (value, started.elapsed());
        }
        assert!(started.elapsed() < max_wait, "not within {max_wait:?}: {condition}");
        std::thread::yield_now();
    }
}

/// True for root: some scenarios need namespaces or raw sockets.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
