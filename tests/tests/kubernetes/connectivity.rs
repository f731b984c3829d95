//! Connectivity of meshed and unmeshed Pods, by names and addresses.

use leno_tests::cluster::{SidecarInjection, TestNamespace, expect_stdout, http_server, kubectl};

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn meshed_pods_connect_and_unmeshed_clients_are_rejected() {
    let meshed = TestNamespace::new("permissive", SidecarInjection::Enabled);
    let unmeshed = TestNamespace::new("outsider", SidecarInjection::Disabled);
    meshed.create_http_server("server", 1);
    meshed.create_client("client");
    unmeshed.create_client("client");
    meshed.wait_ready();
    unmeshed.wait_ready();
    let url = format!("http://server.{}.svc.cluster.local/", meshed.name());
    meshed.expect_curl("client", &[&url], 0, 200);
    // OSM: a connection without mutual TLS is reset.
    unmeshed.expect_curl("client", &[&url], 56, 0);
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn every_client_reaches_every_replica() {
    let namespace = TestNamespace::new("replicas", SidecarInjection::Enabled);
    namespace.create_http_server("server", 3);
    namespace.apply_manifests(
        "{apiVersion: v1, kind: Service, metadata: {name: headless}, spec: {clusterIP: None, selector: {app: server}, \
         ports: [{name: http, port: 8080}]}}",
    );
    let clients = ["one", "two", "three"];
    clients.iter().for_each(|client| namespace.create_client(client));
    namespace.wait_ready();
    let pods = namespace.list_pods("server");
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    assert_eq!(pods.len(), 3);
    let path = "jsonpath={range .items[*]}{.metadata.name} {.status.podIP} {end}";
    let pods_and_addresses =
        expect_stdout(&namespace.kubectl(&["get", "pods", "-l", "app=server", "-o", path]));
    let pods_and_addresses: Vec<&str> = pods_and_addresses.split_whitespace().collect();
    for client in clients {
        namespace.expect_reached(client, &["http://server/"], &pods);
        namespace.expect_curl(client, &["http://headless:8080/"], 0, 200);
        // A client may select any address, and reaches the Pod with this address.
        for pod_and_address in pods_and_addresses.chunks_exact(2) {
            let resolved = format!("headless:8080:{}", pod_and_address[1]);
            let url = "http://headless:8080/";
            namespace.expect_reached(client, &["--resolve", &resolved, url], &pod_and_address[..1]);
        }
    }
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn unmeshed_services_are_reached_without_mutual_tls() {
    let meshed = TestNamespace::new("outward", SidecarInjection::Enabled);
    let unmeshed_namespace = TestNamespace::new("plain", SidecarInjection::Disabled);
    unmeshed_namespace.create_http_server("server", 1);
    meshed.create_client("client");
    meshed.wait_ready();
    unmeshed_namespace.wait_ready();
    let url = format!("http://server.{}/", unmeshed_namespace.name());
    meshed.expect_curl("client", &[&url], 0, 200);
    let address = expect_stdout(&unmeshed_namespace.kubectl(&[
        "get",
        "pods",
        "-o",
        "jsonpath={.items[0].status.podIP}",
    ]));
    meshed.expect_curl("client", &[&format!("http://{address}:8080/")], 0, 200);
    // Without credentials, the API server responds with 401 or 403, over its own TLS.
    let response = meshed.curl("client", &["-k", "https://kubernetes.default/api"]);
    assert!(matches!(response.status, 401 | 403), "{response:?}");
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn several_ports_and_services_of_one_pod_are_reached() {
    let namespace = TestNamespace::new("ports", SidecarInjection::Enabled);
    namespace.create_client("client");
    namespace.apply_manifests(
        "{apiVersion: v1, kind: Pod, metadata: {name: server, labels: {app: server}}, spec: {containers: [
  {name: one, image: 'kc.local/testapp:1', imagePullPolicy: Never, args: [http, -listen, ':8080']},
  {name: two, image: 'kc.local/testapp:1', imagePullPolicy: Never, args: [http, -listen, ':8081']}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: both}, spec: {selector: {app: server}, ports: [
  {name: http-one, port: 80, targetPort: 8080}, {name: http-two, port: 81, targetPort: 8081}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: second}, spec: {selector: {app: server}, ports: [
  {name: http, port: 8000, targetPort: 8081}]}}
",
    );
    namespace.wait_ready();
    for url in ["http://both/", "http://both:81/", "http://second:8000/"] {
        namespace.expect_curl("client", &[url], 0, 200);
    }
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn peers_of_a_stateful_set_reach_each_other_by_name() {
    let namespace = TestNamespace::new("stateful", SidecarInjection::Enabled);
    namespace.create_client("client");
    namespace.apply_manifests(
        "{apiVersion: v1, kind: Service, metadata: {name: peers}, spec: {clusterIP: None, selector: {app: peer}, ports: [
  {name: http, port: 8080}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: peer}
spec:
  serviceName: peers
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: peer}}
  template:
    metadata: {labels: {app: peer}}
    spec:
      containers:
      - {name: app, image: 'kc.local/testapp:1', imagePullPolicy: Never, args: [http], ports: [{containerPort: 8080}]}
",
    );
    expect_stdout(&namespace.kubectl(&["rollout", "status", "statefulset/peer", "--timeout=120s"]));
    namespace.wait_ready();
    for peer in ["peer-0", "peer-1"] {
        let url = format!("http://{peer}.peers:8080/");
        namespace.expect_curl("client", &[&url], 0, 200);
        let response = namespace.curl("client", &[&url]);
        assert!(response.body.starts_with(&format!("pod={peer} ")), "{response:?}");
    }
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn excluded_ports_bypass_the_mesh() {
    let meshed = TestNamespace::new("around", SidecarInjection::Enabled);
    let unmeshed = TestNamespace::new("about", SidecarInjection::Disabled);
    meshed.apply_manifests(&http_server(
        "server",
        1,
        "annotations: {openservicemesh.io/inbound-port-exclusion-list: '8080'}",
    ));
    unmeshed.create_client("client");
    meshed.wait_ready();
    unmeshed.wait_ready();
    unmeshed.expect_curl("client", &[&format!("http://server.{}/", meshed.name())], 0, 200);
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_server_may_listen_on_the_address_of_its_pod_alone() {
    let namespace = TestNamespace::new("bound", SidecarInjection::Enabled);
    namespace.create_client("client");
    namespace.apply_manifests(
        "{apiVersion: v1, kind: Pod, metadata: {name: server, labels: {app: server}}, spec: {containers: [
  {name: app, image: 'kc.local/testapp:1', imagePullPolicy: Never, args: [http, -listen, '$(POD_IP):8080'],
   env: [{name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: server}, spec: {selector: {app: server}, ports: [
  {name: http, port: 80, targetPort: 8080}]}}
",
    );
    namespace.wait_ready();
    namespace.expect_curl("client", &["http://server/"], 0, 200);
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn unmeshed_clients_are_allowed_if_configured() {
    let meshed = TestNamespace::with_metadata(
        "moving",
        "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/mtls: permissive}",
    );
    let unmeshed = TestNamespace::new("left", SidecarInjection::Disabled);
    meshed.create_http_server("server", 1);
    meshed.create_client("client");
    unmeshed.create_client("client");
    meshed.wait_ready();
    unmeshed.wait_ready();
    let url = format!("http://server.{}/", meshed.name());
    meshed.expect_curl("client", &[&url], 0, 200);
    unmeshed.expect_curl("client", &[&url], 0, 200);
    let strict = "leno.dev/mtls=strict";
    expect_stdout(&kubectl(&["annotate", "--overwrite", "namespace", meshed.name(), strict]));
    unmeshed.expect_curl("client", &[&url], 56, 0);
    meshed.expect_curl("client", &[&url], 0, 200);
}
