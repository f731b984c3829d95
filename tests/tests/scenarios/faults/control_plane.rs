//! Sidecars on separate machines: joining, and operation without the control plane.

use leno_tests::{
    AdminEndpoint, BackgroundLoad, ControlProgram, SidecarProgram, eventually, get, leno_command,
};

use super::{ALLOW_GETS, CountingApplication, MAX_WAIT, start_shop, wait_until_status};

#[test]
fn killing_a_control_plane_fails_no_request_and_sidecars_reconnect() {
    let shop = start_shop("deny", CountingApplication::start_echo());
    let mut control = ControlProgram::start(&shop.manifests, &[]);
    control.write("policy.yaml", ALLOW_GETS);
    let mut ratings = SidecarProgram::join(&control, "shop/ratings-1", &[]);
    let mut web = SidecarProgram::join(&control, "shop/web-1", &[]);
    wait_until_status(shop.listener, 200);

    let load = BackgroundLoad::start("GET", shop.listener, 2);
    load.wait_for(100);
    control.kill();
    load.wait_for(500);
    eventually("the sidecars report the disconnection", MAX_WAIT, || {
        (web.admin_endpoint.metric_value("leno_control_connected") == 0.0).then_some(())
    });
    load.wait_for(100);
    load.finish_load().assert_no_failures();

    // Without a control plane, a sidecar serves from its saved state: certificate, configuration, addresses.
    let inbound = ratings.admin_endpoint.inbound_listener(shop.ratings.port());
    ratings.kill();
    assert_eq!(get(shop.listener, "/").unwrap().rejection_reason(), Some("connect-failed"));
    ratings.restart();
    assert_eq!(ratings.admin_endpoint.inbound_listener(shop.ratings.port()), inbound);
    wait_until_status(shop.listener, 200);
    web.kill();
    web.restart();
    wait_until_status(shop.listener, 200);

    let load = BackgroundLoad::start("GET", shop.listener, 2);
    load.wait_for(100);
    control.restart();
    eventually("both sidecars are connected again", MAX_WAIT, || {
        let proxies = control.get_json("proxies");
        AdminEndpoint::for_workload(&proxies, "shop/ratings-1")
            .and(AdminEndpoint::for_workload(&proxies, "shop/web-1"))
    });
    load.wait_for(100);
    load.finish_load().assert_no_failures();

    // Changes made while the control plane is absent arrive after its return.
    control.kill();
    control.remove("policy.yaml");
    control.restart();
    wait_until_status(shop.listener, 403);
    control.write("policy.yaml", ALLOW_GETS);
    wait_until_status(shop.listener, 200);
}

#[test]
fn a_token_is_valid_once_for_its_own_workload_and_deleted_after_use() {
    let shop = start_shop("allow", CountingApplication::start_echo());
    let control = ControlProgram::start(&shop.manifests, &[]);
    let token = control.issue_token("shop/ratings-1");
    let token_copy = token.with_extension("copy");
    std::fs::copy(&token, &token_copy).unwrap();

    // A token used for another workload is rejected and stays valid for its own workload.
    let mut web = SidecarProgram::start_unready(
        "shop/web-1",
        &token,
        &control.state_directory("shop/web-1"),
        &[],
    );
    assert_rejected(&mut web, "was issued for another workload");

    let state_directory = control.state_directory("shop/ratings-1");
    let ratings = SidecarProgram::start_unready("shop/ratings-1", &token, &state_directory, &[]);
    ratings.wait_until_ready();
    assert!(!token.exists(), "a token is removed once it is used");

    let mut second_sidecar = SidecarProgram::start_unready(
        "shop/ratings-1",
        &token_copy,
        &state_directory.with_extension("second"),
        &[],
    );
    assert_rejected(&mut second_sidecar, "was used already");
    // A token of another mesh.
    let other_mesh = ControlProgram::start(&shop.manifests, &[]);
    let (token, other_state_directory) =
        (other_mesh.issue_token("shop/web-1"), other_mesh.state_directory("shop/web-1"));
    let address = control.listen_address().to_string();
    let mut other_mesh_proxy = SidecarProgram::start_unready(
        "shop/web-1",
        &token,
        &other_state_directory,
        &["--control", &address],
    );
    assert_eq!(other_mesh_proxy.program.wait_for_exit(MAX_WAIT).code(), Some(1));
    let printed_output = other_mesh_proxy.program.printed_output();
    assert!(
        printed_output.contains("error: ") && printed_output.contains("is for another mesh"),
        "{printed_output}"
    );

    let proxies = control.get_json("proxies");
    assert_eq!(
        AdminEndpoint::for_workload(&proxies, "shop/ratings-1"),
        Some(ratings.admin_endpoint)
    );
}

