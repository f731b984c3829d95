//! The first five minutes of a user: a server, an outbound listener, a policy, a mistake.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use leno_tests::{TestMesh, eventually, free_port, get, ratings_manifests};

const ALLOW_GETS: &str = "apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: ratings-http, namespace: bookinfo}
spec: {matches: [{name: read, pathRegex: \"/.*\", methods: [GET]}]}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: client-reads-ratings, namespace: bookinfo}
spec:
  destination: {kind: ServiceAccount, name: ratings, namespace: bookinfo}
  sources: [{kind: ServiceAccount, name: client, namespace: bookinfo}]
  rules: [{kind: HTTPRouteGroup, name: ratings-http, matches: [read]}]
";

/// A mesh with one web server, and the listener through which the other workload calls it.
struct Shop {
    mesh: TestMesh,
    listener: SocketAddr,
}

/// Starts a Python web server behind one workload, with an outbound listener for the server at another workload.
fn start_shop(default_policy: &str) -> Shop {
    let (port, listener) = (free_port(), free_port());
    let command = format!("[\"python3\", \"-m\", \"http.server\", \"{port}\"]");
    let mesh = TestMesh::up(&ratings_manifests(&command, port, listener, default_policy));
    let listener = SocketAddr::from((Ipv4Addr::LOCALHOST, listener));
    eventually("the application listens", Duration::from_secs(20), || {
        std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
    });
    eventually("the application responds", Duration::from_secs(20), || {
        get(listener, "/").ok().filter(|response| response.status != 503)
    });
    Shop { mesh, listener }
}

fn wait_for_status(shop: &Shop, status: u16) -> Duration {
    let condition = format!("the listener responds {status}");
    let poll = || get(shop.listener, "/").ok().filter(|response| response.status == status);
    eventually(&condition, Duration::from_secs(20), poll).1
}

#[test]
fn curl_and_wrk_work_through_a_listener_unmodified() {
    let shop = start_shop("allow");
    let url = format!("http://{}/", shop.listener);
    let curl =
        Command::new("curl").args(["-sS", "-o", "/dev/null", "-w", "%{http_code}", &url]).output();
    assert_eq!(String::from_utf8_lossy(&curl.unwrap().stdout), "200");
    let wrk = Command::new("wrk").args(["-t1", "-c8", "-d2", &url]).output().unwrap();
    let report = String::from_utf8_lossy(&wrk.stdout);
    assert!(report.contains("requests in"), "{report}");
    assert!(!report.contains("Non-2xx") && !report.contains("Socket errors"), "{report}");
}

#[test]
fn the_proxy_listener_reaches_services_by_name() {
    let shop = start_shop("allow");
    let workloads = shop.mesh.get_json("workloads");
    assert!(workloads.to_string().contains("client-1"), "{workloads}");
    let line = shop.mesh.up.wait_for_line("curl -x http://", Duration::from_secs(60));
    let proxy = line.split_whitespace().nth(2).unwrap();
    let proxy_status = |extra_arguments: &[&str], url: &str| {
        let curl = Command::new("curl")
            .args(["-sS", "-o", "/dev/null", "-w", "%{http_code}", "-x", proxy])
            .args(extra_arguments)
            .arg(url)
            .output()
            .unwrap();
        String::from_utf8_lossy(&curl.stdout).into_owned()
    };
    assert_eq!(proxy_status(&[], "http://ratings.bookinfo:9080/"), "200");
    assert_eq!(proxy_status(&[], "http://ratings.bookinfo.svc.cluster.local:9080/"), "200");
    assert_eq!(proxy_status(&["--proxytunnel"], "http://ratings.bookinfo:9080/"), "200");
    assert_eq!(proxy_status(&[], "http://nobody.bookinfo:9080/"), "404");
}

#[test]
fn a_deleted_or_restored_policy_takes_effect_within_a_second() {
    let shop = start_shop("deny");
    assert_eq!(
        get(shop.listener, "/").unwrap().status,
        403,
        "default policy deny without a policy denies"
    );
    shop.mesh.write("policy.yaml", ALLOW_GETS);
    assert!(wait_for_status(&shop, 200) < Duration::from_secs(1));
    shop.mesh.remove("policy.yaml");
    assert!(wait_for_status(&shop, 403) < Duration::from_secs(1));
    shop.mesh.write("policy.yaml", ALLOW_GETS);
    assert!(wait_for_status(&shop, 200) < Duration::from_secs(1));
}

#[test]
fn an_invalid_document_is_rejected_by_name_and_changes_nothing() {
    let shop = start_shop("deny");
    shop.mesh.write("policy.yaml", ALLOW_GETS);
    wait_for_status(&shop, 200);
    shop.mesh.write("policy.yaml", &ALLOW_GETS.replace("methods: [GET]", "method: [GET]"));
    let line = shop.mesh.up.wait_for_line("policy.yaml:4", Duration::from_secs(60));
    assert!(line.contains("HTTPRouteGroup bookinfo/ratings-http"), "{line}");
    assert!(line.contains("spec.matches[0].method") && line.contains("methods"), "{line}");
    assert_eq!(get(shop.listener, "/").unwrap().status, 200, "the last good state stays");
}
