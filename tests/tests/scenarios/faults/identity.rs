//! Unauthorized clients at the sockets of sidecars: rejected, and counted with a reason.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{
    AdminEndpoint, ControlProgram, SidecarProgram, TestConnection, eventually, free_port, get,
};

use super::{CountingApplication, MAX_WAIT, loopback_address, start_shop, wait_until_status};

#[test]
fn the_inbound_port_accepts_members_only_and_counts_rejections() {
    let shop = start_shop("allow", CountingApplication::start_echo());
    let control = ControlProgram::start(&shop.manifests, &[]);
    let ratings = SidecarProgram::join(&control, "shop/ratings-1", &[]);
    let web = SidecarProgram::join(&control, "shop/web-1", &[]);
    let other_mesh = ControlProgram::start(&shop.manifests, &[]);
    let external_client = SidecarProgram::start_unready(
        "shop/web-1",
        &other_mesh.issue_token("shop/web-1"),
        &other_mesh.state_directory("shop/web-1"),
        &[],
    );
    eventually("the client of the other mesh has a certificate", MAX_WAIT, || {
        (!external_client.admin_endpoint.full_configuration()["certificate"].is_null())
            .then_some(())
    });
    wait_until_status(shop.listener, 200);
    let inbound = ratings.admin_endpoint.inbound_listener(shop.ratings.port());
    let (admin_endpoint, requests_before) =
        (ratings.admin_endpoint, shop.ratings.received_requests());

    let mut plaintext_connection = TestConnection::open(inbound).unwrap();
    plaintext_connection.send("GET / HTTP/1.1\r\nhost: ratings\r\n\r\n").unwrap();
    assert_eq!(plaintext_connection.read_to_end().unwrap_err().kind(), ErrorKind::ConnectionReset);
    wait_for_rejection(admin_endpoint, "plaintext-rejected");

    assert_eq!(curl_status(inbound, None), "000", "without a certificate");
    wait_for_rejection(admin_endpoint, "handshake-failed");

    assert_eq!(
        curl_status(inbound, Some(&other_mesh.state_directory("shop/web-1"))),
        "000",
        "with a certificate of another mesh"
    );
    wait_for_rejection(admin_endpoint, "untrusted-peer");
    assert_eq!(
        shop.ratings.received_requests(),
        requests_before,
        "no rejected request reached the application"
    );

    assert_eq!(
        curl_status(inbound, Some(&control.state_directory("shop/web-1"))),
        "200",
        "with a certificate of the mesh"
    );
    assert_eq!(shop.ratings.received_requests(), requests_before + 1);
    drop(web);
}

#[test]
fn an_expired_certificate_is_rejected() {
    let shop = start_shop("allow", CountingApplication::start_echo());
    let control = ControlProgram::start(&shop.manifests, &["--certificate-lifetime", "3s"]);
    let ratings = SidecarProgram::join(&control, "shop/ratings-1", &[]);
    let mut web = SidecarProgram::join(&control, "shop/web-1", &[]);
    let inbound = ratings.admin_endpoint.inbound_listener(shop.ratings.port());
    // A killed sidecar does not renew its certificate anymore, and the last one expires.
    web.kill();
    eventually("the expired certificate is rejected", MAX_WAIT, || {
        drop(curl_status(inbound, Some(&control.state_directory("shop/web-1"))));
        (ratings.admin_endpoint.rejected_connections("expired-peer") >= 1.0).then_some(())
    });
}

#[test]
fn the_client_rejects_a_server_of_another_service_with_a_valid_root() {
    let (ratings, details) = (CountingApplication::start_echo(), CountingApplication::start_echo());
    let listener = free_port();
    let manifests = [
        mesh_config("allow"),
        server_manifest("ratings", ratings.port(), &[]),
        server_manifest("details", details.port(), &[]),
        client_manifest("web", &[], &[("ratings.shop", listener)]),
    ];
    let mut control = ControlProgram::start(&manifests.concat(), &[]);
    let mut ratings_sidecar = SidecarProgram::join(&control, "shop/ratings-1", &[]);
    let mut details_sidecar = SidecarProgram::join(&control, "shop/details-1", &[]);
    let _web = SidecarProgram::join(&control, "shop/web-1", &[]);
    wait_until_status(loopback_address(listener), 200);
    let requests_before = details.received_requests();

    // Another member of the mesh takes over the address while the control plane cannot update the client.
    control.kill();
    let inbound = ratings_sidecar.admin_endpoint.inbound_listener(ratings.port());
    ratings_sidecar.kill();
    details_sidecar.kill();
    let address = control.state_directory("shop/details-1");
    let address = address.join(format!("inbound-{}.address", details.port()));
    std::fs::write(address, inbound.to_string()).unwrap();
    details_sidecar.restart();
    assert_eq!(details_sidecar.admin_endpoint.inbound_listener(details.port()), inbound);

    let rejected =
        || get(loopback_address(listener), "/").ok().filter(|response| response.status == 502);
    let (response, _) = eventually("the client notices", MAX_WAIT, rejected);
    assert_eq!(response.rejection_reason(), Some("wrong-identity"));
    assert_eq!(
        details.received_requests(),
        requests_before,
        "no request reached the wrong application"
    );
}

/// Waits until one connection is counted as rejected for a reason: the client may notice first.
fn wait_for_rejection(admin_endpoint: AdminEndpoint, reason: &str) {
    let rejection_count =
        || Some(admin_endpoint.rejected_connections(reason)).filter(|count| *count > 0.0);
    let condition = format!("a connection is counted as {reason}");
    assert_eq!(eventually(&condition, MAX_WAIT, rejection_count).0, 1.0);
}

/// Returns the status of a curl request with the certificate in a state directory; 000 for none.
fn curl_status(address: SocketAddr, state_directory: Option<&Path>) -> String {
    let mut command = Command::new("curl");
    // The certificate contains a SPIFFE identity and no host name, hence -k.
    command.args(["-sk", "--http1.1", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "10"]);
    if let Some(state_directory) = state_directory {
        let credential = state_directory.join("credential.pem");
        command.arg("--cert").arg(&credential).arg("--key").arg(&credential);
    }
    let output = command.arg(format!("https://{address}/")).output().expect("curl runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
