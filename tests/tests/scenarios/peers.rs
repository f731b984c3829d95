//! Unmodified programs with a mesh, including hostile ones, and the operator's views.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests print their measurements, and panic on a failure"
)]

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use leno_tests::{eventually, get};

mod command_line;
mod databases;
mod demo;
mod envoy;
mod filters;
mod grpc;
mod hostile;
mod http2;
mod idle;
mod ipv6;
mod languages;
mod long_lived;
mod memory;
mod nginx;
mod plaintext;
mod routes;
mod tls_route;
mod websocket;

/// The default policies of a mesh: members may send any request, or only those allowed by a policy.
const DEFAULT_POLICIES: [&str; 2] = ["allow", "deny"];

/// Asserts that the path is closed with `defaultPolicy: deny` and open with `defaultPolicy: allow`, without a
/// policy.
fn assert_closed(default_policy: &str, listener: SocketAddr, path: &str) {
    let reason = if default_policy == "deny" { Some("no-policy-route") } else { None };
    assert_eq!(get(listener, path).unwrap().rejection_reason(), reason, "{default_policy}");
}

/// Returns the address of a loopback port.
fn loopback_address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Waits until the application behind a listener responds; its process may have just started.
fn wait_until_responding(listener: SocketAddr) {
    eventually("the application responds", Duration::from_secs(20), || {
        get(listener, "/").ok().filter(|response| response.status != 503)
    });
}

/// Returns the output of curl; panics with its error output.
fn run_curl(arguments: &[&str]) -> String {
    let output = Command::new("curl").args(["-sS", "--max-time", "15"]).args(arguments).output();
    let output = output.expect("curl is installed");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "curl {arguments:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns a command that is killed after a minute; tests need only seconds.
fn bounded_command(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["60", program]);
    command
}

/// Returns incompressible bytes that are the same in every run.
fn incompressible_bytes(length: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    })
    .take(length)
    .collect()
}
