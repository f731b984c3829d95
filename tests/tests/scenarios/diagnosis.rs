//! `leno diagnose`: the step that fails is the one that is named.

use std::process::Output;

use leno_tests::{Mesh, leno};

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
