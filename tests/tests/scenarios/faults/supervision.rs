//! Crash of `leno up` itself: no process is left over, and `leno up` can be restarted immediately.

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
    let (manifest_files, data_directory) = (mesh.manifest_file(""), mesh.data_directory());
    let second_mesh = start_mesh(&manifest_files, &data_directory);
    second_mesh.wait_for_line("The mesh is up", Duration::from_secs(20));
    wait_until_status(loopback_address(listener), 200);
    let all_ended = || children.iter().all(|child| !is_running(child.pid)).then_some(());
    eventually("all processes of the first mesh have ended", MAX_WAIT, all_ended);

    let mut third_mesh = start_mesh(&manifest_files, &data_directory);
    assert_eq!(third_mesh.wait_for_exit(MAX_WAIT).code(), Some(1));
    let in_use_message = format!("is in use by another mesh (process {})", second_mesh.pid());
    let line = third_mesh.wait_for_line(&in_use_message, MAX_WAIT);
    assert!(line.contains("--data"), "{line}");
    wait_until_status(loopback_address(listener), 200);
}

#[test]
fn a_response_in_progress_at_a_kill_completes_during_the_next_run() {
    let (shop, release_sender) = start_slow_shop();
    let mut mesh = TestMesh::up(&shop.manifests);
    wait_until_status(shop.listener, 200);
    let in_flight = start_request(&shop);
    mesh.up.send_signal(Signal::KILL);
    mesh.up.wait_for_exit(MAX_WAIT);

    let mut second_mesh = start_mesh(&mesh.manifest_file(""), &mesh.data_directory());
    second_mesh.wait_for_line("The mesh is up", MAX_WAIT);
    wait_until_status(shop.listener, 200);
    release_sender.send(()).unwrap();
    assert_response_completes(in_flight);
    assert_eq!(second_mesh.stop(MAX_WAIT).code(), Some(0));
}

fn start_mesh(manifest_files: &Path, data_directory: &Path) -> TestProgram {
    let mut command = leno_command();
    command.arg("up").arg("-f").arg(manifest_files).arg("--data").arg(data_directory);
    TestProgram::start("leno up", &mut command)
}
