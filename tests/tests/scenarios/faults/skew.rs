//! Two releases in one mesh: control planes and sidecars are replaced one after the other, forward and back.

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{BackgroundLoad, ControlProgram, Release, SidecarProgram, eventually, free_port};

use super::{ALLOW_GETS, CountingApplication, MAX_WAIT, loopback_address, wait_until_status};

#[test]
#[ignore = "builds the release before this one: ./test skew"]
fn a_mesh_is_upgraded_and_rolled_back_under_load_without_a_failed_request() {
    let (first_server, second_server, listener) =
        (CountingApplication::start_echo(), CountingApplication::start_echo(), free_port());
    let ports = [first_server.port(), second_server.port()];
    // Two workloads of one service, so that one workload is available while the other is replaced.
    let second_manifest =
        server_manifest("ratings", second_server.port(), &[]).replacen("ratings-1", "ratings-2", 1);
    let (second_manifest, _) =
        second_manifest.rsplit_once("---").expect("a workload and a service");
    let listeners = client_manifest("web", &[], &[("ratings.shop", listener)]);
    let manifests = [
        &mesh_config("deny"),
        second_manifest,
        &server_manifest("ratings", first_server.port(), &[]),
        &listeners,
    ]
    .concat();
    let listener = loopback_address(listener);

    let previous_release = Release::Previous;
    let mut control = ControlProgram::start_release(
        previous_release,
        &manifests,
        &["--certificate-lifetime", "20s"],
    );
    control.write("policy.yaml", ALLOW_GETS);
    let mut servers: Vec<SidecarProgram> = ["shop/ratings-1", "shop/ratings-2"]
        .map(|name| SidecarProgram::join_release(previous_release, &control, name, &[]))
        .into();
    let mut web = SidecarProgram::join_release(previous_release, &control, "shop/web-1", &[]);
    assert_changes_and_renewals(&control, &servers, listener);

    for release in [Release::Current, Release::Previous] {
        let load = BackgroundLoad::start("GET", listener, 2);
        load.wait_for(20);
        // Control planes first: they send new fields only to sidecars that support them.
        control.switch_release(release);
        wait_for_servers(&web, &servers, ports);
        for index in 0..servers.len() {
            servers[index].switch_release(release);
            wait_for_servers(&web, &servers, ports);
            load.wait_for(20);
        }
        load.finish_load().assert_no_failures();
        assert_changes_and_renewals(&control, &servers, listener);
        // A stopped client sidecar disconnects its own client.
        web.switch_release(release);
        assert_changes_and_renewals(&control, &servers, listener);
    }

    // The reverse order: sidecars first.
    let load = BackgroundLoad::start("GET", listener, 2);
    for index in 0..servers.len() {
        servers[index].switch_release(Release::Current);
        wait_for_servers(&web, &servers, ports);
        load.wait_for(20);
    }
    load.finish_load().assert_no_failures();
    assert_changes_and_renewals(&control, &servers, listener);
    // A sidecar of this release joins with a token of the previous one.
    drop(web);
    let _web = SidecarProgram::join_release(Release::Current, &control, "shop/web-1", &[]);
    assert_changes_and_renewals(&control, &servers, listener);
}

/// Waits until the client's sidecar knows both servers, as an operator does before the next replacement.
fn wait_for_servers(web: &SidecarProgram, servers: &[SidecarProgram], ports: [u16; 2]) {
    eventually("the client has both endpoints", MAX_WAIT, || {
        let config = web.admin_endpoint.full_configuration().to_string();
        let mut inbound_listeners = servers
            .iter()
            .zip(ports)
            .map(|(server, port)| server.admin_endpoint.inbound_listener(port));
        inbound_listeners.all(|address| config.contains(&format!("\"{address}\""))).then_some(())
    });
}

/// Checks that changes arrive and certificates are renewed.
fn assert_changes_and_renewals(
    control: &ControlProgram,
    servers: &[SidecarProgram],
    listener: std::net::SocketAddr,
) {
    wait_until_status(listener, 200);
    control.remove("policy.yaml");
    wait_until_status(listener, 403);
    control.write("policy.yaml", ALLOW_GETS);
    wait_until_status(listener, 200);
    for server in servers {
        let renewals =
            || server.admin_endpoint.metric_value("leno_certificate_renewals_total{result=\"ok\"}");
        let renewals_before = renewals();
        let renewed_again = || (renewals() > renewals_before).then_some(());
        eventually("a certificate is renewed", MAX_WAIT, renewed_again);
    }
}
