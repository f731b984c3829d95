//! A namespace joins and leaves the mesh while clients in the mesh send requests, and no request fails. Each request
//! has its own connection, because a connection to a Service outside the mesh is bound to one Pod and ends with it,
//! as without a mesh.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leno_tests::cluster::{SidecarInjection, TestNamespace, expect_stdout, kubectl, program_image};
use leno_tests::eventually;
use serde_json::{Value, json};

use crate::under_load::LoadPod;

/// Creates a namespace with ready unmeshed servers, and an empty meshed namespace for clients.
fn start_unmeshed(name: &str) -> (TestNamespace, TestNamespace) {
    let servers = TestNamespace::new(name, SidecarInjection::Disabled);
    servers.create_http_server("server", REPLICA_COUNT);
    servers.wait_ready();
    (servers, TestNamespace::new(&format!("{name}-clients"), SidecarInjection::Enabled))
}

fn server_url(servers: &TestNamespace) -> String {
    format!("http://server.{}/", servers.name())
}

/// Ends the load: no request may have failed.
fn assert_no_failures(load: LoadPod<'_>) {
    let (requests, failures) = load.stop_load();
    assert!(requests > 1000, "{requests}");
    assert_eq!(failures, serde_json::json!({}), "of {requests} requests");
}

/// Labels a namespace, or removes the label (`leno.dev/injection-`), and restarts a workload in it.
fn label_and_restart(servers: &TestNamespace, label: &str, workload: &str) {
    expect_stdout(&kubectl(&["label", "namespace", servers.name(), label]));
    expect_stdout(&servers.kubectl(&["rollout", "restart", workload]));
    expect_stdout(&servers.kubectl(&["rollout", "status", workload, "--timeout=300s"]));
}

/// Returns the number of meshed Pods of an application.
fn count_meshed(servers: &TestNamespace, app: &str) -> usize {
    servers.list_containers(app).split_whitespace().filter(|name| *name == "leno-proxy").count()
}

/// Waits until a container of a Pod is waiting for one of these reasons.
fn expect_waiting(servers: &TestNamespace, pod: &str, reasons: &[&str]) {
    let states = "jsonpath={.status.initContainerStatuses[*].state.waiting.reason} \
                  {.status.containerStatuses[*].state.waiting.reason}";
    eventually(&format!("{pod} waits for {reasons:?}"), Duration::from_secs(180), || {
        let reasons_text = expect_stdout(&servers.kubectl(&["get", "pod", pod, "-o", states]));
        reasons.iter().any(|reason| reasons_text.contains(reason)).then_some(())
    });
}

/// Injects sidecars into all Pods of a namespace, and then removes them.
fn join_and_leave(servers: &TestNamespace) {
    label_and_restart(servers, "leno.dev/injection=enabled", "deployment/server");
    eventually("all pods have a sidecar", Duration::from_secs(120), || {
        (count_meshed(servers, "server") == REPLICA_COUNT as usize).then_some(())
    });
    label_and_restart(servers, "leno.dev/injection-", "deployment/server");
    eventually("no pod has a sidecar", Duration::from_secs(120), || {
        (count_meshed(servers, "server") == 0).then_some(())
    });
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn a_namespace_joins_and_leaves_the_mesh_without_a_failed_request() {
    let (servers, clients) = start_unmeshed("late");
    let load = LoadPod::start_with_new_connections(&clients, &server_url(&servers));
    join_and_leave(&servers);
    assert_no_failures(load);
}

/// Adds two meshed Pods behind the Service: one with an image that cannot be pulled, one with a sidecar that crashes.
#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn pods_that_cannot_start_fail_no_request() {
    let (servers, clients) = start_unmeshed("broken");
    let load = LoadPod::start_with_new_connections(&clients, &server_url(&servers));
    add_pod_with_missing_image(&servers);
    servers.apply_manifests(&format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: crashing, labels: {{app: server}}}}, spec: {{serviceAccountName: server, \
         initContainers: [{{name: leno-proxy, image: {}, imagePullPolicy: Never, restartPolicy: Always, args: [no-such-command]}}], \
         containers: [{{name: app, image: 'kc.local/testapp:1', imagePullPolicy: Never, args: [http], ports: [{{containerPort: \
         8080, name: http}}], readinessProbe: {{httpGet: {{path: /, port: http}}, periodSeconds: 1}}}}]}}}}",
        program_image(),
    ));
    expect_waiting(&servers, "crashing", &["CrashLoopBackOff"]);
    assert_no_failures(load);
}

