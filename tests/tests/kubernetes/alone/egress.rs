//! Egress from the mesh: everything, nothing, and the destinations in OSM's policies. The setting applies to
//! the whole mesh.

use leno_tests::cluster::{
    SidecarInjection, TestNamespace, apply_globally, expect_stdout, kubectl,
};

use crate::tcp::{expect_lines, line_server};

/// Mesh settings about egress, in effect until this is dropped.
struct EgressSettings;

impl EgressSettings {
    fn deny_all() -> Self {
        Self::apply_settings("egress: deny")
    }

    /// Applies these mesh settings until this is dropped.
    fn apply_settings(spec: &str) -> Self {
        apply_globally(&format!(
            "{{apiVersion: leno.dev/v1alpha1, kind: MeshConfig, metadata: {{name: mesh}}, spec: {{{spec}}}}}"
        ));
        Self
    }
}

impl Drop for EgressSettings {
    fn drop(&mut self) {
        drop(kubectl(&["delete", "meshconfigs.leno.dev", "mesh"]));
    }
}

/// Returns servers outside the mesh: HTTP, HTTPS and a line protocol.
fn start_servers() -> TestNamespace {
    let external_namespace = TestNamespace::new("outside", SidecarInjection::Disabled);
    external_namespace.create_http_server("server", 1);
    external_namespace.apply_manifests(
        "{apiVersion: v1, kind: Pod, metadata: {name: secure, labels: {app: secure}}, spec: {containers: [
  {name: app, image: 'kc.local/testapp:1', imagePullPolicy: Never, args: [http, -tls, -listen, ':8443']}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: secure}, spec: {selector: {app: secure}, ports: [{port: 443, targetPort: 8443}]}}
",
    );
    external_namespace.apply_manifests(&line_server("lines", "", "tcp-lines"));
    external_namespace.wait_ready();
    external_namespace
}

/// Returns the egress policy of one account.
fn egress_policy(name: &str, namespace: &TestNamespace, destinations: &str) -> String {
    format!(
        "---\n{{apiVersion: policy.openservicemesh.io/v1alpha1, kind: Egress, metadata: {{name: {name}}}, spec: {{
  sources: [{{kind: ServiceAccount, name: client, namespace: {}}}], {destinations}}}}}\n",
        namespace.name()
    )
}

const ROUTE_GROUP: &str =
    "{apiVersion: specs.smi-spec.io/v1alpha4, kind: HTTPRouteGroup, metadata: {name: statuses},
  spec: {matches: [{name: status, pathRegex: '/status.*', methods: ['*']}]}}\n";

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn policies_limit_egress() {
    let external_namespace = start_servers();
    let namespace = TestNamespace::new("leaving", SidecarInjection::Enabled);
    namespace.create_http_server("server", 1);
    namespace.create_client("client");
    namespace.create_client("other");
    namespace.wait_ready();
    let full_name = |name: &str| format!("{name}.{}", external_namespace.name());
    let plaintext_url = format!("http://{}/", full_name("server"));
    let tls_url = format!("https://{}/", full_name("secure"));
    let line_server_name = full_name("lines");
    let expect = |client: &str, arguments: &[&str], exit: i32, status: u16| {
        namespace.expect_curl(client, arguments, exit, status);
    };
    let expect_all_allowed = |client: &str| {
        expect(client, &[&plaintext_url], 0, 200);
        expect(client, &["-k", &tls_url], 0, 200);
        expect_lines(&namespace, client, &line_server_name, |received| {
            received == "pod=lines line=hello\n"
        });
    };
    // A connection is reset before any response: with TLS, the handshake fails.
    let expect_all_denied = |client: &str| {
        expect(client, &[&plaintext_url], 56, 0);
        expect(client, &["-k", &tls_url], 35, 0);
        expect_lines(&namespace, client, &line_server_name, str::is_empty);
    };
    expect_all_allowed("client");
    let settings = EgressSettings::deny_all();
    expect_all_denied("client");
    expect("client", &["http://server/"], 0, 200);

    let http = format!("hosts: [{}], ports: [{{number: 80, protocol: http}}]", full_name("server"));
    let https =
        format!("hosts: [{}], ports: [{{number: 443, protocol: https}}]", full_name("secure"));
    let tcp = "ports: [{number: 9000, protocol: tcp}]";
    namespace.apply_manifests(
        &[("http", http.as_str()), ("https", &https), ("tcp", tcp)]
            .map(|(name, destinations)| egress_policy(name, &namespace, destinations))
            .concat(),
    );
    expect_all_allowed("client");
    expect("client", &["-H", "host: another.example", &plaintext_url], 0, 403);
    let address = ["get", "service", "secure", "-o", "jsonpath={.spec.clusterIP}"];
    let address = expect_stdout(&external_namespace.kubectl(&address));
    let resolved = format!("another.example:443:{address}");
    expect("client", &["-k", "--resolve", &resolved, "https://another.example/"], 35, 0);
    expect_all_denied("other");

    // For HTTP, only the paths in the route group are allowed.
    let matches =
        "matches: [{apiGroup: specs.smi-spec.io/v1alpha4, kind: HTTPRouteGroup, name: statuses}]";
    namespace.apply_manifests(
        &(ROUTE_GROUP.to_owned()
            + &egress_policy("http", &namespace, &format!("{http}, {matches}"))),
    );
    expect("client", &[&plaintext_url], 0, 403);
    expect("client", &[&format!("{plaintext_url}status/200")], 0, 200);

    let kind = "egresses.policy.openservicemesh.io";
    expect_stdout(&namespace.kubectl(&["delete", kind, "http", "https", "tcp"]));
    expect_all_denied("client");
    drop(settings);
    expect_all_allowed("client");
    expect_all_allowed("other");
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn the_api_server_stays_reachable_while_other_egress_is_denied() {
    let external_namespace = TestNamespace::new("beyond", SidecarInjection::Disabled);
    external_namespace.create_http_server("server", 1);
    external_namespace.wait_ready();
    let namespace = TestNamespace::new("operators", SidecarInjection::Enabled);
    namespace.create_client("client");
    namespace.wait_ready();
    let endpoints = "jsonpath={range .endpoints[*]}{.addresses[0]}{end}:{.ports[0].port}";
    let slice = ["-n", "default", "get", "endpointslice", "kubernetes", "-o", endpoints];
    let versions = [
        "https://kubernetes.default.svc/version".to_owned(),
        format!("https://{}/version", expect_stdout(&kubectl(&slice))),
    ];
    let other_url = format!("http://server.{}/", external_namespace.name());
    let expect = |exit, status| {
        for version in &versions {
            namespace.expect_curl("client", &["-k", version], exit, status);
        }
    };
    expect(0, 200);
    let settings = EgressSettings::deny_all();
    namespace.expect_curl("client", &[&other_url], 56, 0);
    expect(0, 200);
    drop(settings);
    let settings = EgressSettings::apply_settings("egress: deny, apiServerEgress: deny");
    namespace.expect_curl("client", &[&other_url], 56, 0);
    expect(35, 0);
    drop(settings);
    expect(0, 200);
}
