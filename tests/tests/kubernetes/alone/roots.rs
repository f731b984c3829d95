//! Roots of the mesh: rotation of the built-in root under load, and an external authority created before the
//! mesh.
#![allow(clippy::print_stderr, reason = "the last error of a step shows why a scenario failed")]

use std::process::Command;
use std::time::Duration;

use leno_tests::cluster::{
    SidecarInjection, TestNamespace, apply_globally, expect_stdout, kubectl, program_image,
};
use leno_tests::eventually;
use serde_json::Value;

use super::upgrade::{install_image, run_uninstall};
use crate::under_load::{LoadPod, start_servers};

/// Returns the sorted names of the running Pods of the control plane.
fn list_control_plane_pods() -> Vec<String> {
    let path = "jsonpath={.items[*].metadata.name}";
    let selector =
        ["-l", "app.kubernetes.io/name=leno-control", "--field-selector=status.phase=Running"];
    let get = [&["-n", "leno-system", "get", "pods"], &selector[..], &["-o", path]].concat();
    let mut names: Vec<String> =
        expect_stdout(&kubectl(&get)).split_whitespace().map(str::to_owned).collect();
    names.sort_unstable();
    names
}

/// Runs `leno ca` in a control plane and returns its output on success.
fn run_ca(pod: &str, step: &str) -> Result<String, String> {
    let command = ["/leno", "ca", step, "--data", "/var/lib/leno/control"];
    let exec = ["-n", "leno-system", "exec", pod, "--"];
    let output = kubectl(&[&exec[..], &command].concat());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Runs a step of `leno ca` once the previous step has reached every member.
fn run_ca_step(pod: &str, step: &str) {
    let mut last_error = String::new();
    eventually(&format!("`leno ca {step}`"), Duration::from_secs(120), || {
        let error = match run_ca(pod, step) {
            Ok(_) => return Some(()),
            Err(error) => error,
        };
        if error != last_error {
            eprintln!("ca {step}: {error}");
        }
        last_error = error;
        None
    });
}

/// Waits until every control plane is at a stage and all its sidecars are in sync.
fn wait_for_stage(pods: &[String], stage: &str) {
    eventually(&format!("every control plane is at `{stage}`"), Duration::from_secs(120), || {
        let has_stage = |pod: &String| {
            let status: Value = serde_json::from_str(&run_ca(pod, "status").ok()?).ok()?;
            (status["stage"] == stage && status["outdated"] == 0).then_some(())
        };
        pods.iter().map(has_stage).collect::<Option<Vec<_>>>().map(drop)
    });
}

/// Returns the roots that members trust.
fn read_trusted_roots() -> String {
    let path = "jsonpath={.data.roots\\.pem}";
    expect_stdout(&kubectl(&["-n", "leno-system", "get", "configmap", "leno-roots", "-o", path]))
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn the_root_is_replaced_without_a_failed_request() {
    let namespace = start_servers("rerooted");
    let pods = list_control_plane_pods();
    let [first_pod, _] = &pods[..] else { panic!("two control planes, not {pods:?}") };
    let old_roots = read_trusted_roots();
    wait_for_stage(&pods, "stable");
    let load = LoadPod::start(&namespace, "http://server/");
    for (step, stage) in [("add", "added"), ("activate", "activated"), ("retire", "stable")] {
        run_ca_step(first_pod, step);
        wait_for_stage(&pods, stage);
    }
    let new_roots = eventually("one root is published", Duration::from_secs(60), || {
        Some(read_trusted_roots()).filter(|roots| roots.matches("BEGIN CERTIFICATE").count() == 1)
    })
    .0;
    assert_ne!(new_roots, old_roots, "the root is replaced");
    // New members trust only the new root.
    expect_stdout(&namespace.kubectl(&["scale", "deployment/server", "--replicas=3"]));
    expect_stdout(&namespace.kubectl(&[
        "rollout",
        "status",
        "deployment/server",
        "--timeout=120s",
    ]));
    namespace.create_client("client");
    namespace.wait_ready();
    let servers = namespace.list_pods("server");
    let servers: Vec<&str> = servers.iter().map(String::as_str).collect();
    namespace.expect_reached("client", &["http://server/"], &servers);
    let (requests, failures) = load.stop_load();
    assert!(requests > 1000, "{requests}");
    assert_eq!(failures, serde_json::json!({}));
}

/// Creates a company's root and an intermediate as files: `ca.crt`, `tls.crt`, `tls.key`.
const CREATE_COMPANY_CA: &str = "set -e; cd \"$0\"
for k in ca tls; do openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out $k.key; done
openssl req -x509 -new -key ca.key -days 3650 -subj '/CN=Company root' -addext keyUsage=critical,keyCertSign,cRLSign -out ca.crt
openssl req -new -key tls.key -subj '/CN=Company mesh' -out tls.csr
printf 'basicConstraints=critical,CA:TRUE,pathlen:0\\nkeyUsage=critical,keyCertSign,cRLSign\\n' > tls.ext
openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extfile tls.ext -out tls.crt";

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn an_external_authority_created_before_the_mesh_signs() {
    let company_directory = tempfile::tempdir().expect("a directory");
    let result = Command::new("bash")
        .args(["-c", CREATE_COMPANY_CA])
        .arg(company_directory.path())
        .output()
        .unwrap();
    expect_stdout(&result);
    let file =
        |name: &str| std::fs::read_to_string(company_directory.path().join(name)).expect(name);
    run_uninstall(&["--purge"]);
    apply_globally("{apiVersion: v1, kind: Namespace, metadata: {name: leno-system}}");
    let secret = serde_json::json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "leno-authority", "namespace": "leno-system"},
        "stringData": {"ca.crt": file("ca.crt"), "tls.crt": file("tls.crt"), "tls.key": file("tls.key")},
    });
    apply_globally(&secret.to_string());
    install_image(&program_image());
    let namespace = TestNamespace::new("vouched", SidecarInjection::Enabled);
    let unmeshed = TestNamespace::new("unvouched", SidecarInjection::Disabled);
    namespace.create_http_server("server", 1);
    namespace.create_client("client");
    unmeshed.create_client("client");
    namespace.wait_ready();
    unmeshed.wait_ready();
    namespace.expect_curl("client", &["http://server/"], 0, 200);
    unmeshed.expect_curl("client", &[&format!("http://server.{}/", namespace.name())], 56, 0);
    // Members trust the root, and only this intermediate of it.
    let bundle = format!("{}\n{}", file("ca.crt").trim(), file("tls.crt").trim());
    assert_eq!(read_trusted_roots().trim(), bundle);
    // The certificate of a sidecar is signed by the intermediate and chains to the company's root.
    let path = "jsonpath={.items[0].status.podIP}";
    let address =
        expect_stdout(&namespace.kubectl(&["get", "pods", "-l", "app=server", "-o", path]));
    let roots = company_directory.path().join("ca.crt");
    let listener = format!("{address}:8080");
    let mut openssl = Command::new("openssl");
    openssl.args(["s_client", "-connect", &listener, "-alpn", "leno/1", "-showcerts", "-CAfile"]);
    let output = openssl.arg(roots).stdin(std::process::Stdio::null()).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        stdout.contains("issuer=CN = Company mesh") || stdout.contains("issuer=CN=Company mesh"),
        "{stdout}"
    );
    assert!(stdout.contains("Verification: OK"), "{stdout}");
    drop(namespace);
    run_uninstall(&["--purge"]);
    install_image(&program_image());
}
