//! Traffic that bypasses the sidecar by annotations of the Pod.

use leno_tests::cluster::{SidecarInjection, TestNamespace, expect_stdout};

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_pod_reaches_excluded_ports_and_ranges_without_its_sidecar() {
    let namespace = TestNamespace::new("excluding", SidecarInjection::Enabled);
    namespace.create_http_server("server", 1);
    namespace.create_http_server("second", 1);
    namespace.apply_manifests(
        "{apiVersion: v1, kind: Service, metadata: {name: aside}, spec: {selector: {app: server}, ports: [
  {name: http, port: 81, targetPort: 8080}]}}",
    );
    let address = ["get", "service", "server", "-o", "jsonpath={.spec.clusterIP}"];
    let address = expect_stdout(&namespace.kubectl(&address));
    namespace.create_client("client");
    namespace.create_annotated_client(
        "by-port",
        "openservicemesh.io/outbound-port-exclusion-list: '80'",
    );
    let exclusion = "openservicemesh.io/outbound-ip-range-exclusion-list";
    namespace.create_annotated_client("by-range", &format!("{exclusion}: '{address}/32'"));
    let inclusion = "openservicemesh.io/outbound-ip-range-inclusion-list";
    namespace.create_annotated_client("by-inclusion", &format!("{inclusion}: '{address}/32'"));
    namespace.wait_ready();
    // A connection that bypasses the sidecar has no mutual TLS and is reset.
    let (meshed, bypassed) = ((0, 200), (56, 0));
    for (client, server_result, aside_result, second_result) in [
        ("client", meshed, meshed, meshed),
        ("by-port", bypassed, meshed, bypassed),
        ("by-range", bypassed, meshed, meshed),
        ("by-inclusion", meshed, bypassed, bypassed),
    ] {
        for (url, (exit, status)) in [
            ("http://server/", server_result),
            ("http://aside:81/", aside_result),
            ("http://second/", second_result),
        ] {
            namespace.expect_curl(client, &[url], exit, status);
        }
    }
}
