//! Rate limits: excess requests are rejected at the service's own sidecar, with a reason.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest, server_with_protocol};
use leno_tests::{
    TestApplication, TestConnection, TestMesh, eventually, exchange_bytes, free_port, get,
};

fn loopback_address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn rate_limit(spec: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: RateLimit\n\
         metadata: {{name: limit, namespace: shop}}\nspec:\n  {spec}\n"
    )
}

/// Starts `stock` behind a sidecar, with outbound listeners of `web` and `app` for this service.
fn start_shop(policy: &str) -> (TestMesh, TestApplication, [SocketAddr; 2]) {
    let stock = TestApplication::start_echo();
    let listeners = [free_port(), free_port()];
    let manifests = [
        mesh_config("allow"),
        server_manifest("stock", stock.port(), &[]),
        client_manifest("web", &[], &[("stock", listeners[0])]),
        client_manifest("app", &[], &[("stock", listeners[1])]),
        policy.to_owned(),
    ];
    (TestMesh::up(&manifests.concat()), stock, listeners.map(loopback_address))
}

#[test]
fn each_client_has_its_own_limit_and_excess_requests_get_429() {
    let rules = "targetRefs: [{kind: Service, name: stock}]
  rules:
  - {name: free, matches: [{path: {type: Exact, value: /free}}], requests: 1000, per: 1s, stop: true}
  - name: clients
    key: client
    requests: 5
    per: 1h
    response: {body: \"too much\", headers: [{name: x-limit, value: clients}]}";
    let (mesh, _stock, [web, app]) = start_shop(&rate_limit(rules));
    let statuses = |listener: SocketAddr, path: &str| -> Vec<u16> {
        let mut connection = TestConnection::open(listener).expect("the listener is open");
        (0..8).map(|_| connection.get(path).expect("a response").status).collect()
    };
    for (listener, path) in [(web, "/a"), (app, "/%61"), (web, "/free")] {
        let expected = match path {
            "/free" => [200; 8],
            _ => [200, 200, 200, 200, 200, 429, 429, 429],
        };
        assert_eq!(statuses(listener, path), expected, "{path}");
    }
    let rejected = get(web, "/a").expect("the listener responds");
    assert_eq!((rejected.status, rejected.rejection_reason()), (429, Some("rate-limited")));
    assert_eq!(
        (rejected.body.as_slice(), rejected.first_header("x-limit")),
        (&b"too much"[..], Some("clients"))
    );
    let retry_after: u64 =
        rejected.first_header("retry-after").expect("a value").parse().expect("a number");
    assert!((1..=720).contains(&retry_after), "{retry_after}");
    let output = explain_request(&mesh, "/a");
    let limit_line =
        "RateLimit shop/limit: clients allows 5 requests per 3600s (burst 5) per client";
    assert!(output.contains(limit_line), "{output}");
    assert!(!explain_request(&mesh, "/free").contains("clients allows"));
    // The buckets are full again, and the limit applies to all clients: changing the policy replaces the limit.
    let rules = "targetRefs: [{kind: Service, name: stock}]\n  rules: [{requests: 1, per: 1h}]";
    mesh.write("limit.yaml", &rate_limit(rules).replace("name: limit", "name: a-limit"));
    let get_status = |listener| get(listener, "/a").expect("the listener responds").status;
    eventually("the other limit decides", MAX_WAIT, || (get_status(web) == 200).then_some(()));
    assert_eq!((get_status(app), get_status(web)), (429, 429));
    // The limit no longer applies.
    mesh.remove("limit.yaml");
    eventually("the first limit decides again", MAX_WAIT, || {
        (get(web, "/a").ok()?.first_header("x-limit") == Some("clients")).then_some(())
    });
}

#[test]
fn osm_limits_apply_by_path_and_to_all_clients_together() {
    let upstream_setting = "---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: stock, namespace: shop}
spec:
  host: stock.shop.svc.cluster.local
  rateLimit:
    local:
      http: {requests: 2, unit: hour, burst: 1, responseStatusCode: 503, responseHeadersToAdd: [{name: x-limited, value: \"1\"}]}
  httpRoutes:
  - {path: \"/items/[0-9]+\", rateLimit: {local: {requests: 5, unit: hour}}}
";
    let (_mesh, _stock, [web, app]) = start_shop(upstream_setting);
    let count_allowed = |listener: SocketAddr, path: &str| {
        (0..10)
            .filter(|_| get(listener, path).expect("the listener responds").status == 200)
            .count()
    };
    assert_eq!(count_allowed(web, "/items/17"), 5);
    assert_eq!(count_allowed(web, "/other"), 3);
    assert_eq!(count_allowed(app, "/other"), 0, "all clients share one bucket");
    let rejected = get(app, "/other").expect("the listener responds");
    assert_eq!((rejected.status, rejected.first_header("x-limited")), (503, Some("1")));
    let post_request =
        "POST /items/3 HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 3\r\n\r\nabc";
    let rejected = exchange_bytes(app, post_request).expect("the listener responds");
    assert_eq!((rejected.status, rejected.rejection_reason()), (429, Some("rate-limited")));
}

#[test]
fn an_excess_tcp_connection_is_reset_and_the_others_continue() {
    let stock = TestApplication::start_echo();
    let listener = free_port();
    let manifests = [
        mesh_config("allow"),
        server_with_protocol("stock", stock.port(), "TCP", &[]),
        client_manifest("web", &[], &[("stock", listener)]),
        rate_limit("targetRefs: [{name: stock}]\n  connections: {count: 2, per: 1h}"),
    ];
    let _mesh = TestMesh::up(&manifests.concat());
    let mut open_connections: Vec<TestConnection> = Vec::new();
    for _ in 0..2 {
        let mut connection =
            TestConnection::open(loopback_address(listener)).expect("the listener is open");
        assert_eq!(connection.get("/a").expect("the request gets a response").status, 200);
        open_connections.push(connection);
    }
    // The reset may reach the client while it connects, sends or waits.
    let third_connection = TestConnection::open(loopback_address(listener))
        .and_then(|mut third_connection| third_connection.get("/a"));
    let result = third_connection.map(|response| response.status);
    let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    assert!(result.as_ref().is_err_and(|error| kinds.contains(&error.kind())), "{result:?}");
    for connection in &mut open_connections {
        assert_eq!(connection.get("/b").expect("the request gets a response").status, 200);
    }
}

fn explain_request(mesh: &TestMesh, path: &str) -> String {
    let url = format!("http://stock:9080{path}");
    let mut command = leno_tests::leno_command();
    command.args(["explain", "request", "--from", "shop/web-1", "--url", &url, "-f"]);
    let output = command.arg(mesh.manifest_file("")).output().expect("leno runs");
    String::from_utf8(output.stdout).expect("text")
}

const MAX_WAIT: Duration = Duration::from_secs(20);