/// Adds a meshed Pod behind the Service with an application image that cannot be pulled.
fn add_pod_with_missing_image(servers: &TestNamespace) {
    servers.apply_manifests(
        "{apiVersion: v1, kind: Pod, metadata: {name: unpulled, labels: {app: server, leno.dev/injection: enabled}}, spec: \
         {serviceAccountName: server, containers: [{name: app, image: 'kc.local/nosuch:1', imagePullPolicy: Never, ports: \
         [{containerPort: 8080, name: http}]}]}}",
    );
    expect_waiting(servers, "unpulled", &["ErrImageNeverPull", "ImagePullBackOff"]);
    assert!(
        expect_stdout(&servers.kubectl(&["get", "pod/unpulled", "-o", INIT_CONTAINERS_PATH]))
            .contains("leno-proxy")
    );
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn host_network_pods_are_reached_while_another_pod_cannot_start() {
    let servers = TestNamespace::new("node-network", SidecarInjection::Disabled);
    servers.apply_manifests(HOST_NETWORK_SERVERS);
    expect_stdout(&servers.kubectl(&["rollout", "status", "daemonset/server", "--timeout=300s"]));
    let clients = TestNamespace::new("node-network-clients", SidecarInjection::Enabled);
    let load = LoadPod::start_with_new_connections(&clients, &server_url(&servers));
    add_pod_with_missing_image(&servers);
    assert_no_failures(load);
}

/// The Service has no ready Pod until the new Pod is ready: sidecars use the old Pod, as kube-proxy does.
#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn the_only_replica_serves_requests_while_it_terminates() {
    let servers = TestNamespace::new("lone", SidecarInjection::Enabled);
    let server = leno_tests::cluster::http_server("server", 1, "");
    servers.apply_manifests(&server.replace("-linger, 8s", "-linger, 15s"));
    servers.wait_ready();
    assert_eq!(count_meshed(&servers, "server"), 1);
    let clients = TestNamespace::new("lone-clients", SidecarInjection::Enabled);
    let load = LoadPod::start_with_new_connections(&clients, &server_url(&servers));
    let old_pod = format!("pod/{}", servers.list_pods("server")[0]);
    expect_stdout(&servers.kubectl(&["delete", &old_pod, "--wait=false"]));
    expect_stdout(&servers.kubectl(&["wait", "--for=delete", &old_pod, "--timeout=120s"]));
    expect_stdout(&servers.kubectl(&["rollout", "status", "deployment/server", "--timeout=120s"]));
    assert_no_failures(load);
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn one_meshed_replica_among_unmeshed_ones_does_not_get_all_requests() {
    let (servers, clients) = start_unmeshed("canary");
    clients.create_client("client");
    clients.wait_ready();
    let load = LoadPod::start_with_new_connections(&clients, &server_url(&servers));
    let manifests = leno_tests::cluster::http_server("canary", 1, "");
    let manifests = manifests
        .replace("{app: canary}, ", "{app: server, track: canary, leno.dev/injection: enabled}, ");
    let manifests = manifests
        .replace("{matchLabels: {app: canary}}", "{matchLabels: {app: server, track: canary}}");
    servers.apply_manifests(&manifests);
    expect_stdout(&servers.kubectl(&["rollout", "status", "deployment/canary", "--timeout=300s"]));
    assert_eq!(count_meshed(&servers, "server"), 1);
    let url = server_url(&servers);
    let pods = servers.list_pods("server");
    assert_eq!(pods.len(), 1 + REPLICA_COUNT as usize);
    let pod_names: Vec<&str> = pods.iter().map(String::as_str).collect();
    clients.expect_reached("client", &[&url], &pod_names);
    expect_stdout(&servers.kubectl(&["delete", "deployment/canary", "--timeout=120s"]));
    eventually("the canary is gone", Duration::from_secs(120), || {
        (servers.list_pods("server").len() == REPLICA_COUNT as usize).then_some(())
    });
    assert_no_failures(load);
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn pods_of_a_stateful_set_are_reached_by_name_while_they_join() {
    let servers = TestNamespace::new("stateful", SidecarInjection::Disabled);
    servers.apply_manifests(STATEFUL_SERVERS);
    expect_stdout(&servers.kubectl(&["rollout", "status", "statefulset/server", "--timeout=300s"]));
    let clients = TestNamespace::new("stateful-clients", SidecarInjection::Enabled);
    clients.create_client("client");
    clients.wait_ready();
    let load = LoadPod::start_with_new_connections(&clients, &server_url(&servers));
    let expect_reachable = || {
        // Without a meshed endpoint, the order of addresses in DNS decides.
        let headless = format!("http://each.{}:8080/", servers.name());
        clients.expect_curl("client", &[&headless], 0, 200);
        for pod in ["server-0", "server-1", "server-2"] {
            let pod_url = format!("http://{pod}.each.{}:8080/", servers.name());
            clients.expect_reached("client", &[&pod_url], &[pod]);
        }
    };
    expect_reachable();
    // One of three Pods joins, then the others.
    for (partition, meshed_count) in [(2, 1), (0, 3)] {
        let update = format!(
            "{{\"spec\":{{\"updateStrategy\":{{\"rollingUpdate\":{{\"partition\":{partition}}}}}}}}}"
        );
        expect_stdout(&servers.kubectl(&[
            "patch",
            "statefulset/server",
            "--type=merge",
            "-p",
            &update,
        ]));
        if partition > 0 {
            label_and_restart(&servers, "leno.dev/injection=enabled", "statefulset/server");
        }
        eventually("the pods have a sidecar", Duration::from_secs(180), || {
            (count_meshed(&servers, "server") == meshed_count).then_some(())
        });
        expect_stdout(&servers.kubectl(&[
            "wait",
            "--for=condition=Ready",
            "pods",
            "--all",
            "--timeout=300s",
        ]));
        expect_reachable();
    }
    assert_no_failures(load);
}

/// Returns the sorted addresses of the ready server Pods.
fn list_ready_addresses(servers: &TestNamespace) -> Vec<String> {
    let pods = expect_stdout(&servers.kubectl(&["get", "pods", "-l", "app=server", "-o", "json"]));
    let pods: Value = serde_json::from_str(&pods).unwrap();
    let is_ready = |pod: &&Value| {
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        pod["metadata"]["deletionTimestamp"].is_null()
            && conditions
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    let ready = pods["items"].as_array().unwrap().iter().filter(is_ready);
    let mut addresses: Vec<String> =
        ready.filter_map(|pod| Some(pod["status"]["podIP"].as_str()?.to_owned())).collect();
    addresses.sort();
    addresses
}

/// Writes the EndpointSlice of the Service without a selector.
fn apply_slice(servers: &TestNamespace, addresses: &[String]) {
    let endpoint =
        |address: &String| json!({"addresses": [address], "conditions": {"ready": true}});
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "hand-1", "labels": {"kubernetes.io/service-name": "hand"}},
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<Value>>(),
    });
    servers.apply_manifests(&slice.to_string());
}

