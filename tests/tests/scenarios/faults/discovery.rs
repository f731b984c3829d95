//! On-demand discovery: a sidecar subscribes only to the services it uses, with and without a control plane.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{
    ControlProgram, Response, SidecarProgram, TestConnection, eventually, exchange_bytes,
};

use super::{CountingApplication, MAX_WAIT};

#[test]
fn a_sidecar_subscribes_to_a_service_from_its_first_use_until_it_is_idle() {
    let (ratings, details) = (CountingApplication::start_echo(), CountingApplication::start_echo());
    let control = start_control(&ratings, &details);
    let _ratings = SidecarProgram::join(&control, "shop/ratings-1", &[]);
    let _details = SidecarProgram::join(&control, "shop/details-1", &[]);
    let web = SidecarProgram::join(&control, "shop/web-1", &["--idle-subscription", "3s"]);
    let listener = web.admin_endpoint.http_proxy();
    assert_eq!(
        web.admin_endpoint.configured_services(),
        [""; 0],
        "no service is configured without requests"
    );

    assert_eq!(send_to_host(listener, "ratings.shop").status, 200);
    assert_eq!(web.admin_endpoint.configured_services(), ["shop/ratings"]);
    assert_eq!(send_to_host(listener, "details.shop").status, 200);
    assert_eq!(web.admin_endpoint.configured_services(), ["shop/details", "shop/ratings"]);

    let unknown_response = send_to_host(listener, "nobody.shop");
    assert_eq!(
        (unknown_response.status, unknown_response.rejection_reason()),
        (404, Some("unknown-service"))
    );

    eventually("unused services are removed", MAX_WAIT, || {
        assert_eq!(send_to_host(listener, "ratings.shop").status, 200);
        (web.admin_endpoint.configured_services() == ["shop/ratings"]).then_some(())
    });
}

#[test]
fn without_a_control_plane_subscribed_services_work_and_new_ones_time_out() {
    let (ratings, details) = (CountingApplication::start_echo(), CountingApplication::start_echo());
    let mut control = start_control(&ratings, &details);
    let _ratings = SidecarProgram::join(&control, "shop/ratings-1", &[]);
    let _details = SidecarProgram::join(&control, "shop/details-1", &[]);
    let web = SidecarProgram::join(&control, "shop/web-1", &["--discovery-timeout", "500ms"]);
    let listener = web.admin_endpoint.http_proxy();
    assert_eq!(send_to_host(listener, "ratings.shop").status, 200);
    control.kill();

    let started = Instant::now();
    let response = send_to_host(listener, "details.shop");
    assert_eq!((response.status, response.rejection_reason()), (503, Some("discovery-timeout")));
    let elapsed = started.elapsed();
    assert!((Duration::from_millis(500)..Duration::from_secs(3)).contains(&elapsed), "{elapsed:?}");
    assert_eq!(send_to_host(listener, "ratings.shop").status, 200);

    // Unanswered subscriptions are retried automatically.
    control.restart();
    eventually("the new service is found", MAX_WAIT, || {
        (send_to_host(listener, "details.shop").status == 200).then_some(())
    });
}

/// Nonexistent names do not prevent subscriptions to services.
#[test]
fn thousands_of_unknown_names_do_not_block_new_services_and_are_reported() {
    let (ratings, details) = (CountingApplication::start_echo(), CountingApplication::start_echo());
    // With egress, each of these names would be a DNS query to the machine's resolver.
    let mesh_settings =
        mesh_config("allow").replace("defaultPolicy", "egress: deny, defaultPolicy");
    let control = start_control_with(mesh_settings, &ratings, &details);
    let _ratings = SidecarProgram::join(&control, "shop/ratings-1", &[]);
    let _details = SidecarProgram::join(&control, "shop/details-1", &[]);
    let web = SidecarProgram::join(&control, "shop/web-1", &[]);
    let listener = web.admin_endpoint.http_proxy();
    assert_eq!(send_to_host(listener, "ratings.shop").status, 200);
    let mut unknown = TestConnection::open(listener).unwrap();
    for index in 0..4200 {
        let name = format!("nobody-{index}.shop");
        unknown.send(format!("GET http://{name}/ HTTP/1.1\r\nhost: {name}\r\n\r\n")).unwrap();
        let unknown = unknown.receive_response().unwrap();
        assert_eq!(
            (unknown.status, unknown.rejection_reason()),
            (404, Some("unknown-service")),
            "{index}"
        );
    }
    assert_eq!(send_to_host(listener, "details.shop").status, 200);
    assert_eq!(send_to_host(listener, "ratings.shop").status, 200);
    let evicted_count =
        web.admin_endpoint.metric_value("leno_table_evictions_total{table=\"unknown-services\"}");
    assert!(evicted_count >= 4200.0 - 1200.0, "{evicted_count}");
    let status = eventually("status has a notice", MAX_WAIT, || {
        let output = control.run_leno(&["status"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.contains("shop/web-1: the table unknown-services is full").then_some(text)
    });
    assert!(status.0.contains("leno_table_evictions_total"), "{}", status.0);
}

fn start_control(ratings: &CountingApplication, details: &CountingApplication) -> ControlProgram {
    start_control_with(mesh_config("allow"), ratings, details)
}

fn start_control_with(
    mesh_settings: String,
    ratings: &CountingApplication,
    details: &CountingApplication,
) -> ControlProgram {
    let manifests = [
        mesh_settings,
        server_manifest("ratings", ratings.port(), &[]),
        server_manifest("details", details.port(), &[]),
        client_manifest("web", &[], &[]),
    ];
    ControlProgram::start(&manifests.concat(), &[])
}

/// Sends a request to a service through the HTTP proxy listener.
fn send_to_host(listener: SocketAddr, host: &str) -> Response {
    let host = format!("{host}:9080");
    let request =
        format!("GET http://{host}/ HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    exchange_bytes(listener, &request).expect("the listener responds")
}
