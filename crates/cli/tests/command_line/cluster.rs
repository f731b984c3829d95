//! Tests of `leno install`, `uninstall` and `inject` without a cluster.

use serde_json::Value;

use crate::run::TestDirectory;

#[test]
fn manifests_are_printed_unless_they_are_applied() {
    let test_directory = TestDirectory::with_files(&[]);
    let result = test_directory.run_leno(&[
        "install",
        "--image",
        "leno:test",
        "--namespace",
        "mesh",
        "-o",
        "json",
    ]);
    assert_eq!(result.exit_code, Some(0), "{result:?}");
    let list: Value = serde_json::from_str(&result.stdout).unwrap();
    let deployment =
        list["items"].as_array().unwrap().iter().find(|object| object["kind"] == "Deployment");
    let deployment = deployment.unwrap();
    assert_eq!(deployment["metadata"]["namespace"], "mesh");
    assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "leno:test");
    let yaml = test_directory.run_leno(&["install", "--image", "leno:test"]).stdout;
    assert!(yaml.starts_with("---\napiVersion: "), "{yaml}");
    assert!(yaml.contains("\nkind: MutatingWebhookConfiguration\n"));
    assert!(!yaml.contains("gateways\n"), "{yaml}");
    let yaml = test_directory.run_leno(&["install", "--image", "leno:test", "--gateways"]).stdout;
    assert!(yaml.contains("\n        - \"--gateways\"\n"), "{yaml}");
}

#[test]
fn uninstall_lists_the_objects_to_remove() {
    let test_directory = TestDirectory::with_files(&[]);
    let output = test_directory.run_leno(&["uninstall"]).stdout;
    assert!(
        output.starts_with("MutatingWebhookConfiguration sidecar-injector.leno.dev\n"),
        "{output}"
    );
    assert!(!output.contains("leno-authority"));
    assert!(
        test_directory
            .run_leno(&["uninstall", "--purge"])
            .stdout
            .contains("Secret leno-system/leno-authority\n")
    );
}

#[test]
fn manifests_get_sidecars_without_a_cluster() {
    let pod = "kind: Pod\napiVersion: v1\nmetadata: {name: web}\nspec:\n  containers: [{name: app, image: 'app:1'}]\n";
    let text = format!("# kept apart\n---\nkind: Service\napiVersion: v1\n---\n{pod}");
    let test_directory =
        TestDirectory::with_files(&[("web.yaml", &text), ("roots.pem", "ROOTS\n")]);
    let result = test_directory.run_leno(&[
        "inject",
        "-f",
        "web.yaml",
        "--roots",
        "roots.pem",
        "--image",
        "leno:test",
    ]);
    assert_eq!(result.exit_code, Some(0), "{result:?}");
    assert!(result.stdout.contains("kind: Service"), "{}", result.stdout);
    assert!(
        result.stdout.contains("name: leno-proxy") && result.stdout.contains("\"ROOTS\\n\""),
        "{}",
        result.stdout
    );
    assert_eq!(result.stderr, "Pod web: sidecar added\n");
}

#[test]
fn without_a_cluster_the_cni_option_selects_the_plugin() {
    let pod = "{kind: Pod, metadata: {name: web}, spec: {containers: [{name: app}]}}";
    let test_directory = TestDirectory::with_files(&[("web.yaml", pod), ("roots.pem", "ROOTS\n")]);
    let arguments = ["inject", "-f", "web.yaml", "--roots", "roots.pem"];
    let rendered = |options: &[&str]| {
        let result = test_directory.run_leno(&[&arguments[..], options].concat());
        assert_eq!(result.exit_code, Some(0), "{result:?}");
        (result.stdout.contains("NET_ADMIN"), result.stdout.contains("leno.dev/redirect:"))
    };
    assert_eq!(rendered(&[]), (true, false));
    assert_eq!(rendered(&["--cni"]), (false, true));
}

#[test]
fn a_pod_that_cannot_have_a_sidecar_is_reported() {
    let pod = "{kind: Pod, metadata: {name: web, annotations: {leno.dev/inbound-port-exclusion-list: x}}, \
               spec: {containers: [{name: app}]}}";
    let test_directory = TestDirectory::with_files(&[("web.yaml", pod), ("roots.pem", "ROOTS\n")]);
    let result = test_directory.run_leno(&["inject", "-f", "web.yaml", "--roots", "roots.pem"]);
    assert_eq!(result.exit_code, Some(1));
    let expected =
        "error: Pod web: pod: annotation `leno.dev/inbound-port-exclusion-list`: `x` is not a port";
    assert!(result.stderr.starts_with(expected), "{}", result.stderr);
}

#[test]
fn without_a_cluster_the_error_names_the_variable_to_set() {
    let test_directory = TestDirectory::with_files(&[]);
    let result = test_directory.run_leno(&["check", "--kubernetes"]);
    assert_eq!(result.exit_code, Some(1));
    assert!(result.stderr.contains("set KUBECONFIG"), "{}", result.stderr);
}
