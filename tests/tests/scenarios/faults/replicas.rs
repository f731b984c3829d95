//! Several control planes: sidecars are distributed, fail over, and lose no request.

use std::path::Path;

use leno_tests::{BackgroundLoad, ControlProgram, SidecarProgram, eventually};

use super::{ALLOWED, CountingApplication, MAX_WAIT, start_shop, wait_until_status};

#[test]
fn a_replica_killed_under_load_loses_no_request_and_no_change() {
    let shop = start_shop("deny", CountingApplication::start_echo());
    let mut controls = ControlProgram::start_replicas(3, &shop.manifests, &[]);
    controls[0].write("policy.yaml", ALLOWED);
    // A token of one control plane is valid for all, and contains all addresses.
    let _ratings = SidecarProgram::join(&controls[1], "shop/ratings-1", &[]);
    let _web = SidecarProgram::join(&controls[2], "shop/web-1", &[]);
    wait_until_status(shop.listener, 200);
    for control in &controls {
        // Each knows both sidecars, whichever it serves.
        wait_for_count(control, 2);
    }

    for index in 0..controls.len() {
        let load = BackgroundLoad::start("GET", shop.listener, 2);
        load.wait_for(50);
        controls[index].kill();
        load.wait_for(50);
        // Changes during its absence reach every sidecar through the remaining ones.
        let remaining = (index + 1) % controls.len();
        load.finish_load().assert_no_failures();
        controls[remaining].remove("policy.yaml");
        wait_until_status(shop.listener, 403);
        controls[remaining].write("policy.yaml", ALLOWED);
        wait_until_status(shop.listener, 200);
        let load = BackgroundLoad::start("GET", shop.listener, 2);
        controls[index].restart();
        wait_for_count(&controls[index], 2);
        load.wait_for(50);
        load.finish_load().assert_no_failures();
    }
}

#[test]
fn a_token_file_names_every_control_plane_and_is_valid_once_at_any() {
    let shop = start_shop("allow", CountingApplication::start_echo());
    let mut controls = ControlProgram::start_replicas(2, &shop.manifests, &[]);
    let token = controls[0].issue_token("shop/ratings-1");
    let copy = token.with_extension("copy");
    std::fs::copy(&token, &copy).unwrap();
    let text = std::fs::read_to_string(&token).unwrap();
    for control in &controls {
        assert!(text.contains(&format!("control: {}", control.listen_address())), "{text}");
    }
    // The issuing control plane is gone; the other one accepts its token once.
    controls[0].kill();
    let state = controls[1].state_directory("shop/ratings-1");
    let ratings = SidecarProgram::start_unready("shop/ratings-1", &token, &state, &[]);
    ratings.wait_until_ready();
    assert_token_rejected(&controls, &copy, &state.with_extension("second"));
}

/// Checks that a used token is rejected.
fn assert_token_rejected(controls: &[ControlProgram], token: &Path, state: &Path) {
    let second = SidecarProgram::start_unready("shop/ratings-1", token, state, &[]);
    second.program.wait_for_line("was used already", MAX_WAIT);
    wait_for_count(&controls[1], 1);
}

/// Waits until a control plane has this number of sidecars, its own and those of others.
fn wait_for_count(control: &ControlProgram, registered: u64) {
    let condition = format!("{} has {registered} registered sidecars", control.listen_address());
    eventually(&condition, MAX_WAIT, || {
        let status = control.get_json("status");
        let in_sync = status["out_of_sync"] == 0;
        (in_sync && status["registered"].as_u64() == Some(registered)).then_some(())
    });
}
