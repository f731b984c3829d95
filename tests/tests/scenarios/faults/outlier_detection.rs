//! Outlier detection: one of three instances fails, is ejected within two windows, and returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leno_tests::manifests::{client_manifest, mesh_config};
use leno_tests::{ApplicationResponse, TestApplication, TestMesh, eventually, free_port, get};

use super::{MAX_WAIT, connected_sidecar, loopback_address};

/// The window of the policy, which ejects at a failure rate of one half of at least five requests.
const WINDOW: Duration = Duration::from_secs(1);
const POLICY: &str = "---
apiVersion: leno.dev/v1alpha1
kind: OutlierDetection
metadata: {name: ratings, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: ratings}]
  failures: [connect, reset, 5xx]
  window: 1s
  failureRate: {percent: 50, minimumRequests: 5}
  maxEjectionPercent: 50
  minHealthy: 2
  baseEjectionTime: 1s
  maxEjectionTime: 4s
";

/// A response that closes its connection: the next request needs a new one.
const HEALTHY_RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\nwell";

/// An instance that is unhealthy on demand and counts its requests.
struct UnhealthyInstance {
    application: TestApplication,
    unhealthy_flag: Arc<AtomicBool>,
    request_count: Arc<AtomicUsize>,
}

impl UnhealthyInstance {
    /// Starts an instance with this response while it is unhealthy.
    fn start(unhealthy_response: impl Fn() -> ApplicationResponse + Send + Sync + 'static) -> Self {
        let (unhealthy_flag, request_count) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (is_unhealthy, counter) = (Arc::clone(&unhealthy_flag), Arc::clone(&request_count));
        let application = TestApplication::start(move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
            match is_unhealthy.load(Ordering::SeqCst) {
                true => unhealthy_response(),
                false => ApplicationResponse::Bytes(HEALTHY_RESPONSE.to_vec()),
            }
        });
        Self { application, unhealthy_flag, request_count }
    }

    /// Starts an instance that reports its health at `/healthz`, which is not counted, and serves all other
    /// requests.
    fn start_with_health_check() -> Self {
        let (unhealthy_flag, request_count) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (is_unhealthy, counter) = (Arc::clone(&unhealthy_flag), Arc::clone(&request_count));
        let application = TestApplication::start(move |request| {
            let is_check = request.method_and_target() == ("GET", "/healthz");
            counter.fetch_add(usize::from(!is_check), Ordering::SeqCst);
            match is_check && is_unhealthy.load(Ordering::SeqCst) {
                true => ApplicationResponse::Bytes(
                    b"HTTP/1.1 503 Sick\r\ncontent-length: 0\r\n\r\n".to_vec(),
                ),
                false => ApplicationResponse::ok("well"),
            }
        });
        Self { application, unhealthy_flag, request_count }
    }

    fn received_requests(&self) -> usize {
        self.request_count.load(Ordering::SeqCst)
    }
}

fn workload_manifest(number: usize, port: u16) -> String {
    format!(
        "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: ratings-{number}, namespace: shop, labels: {{app: ratings}}}}
spec:
  serviceAccount: ratings
  ports: [{{name: http, port: {port}, protocol: HTTP}}]
"
    )
}

