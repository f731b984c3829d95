//! `leno diagnose`: the output names the step that fails.

use std::process::Output;

use leno_tests::{
    ControlProgram, SidecarProgram, TestMesh, exchange_bytes, leno_command, signal_pid,
};
use rustix::process::Signal;
use serde_json::Value;

const MANIFESTS: &str = "apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart-1, namespace: shop, labels: {app: cart}}
spec: {serviceAccount: cart, ports: [{name: http, port: 9080}]}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {selector: {app: cart}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: astray, namespace: shop}
spec: {selector: {app: cart}, ports: [{port: 81, targetPort: grpc}]}
---
apiVersion: v1
kind: Service
metadata: {name: nobody, namespace: shop}
spec: {selector: {app: nobody}, ports: [{port: 80}]}
";

fn run_diagnose(mesh: &TestMesh, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = leno_command();
    command.arg("diagnose").args(arguments).arg("--data").arg(mesh.data_directory());
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

#[test]
fn a_diagnosis_names_the_failing_step() {
    let mesh = TestMesh::up(MANIFESTS);
    let (code, text) = run_diagnose(&mesh, &["shop/cart-1", "--to", "shop/cart"]);
    assert_eq!(code, Some(1), "{text}");
    for line in [
        "shop/cart-1: one step fails",
        "✓ sidecar",
        "✓ identity     spiffe://cluster.local/ns/shop/sa/cart",
        "✓ endpoint     is an endpoint of shop/cart",
        "✗ endpoint     is not an endpoint of shop/astray at port 81",
        "✓ service      shop/cart has 1 endpoint",
        "✓ connectivity shop/cart: reached 1 of 1 endpoint, with mutual TLS",
        "✓ decision     GET http://cart.shop:80/: 200-range: allowed",
    ] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    let (code, text) = run_diagnose(&mesh, &["shop/cart-1", "--to", "shop/nobody"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("✗ service      shop/nobody has no workload"), "{text}");
    let (code, text) = run_diagnose(&mesh, &["shop/cart-2"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("✗ workload     no workload shop/cart-2\n"), "{text}");
    assert!(text.contains("did you mean shop/cart-1?"), "{text}");
    mesh.write("mesh.yaml", &MANIFESTS.replace("targetPort: grpc", "targetPort: http"));
    leno_tests::eventually("no step fails", std::time::Duration::from_secs(10), || {
        let (code, text) = run_diagnose(&mesh, &["shop/cart-1", "-o", "json"]);
        (code == Some(0) && text.contains("\"healthy\": true")).then_some(())
    });
}

/// Another workload that calls the first workload.
const CALLER_MANIFEST: &str = "apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec: {serviceAccount: web, ports: [{port: 9081}]}
";

#[test]
fn a_diagnosis_of_a_client_finds_an_unresponsive_server_sidecar() {
    let mesh = TestMesh::up(&format!("{MANIFESTS}---\n{CALLER_MANIFEST}"));
    let (code, text) = run_diagnose(&mesh, &["shop/web-1", "--to", "shop/cart"]);
    assert_eq!(code, Some(0), "{text}");
    let proxies = mesh.get_json("proxies");
    let is_cart = |proxy: &&Value| proxy["workload"] == "shop/cart-1";
    let pid = proxies.as_array().unwrap().iter().find(is_cart).unwrap()["pid"].as_u64().unwrap();
    let pid = u32::try_from(pid).unwrap();
    // A paused sidecar keeps its ports open and does not respond.
    signal_pid(pid, Signal::STOP);
    let (code, text) = run_diagnose(&mesh, &["shop/web-1", "--to", "shop/cart"]);
    signal_pid(pid, Signal::CONT);
    assert_eq!(code, Some(1), "{text}");
    let finding = "✗ connectivity shop/cart-1 of shop/cart is unreachable at 127.0.0.1:";
    assert!(text.contains(finding) && text.contains("connect-timeout"), "{text}");
}

#[test]
fn policy_decisions_are_part_of_a_diagnosis() {
    let mesh_config = "apiVersion: leno.dev/v1alpha1
kind: MeshConfig
metadata: {name: mesh}
spec: {defaultPolicy: deny}
";
    let mesh = TestMesh::up(&format!("{MANIFESTS}---\n{CALLER_MANIFEST}---\n{mesh_config}"));
    let (code, text) = run_diagnose(&mesh, &["shop/web-1", "--to", "shop/cart"]);
    assert_eq!(code, Some(1), "{text}");
    let verdict = "✗ decision     GET http://cart.shop:80/: 403 denied";
    assert!(text.contains(verdict), "{text}");
    // A client that may not use a service does not receive its endpoints.
    let no_endpoints = "· connectivity its sidecar has no endpoint of shop/cart";
    assert!(text.contains(no_endpoints), "{text}");
}

/// Returns the subscriptions of a workload's sidecar.
fn get_subscriptions(control: &ControlProgram, workload: &str) -> Vec<String> {
    let proxies = control.get_json("proxies");
    let is_workload = |proxy: &&Value| proxy["workload"] == workload;
    let proxy = proxies.as_array().unwrap().iter().find(is_workload);
    let names = proxy.map(|proxy| proxy["subscriptions"].as_array().cloned().unwrap_or_default());
    let names = names.unwrap_or_default();
    names.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[test]
fn a_mistyped_host_name_is_not_a_failure_and_is_removed_by_a_restart() {
    let control = ControlProgram::start(CALLER_MANIFEST, &[]);
    let mut web = SidecarProgram::join(&control, "shop/web-1", &["--http-proxy", "127.0.0.1:0"]);
    let request =
        "GET http://typo.shop:9080/ HTTP/1.1\r\nhost: typo.shop:9080\r\nconnection: close\r\n\r\n";
    let response = exchange_bytes(web.admin_endpoint.http_proxy(), request).unwrap();
    assert_eq!((response.status, response.rejection_reason()), (404, Some("unknown-service")));
    let max_wait = std::time::Duration::from_secs(20);
    leno_tests::eventually("the name is known to the control plane", max_wait, || {
        get_subscriptions(&control, "shop/web-1").contains(&"shop/typo".to_owned()).then_some(())
    });
    let output = control.run_leno(&["diagnose", "shop/web-1"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("· names        it called shop/typo: no such service"), "{text}");

    web.kill();
    web.restart();
    leno_tests::eventually("the sidecar is connected again", max_wait, || {
        let proxies = control.get_json("proxies");
        (!proxies.as_array()?.is_empty()).then_some(())
    });
    assert_eq!(get_subscriptions(&control, "shop/web-1"), [""; 0]);
    let output = control.run_leno(&["diagnose", "shop/web-1"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("typo"));
}

/// A JWT policy for the service, with keys in a file that does not exist yet.
const JWT_POLICY: &str = "---
apiVersion: leno.dev/v1alpha1
kind: JwtValidation
metadata: {name: tokens, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: cart}]
  required: true
  issuers: [{issuer: 'https://issuer.example', jwks: {file: issuer.jwks}}]
";

const JWKS: &str = r#"{"keys": [{"kty": "EC", "crv": "P-256", "kid": "1", "use": "sig",
"x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4", "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}"#;

#[test]
fn a_policy_without_keys_is_a_finding_until_keys_are_available() {
    let service = MANIFESTS.split("---\n").take(2).collect::<Vec<_>>().join("---\n");
    let mesh = TestMesh::up(&format!("{service}{JWT_POLICY}"));
    let max_wait = std::time::Duration::from_secs(60);
    let status = || {
        let output = mesh.run_leno(&["status"]);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let finding =
        "✗ JwtValidation shop/tokens: every request fails: no keys for https://issuer.example";
    leno_tests::eventually("status names the policy", max_wait, || {
        let (code, text) = status();
        (code == Some(1) && text.contains(finding)).then_some(())
    });
    mesh.write("issuer.jwks", JWKS);
    leno_tests::eventually("the mesh is healthy", max_wait, || {
        let (code, text) = status();
        (code == Some(0) && !text.contains("keys")).then_some(())
    });
}
