//! Traffic splits through real sidecars, by request and by connection.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use leno_tests::manifests::{
    client_manifest, http_access_manifest, mesh_config, server_with_protocol, tcp_access_manifest,
};
use leno_tests::{
    ApplicationResponse, TestApplication, TestConnection, TestMesh, eventually, free_port,
};

/// The services of the mesh, each with one workload that responds with its name.
const SERVICES: [&str; 4] = ["stock", "stock-v1", "stock-v2", "stock-v3"];

const TCP_ROUTE: &str = "---
apiVersion: gateway.networking.k8s.io/v1alpha2
kind: TCPRoute
metadata: {name: stock, namespace: shop}
spec:
  parentRefs: [{group: \"\", kind: Service, name: stock}]
  rules: [{backendRefs: [{name: stock-v1, port: 9080}, {name: stock-v3, port: 9080}]}]
";

/// A mesh that denies by default, with a client that may call all services, and has outbound listeners for the
/// first and the last service.
struct Shop {
    mesh: TestMesh,
    root_listener: SocketAddr,
    last_listener: SocketAddr,
    _applications: [TestApplication; 4],
}

impl Shop {
    /// Starts a mesh; `protocol` is the declared protocol of the services.
    fn start_shop(protocol: &str) -> Self {
        let applications =
            SERVICES.map(|name| TestApplication::start(move |_| ApplicationResponse::ok(name)));
        let listeners = [free_port(), free_port()];
        let mut manifests = mesh_config("deny");
        manifests += &client_manifest(
            "user",
            &[],
            &[("stock.shop", listeners[0]), ("stock-v3.shop", listeners[1])],
        );
        for (name, application) in SERVICES.iter().zip(&applications) {
            manifests += &server_with_protocol(name, application.port(), protocol, &[]);
            manifests += &match protocol {
                "TCP" => tcp_access_manifest("user", name),
                _ => http_access_manifest("user", name, "/.*"),
            };
        }
        manifests += "---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: gold, namespace: shop}
spec: {matches: [{name: gold, pathRegex: \"/gold/.*\", headers: [{x-tier: gold|platinum}]}]}
";
        let mesh = TestMesh::up(&manifests);
        let [root_listener, last_listener] =
            listeners.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let shop = Self { mesh, root_listener, last_listener, _applications: applications };
        shop.wait_for_backend("stock");
        shop
    }

    /// Replaces the backends of `stock` and their weights.
    fn replace_split(&self, backends: &[(&str, u32)]) {
        self.mesh.write("split.yaml", &split_manifest("all", "", backends));
    }

    /// Returns the backend of one request on a new connection.
    fn responding_backend(&self, path: &str, tier: &str) -> Option<String> {
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: stock.shop.svc.cluster.local\r\nx-tier: {tier}\r\n\r\n"
        );
        let mut connection = TestConnection::open(self.root_listener).ok()?;
        connection.send(head).ok()?;
        let response =
            connection.receive_response().ok().filter(|response| response.status == 200)?;
        String::from_utf8(response.body).ok()
    }

    /// Waits until this backend responds.
    fn wait_for_backend(&self, backend: &str) {
        let poll = || {
            self.responding_backend("/", "").filter(|responding_name| responding_name == backend)
        };
        eventually(&format!("{backend} responds"), Duration::from_secs(20), poll);
    }

    /// Returns the number of responses by backend, for this number of requests on separate connections.
    fn count_by_connection(&self, request_count: usize) -> BTreeMap<String, u32> {
        count_names((0..request_count).map(|_| self.responding_backend("/", "").unwrap()))
    }

    /// Returns the number of responses by backend, on one connection.
    fn count_by_request(&self, request_count: usize) -> BTreeMap<String, u32> {
        let mut connection = TestConnection::open(self.root_listener).unwrap();
        let bodies = (0..request_count).map(|_| connection.get("/").unwrap().body);
        count_names(bodies.map(|body| String::from_utf8(body).unwrap()))
    }
}

fn count_names(names: impl Iterator<Item = String>) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    names.for_each(|name| *counts.entry(name).or_default() += 1);
    counts
}

fn split_manifest(name: &str, group_matches: &str, backends: &[(&str, u32)]) -> String {
    let backends = backends.iter();
    let backends: Vec<String> =
        backends.map(|(name, weight)| format!("{{service: {name}, weight: {weight}}}")).collect();
    format!(
        "---
apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {{name: {name}, namespace: shop}}
spec: {{service: stock.shop.svc, {group_matches}backends: [{}]}}
",
        backends.join(", ")
    )
}

/// Asserts that each backend has its share, within five standard deviations of a binomial distribution, which
/// is wrong once in a million runs.
fn assert_shares(counts: &BTreeMap<String, u32>, backends: &[(&str, u32)]) {
    let total: u32 = counts.values().sum();
    let total_weight: u32 = backends.iter().map(|(_, weight)| weight).sum();
    for (name, weight) in backends {
        let share = f64::from(*weight) / f64::from(total_weight);
        let expected = f64::from(total) * share;
        let max_deviation = (expected * (1.0 - share)).sqrt() * 5.0;
        let observed = f64::from(counts.get(*name).copied().unwrap_or_default());
        assert!(
            (observed - expected).abs() <= max_deviation,
            "{name}: {observed} of {total}: {counts:?}"
        );
    }
    let is_unexpected = |name: &&String| !backends.iter().any(|(backend, _)| backend == name);
    assert_eq!(counts.keys().find(is_unexpected), None);
}

#[test]
fn requests_are_split_by_weight_and_changes_apply_live() {
    let shop = Shop::start_shop("HTTP");
    // The split service is itself one of the backends.
    let backends = [("stock", 1), ("stock-v1", 1), ("stock-v2", 2)];
    shop.replace_split(&backends);
    shop.wait_for_backend("stock-v2");
    let counts = shop.count_by_request(800);
    assert_shares(&counts, &backends);
    // A backend without a share can be called by its own name.
    let direct_response = TestConnection::open(shop.last_listener).unwrap().get("/").unwrap();
    assert_eq!(direct_response.body, b"stock-v3");
    // Then this backend receives all requests, which shows that the new split is in force.
    shop.replace_split(&[("stock-v3", 100), ("stock-v2", 0)]);
    shop.wait_for_backend("stock-v3");
    let counts = shop.count_by_request(200);
    assert_shares(&counts, &[("stock-v3", 1)]);
    shop.mesh.remove("split.yaml");
    shop.wait_for_backend("stock");
}

#[test]
fn only_requests_that_match_the_group_are_split() {
    let shop = Shop::start_shop("HTTP");
    let group_matches = "matches: [{kind: HTTPRouteGroup, name: gold}], ";
    shop.mesh.write("gold.yaml", &split_manifest("gold", group_matches, &[("stock-v2", 1)]));
    let gold_backend =
        || shop.responding_backend("/gold/1", "gold").filter(|backend| backend == "stock-v2");
    eventually("gold requests are split", Duration::from_secs(20), gold_backend);
    for (path, tier, backend) in [
        ("/gold/1", "platinum", "stock-v2"),
        ("/gold/1?x=y", "gold", "stock-v2"),
        ("/gold/1", "golden", "stock"),
        ("/gold", "gold", "stock"),
        ("/", "gold", "stock"),
    ] {
        assert_eq!(shop.responding_backend(path, tier).as_deref(), Some(backend), "{path} {tier}");
    }
    // The other requests have their own split.
    shop.replace_split(&[("stock-v1", 1)]);
    shop.wait_for_backend("stock-v1");
    assert_eq!(shop.responding_backend("/gold/1", "gold").as_deref(), Some("stock-v2"));
}

#[test]
fn connections_are_split_by_weight() {
    let shop = Shop::start_shop("TCP");
    let backends = [("stock-v1", 3), ("stock-v2", 1)];
    shop.replace_split(&backends);
    shop.wait_for_backend("stock-v2");
    let counts = shop.count_by_connection(400);
    assert_shares(&counts, &backends);
    // A Gateway API route takes precedence over the split.
    shop.mesh.write("route.yaml", TCP_ROUTE);
    shop.wait_for_backend("stock-v3");
    let counts = shop.count_by_connection(400);
    assert_shares(&counts, &[("stock-v3", 1), ("stock-v1", 1)]);
    // A connection stays with its backend.
    let counts = shop.count_by_request(50);
    assert_eq!(counts.len(), 1, "{counts:?}");
}