/// Round robin, so that each instance has the same share regardless of its latency.
const SERVICE: &str = "---
apiVersion: v1
kind: Service
metadata: {name: ratings, namespace: shop}
spec: {selector: {app: ratings}, ports: [{name: http, port: 9080, targetPort: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: LoadBalancing
metadata: {name: ratings, namespace: shop}
spec:
  targetRefs: [{name: ratings}]
  algorithm: RoundRobin
";

/// Marks a share of the requests received by the instances.
const LANE: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Lane
metadata: {name: gray, namespace: shop}
spec:
  service: ratings
  rules: [{match: {path: {prefix: /}}, marks: [{percent: 60, headers: {x-lane: gray}}]}]
";

fn ejected_endpoints(mesh: &TestMesh) -> Vec<String> {
    let clients = mesh.get_json("ejected");
    let client =
        clients.as_array().into_iter().flatten().find(|entry| entry["workload"] == "shop/web-1");
    let ejected_entries =
        client.and_then(|entry| entry["ejected"].as_array()).expect("web reports them").clone();
    ejected_entries
        .iter()
        .map(|entry| entry["workload"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn an_instance_that_responds_500_is_ejected_within_two_windows_and_returns() {
    let unhealthy_response =
        || ApplicationResponse::Bytes(b"HTTP/1.1 500 Sick\r\ncontent-length: 0\r\n\r\n".to_vec());
    assert_ejected_and_unejected(unhealthy_response, POLICY);
}

#[test]
fn an_instance_that_times_out_is_ejected_within_two_windows_and_returns() {
    let policy = POLICY
        .replace("[connect, reset, 5xx]", "[timeout]")
        .replace("minimumRequests: 5", "minimumRequests: 3");
    let route = "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: ratings, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: ratings}]
  rules:
  - timeouts: {backendRequest: 100ms}
    backendRefs: [{name: ratings, port: 9080}]
";
    assert_ejected_and_unejected(|| ApplicationResponse::NoResponse, &(policy + route));
}

#[test]
fn an_instance_that_closes_connections_is_ejected_within_two_windows_and_returns() {
    let policy = POLICY.replace("[connect, reset, 5xx]", "[reset]");
    assert_ejected_and_unejected(|| ApplicationResponse::CloseConnection, &policy);
}

/// Makes one of three instances fail with this response. Before its ejection at most its share of requests
/// fails, afterwards only probes; and two of the three always stay.
fn assert_ejected_and_unejected(unhealthy_response: fn() -> ApplicationResponse, policies: &str) {
    let instances = [(); 3].map(|()| UnhealthyInstance::start(unhealthy_response));
    let listener = free_port();
    let mut manifests = vec![mesh_config("allow"), SERVICE.to_owned(), policies.to_owned()];
    for (index, instance) in instances.iter().enumerate() {
        manifests.push(workload_manifest(index + 1, instance.application.port()));
    }
    manifests.push(client_manifest("web", &[], &[("ratings.shop", listener)]));
    let mesh = TestMesh::up(&manifests.concat());
    let listener = loopback_address(listener);
    let request_fails = || get(listener, "/").expect("the listener responds").status != 200;
    eventually("all three workloads respond", MAX_WAIT, || {
        assert!(!request_fails());
        instances.iter().all(|instance| instance.received_requests() > 0).then_some(())
    });

    instances[0].unhealthy_flag.store(true, Ordering::SeqCst);
    let mut first_failure = None;
    let (mut sent_count, mut failure_count) = (0, 0);
    eventually("the workload is ejected", MAX_WAIT, || {
        for _ in 0..10 {
            sent_count += 1;
            if request_fails() {
                failure_count += 1;
                first_failure.get_or_insert_with(Instant::now);
            }
        }
        let ejected = ejected_endpoints(&mesh);
        assert!(ejected.len() <= 1, "{ejected:?}");
        (ejected == ["shop/ratings-1"]).then_some(())
    });
    if let Some(failed_at) = first_failure {
        let elapsed = failed_at.elapsed();
        assert!(elapsed < 2 * WINDOW + EXTRA_WAIT, "ejected after {elapsed:?}");
    }
    // A third, plus the deviation because the data threads do not share their round-robin position.
    assert!(failure_count * 3 <= sent_count + 15, "{failure_count} of {sent_count}");

    let ejected_at = Instant::now();
    (sent_count, failure_count) = (0, 0);
    while ejected_at.elapsed() < 2 * WINDOW {
        sent_count += 1;
        failure_count += usize::from(request_fails());
    }
    // The only failures now are probes: one at the end of each ejection.
    assert!(
        failure_count <= 3 && failure_count * 10 <= sent_count,
        "{failure_count} of {sent_count}"
    );

    // Two are unhealthy now: only one may be ejected, because two must stay.
    instances[1].unhealthy_flag.store(true, Ordering::SeqCst);
    let both_failing_since = Instant::now();
    while both_failing_since.elapsed() < 2 * WINDOW {
        request_fails();
        assert!(ejected_endpoints(&mesh).len() <= 1);
    }

    instances[0].unhealthy_flag.store(false, Ordering::SeqCst);
    instances[1].unhealthy_flag.store(false, Ordering::SeqCst);
    eventually("all workloads are back", MAX_WAIT, || {
        request_fails();
        let ejected = ejected_endpoints(&mesh);
        assert!(ejected.len() <= 1, "{ejected:?}");
        ejected.is_empty().then_some(())
    });
    let counts_before = instances.each_ref().map(UnhealthyInstance::received_requests);
    eventually("each workload receives its share of requests", MAX_WAIT, || {
        assert!(!request_fails());
        let all_serve = instances
            .iter()
            .zip(&counts_before)
            .all(|(instance, count_before)| instance.received_requests() > *count_before);
        all_serve.then_some(())
    });
    let admin_endpoint = connected_sidecar(&mesh, "shop/web-1");
    assert!(admin_endpoint.metric_value("leno_endpoint_ejections_total{cause=\"rate\"}") >= 1.0);
    assert!(admin_endpoint.metric_value("leno_endpoint_unejections_total") >= 1.0);
}

#[test]
fn an_instance_that_refuses_connections_is_ejected_and_fails_no_request() {
    let healthy_response = || ApplicationResponse::Bytes(HEALTHY_RESPONSE.to_vec());
    let mut instances = vec![
        UnhealthyInstance::start(healthy_response),
        UnhealthyInstance::start(healthy_response),
        UnhealthyInstance::start(healthy_response),
    ];
    let listener = free_port();
    // While connecting fails, the endpoint is also skipped for short times: there are few attempts.
    let policy =
        POLICY.replace("failureRate: {percent: 50, minimumRequests: 5}", "consecutiveFailures: 3");
    let mut manifests = vec![mesh_config("allow"), SERVICE.to_owned(), policy];
    for (index, instance) in instances.iter().enumerate() {
        manifests.push(workload_manifest(index + 1, instance.application.port()));
    }
    manifests.push(client_manifest("web", &[], &[("ratings.shop", listener)]));
    let mesh = TestMesh::up(&manifests.concat());
    let listener = loopback_address(listener);
    eventually("all three workloads respond", MAX_WAIT, || {
        assert_eq!(get(listener, "/").expect("the listener responds").status, 200);
        instances.iter().all(|instance| instance.received_requests() > 0).then_some(())
    });
    drop(instances.remove(0));
    // A request on a refused connection is retried at another endpoint, so clients see no failure.
    eventually("the workload is ejected", MAX_WAIT, || {
        for _ in 0..50 {
            assert_eq!(get(listener, "/").expect("the listener responds").status, 200);
        }
        (ejected_endpoints(&mesh) == ["shop/ratings-1"]).then_some(())
    });
}

/// Additional time for a busy machine.
const EXTRA_WAIT: Duration = Duration::from_secs(3);

#[test]
fn an_instance_with_failing_health_checks_is_ejected_before_a_request_fails() {
    let instances = [(); 3].map(|()| UnhealthyInstance::start_with_health_check());
    let listener = free_port();
    let policy = POLICY.replace(
        "failureRate: {percent: 50, minimumRequests: 5}",
        "healthCheck: {httpGet: {path: /healthz}, interval: 100ms, timeout: 100ms}",
    );
    let mut manifests = vec![mesh_config("allow"), SERVICE.to_owned(), policy];
    for (index, instance) in instances.iter().enumerate() {
        manifests.push(workload_manifest(index + 1, instance.application.port()));
    }
    manifests.push(client_manifest("web", &[], &[("ratings.shop", listener)]));
    let mesh = TestMesh::up(&manifests.concat());
    let listener = loopback_address(listener);
    let request_status = || get(listener, "/").expect("the listener responds").status;
    eventually("the listener responds", MAX_WAIT, || (request_status() == 200).then_some(()));

    instances[0].unhealthy_flag.store(true, Ordering::SeqCst);
    eventually("the workload is ejected without requests", MAX_WAIT, || {
        (ejected_endpoints(&mesh) == ["shop/ratings-1"]).then_some(())
    });
    let count_before = instances[0].received_requests();
    for _ in 0..100 {
        assert_eq!(request_status(), 200);
    }
    assert_eq!(instances[0].received_requests(), count_before, "no request goes there");

    instances[0].unhealthy_flag.store(false, Ordering::SeqCst);
    eventually("the workload is back without requests", MAX_WAIT, || {
        ejected_endpoints(&mesh).is_empty().then_some(())
    });
    eventually("the workload receives its share of requests", MAX_WAIT, || {
        assert_eq!(request_status(), 200);
        (instances[0].received_requests() > count_before).then_some(())
    });
    let admin_endpoint = connected_sidecar(&mesh, "shop/web-1");
    assert!(admin_endpoint.metric_value("leno_endpoint_ejections_total{cause=\"check\"}") >= 1.0);
    assert!(admin_endpoint.metric_value("leno_health_checks_total{result=\"failed\"}") >= 3.0);
}

#[test]
fn explain_shows_ejected_endpoints_of_the_running_mesh() {
    let instances = [(); 3].map(|()| UnhealthyInstance::start_with_health_check());
    let listener = free_port();
    let policy = POLICY.replace(
        "failureRate: {percent: 50, minimumRequests: 5}",
        "healthCheck: {httpGet: {path: /healthz}, interval: 100ms, timeout: 100ms}",
    );
    let mut manifests = vec![mesh_config("allow"), SERVICE.to_owned(), policy, LANE.to_owned()];
    for (index, instance) in instances.iter().enumerate() {
        manifests.push(workload_manifest(index + 1, instance.application.port()));
    }
    manifests.push(client_manifest("web", &[], &[("ratings.shop", listener)]));
    let mesh = TestMesh::up(&manifests.concat());
    let listener = loopback_address(listener);
    eventually("the listener responds", MAX_WAIT, || {
        (get(listener, "/").expect("the listener responds").status == 200).then_some(())
    });
    instances[0].unhealthy_flag.store(true, Ordering::SeqCst);
    eventually("the workload is ejected", MAX_WAIT, || {
        (ejected_endpoints(&mesh) == ["shop/ratings-1"]).then_some(())
    });

    let url = "http://ratings.shop:9080/?a=b c".replace(' ', "%20");
    let arguments = ["explain", "request", "--from", "shop/web-1", "--url", &url];
    let output = mesh.run_leno(&arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = String::from_utf8(output.stdout).expect("text");
    for line in [
        "request   GET http://ratings.shop:9080/?a=b%20c",
        "            Lane shop/gray rule 0 marks 60 % with x-lane: gray",
        "verdict   200-range: allowed; the application responds",
    ] {
        assert!(output.lines().any(|printed_line| printed_line == line), "{line}\n{output}");
    }
    let ejected_lines: Vec<&str> =
        output.lines().filter(|line| line.starts_with("ejected")).collect();
    let prefix = "ejected   shop/ratings-1 of shop/ratings port 9080: for ";
    assert!(ejected_lines.len() == 1 && ejected_lines[0].starts_with(prefix), "{output}");
    assert!(
        ejected_lines[0].ends_with(" (check), by the OutlierDetection shop/ratings"),
        "{output}"
    );

    let output = mesh.run_leno(&[&arguments[..], &["-o", "json", "-H", "x-lane: b"]].concat());
    let output: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let endpoints = output["backends"][0]["endpoints"].as_array().expect("a list");
    let causes: Vec<&serde_json::Value> =
        endpoints.iter().map(|endpoint| &endpoint["ejected"]["cause"]).collect();
    assert_eq!(causes, [&"check".into(), &serde_json::Value::Null, &serde_json::Value::Null]);
    assert!(endpoints.iter().all(|endpoint| endpoint["ready"] == true), "{output}");
    assert_eq!(
        endpoints[0]["lane_marks"][0],
        "Lane shop/gray rule 0 marks 60 % with x-lane, as in the request"
    );

    let unknown_client =
        mesh.run_leno(&["explain", "request", "--from", "shop/nobody", "--url", &url]);
    assert_eq!(unknown_client.status.code(), Some(1), "{unknown_client:?}");
    let stderr = String::from_utf8(unknown_client.stderr).expect("text");
    assert!(stderr.contains("there is no Workload shop/nobody"), "{stderr}");
    let unknown_service = ["explain", "request", "--from", "shop/web-1", "--url", "http://nobody/"];
    assert_eq!(mesh.run_leno(&unknown_service).status.code(), Some(3));
}
