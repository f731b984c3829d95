//! Manifest builders: each function returns complete documents of the namespace `shop`.

use std::fmt::Write as _;

/// Returns the mesh configuration; `default_policy` is `allow` or `deny`.
#[must_use]
pub fn mesh_config(default_policy: &str) -> String {
    format!(
        "---
apiVersion: leno.dev/v1alpha1
kind: MeshConfig
metadata: {{name: mesh}}
spec: {{trustDomain: cluster.local, defaultPolicy: {default_policy}}}
"
    )
}

/// Returns a workload `NAME-1` that listens on `port` (run by `command`, or by the test if empty) and its
/// service NAME on port 9080.
#[must_use]
pub fn server_manifest(name: &str, port: u16, command: &[&str]) -> String {
    server_with_protocol(name, port, "HTTP", command)
}

/// As [`server_manifest`], with a protocol; none is declared if it is empty.
#[must_use]
pub fn server_with_protocol(name: &str, port: u16, protocol: &str, command: &[&str]) -> String {
    let run_field = render_run_field(command);
    let protocol = match protocol {
        "" => String::new(),
        protocol => format!(", protocol: {protocol}"),
    };
    format!(
        "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: {name}-1, namespace: shop, labels: {{app: {name}}}}}
spec:
  serviceAccount: {name}
  ports: [{{name: main, port: {port}{protocol}}}]
{run_field}---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec: {{selector: {{app: {name}}}, ports: [{{name: main, port: 9080, targetPort: main}}]}}
"
    )
}

/// Returns a policy that allows the workloads of account `client` to send requests to `server` with a path that matches
/// the pattern `path`.
#[must_use]
pub fn http_access_manifest(client: &str, server: &str, path: &str) -> String {
    format!(
        "---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {{name: {client}-to-{server}, namespace: shop}}
spec: {{matches: [{{name: allowed, pathRegex: {path:?}, methods: [\"*\"]}}]}}
{}",
        access_manifest(
            client,
            server,
            &format!("{{kind: HTTPRouteGroup, name: {client}-to-{server}, matches: [allowed]}}")
        )
    )
}

/// Returns a policy that allows the workloads of account `client` to connect to the ports of `server`.
#[must_use]
pub fn tcp_access_manifest(client: &str, server: &str) -> String {
    format!(
        "---
apiVersion: specs.smi-spec.io/v1alpha4
kind: TCPRoute
metadata: {{name: {client}-to-{server}, namespace: shop}}
spec: {{matches: {{}}}}
{}",
        access_manifest(client, server, &format!("{{kind: TCPRoute, name: {client}-to-{server}}}"))
    )
}

fn access_manifest(client: &str, server: &str, rule: &str) -> String {
    format!(
        "---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {{name: {client}-to-{server}, namespace: shop}}
spec:
  destination: {{kind: ServiceAccount, name: {server}, namespace: shop}}
  sources: [{{kind: ServiceAccount, name: {client}, namespace: shop}}]
  rules: [{rule}]
"
    )
}

/// Returns a service NAME on port 9080 without workloads: only routes forward its requests.
#[must_use]
pub fn service_manifest(name: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec: {{selector: {{app: {name}}}, ports: [{{name: http, port: 9080, appProtocol: http}}]}}
"
    )
}

/// Returns a route of the service `name`, with one rule (a YAML list item) per line.
#[must_use]
pub fn route_manifest(name: &str, rules: &[&str]) -> String {
    let mut manifest = format!(
        "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {name}, namespace: shop}}
spec:
  parentRefs: [{{group: \"\", kind: Service, name: {name}, port: 9080}}]
  rules:
"
    );
    for rule in rules {
        writeln!(manifest, "  - {rule}").expect("writing to a String never fails");
    }
    manifest
}

/// Returns a workload `NAME-1` that only calls others, with fixed outbound listeners on loopback: service and
/// port.
#[must_use]
pub fn client_manifest(name: &str, command: &[&str], listeners: &[(&str, u16)]) -> String {
    let mut manifest = format!(
        "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: {name}-1, namespace: shop, labels: {{app: {name}}}}}
spec:
  serviceAccount: {name}
{}",
        render_run_field(command)
    );
    if !listeners.is_empty() {
        manifest.push_str("  outbound:\n");
    }
    for (service, port) in listeners {
        let listener = format!("{{service: {service}, port: 9080, listen: \"127.0.0.1:{port}\"}}");
        writeln!(manifest, "  - {listener}").expect("writing to a String never fails");
    }
    manifest
}

fn render_run_field(command: &[&str]) -> String {
    match command {
        [] => String::new(),
        // JSON strings are valid YAML strings.
        arguments => format!("  run: {}\n", serde_json::json!(arguments)),
    }
}
