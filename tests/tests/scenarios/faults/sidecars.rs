//! Sidecar crash: it restarts at the same addresses, and other sidecars are not affected.

use std::net::TcpListener;

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{BackgroundLoad, TestMesh, eventually, free_port, signal_pid};
use rustix::process::Signal;

use super::{
    CountingApplication, MAX_WAIT, connected_sidecar, loopback_address, wait_until_status,
};

#[test]
fn a_killed_sidecar_restarts_at_its_address_and_affects_no_other() {
    let (ratings, details) = (CountingApplication::start_echo(), CountingApplication::start_echo());
    let (to_ratings, to_details) = (free_port(), free_port());
    let listeners = [("ratings.shop", to_ratings), ("details.shop", to_details)];
    let manifests = [
        mesh_config("allow"),
        server_manifest("ratings", ratings.port(), &[]),
        server_manifest("details", details.port(), &[]),
        client_manifest("web", &[], &listeners),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let before = connected_sidecar(&mesh, "shop/ratings-1");
    let inbound = before.inbound_listener(ratings.port());
    wait_until_status(loopback_address(to_ratings), 200);

    let load = BackgroundLoad::start("GET", loopback_address(to_details), 2);
    load.wait_for(100);
    signal_pid(before.pid, Signal::KILL);
    let restarted =
        || Some(connected_sidecar(&mesh, "shop/ratings-1")).filter(|page| page.pid != before.pid);
    let (after, _) = eventually("the sidecar is restarted", MAX_WAIT, restarted);
    wait_until_status(loopback_address(to_ratings), 200);
    load.wait_for(100);
    load.finish_load().assert_no_failures();

    assert_eq!(after.inbound_listener(ratings.port()), inbound);
    let line = mesh.up.wait_for_line("the sidecar exited; restarting it", MAX_WAIT);
    assert!(line.contains("shop/ratings-1") && line.contains("signal: 9"), "{line}");
}

/// The listener opens as soon as its address is free.
#[test]
fn a_listener_opens_as_soon_as_its_address_is_free() {
    let ratings = CountingApplication::start_echo();
    let other_listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address_in_use = other_listener.local_addr().unwrap();
    let web = |listener| client_manifest("web", &[], &[("ratings.shop", listener)]);
    let manifests = [mesh_config("allow"), server_manifest("ratings", ratings.port(), &[])];
    let mesh = TestMesh::up(&(manifests.concat() + &web(free_port())));
    mesh.write("mesh.yaml", &(manifests.concat() + &web(address_in_use.port())));
    let line = mesh.up.wait_for_line("cannot open a listener; retrying", MAX_WAIT);
    assert!(line.contains(&address_in_use.to_string()) && line.contains("shop/web"), "{line}");
    drop(other_listener);
    wait_until_status(address_in_use, 200);
}
