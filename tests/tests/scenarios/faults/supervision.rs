//! Crash of `leno up` itself: no process is left over, and it can be restarted immediately.

use std::path::Path;
use std::time::Duration;

use leno_tests::manifests::{client, mesh_config, server};
use leno_tests::{Mesh, Program, children, eventually, free_port, is_running, leno};
use rustix::process::Signal;

use super::drain::{assert_finished, begin, slow_shop};
use super::{MAX_WAIT, loopback, turns};

#[test]
fn killed_it_takes_its_children_along_and_the_next_starts_on_the_same_data() {
    let (port, listener) = (free_port(), free_port());
    let command = ["python3", "-m", "http.server", &port.to_string(), "--bind", "127.0.0.1"];
    let manifests = [
        mesh_config("permissive"),
        server("ratings", port, &command),
        client("web", &[], &[("ratings.shop", listener)]),
    ];
    let mut mesh = Mesh::up(&manifests.concat());
    turns(loopback(listener), 200);
    let family = children(mesh.up.pid());
    assert_eq!(family.len(), 3, "two sidecars and an application: {family:?}");

    mesh.up.signal(Signal::KILL);
    mesh.up.wait(MAX_WAIT);
    let (files, data) = (mesh.file(""), mesh.data());
    let next = up(&files, &data);
    next.wait_for_line("The mesh is up", Duration::from_secs(20));
    turns(loopback(listener), 200);
    let gone = || family.iter().all(|child| !is_running(child.pid)).then_some(());
    eventually("nothing of the first is left", MAX_WAIT, gone);

    let mut third = up(&files, &data);
    assert_eq!(third.wait(MAX_WAIT).code(), Some(1));
    let holder = format!("is in use by another mesh (process {})", next.pid());
    let line = third.wait_for_line(&holder, MAX_WAIT);
    assert!(line.contains("--data"), "{line}");
    turns(loopback(listener), 200);
}

#[test]
fn killed_with_a_response_under_way_that_finishes_beside_the_next() {
    let (shop, release) = slow_shop();
    let mut mesh = Mesh::up(&shop.manifests);
    turns(shop.listener, 200);
    let under_way = begin(&shop);
    mesh.up.signal(Signal::KILL);
    mesh.up.wait(MAX_WAIT);

    let mut next = up(&mesh.file(""), &mesh.data());
    next.wait_for_line("The mesh is up", MAX_WAIT);
    turns(shop.listener, 200);
    release.send(()).unwrap();
    assert_finished(under_way);
    assert_eq!(next.stop(MAX_WAIT).code(), Some(0));
}

fn up(files: &Path, data: &Path) -> Program {
    let mut command = leno();
    command.arg("up").arg("-f").arg(files).arg("--data").arg(data);
    Program::start("leno up", &mut command)
}
