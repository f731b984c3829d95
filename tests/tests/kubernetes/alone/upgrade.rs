//! Upgrade, removal and reinstallation of the mesh under load: no request may fail.

use leno_tests::cluster::{TestNamespace, expect_stdout, kubectl, next_image, program_image};
use leno_tests::leno_command;

use crate::under_load::{LoadPod, start_servers};

/// Installs or upgrades: objects that differ are changed.
pub(super) fn install_image(image: &str) {
    let arguments = ["install", "--image", image, "--gateways", "--apply"];
    expect_stdout(&leno_command().args(arguments).output().expect("the program starts"));
}

pub(super) fn run_uninstall(options: &[&str]) {
    let arguments = [&["uninstall", "--apply"], options].concat();
    expect_stdout(&leno_command().args(arguments).output().expect("the program starts"));
}

/// Returns the images of all containers of some Pods, without duplicates.
fn container_images(namespace: &str, selector: &str) -> Vec<String> {
    let path = "jsonpath={range .items[*]}{.spec.initContainers[*].image} {.spec.containers[*].image} {end}";
    // Excludes terminating Pods of the previous version.
    let arguments =
        ["get", "pods", "-l", selector, "--field-selector=status.phase=Running", "-o", path];
    let output = expect_stdout(&kubectl(&[&["-n", namespace][..], &arguments].concat()));
    let mut images: Vec<String> = output.split_whitespace().map(str::to_owned).collect();
    images.sort_unstable();
    images.dedup();
    images
}

fn wait_for_rollout(namespace: &TestNamespace) {
    expect_stdout(&namespace.kubectl(&[
        "rollout",
        "status",
        "deployment/server",
        "--timeout=120s",
    ]));
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn an_upgrade_fails_no_request() {
    let namespace = start_servers("upgraded");
    let load = LoadPod::start(&namespace, "http://server/");
    let (before, after) = (program_image(), next_image());
    let application = "kc.local/testapp:1".to_owned();
    assert_eq!(
        container_images(namespace.name(), "app=server"),
        [before.clone(), application.clone()]
    );
    // The control plane first, with sidecars of the previous release; then the sidecars.
    install_image(&after);
    assert_eq!(
        container_images(namespace.name(), "app=server"),
        [before.clone(), application.clone()]
    );
    let control_selector = "app.kubernetes.io/name=leno-control";
    let wait =
        ["-n", "leno-system", "rollout", "status", "deployment/leno-control", "--timeout=120s"];
    expect_stdout(&kubectl(&wait));
    assert!(container_images("leno-system", control_selector).contains(&after));
    expect_stdout(&namespace.kubectl(&["rollout", "restart", "deployment/server"]));
    wait_for_rollout(&namespace);
    assert!(container_images(namespace.name(), "app=server").contains(&after));
    let (requests, failures) = load.stop_load();
    // Rolls back.
    install_image(&before);
    assert!(requests > 1000, "{requests}");
    assert_eq!(failures, serde_json::json!({}));
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn an_uninstalled_and_reinstalled_mesh_fails_no_request() {
    let namespace = start_servers("reinstalled");
    let load = LoadPod::start(&namespace, "http://server/");
    run_uninstall(&[]);
    let deployment = kubectl(&["-n", "leno-system", "get", "deployment", "leno-control"]);
    assert!(!deployment.status.success(), "there is still a control plane");
    let lease = kubectl(&["-n", "leno-system", "get", "lease", "leno-control"]);
    assert!(!lease.status.success(), "there is still a lease");
    install_image(&program_image());
    // A new Pod joins the mesh and receives requests from existing members.
    expect_stdout(&namespace.kubectl(&["scale", "deployment/server", "--replicas=3"]));
    wait_for_rollout(&namespace);
    let sidecars = namespace.list_containers("server").matches("leno-proxy").count();
    assert!(sidecars >= 3, "{sidecars} of three pods have a sidecar");
    namespace.create_client("client");
    namespace.wait_ready();
    let pods = namespace.list_pods("server");
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    namespace.expect_reached("client", &["http://server/"], &pods);
    let (requests, failures) = load.stop_load();
    assert!(requests > 1000, "{requests}");
    assert_eq!(failures, serde_json::json!({}));
}
