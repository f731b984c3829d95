//! Policies of a service with a canary route to other services, through real sidecars.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leno_tests::manifests::{client_manifest, mesh_config};
use leno_tests::{
    ApplicationResponse, TestApplication, TestConnection, TestMesh, eventually, free_port, get,
    leno_command,
};
use serde_json::Value;

/// The service `api` with a route to `api-v1` and `api-v2`, each with its own instances.
struct Canary {
    mesh: TestMesh,
    listener: SocketAddr,
}

const BACKENDS: [(&str, u32); 2] = [("api-v1", 80), ("api-v2", 20)];

/// Returns a route of each kind that forwards all requests to these services by weight.
fn route_manifest(kind: &str, backends: &[(&str, u32)]) -> String {
    let port = if kind == "TrafficSplit" { "" } else { ", port: 9080" };
    let field = if kind == "TrafficSplit" { "service" } else { "name" };
    let backends: Vec<String> = backends
        .iter()
        .map(|(name, weight)| format!("{{{field}: {name}{port}, weight: {weight}}}"))
        .collect();
    let backends = backends.join(", ");
    let (version, spec) = match kind {
        "TrafficSplit" => {
            ("split.smi-spec.io/v1alpha4", format!("{{service: api, backends: [{backends}]}}"))
        }
        kind => {
            let parent = "parentRefs: [{group: \"\", kind: Service, name: api}]";
            let version = if kind == "TCPRoute" { "v1alpha2" } else { "v1" };
            let version = match version {
                "v1" => "gateway.networking.k8s.io/v1",
                _ => "gateway.networking.k8s.io/v1alpha2",
            };
            (version, format!("{{{parent}, rules: [{{backendRefs: [{backends}]}}]}}"))
        }
    };
    format!(
        "---\napiVersion: {version}\nkind: {kind}\nmetadata: {{name: api, namespace: shop}}\n\
         spec: {spec}\n"
    )
}

fn service_manifest(name: &str, selector: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{selector: {{{selector}}}, ports: [{{name: main, port: 9080, targetPort: main}}]}}\n"
    )
}

fn policy_manifest(kind: &str, target: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: {kind}\n\
         metadata: {{name: of-{target}, namespace: shop}}\n\
         spec: {{targetRefs: [{{kind: Service, name: {target}}}], {spec}}}\n"
    )
}

/// Starts the mesh; `instances` has the version and application of each instance.
fn start_canary(
    instances: &[(&str, &TestApplication)],
    route_manifest: &str,
    policies: &str,
) -> Canary {
    let listener = free_port();
    let mut manifests = mesh_config("allow") + &client_manifest("web", &[], &[("api", listener)]);
    for (number, (version, application)) in instances.iter().enumerate() {
        write!(
            manifests,
            "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\n\
             metadata: {{name: api-{number}, namespace: shop, labels: {{app: api, version: {version}}}}}\n\
             spec: {{serviceAccount: api, ports: [{{name: main, port: {}, protocol: HTTP}}]}}\n",
            application.port()
        )
        .expect("writing to a String never fails");
    }
    manifests += &service_manifest("api", "app: api");
    manifests += &service_manifest("api-v1", "app: api, version: v1");
    manifests += &service_manifest("api-v2", "app: api, version: v2");
    let mesh = TestMesh::up(&(manifests + route_manifest + policies));
    Canary { mesh, listener: SocketAddr::from((Ipv4Addr::LOCALHOST, listener)) }
}

impl Canary {
    /// Returns the status of a request, and the rejection reason of the mesh.
    fn status_and_reason(&self, path: &str) -> (u16, Option<String>) {
        let response = get(self.listener, path).expect("the listener responds");
        (response.status, response.rejection_reason().map(str::to_owned))
    }

    /// Starts a request that an application holds; `received` counts the requests that reach an application.
    fn hold_request(&self, received: impl Fn() -> usize) -> TestConnection {
        let count_before = received();
        eventually("a request is held", MAX_WAIT, || {
            let mut connection = TestConnection::open(self.listener).expect("the listener is open");
            let request = "GET /hold HTTP/1.1\r\nhost: test\r\n\r\n";
            connection.send(request).expect("the connection is open");
            while received() == count_before {
                // A previous request may still count for a moment: then the new request is rejected.
                if connection
                    .has_activity(Duration::from_millis(50))
                    .expect("the connection is open")
                {
                    return None;
                }
            }
            Some(connection)
        })
        .0
    }

    fn run_check(&self) -> String {
        let mut command = leno_command();
        command.args(["check", "-f"]);
        let output = command.arg(self.mesh.manifest_file("")).output().expect("leno runs");
        String::from_utf8(output.stdout).expect("text")
    }

