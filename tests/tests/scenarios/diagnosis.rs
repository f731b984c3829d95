//! `leno diagnose`: the step that fails is the one that is named.

use std::process::Output;

use leno_tests::{Mesh, leno, signal_pid};
use rustix::process::Signal;
use serde_json::Value;

const MANIFESTS: &str = "apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart-1, namespace: shop, labels: {app: cart}}
spec: {serviceAccount: cart, ports: [{name: http, port: 9080}], run: [sleep, '60']}
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

fn diagnose(mesh: &Mesh, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = leno();
    command.arg("diagnose").args(arguments).arg("--data").arg(mesh.data());
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

#[test]
fn the_step_that_fails_is_named() {
    let mesh = Mesh::up(MANIFESTS);
    let (code, said) = diagnose(&mesh, &["shop/cart-1", "--to", "shop/cart"]);
    assert_eq!(code, Some(1), "{said}");
    for line in [
        "shop/cart-1: one step fails",
        "✓ sidecar",
        "✓ identity     spiffe://cluster.local/ns/shop/sa/cart",
        "✓ endpoint     of shop/cart",
        "✗ endpoint     is none of shop/astray at port 81",
        "✓ service      shop/cart has 1 endpoints",
        "✓ connectivity 1 of 1 endpoints of shop/cart are reached, with mutual TLS",
        "✓ decision     GET http://cart.shop:80/: 200-range: allowed",
    ] {
        assert!(said.contains(line), "{line}:\n{said}");
    }
    let (code, said) = diagnose(&mesh, &["shop/cart-1", "--to", "shop/nobody"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("✗ service      shop/nobody has no workload"), "{said}");
    let (code, said) = diagnose(&mesh, &["shop/cart-2"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("✗ workload     there is no workload shop/cart-2"), "{said}");
    mesh.write("mesh.yaml", &MANIFESTS.replace("targetPort: grpc", "targetPort: http"));
    leno_tests::eventually("nothing is wrong", std::time::Duration::from_secs(10), || {
        let (code, said) = diagnose(&mesh, &["shop/cart-1", "-o", "json"]);
        (code == Some(0) && said.contains("\"healthy\": true")).then_some(())
    });
}

/// Another workload, that calls the first.
const CALLER: &str = "apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec: {serviceAccount: web, ports: [{port: 9081}], run: [sleep, '60']}
";

#[test]
fn a_sidecar_that_does_not_answer_is_found_by_the_one_that_calls_it() {
    let mesh = Mesh::up(&format!("{MANIFESTS}---\n{CALLER}"));
    let (code, said) = diagnose(&mesh, &["shop/web-1", "--to", "shop/cart"]);
    assert_eq!(code, Some(0), "{said}");
    let proxies = mesh.ask("proxies");
    let of_cart = |proxy: &&Value| proxy["workload"] == "shop/cart-1";
    let pid = proxies.as_array().unwrap().iter().find(of_cart).unwrap()["pid"].as_u64().unwrap();
    let pid = u32::try_from(pid).unwrap();
    // It holds its ports, and says nothing.
    signal_pid(pid, Signal::STOP);
    let (code, said) = diagnose(&mesh, &["shop/web-1", "--to", "shop/cart"]);
    signal_pid(pid, Signal::CONT);
    assert_eq!(code, Some(1), "{said}");
    let failed = "✗ connectivity shop/cart-1 of shop/cart is not reached at 127.0.0.1:";
    assert!(said.contains(failed) && said.contains("connect-timeout"), "{said}");
}

#[test]
fn what_policies_say_of_a_request_is_told() {
    let strict = "apiVersion: leno.dev/v1alpha1
kind: MeshConfig
metadata: {name: mesh}
spec: {trafficMode: strict}
";
    let mesh = Mesh::up(&format!("{MANIFESTS}---\n{CALLER}---\n{strict}"));
    let (code, said) = diagnose(&mesh, &["shop/web-1", "--to", "shop/cart"]);
    assert_eq!(code, Some(1), "{said}");
    let verdict = "✗ decision     GET http://cart.shop:80/: 403 denied";
    assert!(said.contains(verdict), "{said}");
    // Who may not use a service is not told where it is.
    let untold = "· connectivity its sidecar is told of no endpoint of shop/cart";
    assert!(said.contains(untold), "{said}");
}
