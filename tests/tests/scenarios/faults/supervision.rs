//! Crash of `leno up` itself: no process is left over, and it can be restarted immediately.

use std::path::Path;
use std::time::Duration;

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{
    TestMesh, TestProgram, child_processes, eventually, free_port, is_running, leno_command,
};
use rustix::process::Signal;

use super::drain::{assert_response_completes, start_request, start_slow_shop};
use super::{MAX_WAIT, loopback_address, wait_until_status};

#[test]
fn a_killed_mesh_leaves_no_child_and_the_next_starts_on_the_same_data() {
    let (port, listener) = (free_port(), free_port());
    let command = ["python3", "-m", "http.server", &port.to_string(), "--bind", "127.0.0.1"];
    let manifests = [
        mesh_config("allow"),
        server_manifest("ratings", port, &command),
        client_manifest("web", &[], &[("ratings.shop", listener)]),
    ];
    let mut mesh = TestMesh::up(&manifests.concat());
    wait_until_status(loopback_address(listener), 200);
    let children = child_processes(mesh.up.pid());
    assert_eq!(children.len(), 3, "two sidecars and an application: {children:?}");

    mesh.up.send_signal(Signal::KILL);
    mesh.up.wait_for_exit(MAX_WAIT);
    let (files, data) = (mesh.manifest_file(""), mesh.data_directory());
    let next = start_mesh(&files, &data);
    next.wait_for_line("The mesh is up", Duration::from_secs(20));
    wait_until_status(loopback_address(listener), 200);
    let all_ended = || children.iter().all(|child| !is_running(child.pid)).then_some(());
    eventually("all processes of the first mesh have ended", MAX_WAIT, all_ended);

    let mut third = start_mesh(&files, &data);
    assert_eq!(third.wait_for_exit(MAX_WAIT).code(), Some(1));
    let holder = format!("is in use by another mesh (process {})", next.pid());
    let line = third.wait_for_line(&holder, MAX_WAIT);
    assert!(line.contains("--data"), "{line}");
    wait_until_status(loopback_address(listener), 200);
}

#[test]
fn a_response_in_progress_at_a_kill_completes_during_the_next_run() {
    let (shop, release) = start_slow_shop();
    let mut mesh = TestMesh::up(&shop.manifests);
    wait_until_status(shop.listener, 200);
    let in_flight = start_request(&shop);
    mesh.up.send_signal(Signal::KILL);
    mesh.up.wait_for_exit(MAX_WAIT);

    let mut next = start_mesh(&mesh.manifest_file(""), &mesh.data_directory());
    next.wait_for_line("The mesh is up", MAX_WAIT);
    wait_until_status(shop.listener, 200);
    release.send(()).unwrap();
    assert_response_completes(in_flight);
    assert_eq!(next.stop(MAX_WAIT).code(), Some(0));
}

fn start_mesh(files: &Path, data: &Path) -> TestProgram {
    let mut command = leno_command();
    command.arg("up").arg("-f").arg(files).arg("--data").arg(data);
    TestProgram::start("leno up", &mut command)
}