    fn explain_request(&self) -> String {
        let mut command = leno_command();
        let url = "http://api:9080/";
        command.args(["explain", "request", "--from", "shop/web-1", "--url", url, "-f"]);
        let output = command.arg(self.mesh.manifest_file("")).output().expect("leno runs");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Returns true if a policy of the service `api` is in force, and otherwise the reason why it is not.
    fn policy_in_force(&self, kind: &str) -> (bool, String) {
        let policies = self.mesh.get_json("policies");
        let policies = policies.as_array().expect("a list");
        let policy = policies
            .iter()
            .find(|policy| policy["kind"] == kind && policy["name"] == "shop/of-api");
        let policy = policy.expect("the policy is listed");
        let reason = policy["reason"].as_str().unwrap_or_default();
        (policy["in_force"] == Value::Bool(true), reason.to_owned())
    }
}

/// Returns an application that responds except to `/hold`, and its request counter.
fn start_holding_application() -> (TestApplication, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    let application = TestApplication::start(move |request| {
        counter.fetch_add(1, Ordering::SeqCst);
        match request.method_and_target().1 {
            "/hold" => ApplicationResponse::NoResponse,
            _ => ApplicationResponse::ok("ok"),
        }
    });
    (application, count)
}

#[test]
fn a_circuit_breaker_of_the_called_service_counts_over_all_backends_of_each_kind_of_route() {
    for kind in ["HTTPRoute", "GRPCRoute", "TCPRoute", "TrafficSplit"] {
        let ((v1, v1_requests), (v2, v2_requests)) =
            (start_holding_application(), start_holding_application());
        let limit = policy_manifest("CircuitBreaker", "api", "limits: {requests: 2}");
        let canary = start_canary(
            &[("v1", &v1), ("v2", &v2)],
            &route_manifest(kind, &[BACKENDS[0], ("api-v2", 80)]),
            &limit,
        );
        assert!(canary.run_check().contains("0 warnings"), "{kind}: {}", canary.run_check());
        assert_eq!(canary.policy_in_force("CircuitBreaker"), (true, String::new()), "{kind}");
        eventually("both backends respond", MAX_WAIT, || {
            canary.status_and_reason("/");
            let both_reached =
                v1_requests.load(Ordering::SeqCst) > 0 && v2_requests.load(Ordering::SeqCst) > 0;
            both_reached.then_some(())
        });
        let received = || v1_requests.load(Ordering::SeqCst) + v2_requests.load(Ordering::SeqCst);
        let held_connections = [canary.hold_request(received), canary.hold_request(received)];
        for _ in 0..6 {
            let circuit_full = (503, Some("circuit-full".to_owned()));
            assert_eq!(canary.status_and_reason("/hold"), circuit_full, "{kind}");
        }
        drop(held_connections);
    }
}

#[test]
fn faults_of_the_called_service_are_injected_before_a_backend_is_selected() {
    let ((v1, v1_requests), (v2, v2_requests)) =
        (start_holding_application(), start_holding_application());
    let spec = "rules: [{abort: {httpStatus: 500, percent: 50}}]";
    let faults = policy_manifest("FaultInjection", "api", spec);
    let canary =
        start_canary(&[("v1", &v1), ("v2", &v2)], &route_manifest("HTTPRoute", &BACKENDS), &faults);
    let responses: Vec<_> = (0..200).map(|_| canary.status_and_reason("/")).collect();
    let injected = (500, Some("fault-injected".to_owned()));
    let aborted = responses.iter().filter(|response| **response == injected).count();
    assert!((60..=140).contains(&aborted), "{aborted} of 200");
    let received = v1_requests.load(Ordering::SeqCst) + v2_requests.load(Ordering::SeqCst);
    assert_eq!(received, 200 - aborted);
    assert!(
        canary.explain_request().contains("FaultInjection shop/of-api"),
        "{}",
        canary.explain_request()
    );
}

#[test]
fn outlier_detection_of_the_called_service_ejects_at_its_failure_threshold() {
    let (v2, _) = start_holding_application();
    let failure_count = Arc::new(AtomicUsize::new(0));
    let failure_counter = failure_count.clone();
    let broken = TestApplication::start(move |_| {
        failure_counter.fetch_add(1, Ordering::SeqCst);
        ApplicationResponse::Bytes(b"HTTP/1.1 500 Broken\r\ncontent-length: 0\r\n\r\n".to_vec())
    });
    let (healthy, _) = start_holding_application();
    let policies = [
        policy_manifest(
            "OutlierDetection",
            "api",
            "consecutiveFailures: 5, baseEjectionTime: 300s, ejectionJitterPercent: 0",
        ),
        policy_manifest("LoadBalancing", "api", "algorithm: RoundRobin"),
    ];
    let instances = [("v1", &broken), ("v1", &healthy), ("v2", &v2)];
    let canary =
        start_canary(&instances, &route_manifest("HTTPRoute", &BACKENDS), &policies.concat());
    // One connection uses one data thread, which has its own counters.
    let mut connection = TestConnection::open(canary.listener).expect("the listener is open");
    let statuses: Vec<u16> =
        (0..200).map(|_| connection.get("/").expect("a response").status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 500).count(), 5);
    assert_eq!(failure_count.load(Ordering::SeqCst), 5);
    let ejected_list = canary.mesh.run_leno(&["get", "ejected"]);
    let ejected_list = String::from_utf8(ejected_list.stdout).expect("text");
    assert!(ejected_list.contains("shop/api-0"), "{ejected_list}");
}