/// Ends the thread that lists endpoints when it is dropped, thus even if the test fails.
struct StopListing<'a>(&'a AtomicBool);

impl Drop for StopListing<'_> {
    fn drop(&mut self) {
        // The flag alone is shared, so no ordering with other memory is needed.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An external controller lists the ready Pods for a Service without a selector. The cluster network would
/// forward plaintext to the meshed Pods.
#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn manual_endpoints_join_and_leave_without_a_failed_request() {
    let (servers, clients) = start_unmeshed("by-hand");
    servers.apply_manifests(
        "{apiVersion: v1, kind: Service, metadata: {name: hand}, spec: {ports: [{name: http, port: 80, targetPort: 8080}]}}",
    );
    let addresses = list_ready_addresses(&servers);
    assert_eq!(addresses.len(), REPLICA_COUNT as usize);
    apply_slice(&servers, &addresses);
    let load =
        LoadPod::start_with_new_connections(&clients, &format!("http://hand.{}/", servers.name()));
    let is_stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop_listing = StopListing(&is_stopped);
        scope.spawn(|| {
            let (started, mut listed_addresses) = (Instant::now(), addresses);
            while !is_stopped.load(Ordering::Relaxed) && started.elapsed() < MAX_LISTING_DURATION {
                let ready = list_ready_addresses(&servers);
                if ready != listed_addresses {
                    apply_slice(&servers, &ready);
                    listed_addresses = ready;
                }
            }
        });
        join_and_leave(&servers);
    });
    assert_no_failures(load);
}

/// The maximum duration of the thread that lists endpoints: longer than two rollouts.
const MAX_LISTING_DURATION: Duration = Duration::from_secs(900);
/// Three servers with stable names, a Service for all, and a headless one.
const STATEFUL_SERVERS: &str = "
{apiVersion: v1, kind: ServiceAccount, metadata: {name: server}}
---
{apiVersion: v1, kind: Service, metadata: {name: server}, spec: {selector: {app: server}, ports: [{name: http, port: 80, targetPort: http}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: each}, spec: {clusterIP: None, selector: {app: server}, ports: [{name: http, port: 8080, targetPort: http}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: server}
spec:
  serviceName: each
  replicas: 3
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}}
    spec:
      serviceAccountName: server
      containers:
      - name: app
        image: kc.local/testapp:1
        imagePullPolicy: Never
        args: [http, -linger, 8s]
        ports: [{containerPort: 8080, name: http}]
        readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}
";
/// A server in the network of each node: it cannot have a sidecar.
const HOST_NETWORK_SERVERS: &str = "
{apiVersion: v1, kind: ServiceAccount, metadata: {name: server}}
---
{apiVersion: v1, kind: Service, metadata: {name: server}, spec: {selector: {app: server}, ports: [{name: http, port: 80, targetPort: http}]}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: server}
spec:
  selector: {matchLabels: {app: server, network: node}}
  template:
    metadata: {labels: {app: server, network: node}}
    spec:
      serviceAccountName: server
      hostNetwork: true
      containers:
      - name: app
        image: kc.local/testapp:1
        imagePullPolicy: Never
        args: [http, -listen, ':18090', -linger, 8s]
        ports: [{containerPort: 18090, name: http}]
        readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}
";
/// The number of servers of a Deployment.
const REPLICA_COUNT: u32 = 6;
/// The path of the names of the containers that may include a sidecar.
const INIT_CONTAINERS_PATH: &str = "jsonpath={.spec.initContainers[*].name}";
