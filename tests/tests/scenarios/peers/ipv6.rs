//! IPv6 for every configurable address: control plane, listeners, links, applications, admin endpoints.

use std::net::Ipv6Addr;
use std::time::Duration;

use leno_tests::manifests::{client_manifest, http_access_manifest, mesh_config, server_manifest};
use leno_tests::{
    ControlProgram, SidecarProgram, StreamingApplication, TestMesh, eventually, free_port,
};

use super::run_curl;

/// Returns an application at `::1`, and a client with an outbound listener there.
fn mesh_manifests(default_policy: &str, port: u16, listener: u16) -> String {
    let web = server_manifest("web", port, &[])
        .replace("spec:\n  service", "spec:\n  address: \"::1\"\n  service");
    let user =
        client_manifest("user", &[], &[("web.shop", listener)]).replace("127.0.0.1", "[::1]");
    assert!(web.contains("::1") && user.contains("[::1]:"));
    [mesh_config(default_policy), web, user, http_access_manifest("user", "web", "/.*")].concat()
}

/// Returns the status and size of a download.
fn download_status(arguments: &[&str]) -> String {
    let curl_options = ["-g", "-o", "/dev/null", "-w", "%{http_code} %{size_download}"];
    run_curl(&[&curl_options, arguments].concat())
}

#[test]
fn a_mesh_works_with_ipv6_only() {
    let (application, listener) =
        (StreamingApplication::start_at(Ipv6Addr::LOCALHOST.into()), free_port());
    let manifests = mesh_manifests("deny", application.port(), listener);
    let control = ControlProgram::start_at("[::1]:0", &manifests, &[]);
    let options = ["--inbound", "::1", "--http-proxy", "[::1]:0", "--admin", "[::1]:0"];
    let web = SidecarProgram::join(&control, "shop/web-1", &options);
    let user = SidecarProgram::join(&control, "shop/user-1", &options);
    assert!(web.admin_endpoint.address.is_ipv6() && user.admin_endpoint.address.is_ipv6());
    assert!(web.admin_endpoint.inbound_listener(application.port()).is_ipv6());

    let url = format!("http://[::1]:{listener}/300000");
    eventually("the listener is open", Duration::from_secs(20), || {
        download_status(&[&url]).starts_with("200").then_some(())
    });
    assert_eq!(download_status(&[&url]), "200 300000");
    let proxy = user.admin_endpoint.full_configuration()["open_listeners"]["http-proxy"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(proxy.starts_with("[::1]:"), "{proxy}");
    let proxy = format!("http://{proxy}");
    for option in ["--compressed", "--proxytunnel"] {
        let result = download_status(&[option, "--proxy", &proxy, "http://web.shop:9080/1000"]);
        assert_eq!(result, "200 1000", "{option}");
    }
    let proxies = control.get_json("proxies").to_string();
    assert!(proxies.contains("[::1]:") && !proxies.contains("127.0.0.1"), "{proxies}");
}

#[test]
fn clients_of_either_ip_version_reach_an_ipv6_server() {
    let (application, listener) =
        (StreamingApplication::start_at(Ipv6Addr::LOCALHOST.into()), free_port());
    let ipv4_listener = free_port();
    let mut manifests = mesh_manifests("allow", application.port(), listener);
    manifests.push_str(&client_manifest("visitor", &[], &[("web.shop", ipv4_listener)]));
    let _mesh = TestMesh::up(&manifests);
    for listener in [format!("[::1]:{listener}"), format!("127.0.0.1:{ipv4_listener}")] {
        let url = format!("http://{listener}/1000");
        eventually("the listener is open", Duration::from_secs(20), || {
            download_status(&[&url]).starts_with("200").then_some(())
        });
        assert_eq!(download_status(&[&url]), "200 1000", "{listener}");
    }
}
