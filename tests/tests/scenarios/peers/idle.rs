//! Ten thousand idle connections.

use std::time::Duration;

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{TestApplication, TestConnection, TestMesh, eventually, free_port};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::loopback_address;

const CONNECTIONS: usize = 10_000;
/// The maximum memory of a sidecar per idle connection, in addition to the kernel's memory: 50 % above the measured
/// 4.8 KiB, most of it the state of a future request.
const MAX_BYTES_PER_CONNECTION: u64 = 7 * 1024;

#[test]
fn ten_thousand_idle_connections_cost_little_and_still_work() {
    let file_limit = getrlimit(Resource::Nofile);
    let is_sufficient = file_limit.maximum.is_none_or(|files| files > CONNECTIONS as u64 + 1000);
    assert!(is_sufficient, "this test needs 11,000 open files: raise the hard limit (ulimit -Hn)");
    setrlimit(Resource::Nofile, Rlimit { current: file_limit.maximum, ..file_limit }).unwrap();
    let application = TestApplication::start_echo();
    let listener = free_port();
    let manifests = [
        mesh_config("allow"),
        server_manifest("web", application.port(), &[]),
        client_manifest("user", &[], &[("web.shop", listener)]),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let (user, web) = (mesh.sidecar("shop/user-1"), mesh.sidecar("shop/web-1"));
    let mut warm_connections: Vec<TestConnection> =
        (0..50).map(|_| used_connection(listener)).collect();
    let memory_before = (user.private_kib(), web.private_kib());

    let mut idle_connections: Vec<TestConnection> =
        (0..CONNECTIONS).map(|_| used_connection(listener)).collect();
    let memory_after = (user.private_kib(), web.private_kib());
    let bytes_per_connection =
        (memory_after.0.saturating_sub(memory_before.0)) * 1024 / CONNECTIONS as u64;
    let server_growth_kib = memory_after.1.saturating_sub(memory_before.1);
    eprintln!(
        "the client's sidecar: {} → {} KiB, {bytes_per_connection} bytes per connection",
        memory_before.0, memory_after.0
    );
    eprintln!("the server's sidecar: {} → {} KiB", memory_before.1, memory_after.1);
    assert!(
        bytes_per_connection <= MAX_BYTES_PER_CONNECTION,
        "{bytes_per_connection} bytes per idle connection"
    );
    assert!(
        server_growth_kib < 1024,
        "links are shared: the server's sidecar grew by {server_growth_kib} KiB"
    );

    // All connections are open, and a sample of them still works.
    let count = (CONNECTIONS + warm_connections.len()).to_string();
    let connections_json = mesh.get_json("connections").to_string();
    assert!(
        connections_json.contains(&format!("\"open\":{count}")),
        "{count} connections are open"
    );
    for connection in idle_connections.iter_mut().step_by(20).chain(&mut warm_connections) {
        assert_eq!(connection.get("/again").unwrap().body, b"GET /again ");
    }
    drop((idle_connections, warm_connections));
    eventually("the sidecar has closed the connections", Duration::from_secs(10), || {
        mesh.get_json("connections").to_string().contains("\"open\":0").then_some(())
    });
}

/// Returns a connection that has sent one request.
fn used_connection(listener: u16) -> TestConnection {
    let mut connection = TestConnection::open(loopback_address(listener)).unwrap();
    assert_eq!(connection.get("/").unwrap().body, b"GET / ");
    connection
}