#[test]
fn load_balancing_of_the_called_service_keeps_a_user_at_an_instance_of_the_backend() {
    let start_instance = |number: usize| {
        TestApplication::start(move |_| ApplicationResponse::ok(number.to_string()))
    };
    let applications: Vec<TestApplication> = (0..3).map(start_instance).collect();
    let balancing =
        policy_manifest("LoadBalancing", "api", "algorithm: Maglev, key: {header: x-user}");
    let instances: Vec<(&str, &TestApplication)> =
        applications.iter().map(|application| ("v1", application)).collect();
    let canary =
        start_canary(&instances, &route_manifest("HTTPRoute", &[("api-v1", 1)]), &balancing);
    let mut connection = TestConnection::open(canary.listener).expect("the listener is open");
    let mut request_instance = |user: usize| {
        let request = format!("GET / HTTP/1.1\r\nhost: test\r\nx-user: u{user}\r\n\r\n");
        connection.send(request).expect("the connection is open");
        connection.receive_response().expect("a response").body
    };
    let mut instances_of_users =
        || -> Vec<Vec<u8>> { (0..24).map(&mut request_instance).collect() };
    // Users of an instance that is not ready yet are served by another.
    let all_serve = |instances_of_users: &[Vec<u8>]| {
        instances_of_users.iter().collect::<HashSet<_>>().len() == applications.len()
    };
    eventually("each instance serves users", MAX_WAIT, || {
        all_serve(&instances_of_users()).then_some(())
    });
    let first_instances = instances_of_users();
    for _ in 0..4 {
        assert_eq!(instances_of_users(), first_instances);
    }
    assert!(
        canary.explain_request().contains("LoadBalancing shop/of-api"),
        "{}",
        canary.explain_request()
    );
}

#[test]
fn hedging_of_the_called_service_sends_a_second_attempt_to_the_same_backend() {
    let silent = TestApplication::start(|_| ApplicationResponse::NoResponse);
    let (healthy, _) = start_holding_application();
    let hedging = policy_manifest("Hedging", "api", "after: 50ms");
    let route = route_manifest("HTTPRoute", &[("api-v1", 1)]);
    let canary = start_canary(&[("v1", &silent), ("v1", &healthy)], &route, &hedging);
    let sidecar = canary.mesh.sidecar("shop/web-1");
    eventually("a second attempt wins", MAX_WAIT, || {
        assert_eq!(canary.status_and_reason("/").0, 200);
        (sidecar.sum_metrics("leno_hedges_won_total") > 0.0).then_some(())
    });
}

#[test]
fn a_policy_without_effect_is_reported_with_the_route_that_takes_the_traffic() {
    let ((v1, _), (v2, _)) = (start_holding_application(), start_holding_application());
    let policies = [
        policy_manifest("OutlierDetection", "api", "consecutiveFailures: 5"),
        policy_manifest("OutlierDetection", "api-v1", "consecutiveFailures: 3"),
        policy_manifest("OutlierDetection", "api-v2", "consecutiveFailures: 3"),
        policy_manifest("CircuitBreaker", "api", "limits: {requests: 2}"),
    ];
    let route = route_manifest("HTTPRoute", &BACKENDS);
    let canary = start_canary(&[("v1", &v1), ("v2", &v2)], &route, &policies.concat());
    let reason = "HTTPRoute shop/api forwards all requests to shop/api-v1, shop/api-v2, and each of these \
               has its own policy, such as OutlierDetection shop/of-api-v2";
    let check_output = canary.run_check();
    assert!(check_output.contains(&format!("has no effect: {reason}")), "{check_output}");
    assert!(check_output.contains("1 warning"), "{check_output}");
    assert_eq!(canary.policy_in_force("OutlierDetection"), (false, reason.to_owned()));
    let explain_output = canary.explain_request();
    for line in [
        "CircuitBreaker shop/of-api: across all backends of the called service",
        "OutlierDetection shop/of-api-v1: ",
        "OutlierDetection shop/of-api: the backend shop/api-v1 has its own: OutlierDetection shop/of-api-v1",
    ] {
        assert!(explain_output.contains(line), "{line}: {explain_output}");
    }
}

const MAX_WAIT: Duration = Duration::from_secs(60);
