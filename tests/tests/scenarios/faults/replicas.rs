//! Several control planes: sidecars are distributed, fail over, and lose no request.

use std::path::Path;

use leno_tests::{ControlPlane, Load, Proxy, eventually};

use super::{ALLOWED, Counted, MAX_WAIT, shop, turns};

#[test]
fn a_replica_killed_under_load_loses_no_request_and_no_change() {
    let shop = shop("strict", Counted::echo());
    let mut controls = ControlPlane::replicas(3, &shop.manifests, &[]);
    controls[0].write("policy.yaml", ALLOWED);
    // A token of one control plane is valid for all, and contains all addresses.
    let _ratings = Proxy::join(&controls[1], "shop/ratings-1", &[]);
    let _web = Proxy::join(&controls[2], "shop/web-1", &[]);
    turns(shop.listener, 200);
    for control in &controls {
        // Each knows both sidecars, whichever it serves.
        agrees(control, 2);
    }

    for turn in 0..controls.len() {
        let load = Load::start("GET", shop.listener, 2);
        load.wait_for(50);
        controls[turn].kill();
        load.wait_for(50);
        // Changes during its absence reach every sidecar through the remaining ones.
        let left = (turn + 1) % controls.len();
        load.finish().assert_whole();
        controls[left].remove("policy.yaml");
        turns(shop.listener, 403);
        controls[left].write("policy.yaml", ALLOWED);
        turns(shop.listener, 200);
        let load = Load::start("GET", shop.listener, 2);
        controls[turn].start_again();
        agrees(&controls[turn], 2);
        load.wait_for(50);
        load.finish().assert_whole();
    }
}

#[test]
fn a_token_file_names_every_control_plane_and_is_used_up_at_any() {
    let shop = shop("permissive", Counted::echo());
    let mut controls = ControlPlane::replicas(2, &shop.manifests, &[]);
    let token = controls[0].token("shop/ratings-1");
    let copy = token.with_extension("copy");
    std::fs::copy(&token, &copy).unwrap();
    let text = std::fs::read_to_string(&token).unwrap();
    for control in &controls {
        assert!(text.contains(&format!("control: {}", control.address())), "{text}");
    }
    // The issuing control plane is gone; the other one accepts its token once.
    controls[0].kill();
    let state = controls[1].state("shop/ratings-1");
    let ratings = Proxy::launch("shop/ratings-1", &token, &state, &[]);
    ratings.wait_until_ready();
    refused(&controls, &copy, &state.with_extension("second"));
}

/// Checks that a used token is rejected.
fn refused(controls: &[ControlPlane], token: &Path, state: &Path) {
    let second = Proxy::launch("shop/ratings-1", token, state, &[]);
    second.program.wait_for_line("was used already", MAX_WAIT);
    agrees(&controls[1], 1);
}

/// Waits until a control plane knows this number of sidecars, its own and those of others.
fn agrees(control: &ControlPlane, registered: u64) {
    let what = format!("{} knows {registered} sidecars", control.address());
    eventually(&what, MAX_WAIT, || {
        let status = control.ask("status");
        let settled = status["behind"] == 0;
        (settled && status["registered"].as_u64() == Some(registered)).then_some(())
    });
}
