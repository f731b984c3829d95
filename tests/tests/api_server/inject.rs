//! `leno inject` with a cluster: the same settings apply as for the webhook.

use kube::config::Kubeconfig;
use leno_kubernetes::install::{InstallOptions, NodeNetwork};
use leno_model::Name;
use leno_tests::leno_command;
use serde_json::json;

use crate::installed::{install_objects, run_program, test_options};
use crate::server::{ApiServerProcess, run};

const POD: &str = "{kind: Pod, apiVersion: v1, metadata: {name: web, namespace: shop}, spec: {containers: \
                   [{name: app, image: 'app:1'}]}}";

#[test]
#[ignore = "needs an API server: ./test kubernetes"]
fn inject_reads_the_settings_of_the_cluster() {
    run(async {
        let server = ApiServerProcess::start().await;
        let settings_namespaces = [Name::new("fsm-system").unwrap()].into();
        let cni = Some(NodeNetwork::default());
        install_objects(&server, &InstallOptions { cni, settings_namespaces, ..test_options() })
            .await;
        let roots = json!({"data": {"roots.pem": "ROOTS\n"}});
        server.apply_object("v1/ConfigMap", Some("mesh"), "leno-roots", roots).await;
        server.define_kind(FSM_MESH_CONFIG).await;
        server.create_namespace("fsm-system").await;
        let settings = json!({"spec": {"traffic": {"outboundPortExclusionList": [26]}}});
        server.apply_object(FSM_MESH_CONFIG, Some("fsm-system"), "fsm-mesh-config", settings).await;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("web.yaml");
        std::fs::write(&file, POD).unwrap();
        let arguments = ["inject", "-n", "mesh", "-f", file.to_str().unwrap()];

        let (_, stderr) = run_program(&server, &arguments);
        let unknown = "the namespace shop does not exist: its annotations are unknown\n";
        assert_eq!(stderr, format!("{unknown}Pod web: sidecar added\n"));
        let annotations = json!({"flomesh.io/outbound-port-exclusion-list": "25"});
        let namespace = json!({"metadata": {"annotations": annotations}});
        server.apply_object("v1/Namespace", None, "shop", namespace).await;
        let (stdout, stderr) = run_program(&server, &arguments);
        assert_eq!(stderr, "Pod web: sidecar added\n");
        assert!(stdout.contains("--exclude-outbound-ports=25,26"), "{stdout}");
        assert!(stdout.contains("leno.dev/redirect"), "{stdout}");
        assert!(!stdout.contains("NET_ADMIN"), "{stdout}");

        // A user that may read the mesh but not the namespace gets an error about the namespace.
        let role = "rbac.authorization.k8s.io/v1/ClusterRole";
        let rules = json!({"rules": [
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
            {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]},
            {"apiGroups": ["leno.dev", "config.flomesh.io"], "resources": ["meshconfigs"], "verbs": ["list"]},
        ]});
        server.allow_reading("deployer", &["configmaps"]).await;
        server.apply_object(role, None, "deployer", rules).await;
        let mut kubeconfig = Kubeconfig::read_from(server.kubeconfig()).unwrap();
        for user_entry in &mut kubeconfig.auth_infos {
            user_entry.auth_info.as_mut().unwrap().impersonate = Some("deployer".to_owned());
        }
        let restricted = directory.path().join("kubeconfig");
        std::fs::write(&restricted, serde_json::to_string(&kubeconfig).unwrap()).unwrap();
        let output = leno_command().args(arguments).env("KUBECONFIG", restricted).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        let expected = "cannot read the namespace shop and its annotations: request permission to read it, or pass \
                        --roots FILE";
        assert!(stderr.contains(expected), "{stderr}");
    });
}

const FSM_MESH_CONFIG: &str = "config.flomesh.io/v1alpha3/MeshConfig";
