//! Fixtures for scenario tests: real processes on loopback, awaited by their observable behavior.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a fixture that cannot do its part fails the test that uses it"
)]

mod admin_page;
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

pub use admin_page::AdminPage;
pub use application::{ReceivedRequest, TestAnswer, TestApplication};
pub use browser::{PagePart, RenderedPage};
pub use collector::{CollectedPoint, CollectedRecord, CollectedSpan, OtlpCollector};
pub use connection::TestConnection;
pub use descendants::{Descendant, child_processes, is_running};
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
/// range, and each is returned once.
///
/// # Panics
/// If loopback has no free port.
#[must_use]
pub fn free_port() -> u16 {
    static NEXT: LazyLock<AtomicU64> =
        LazyLock::new(|| AtomicU64::new(RandomState::new().build_hasher().finish() >> 1));
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first = range.ok().and_then(|range| range.split_whitespace().next()?.parse::<u64>().ok());
    let above = first.unwrap_or(PORT_END).clamp(PORT_MIN + 1, PORT_END);
    let candidates = std::iter::repeat_with(|| {
        let port = PORT_MIN + NEXT.fetch_add(1, Ordering::Relaxed) % (above - PORT_MIN);
        u16::try_from(port).expect("a port is below the first ephemeral one")
    });
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    candidates.take(PORTS_TRIED_MAX).find(free).expect("loopback has a free port")
}

/// Lower ports are used by well-known services.
const PORT_MIN: u64 = 10_000;
/// From here on, `leno bench` and `leno demo` search for ports independently.
const PORT_END: u64 = 18_000;
/// Enough to find one on a machine with many servers.
const PORTS_TRIED_MAX: usize = 1000;

/// Polls until `look` returns a value; each attempt must do real work (a request, a read). Returns the value
/// and the elapsed time.
///
/// # Panics
/// After the timeout `max_wait`; `what` describes the awaited condition.
pub fn eventually<T>(
    what: &str,
    max_wait: Duration,
    mut look: impl FnMut() -> Option<T>,
) -> (T, Duration) {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return (found, began.elapsed());
        }
        assert!(began.elapsed() < max_wait, "not within {max_wait:?}: {what}");
        std::thread::yield_now();
    }
}

/// True for root: some scenarios need namespaces or raw sockets.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
