//! Several control planes: sidecars are distributed, fail over, and lose no request.

use std::path::Path;

use leno_tests::{BackgroundLoad, ControlProgram, SidecarProgram, eventually};

use super::{ALLOW_GETS, CountingApplication, MAX_WAIT, start_shop, wait_until_status};

#[test]
fn a_replica_killed_under_load_loses_no_request_and_no_change() {
    let shop = start_shop("deny", CountingApplication::start_echo());
    let mut control_planes = ControlProgram::start_replicas(3, &shop.manifests, &[]);
    control_planes[0].write("policy.yaml", ALLOW_GETS);
    // A token of one control plane is valid for all, and contains all addresses.
    let _ratings = SidecarProgram::join(&control_planes[1], "shop/ratings-1", &[]);
    let _web = SidecarProgram::join(&control_planes[2], "shop/web-1", &[]);
    wait_until_status(shop.listener, 200);
    for control in &control_planes {
        // Each control plane knows both sidecars, whichever it serves.
        wait_for_count(control, 2);
    }

    for index in 0..control_planes.len() {
        let load = BackgroundLoad::start("GET", shop.listener, 2);
        load.wait_for(50);
        control_planes[index].kill();
        load.wait_for(50);
        // Changes during the absence of one control plane reach every sidecar through the remaining ones.
        let other_index = (index + 1) % control_planes.len();
        load.finish_load().assert_no_failures();
        control_planes[other_index].remove("policy.yaml");
        wait_until_status(shop.listener, 403);
        control_planes[other_index].write("policy.yaml", ALLOW_GETS);
        wait_until_status(shop.listener, 200);
        let load = BackgroundLoad::start("GET", shop.listener, 2);
        control_planes[index].restart();
        wait_for_count(&control_planes[index], 2);
        load.wait_for(50);
        load.finish_load().assert_no_failures();
    }
}

#[test]
fn a_token_file_names_every_control_plane_and_is_valid_once_at_any() {
    let shop = start_shop("allow", CountingApplication::start_echo());
    let mut control_planes = ControlProgram::start_replicas(2, &shop.manifests, &[]);
    let token = control_planes[0].issue_token("shop/ratings-1");
    let token_copy = token.with_extension("copy");
    std::fs::copy(&token, &token_copy).unwrap();
    let token_text = std::fs::read_to_string(&token).unwrap();
    for control in &control_planes {
        assert!(
            token_text.contains(&format!("control: {}", control.listen_address())),
            "{token_text}"
        );
    }
    // The issuing control plane is gone; the other one accepts its token once.
    control_planes[0].kill();
    let state_directory = control_planes[1].state_directory("shop/ratings-1");
    let ratings = SidecarProgram::start_unready("shop/ratings-1", &token, &state_directory, &[]);
    ratings.wait_until_ready();
    assert_token_rejected(&control_planes, &token_copy, &state_directory.with_extension("second"));
}

/// Checks that a used token is rejected.
fn assert_token_rejected(control_planes: &[ControlProgram], token: &Path, state_directory: &Path) {
    let second = SidecarProgram::start_unready("shop/ratings-1", token, state_directory, &[]);
    second.program.wait_for_line("was used already", MAX_WAIT);
    wait_for_count(&control_planes[1], 1);
}

/// Waits until a control plane has this number of sidecars, its own and those of others.
fn wait_for_count(control: &ControlProgram, expected_count: u64) {
    let condition =
        format!("{} has {expected_count} registered sidecars", control.listen_address());
    eventually(&condition, MAX_WAIT, || {
        let status = control.get_json("status");
        let in_sync = status["out_of_sync"] == 0;
        (in_sync && status["registered"].as_u64() == Some(expected_count)).then_some(())
    });
}
