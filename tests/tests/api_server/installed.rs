//! The installation on a real API server.

use leno_kubernetes::install::{InstallOptions, apply_manifests, installation_manifests};
use leno_model::TrustDomain;
use leno_tests::leno_command;
use serde_json::{Value, json};

use crate::server::{ApiServerProcess, run};

/// Returns the options of `leno install` in a separate namespace.
pub(crate) fn test_options() -> InstallOptions {
    let domain = TrustDomain::new("cluster.local").unwrap();
    InstallOptions {
        namespace: "mesh".to_owned(),
        ..InstallOptions::new("leno:test".to_owned(), domain)
    }
}

/// Installs without waiting for Pods, since none start here. Returns the action for each object.
pub(crate) async fn install_objects(
    server: &ApiServerProcess,
    options: &InstallOptions,
) -> Vec<(String, &'static str)> {
    let mut steps = Vec::new();
    let client = server.admin_client().await;
    apply_manifests(&client, &installation_manifests(options), |step| {
        steps.push((step.object, step.result))
    })
    .await
    .unwrap();
    steps
}

/// Runs the program against the server; returns its standard output and standard error.
pub(crate) fn run_program(server: &ApiServerProcess, arguments: &[&str]) -> (String, String) {
    let output =
        leno_command().args(arguments).env("KUBECONFIG", server.kubeconfig()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Returns the arguments of the control plane.
async fn control_arguments(server: &ApiServerProcess) -> Value {
    let deployment = server.read("apps/v1/Deployment", "mesh", "leno-control").await;
    deployment["spec"]["template"]["spec"]["containers"][0]["args"].clone()
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn kinds_of_another_mesh_are_unchanged() {
    run(async {
        let server = ApiServerProcess::start().await;
        server.define_kind(TRAFFIC_TARGETS).await;
        let with_smi = InstallOptions { with_smi: true, ..test_options() };
        let name = "traffictargets.access.smi-spec.io";
        let before = server.find_object(DEFINITIONS, None, name).await.unwrap();
        for _ in 0..2 {
            let steps = install_objects(&server, &with_smi).await;
            let action =
                |name: &str| steps.iter().find(|(object, _)| object.ends_with(name)).unwrap().1;
            assert_eq!(action(name), "exists already");
            // Definitions installed with the mesh are upgraded with it.
            assert_eq!(action("httproutegroups.specs.smi-spec.io"), "applied");
        }
        let after = server.find_object(DEFINITIONS, None, name).await.unwrap();
        assert_eq!(after["metadata"]["generation"], before["metadata"]["generation"]);
        assert_eq!(after["spec"], before["spec"]);
    });
}

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn repeated_installs_keep_earlier_options() {
    run(async {
        let server = ApiServerProcess::start().await;
        let install = |options: &[&str]| {
            let arguments = ["install", "-n", "mesh", "--apply", "--timeout", "1s"];
            // No kubelet starts its Pods here, so it times out after a second.
            run_program(&server, &[&arguments[..], options].concat()).1
        };
        let first = install(&["--gateways", "--replicas", "3"]);
        assert!(!first.contains("as installed before"), "{first}");
        assert!(first.contains("the rollout of the control plane did not complete"), "{first}");
        let second = install(&[]);
        let kept = "as installed before: --replicas 3 --trust-domain cluster.local --gateways\n";
        assert!(second.contains(kept), "{second}");
        let has_gateways =
            |arguments: &Value| arguments.as_array().unwrap().contains(&json!("--gateways"));
        assert!(has_gateways(&control_arguments(&server).await));
        for kind in [CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS] {
            assert!(server.find_object(kind, None, "leno-gateways").await.is_some(), "{kind}");
        }
        install(&["--gateways=false"]);
        assert!(!has_gateways(&control_arguments(&server).await));
        for kind in [CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS] {
            assert_eq!(server.find_object(kind, None, "leno-gateways").await, None, "{kind}");
        }
        let third = install(&[]);
        assert!(third.contains("--trust-domain cluster.local\n"), "{third}");
    });
}

const TRAFFIC_TARGETS: &str = "access.smi-spec.io/v1alpha3/TrafficTarget";
const CLUSTER_ROLES: &str = "rbac.authorization.k8s.io/v1/ClusterRole";
const CLUSTER_ROLE_BINDINGS: &str = "rbac.authorization.k8s.io/v1/ClusterRoleBinding";
const DEFINITIONS: &str = "apiextensions.k8s.io/v1/CustomResourceDefinition";
