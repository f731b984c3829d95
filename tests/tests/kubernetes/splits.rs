//! SMI traffic splits together with SMI access control: across namespaces, for HTTP and TCP, with one account
//! for all backends, and with a root that is also a backend.

use std::collections::BTreeSet;
use std::time::Duration;

use leno_tests::cluster::{SidecarInjection, TestNamespace, http_server};
use leno_tests::eventually;

use crate::tcp::{exchange_line, expect_lines, line_server};

const STRICT_METADATA: &str =
    "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/default-policy: deny}";

/// Returns the manifest of a split with equal weights of these Services.
fn equal_split(root: &str, backends: &[&str]) -> String {
    let backends: Vec<String> =
        backends.iter().map(|name| format!("{{service: {name}, weight: 50}}")).collect();
    format!(
        "---\n{{apiVersion: split.smi-spec.io/v1alpha2, kind: TrafficSplit, metadata: {{name: {root}}}, \
         spec: {{service: {root}, backends: [{}]}}}}\n",
        backends.join(", ")
    )
}

/// Returns the manifests of a route of this kind, and of targets that allow the clients' accounts to call the
/// servers' accounts by it.
fn traffic_targets(
    (server_namespace, servers): (&TestNamespace, &[&str]),
    (client_namespace, clients): (&TestNamespace, &[&str]),
    kind: &str,
) -> String {
    let sources: Vec<String> = clients
        .iter()
        .map(|name| {
            let namespace = client_namespace.name();
            format!("{{kind: ServiceAccount, name: {name}, namespace: {namespace}}}")
        })
        .collect();
    let sources = sources.join(", ");
    // A rule without a match of a group allows nothing, as in OSM.
    let (spec, matches) = match kind {
        "TCPRoute" => ("matches: {ports: [9000]}", ""),
        _ => ("matches: [{name: all, pathRegex: '.*', methods: ['*']}]", ", matches: [all]"),
    };
    let target = |name: &&str| {
        format!(
            "---\n{{apiVersion: access.smi-spec.io/v1alpha3, kind: TrafficTarget, metadata: {{name: {name}}}, spec: {{
  destination: {{kind: ServiceAccount, name: {name}, namespace: {namespace}}},
  rules: [{{kind: {kind}, name: all{matches}}}], sources: [{sources}]}}}}\n",
            namespace = server_namespace.name()
        )
    };
    let route = format!(
        "---\n{{apiVersion: specs.smi-spec.io/v1alpha4, kind: {kind}, metadata: {{name: all}}, spec: {{{spec}}}}}\n"
    );
    route + &servers.iter().map(target).collect::<String>()
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn clients_of_another_namespace_reach_every_backend_directly_and_through_the_root() {
    let (servers, clients) = (
        TestNamespace::with_metadata("backends", STRICT_METADATA),
        TestNamespace::new("buyers", SidecarInjection::Enabled),
    );
    let names = ["v1", "v2", "v3"];
    names.iter().for_each(|name| servers.create_http_server(name, 1));
    servers.apply_manifests(
        "{apiVersion: v1, kind: Service, metadata: {name: root}, spec: {selector: {of: nobody}, ports: [
  {name: http, port: 80, targetPort: http}]}}",
    );
    servers.apply_manifests(&equal_split("root", &names));
    let buyers = ["one", "two"];
    buyers.iter().for_each(|name| clients.create_client(name));
    clients.create_client("outsider");
    servers.wait_ready();
    clients.wait_ready();
    servers.apply_manifests(&traffic_targets(
        (&servers, &names),
        (&clients, &buyers),
        "HTTPRouteGroup",
    ));
    let root = format!("http://root.{}.svc.cluster.local/", servers.name());
    for buyer in buyers {
        clients.expect_reached(buyer, &[&root], &names);
        for name in names {
            let backend_url = format!("http://{name}.{}/", servers.name());
            clients.expect_reached(buyer, &[&backend_url], &[name]);
        }
    }
    clients.expect_curl("outsider", &[&root], 0, 403);
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn backends_may_share_one_account() {
    let namespace = TestNamespace::with_metadata("shared", STRICT_METADATA);
    let server_manifests = |name: &str| {
        http_server(name, 1, "")
            .replace(&format!("serviceAccountName: {name}"), "serviceAccountName: server")
    };
    namespace.apply_manifests("{apiVersion: v1, kind: ServiceAccount, metadata: {name: server}}");
    namespace.apply_manifests(&[server_manifests("v1"), server_manifests("v2")].join("---\n"));
    // The root is also a backend here.
    namespace.apply_manifests(&equal_split("v1", &["v1", "v2"]));
    namespace.create_client("client");
    namespace.wait_ready();
    namespace.expect_curl("client", &["http://v1/"], 0, 403);
    let targets =
        traffic_targets((&namespace, &["server"]), (&namespace, &["client"]), "HTTPRouteGroup");
    namespace.apply_manifests(&targets);
    namespace.expect_reached("client", &["http://v1/"], &["v1", "v2"]);
    namespace.expect_reached("client", &["http://v2/"], &["v2"]);
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn tcp_connections_are_split() {
    let (servers, clients) = (
        TestNamespace::with_metadata("lines", STRICT_METADATA),
        TestNamespace::new("callers", SidecarInjection::Enabled),
    );
    servers.apply_manifests(
        &[line_server("one", "", "tcp-echo"), line_server("two", "", "tcp-echo")].join("---\n"),
    );
    servers.apply_manifests(
        "{apiVersion: v1, kind: Service, metadata: {name: root}, spec: {selector: {of: nobody}, ports: [
  {name: tcp-echo, port: 9000}]}}",
    );
    servers.apply_manifests(&equal_split("root", &["one", "two"]));
    // The root is also a backend here.
    servers.apply_manifests(&equal_split("one", &["one", "two"]));
    clients.create_client("client");
    clients.create_client("outsider");
    servers.wait_ready();
    clients.wait_ready();
    servers.apply_manifests(&traffic_targets(
        (&servers, &["one", "two"]),
        (&clients, &["client"]),
        "TCPRoute",
    ));
    let response_of = |name: &str| format!("pod={name} line=hello\n");
    for root in ["root", "one"] {
        let root = format!("{root}.{}", servers.name());
        expect_lines(&clients, "client", &root, |lines| !lines.is_empty());
        let mut responses = BTreeSet::new();
        eventually("both backends get connections", Duration::from_secs(120), || {
            responses.extend(
                Some(exchange_line(&clients, "client", &root)).filter(|lines| !lines.is_empty()),
            );
            (responses.len() > 1).then_some(())
        });
        assert_eq!(responses, BTreeSet::from([response_of("one"), response_of("two")]), "{root}");
        expect_lines(&clients, "outsider", &root, str::is_empty);
    }
    let backend_name = format!("two.{}", servers.name());
    expect_lines(&clients, "client", &backend_name, |lines| lines == response_of("two"));
}