#[test]
fn a_sidecar_with_a_saved_configuration_serves_while_its_join_is_rejected() {
    let shop = start_shop("allow", CountingApplication::start_echo());
    let control = ControlProgram::start(&shop.manifests, &[]);
    let _ratings = SidecarProgram::join(&control, "shop/ratings-1", &[]);
    let token = control.issue_token("shop/web-1");
    let token_copy = token.with_extension("copy");
    std::fs::copy(&token, &token_copy).unwrap();
    let state_directory = control.state_directory("shop/web-1");
    let mut web = SidecarProgram::start_unready("shop/web-1", &token, &state_directory, &[]);
    web.wait_until_ready();
    wait_until_status(shop.listener, 200);
    web.program.stop(MAX_WAIT);

    // The sidecar's certificate is lost, its configuration is not, and its token was used.
    std::fs::remove_file(state_directory.join("credential.pem")).unwrap();
    let mut restarted_web =
        SidecarProgram::start_unready("shop/web-1", &token_copy, &state_directory, &[]);
    let line = restarted_web.program.wait_for_line("the control plane rejected the join", MAX_WAIT);
    assert!(line.contains("serving the last configuration"), "{line}");
    assert!(line.contains("was used already") && !line.contains("unreachable"), "{line}");
    assert!(restarted_web.program.stop(MAX_WAIT).success(), "the sidecar runs until it is stopped");
}

/// Checks that the proxy exits with an error that contains the rejection of its join once, with this reason.
fn assert_rejected(proxy: &mut SidecarProgram, reason: &str) {
    let status = proxy.program.wait_for_exit(MAX_WAIT);
    assert_eq!(status.code(), Some(1));
    let printed_output = proxy.program.printed_output();
    let lines: Vec<_> =
        printed_output.lines().filter(|line| line.contains("rejected the join")).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line = lines[0];
    assert!(line.contains("error: the control plane rejected the join: the join token"), "{line}");
    assert!(line.contains(reason) && !line.contains("unreachable"), "{line}");
}

#[test]
fn a_state_directory_is_for_one_proxy_at_a_time() {
    let shop = start_shop("allow", CountingApplication::start_echo());
    let control = ControlProgram::start(&shop.manifests, &[]);
    let mut ratings = SidecarProgram::join(&control, "shop/ratings-1", &[]);
    let _web = SidecarProgram::join(&control, "shop/web-1", &[]);
    wait_until_status(shop.listener, 200);

    let state_directory = control.state_directory("shop/ratings-1");
    let second_output = leno_command()
        .args(["proxy", "--workload", "shop/ratings-1", "--state"])
        .arg(&state_directory)
        .output()
        .unwrap();
    assert_eq!(second_output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&second_output.stderr);
    assert!(stderr.contains("another proxy uses it"), "{stderr}");
    assert!(
        stderr.contains(state_directory.to_str().unwrap()) && stderr.contains("--state"),
        "{stderr}"
    );

    // A killed sidecar leaves no state that would block its successor.
    ratings.kill();
    ratings.restart();
    wait_until_status(shop.listener, 200);
}
