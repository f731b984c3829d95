//! Tag rules through real sidecars: tagged instances receive the requests as long as they exist.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leno_tests::manifests::{client_manifest, mesh_config};
use leno_tests::{
    ApplicationResponse, Response, TestApplication, TestMesh, eventually, exchange_bytes, free_port,
};

use crate::faults::connected_sidecar;

const RULE_MANIFESTS: &str = "---
apiVersion: v1
kind: Service
metadata: {name: orders, namespace: shop}
spec: {selector: {app: orders}, ports: [{port: 9080, targetPort: main}]}
---
apiVersion: leno.dev/v1alpha1
kind: TagRoute
metadata: {name: orders, namespace: shop}
spec:
  service: orders
  fallbackPolicy: default
  rules:
  - match: {headers: {x-user-tier: gold}}
    split: [{tags: {version: \"2\"}}]
    fallback: [{tags: {version: \"1\"}}]
  - match: {cookies: {beta: \"yes\"}}
    split: [{tags: {version: \"2\"}}]
    fallbackPolicy: fail
  - match: {headers: {x-never: \"1\"}}
    split: [{tags: {version: \"1\"}}]
---
apiVersion: leno.dev/v1alpha1
kind: Lane
metadata: {name: orders, namespace: shop}
spec:
  service: orders
  rules:
  - match: {headers: {x-user-tier: gold}}
    marks: [{headers: {x-lane: gray}}]
";

/// Returns an application that responds with its version and the lane of the request.
fn start_version(version: &'static str) -> TestApplication {
    TestApplication::start(move |request| {
        let lane = request.first_header("x-lane").unwrap_or("none");
        ApplicationResponse::ok(format!("version {version}, lane {lane}"))
    })
}

/// Returns the workload of a version, with a version label except for version 3.
fn workload_manifest(version: &str, port: u16) -> String {
    let mut labels = "app: orders".to_owned();
    if version != "3" {
        write!(labels, ", version: \"{version}\"").unwrap();
    }
    format!(
        "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: orders-{version}, namespace: shop, labels: {{{labels}}}}}
spec: {{serviceAccount: orders, ports: [{{name: main, port: {port}, protocol: HTTP}}]}}
"
    )
}

/// A mesh with three versions of `orders`, and the listener through which `web` calls them.
struct Shop {
    mesh: TestMesh,
    listener: SocketAddr,
    applications: Vec<TestApplication>,
}

impl Shop {
    fn start_shop() -> Self {
        let applications = ["1", "2", "3"].map(start_version);
        let listener = free_port();
        let mut manifests = mesh_config("allow");
        manifests += RULE_MANIFESTS;
        manifests += &client_manifest("web", &[], &[("orders", listener)]);
        for (version, application) in [("1", &applications[0]), ("3", &applications[2])] {
            manifests += &workload_manifest(version, application.port());
        }
        let mesh = TestMesh::up(&manifests);
        mesh.write("canary.yaml", &workload_manifest("2", applications[1].port()));
        let listener = SocketAddr::from((Ipv4Addr::LOCALHOST, listener));
        Self { mesh, listener, applications: applications.into() }
    }

    fn send_request(&self, header: &str) -> Option<Response> {
        let request =
            format!("GET / HTTP/1.1\r\nhost: orders\r\n{header}connection: close\r\n\r\n");
        exchange_bytes(self.listener, &request).ok()
    }

    /// Waits until a request gets this body.
    fn wait_for_body(&self, header: &str, body: &str) {
        let matches_expected =
            |response: &Response| response.status == 200 && response.body == body.as_bytes();
        let condition = format!("{header:?} gets {body:?}");
        eventually(&condition, Duration::from_secs(20), || {
            self.send_request(header).filter(matches_expected)
        });
    }

    /// Asserts that a hundred requests get this body.
    fn assert_always(&self, header: &str, body: &str) {
        for _ in 0..100 {
            let response = self.send_request(header).unwrap();
            assert_eq!(String::from_utf8_lossy(&response.body), body, "{header:?}");
        }
    }
}

#[test]
fn requests_reach_tagged_instances_or_their_fallback() {
    let shop = Shop::start_shop();
    let (gold_header, beta_cookie) = ("x-user-tier: gold\r\n", "cookie: a=b; beta=yes\r\n");
    shop.wait_for_body(gold_header, "version 2, lane gray");
    shop.wait_for_body("", "version 3, lane none");
    shop.assert_always(gold_header, "version 2, lane gray");
    shop.assert_always(beta_cookie, "version 2, lane none");
    // Only the untagged instance receives requests that match no rule.
    shop.assert_always("", "version 3, lane none");
    // A lane header set by the client is kept.
    shop.assert_always("x-user-tier: gold\r\nx-lane: blue\r\n", "version 2, lane blue");
    shop.mesh.remove("canary.yaml");
    shop.wait_for_body(gold_header, "version 1, lane gray");
    shop.assert_always(gold_header, "version 1, lane gray");
    let is_rejected =
        |response: &Response| response.rejection_reason() == Some("no-tagged-endpoint");
    let poll = || shop.send_request(beta_cookie).filter(is_rejected);
    let (response, _) = eventually("beta has no endpoint", Duration::from_secs(20), poll);
    assert_eq!(response.status, 503);
}

const ZONE_MANIFESTS: &str = "---
apiVersion: v1
kind: Service
metadata: {name: orders, namespace: shop}
spec: {selector: {app: orders}, ports: [{port: 9080, targetPort: main}]}
---
apiVersion: leno.dev/v1alpha1
kind: TagRoute
metadata: {name: orders, namespace: shop}
spec: {service: orders, preferSameTag: [{tags: [zone]}]}
---
apiVersion: leno.dev/v1alpha1
kind: OutlierDetection
metadata: {name: orders, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: orders}]
  consecutiveFailures: 3
  baseEjectionTime: 500ms
  maxEjectionTime: 500ms
";

/// Returns an application in the caller's zone that responds with 500 while it is unhealthy. Each request needs
/// a new connection.
fn start_near_instance(is_unhealthy: &Arc<AtomicBool>) -> TestApplication {
    let shared_flag = Arc::clone(is_unhealthy);
    TestApplication::start(move |_| {
        let status_line = match shared_flag.load(Ordering::SeqCst) {
            true => "500 Sick",
            false => "200 OK",
        };
        let response =
            format!("HTTP/1.1 {status_line}\r\nconnection: close\r\ncontent-length: 4\r\n\r\nnear");
        ApplicationResponse::Bytes(response.into_bytes())
    })
}

/// Starts a caller in zone a, with these instances in its zone and one in another.
fn start_two_zones(near_instances: Vec<TestApplication>) -> Shop {
    let far_application = TestApplication::start(|_| ApplicationResponse::ok("far"));
    let listener = free_port();
    let mut manifests = mesh_config("allow") + ZONE_MANIFESTS;
    manifests += &client_manifest("web", &[], &[("orders", listener)])
        .replace("app: web", "app: web, zone: a");
    let zones =
        near_instances.iter().map(|instance| ("a", instance)).chain([("b", &far_application)]);
    for (number, (zone, application)) in zones.enumerate() {
        let port = application.port();
        write!(
            manifests,
            "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: orders-{number}, namespace: shop, labels: {{app: orders, zone: {zone}}}}}
spec: {{serviceAccount: orders, ports: [{{name: main, port: {port}, protocol: HTTP}}]}}
"
        )
        .unwrap();
    }
    let mesh = TestMesh::up(&manifests);
    let listener = SocketAddr::from((Ipv4Addr::LOCALHOST, listener));
    Shop {
        mesh,
        listener,
        applications: near_instances.into_iter().chain([far_application]).collect(),
    }
}

#[test]
fn another_zone_is_used_without_a_healthy_endpoint_in_the_own_zone() {
    let is_unhealthy = Arc::new(AtomicBool::new(false));
    let mut shop = start_two_zones(vec![start_near_instance(&is_unhealthy)]);
    shop.wait_for_body("", "near");
    shop.assert_always("", "near");
    is_unhealthy.store(true, Ordering::SeqCst);
    shop.wait_for_body("", "far");
    assert!(
        connected_sidecar(&shop.mesh, "shop/web-1").metric_value("leno_preference_fallbacks_total")
            >= 1.0
    );
    is_unhealthy.store(false, Ordering::SeqCst);
    shop.wait_for_body("", "near");
    shop.assert_always("", "near");
    // An unreachable endpoint costs no request: the next attempt uses another one.
    drop(shop.applications.remove(0));
    shop.assert_always("", "far");
}

#[test]
fn a_zone_with_only_an_endpoint_kept_by_the_ejection_limit_is_not_used() {
    let is_unhealthy = Arc::new(AtomicBool::new(false));
    // Half of three is one: the other unhealthy instance is not ejected.
    let shop = start_two_zones(vec![
        start_near_instance(&is_unhealthy),
        start_near_instance(&is_unhealthy),
    ]);
    shop.wait_for_body("", "near");
    shop.assert_always("", "near");
    is_unhealthy.store(true, Ordering::SeqCst);
    shop.wait_for_body("", "far");
    is_unhealthy.store(false, Ordering::SeqCst);
    let is_near = |response: Response| response.status == 200 && response.body == b"near";
    eventually("the caller's zone receives all requests again", Duration::from_secs(20), || {
        (0..20).all(|_| shop.send_request("").is_some_and(is_near)).then_some(())
    });
}
