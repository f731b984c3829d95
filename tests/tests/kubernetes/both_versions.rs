//! IPv4 and IPv6, and DNS names that sidecars resolve.
#![allow(clippy::print_stderr, reason = "a scenario that cannot be shown says so")]

use std::time::Duration;

use leno_tests::cluster::{SidecarInjection, TestNamespace, expect_stdout, http_server, kubectl};
use leno_tests::eventually;

/// A dual-stack Service in front of the HTTP test application.
const DUAL_STACK: &str = "{apiVersion: v1, kind: Service, metadata: {name: both}, spec: {selector: {app: server},
  ipFamilyPolicy: RequireDualStack, ports: [{name: http, port: 80, targetPort: 8080}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: six}, spec: {selector: {app: server}, clusterIP: None,
  ipFamilyPolicy: SingleStack, ipFamilies: [IPv6], ports: [{name: http, port: 8080}]}}
";

fn has_both_ip_versions() -> bool {
    let ranges =
        expect_stdout(&kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].spec.podCIDRs}"]));
    ranges.contains("::")
}

/// Returns the sum of the metrics of a Pod's sidecar that begin with `metric`; 0 if there are none.
fn sidecar_metric(namespace: &TestNamespace, client: &str, address: &str, metric: &str) -> u64 {
    let url = format!("http://{address}:15020/metrics");
    let metrics = namespace.curl(client, &[&url]).body;
    let lines = metrics.lines().filter(|line| line.starts_with(metric));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

fn object_field(namespace: &TestNamespace, object: &str, path: &str) -> String {
    expect_stdout(&namespace.kubectl(&["get", object, "-o", &format!("jsonpath={path}")]))
        .trim()
        .to_owned()
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn services_and_pods_are_reached_by_both_versions_of_ip() {
    if !has_both_ip_versions() {
        return eprintln!("skipped: the cluster has one version of IP");
    }
    let metadata =
        "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/metrics: enabled}";
    let meshed = TestNamespace::with_metadata("both", metadata);
    let unmeshed = TestNamespace::new("six", SidecarInjection::Disabled);
    meshed.apply_manifests(&http_server("server", 1, ""));
    meshed.apply_manifests(DUAL_STACK);
    meshed.create_client("client");
    unmeshed.create_client("client");
    meshed.wait_ready();
    unmeshed.wait_ready();
    let service = object_field(&meshed, "service/both", "{.spec.clusterIPs[1]}");
    let pods = "{.items[0].status.podIPs[*].ip}";
    let pod = expect_stdout(&meshed.kubectl(&[
        "get",
        "pods",
        "-l",
        "app=server",
        "-o",
        &format!("jsonpath={pods}"),
    ]));
    let (ipv4, ipv6) = pod.trim().split_once(' ').expect("two addresses");
    assert!(service.contains(':') && ipv6.contains(':'), "{service} {pod}");
    let count_handshakes = || {
        sidecar_metric(
            &meshed,
            "client",
            ipv4,
            "leno_handshakes_total{side=\"downstream\",result=\"ok\"}",
        )
    };
    for url in [
        format!("http://[{service}]/"),
        format!("http://[{ipv6}]:8080/"),
        format!("http://{ipv4}:8080/"),
        "http://six:8080/".to_owned(),
    ] {
        meshed.expect_curl("client", &[&url], 0, 200);
        // Clients without a sidecar are rejected over both versions.
        let full_url = url.replace("//six:", &format!("//six.{}:", meshed.name()));
        unmeshed.expect_curl("client", &[&full_url], 56, 0);
    }
    assert!(count_handshakes() > 0, "no mutual TLS handshake");
    let requests = "leno_requests_total{direction=\"inbound\"";
    assert!(sidecar_metric(&meshed, "client", ipv4, requests) >= 20);
    // The kubelet's port is reachable over both.
    assert_eq!(unmeshed.curl("client", &[&format!("http://[{ipv6}]:15020/readyz")]).status, 200);
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn sidecars_answer_dns_queries_if_enabled() {
    let meshed = TestNamespace::with_metadata(
        "names",
        "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/dns: proxy, leno.dev/metrics: enabled}",
    );
    let unmeshed_namespace = TestNamespace::new("unnamed", SidecarInjection::Disabled);
    meshed.create_http_server("server", 2);
    meshed.create_client("client");
    meshed.apply_manifests(
        "{apiVersion: v1, kind: Service, metadata: {name: headless}, spec: {clusterIP: None, selector: {app: server}, \
         ports: [{name: http, port: 8080}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: another}, spec: {type: ExternalName, externalName: kubernetes.default.svc.cluster.local}}",
    );
    unmeshed_namespace.create_http_server("server", 1);
    meshed.wait_ready();
    unmeshed_namespace.wait_ready();
    let client_address = object_field(&meshed, "pod/client", "{.status.podIP}");
    let count = |result: &str| {
        let metric = format!("leno_dns_queries_total{{result=\"{result}\"}}");
        sidecar_metric(&meshed, "client", &client_address, &metric)
    };
    eventually("the sidecar answers a query", Duration::from_secs(120), || {
        drop(meshed.curl("client", &["http://server/"]));
        (count("answered") > 0).then_some(())
    });
    let before = count("answered");
    for url in [
        "http://server/".to_owned(),
        "http://headless:8080/".to_owned(),
        format!("http://server.{}/", unmeshed_namespace.name()),
        format!("http://server.{}.svc.cluster.local./", meshed.name()),
    ] {
        meshed.expect_curl("client", &[&url], 0, 200);
    }
    assert!(count("answered") >= before + 20);
    // Names outside the mesh are forwarded to the upstream resolver.
    let forwarded = count("forwarded");
    let response = meshed.curl("client", &["-k", "https://another/api"]);
    assert!(matches!(response.status, 401 | 403), "{response:?}");
    assert_eq!(meshed.curl("client", &["http://nobody.example.com/"]).exit, 6);
    assert!(count("forwarded") > forwarded);
    // A headless service has one address per ready Pod.
    let count_addresses = || {
        let output = meshed.exec("client", &["sh", "-c", "nslookup headless"]);
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        stdout.lines().filter(|line| line.starts_with("Address")).count()
    };
    let addresses_before = count_addresses();
    expect_stdout(&meshed.kubectl(&["scale", "deployment/server", "--replicas=1"]));
    eventually("one is gone", Duration::from_secs(60), || {
        (count_addresses() == addresses_before - 1).then_some(())
    });
}
