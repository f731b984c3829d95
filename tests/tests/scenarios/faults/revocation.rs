//! Revocation of an account or a workload: its members are rejected immediately, on open connections as well.

use leno_tests::{AdminEndpoint, ControlProgram, SidecarProgram, eventually};

use super::{CountingApplication, MAX_WAIT, start_shop, wait_until_status};

#[test]
fn connections_of_a_revoked_account_are_closed() {
    let shop = start_shop("allow", CountingApplication::start_echo());
    let control = ControlProgram::start(&shop.manifests, &[]);
    let ratings = SidecarProgram::join(&control, "shop/ratings-1", &[]);
    let _web = SidecarProgram::join(&control, "shop/web-1", &[]);
    wait_until_status(shop.listener, 200);
    let (requests_before, rejections) = (
        shop.ratings.received_requests(),
        "leno_connections_rejected_total{reason=\"revoked-peer\"}",
    );
    assert!(ratings.admin_endpoint.metric_value(rejections) < 1.0);

    let revoked = "defaultPolicy: allow, revoked: [{kind: ServiceAccount, name: web, \
                   namespace: shop}]";
    let manifests = shop.manifests.replace("defaultPolicy: allow", revoked);
    assert_ne!(manifests, shop.manifests);
    control.write("mesh.yaml", &manifests);
    eventually("the open link of web is closed", MAX_WAIT, || {
        (ratings.admin_endpoint.metric_value(rejections) >= 1.0).then_some(())
    });
    let response = leno_tests::get(shop.listener, "/").unwrap();
    assert_ne!(response.status, 200);
    let requests_after = shop.ratings.received_requests();
    assert!(requests_after >= requests_before);
    eventually("web is disconnected from the control plane", MAX_WAIT, || {
        AdminEndpoint::for_workload(&control.get_json("proxies"), "shop/web-1")
            .is_none()
            .then_some(())
    });
    let token = control.issue_token("shop/web-1");
    let second_join =
        SidecarProgram::start_unready("shop/web-1", &token, &control.state_directory("again"), &[]);
    second_join.program.wait_for_line("its Workload does not exist", MAX_WAIT);
    drop(second_join);

    // `web` is a member again once the revocation is removed.
    control.write("mesh.yaml", &shop.manifests);
    wait_until_status(shop.listener, 200);
}

#[test]
fn a_revoked_workload_stays_rejected_after_a_restart_of_the_control_plane() {
    let shop = start_shop("allow", CountingApplication::start_echo());
    let mut control = ControlProgram::start(&shop.manifests, &[]);
    let ratings = SidecarProgram::join(&control, "shop/ratings-1", &[]);
    let _web = SidecarProgram::join(&control, "shop/web-1", &[]);
    wait_until_status(shop.listener, 200);
    let rejections = "leno_connections_rejected_total{reason=\"revoked-peer\"}";

    let output = control.run_leno(&["revoke", "shop/web-1"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("shop/web-1 is revoked"));
    eventually("the open link of web is closed", MAX_WAIT, || {
        (ratings.admin_endpoint.metric_value(rejections) >= 1.0).then_some(())
    });
    assert_ne!(leno_tests::get(shop.listener, "/").unwrap().status, 200);
    let is_disconnected = |control: &ControlProgram| {
        AdminEndpoint::for_workload(&control.get_json("proxies"), "shop/web-1")
            .is_none()
            .then_some(())
    };
    eventually("web is disconnected from the control plane", MAX_WAIT, || {
        is_disconnected(&control)
    });
    control.kill();
    control.restart();
    eventually("ratings is back", MAX_WAIT, || {
        AdminEndpoint::for_workload(&control.get_json("proxies"), "shop/ratings-1").map(drop)
    });
    is_disconnected(&control).unwrap();
    let second_join = SidecarProgram::start_unready(
        "shop/web-1",
        &control.issue_token("shop/web-1"),
        &control.state_directory("again"),
        &[],
    );
    second_join.program.wait_for_line("its Workload does not exist", MAX_WAIT);
    drop(second_join);
    let revoked_list = control.run_leno(&["revoke", "-o", "json"]).stdout;
    let revoked_list: serde_json::Value = serde_json::from_slice(&revoked_list).unwrap();
    assert_eq!(revoked_list["revoked"][0]["workload"], "shop/web-1");

    let output = control.run_leno(&["revoke", "shop/web-1", "--undo"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("is a member again"));
    wait_until_status(shop.listener, 200);
}
