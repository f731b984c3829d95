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
    let (ratings_listener, details_listener) = (free_port(), free_port());
    let listeners = [("ratings.shop", ratings_listener), ("details.shop", details_listener)];
    let manifests = [
        mesh_config("allow"),
        server_manifest("ratings", ratings.port(), &[]),
        server_manifest("details", details.port(), &[]),
        client_manifest("web", &[], &listeners),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let old_sidecar = connected_sidecar(&mesh, "shop/ratings-1");
    let inbound = old_sidecar.inbound_listener(ratings.port());
    wait_until_status(loopback_address(ratings_listener), 200);

    let load = BackgroundLoad::start("GET", loopback_address(details_listener), 2);
    load.wait_for(100);
    signal_pid(old_sidecar.pid, Signal::KILL);
    let restarted = || {
        Some(connected_sidecar(&mesh, "shop/ratings-1"))
            .filter(|admin_endpoint| admin_endpoint.pid != old_sidecar.pid)
    };
    let (new_sidecar, _) = eventually("the sidecar is restarted", MAX_WAIT, restarted);
    wait_until_status(loopback_address(ratings_listener), 200);
    load.wait_for(100);
    load.finish_load().assert_no_failures();

    assert_eq!(new_sidecar.inbound_listener(ratings.port()), inbound);
    let line = mesh.up.wait_for_line("the sidecar exited; restarting it", MAX_WAIT);
    assert!(line.contains("shop/ratings-1") && line.contains("signal: 9"), "{line}");
}

/// The listener opens as soon as its address is free.
#[test]
fn a_listener_opens_as_soon_as_its_address_is_free() {
    let ratings = CountingApplication::start_echo();
    let other_listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address_in_use = other_listener.local_addr().unwrap();
    let web_manifest = |listener| client_manifest("web", &[], &[("ratings.shop", listener)]);
    let manifests = [mesh_config("allow"), server_manifest("ratings", ratings.port(), &[])];
    let mesh = TestMesh::up(&(manifests.concat() + &web_manifest(free_port())));
    mesh.write("mesh.yaml", &(manifests.concat() + &web_manifest(address_in_use.port())));
    let line = mesh.up.wait_for_line("cannot open a listener; retrying", MAX_WAIT);
    assert!(line.contains(&address_in_use.to_string()) && line.contains("shop/web"), "{line}");
    drop(other_listener);
    wait_until_status(address_in_use, 200);
}
