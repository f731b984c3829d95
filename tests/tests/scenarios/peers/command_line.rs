//! Consistency of the command line's output with the behavior of a running mesh.

use std::net::SocketAddr;

use leno_tests::manifests::{client_manifest, mesh_config, route_manifest, server_manifest};
use leno_tests::{TestApplication, TestConnection, TestMesh, free_port, leno_command};
use serde_json::Value;

use super::loopback_address;

const POLICY: &str = "---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: web, namespace: shop}
spec: {matches: [{name: read, pathRegex: \"/items/.*\", methods: [GET]}]}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: user-reads-web, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: web, namespace: shop}
  sources: [{kind: ServiceAccount, name: user, namespace: shop}]
  rules: [{kind: HTTPRouteGroup, name: web, matches: [read]}]
";

/// A mesh that denies by default, and the listener through which `user` calls `web`.
struct Shop {
    mesh: TestMesh,
    listener: u16,
    _application: TestApplication,
}

fn start_shop() -> Shop {
    let (application, listener) = (TestApplication::start_echo(), free_port());
    let manifests = [
        mesh_config("deny"),
        server_manifest("web", application.port(), &[]),
        client_manifest("user", &[], &[("web.shop", listener)]),
        client_manifest("outsider", &[], &[]),
        POLICY.to_owned(),
    ];
    Shop { mesh: TestMesh::up(&manifests.concat()), listener, _application: application }
}

impl Shop {
    /// Returns the prediction of `leno explain`: its exit code and the status, 200 for the application's own
    /// response.
    fn predict_response(&self, from: &str, method: &str, url: &str) -> (i32, u64) {
        let output = leno_command()
            .args(["explain", "request", "-o", "json", "--from", from, "-X", method, "--url", url])
            .arg("-f")
            .arg(self.mesh.manifest_file("mesh.yaml"))
            .output()
            .unwrap();
        let response: Value = serde_json::from_slice(&output.stdout).unwrap();
        let status =
            if response["allowed"] == true { Some(200) } else { response["status"].as_u64() };
        (output.status.code().unwrap(), status.unwrap_or(0))
    }
}

/// Returns the response status of a request through a workload's HTTP proxy listener.
fn proxy_status(proxy: SocketAddr, method: &str, url: &str) -> u64 {
    let host = url.split('/').nth(2).unwrap();
    let mut connection = TestConnection::open(proxy).unwrap();
    let head = format!("{method} {url} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n");
    connection.send(head).unwrap();
    u64::from(connection.receive_response().unwrap().status)
}

#[test]
fn explain_predicts_the_responses_of_the_mesh() {
    let shop = start_shop();
    let proxy_of = |workload: &str| shop.mesh.sidecar(workload).proxy;
    let (user, external_client) = (proxy_of("shop/user-1"), proxy_of("shop/outsider-1"));
    let web = "http://web.shop:9080";
    for (from, method, url, status) in [
        ("shop/user-1", "GET", format!("{web}/items/1"), 200),
        ("shop/user-1", "POST", format!("{web}/items/1"), 404),
        ("shop/user-1", "GET", format!("{web}/other"), 404),
        ("shop/user-1", "GET", "http://nobody.shop:9080/".to_owned(), 404),
        ("shop/user-1", "GET", "http://web.shop:1/".to_owned(), 404),
        ("shop/user-1", "GET", "http://web.shop.svc.cluster.local:9080/items/2".to_owned(), 200),
        ("shop/user-1", "GET", "http://web:9080/items/2".to_owned(), 200),
        ("shop/outsider-1", "GET", format!("{web}/items/1"), 403),
    ] {
        let request = format!("{from} {method} {url}");
        let listener = if from == "shop/user-1" { user } else { external_client };
        assert_eq!(proxy_status(listener, method, &url), status, "{request}");
        let exit_code = if status == 200 { 0 } else { 3 };
        assert_eq!(
            shop.predict_response(from, method, &url),
            (exit_code, status),
            "explain: {request}"
        );
    }
}

#[test]
fn explain_predicts_the_effects_of_route_rules() {
    let (application, listener) = (TestApplication::start_echo(), free_port());
    let rules = [
        "{matches: [{path: {value: /old}}], filters: [{type: RequestRedirect, requestRedirect: \
         {statusCode: 301, path: {type: ReplacePrefixMatch, replacePrefixMatch: /items}}}]}",
        "{matches: [{path: {value: /v1}}], backendRefs: [{name: web, port: 9080}], filters: \
         [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: \
         /items}}}]}",
        "{backendRefs: [{name: web, port: 9080}]}",
    ];
    let manifests = [
        mesh_config("deny"),
        server_manifest("web", application.port(), &[]),
        client_manifest("user", &[], &[("web.shop", listener)]),
        route_manifest("web", &rules),
        POLICY.to_owned(),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let shop = Shop { mesh, listener, _application: application };
    let user = shop.mesh.sidecar("shop/user-1").proxy;
    for (path, status) in
        [("/old/1", 301), ("/v1/1", 200), ("/v1", 404), ("/items/1", 200), ("/other", 404)]
    {
        let url = format!("http://web.shop:9080{path}");
        assert_eq!(proxy_status(user, "GET", &url), status, "{path}");
        let exit_code = if status == 200 { 0 } else { 3 };
        assert_eq!(
            shop.predict_response("shop/user-1", "GET", &url),
            (exit_code, status),
            "explain: {path}"
        );
    }
    let output = leno_command()
        .args(["explain", "request", "--from", "shop/user-1", "--url"])
        .arg("http://web.shop:9080/v1/7?a=b")
        .arg("-f")
        .arg(shop.mesh.manifest_file("mesh.yaml"))
        .output()
        .unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    for line in [
        "filter    replace the matched prefix of the path with \"/items\"",
        "sent as   GET http://web.shop:9080/items/7?a=b",
        "skipped   HTTPRoute shop/web: rules[2].matches[0] (every request): matches, but its path is \
         less specific",
        "skipped   HTTPRoute shop/web: rules[0].matches[0] (path prefix /old): the path does not match",
    ] {
        assert!(output.lines().any(|printed| printed == line), "{line}\n{output}");
    }
}

#[test]
fn every_topic_is_available_as_json_and_as_a_table() {
    let shop = start_shop();
    let mut connection = TestConnection::open(loopback_address(shop.listener)).unwrap();
    assert_eq!(connection.get("/items/1").unwrap().status, 200);
    for (topic, expected) in [
        ("workloads", "shop/outsider-1"),
        ("services", "shop/web"),
        ("certificates", "spiffe://cluster.local/ns/shop/sa/user"),
        // The server's sidecar lists the verified client.
        ("connections", "spiffe://cluster.local/ns/shop/sa/user"),
        ("proxies", "shop/user-1"),
        ("policies", "shop/user-reads-web"),
    ] {
        let response = shop.mesh.get_json(topic).to_string();
        assert!(response.contains(expected), "{topic}: {response}");
        let table = shop.mesh.run_leno(&["get", topic]);
        assert!(table.status.success(), "{topic}: {}", String::from_utf8_lossy(&table.stderr));
        let lines = String::from_utf8_lossy(&table.stdout).lines().count();
        assert!(lines > 1, "{topic}: the table has a header and rows");
    }
    assert_eq!(shop.mesh.get_json("status")["trust_domain"], "cluster.local");
    let rejected = shop.mesh.get_json("rejected");
    assert_eq!(rejected["rejected"].as_array().map(Vec::len), Some(0), "{rejected}");
    let empty_directory = tempfile::tempdir().unwrap();
    let output = leno_command()
        .args(["get", "workloads", "--data"])
        .arg(empty_directory.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "the directory has no mesh");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("leno up"),
        "the error names `leno up`"
    );
}

#[test]
fn check_finds_the_problems_that_up_rejects() {
    let shop = start_shop();
    let invalid_policy =
        POLICY.replace("destination:", "destiny:").replace("web, namespace", "w, namespace");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.yaml");
    for (policy, exit_code) in [(POLICY, 0), (&invalid_policy, 1)] {
        std::fs::write(&file, policy).unwrap();
        let check_output = leno_command().arg("check").arg("-f").arg(&file).output().unwrap();
        let stdout = String::from_utf8_lossy(&check_output.stdout).into_owned();
        assert_eq!(check_output.status.code(), Some(exit_code), "{stdout}");
        assert_eq!(stdout.contains("policy.yaml:11:3: TrafficTarget"), exit_code == 1, "{stdout}");
    }
    shop.mesh.write("policy.yaml", &invalid_policy);
    let max_wait = std::time::Duration::from_secs(10);
    let line = shop.mesh.up.wait_for_line("policy.yaml:11", max_wait);
    assert!(line.contains("TrafficTarget"), "{line}");
    let rejected = shop.mesh.get_json("rejected").to_string();
    assert!(rejected.contains("destiny"), "{rejected}");
}
