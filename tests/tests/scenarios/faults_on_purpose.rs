//! Fault injection: the effects on clients, and on services.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{ApplicationResponse, TestApplication, TestMesh, exchange_bytes, free_port, get};

const FAULTS: &str = "---
apiVersion: leno.dev/v1alpha1
kind: FaultInjection
metadata: {name: faults, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: stock}]
  rules:
  - {name: slow, matches: [{path: {value: /slow}}], delay: {fixedDelay: 700ms}}
  - {name: late, matches: [{path: {value: /late}}], delay: {fixedDelay: 1m}}
  - name: broken
    matches: [{path: {value: /broken}}]
    from: [{serviceAccount: web}]
    abort: {httpStatus: 418, body: \"I am a teapot\", headers: [{name: x-fault, value: \"yes\"}]}
  - {name: half, matches: [{path: {value: /half}}], abort: {httpStatus: 500, percent: 50}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: stock, namespace: shop}
spec:
  parentRefs: [{group: \"\", kind: Service, name: stock}]
  rules:
  - {matches: [{path: {value: /late}}], timeouts: {request: 300ms}, backendRefs: [{name: stock, port: 9080}]}
  - {retry: {attempts: 3, codes: [500]}, backendRefs: [{name: stock, port: 9080}]}
";

#[test]
fn injected_faults_delay_or_abort_requests_before_the_service() {
    let request_count = Arc::new(AtomicUsize::new(0));
    let request_counter = request_count.clone();
    let stock = TestApplication::start(move |request| {
        request_counter.fetch_add(1, Ordering::SeqCst);
        ApplicationResponse::ok(request.method_and_target().1)
    });
    let listeners = [free_port(), free_port()];
    let manifests = [
        mesh_config("allow"),
        server_manifest("stock", stock.port(), &[]),
        client_manifest("web", &[], &[("stock", listeners[0])]),
        client_manifest("app", &[], &[("stock", listeners[1])]),
        FAULTS.to_owned(),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let [web, app] = listeners.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let send_request = |listener, path: &str| get(listener, path).expect("the listener responds");

    let started = Instant::now();
    assert_eq!(send_request(web, "/slow").status, 200);
    assert!(started.elapsed() >= Duration::from_millis(700));
    let response = send_request(web, "/broken");
    assert_eq!((response.status, response.rejection_reason()), (418, Some("fault-injected")));
    assert_eq!(
        (response.body.as_slice(), response.first_header("x-fault")),
        (&b"I am a teapot"[..], Some("yes"))
    );
    assert_eq!(send_request(app, "/broken").status, 200, "the rule applies to other clients");
    assert_eq!(request_count.load(Ordering::SeqCst), 2);

    let started = Instant::now();
    let response = send_request(web, "/late");
    assert_eq!((response.status, response.rejection_reason()), (504, Some("request-timeout")));
    assert!(started.elapsed() < Duration::from_secs(20), "the delay counts towards the timeout");

    let count_before = request_count.load(Ordering::SeqCst);
    let statuses: Vec<u16> = (0..200).map(|_| send_request(web, "/half").status).collect();
    let success_count = statuses.iter().filter(|status| **status == 200).count();
    assert!((60..=140).contains(&success_count), "{success_count} of 200");
    assert_eq!(
        request_count.load(Ordering::SeqCst) - count_before,
        success_count,
        "no request is retried"
    );

    // The sidecar reads the body of an aborted request, so the connection stays usable.
    let post_request =
        "POST /broken HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 3\r\n\r\nabc";
    assert_eq!(exchange_bytes(web, post_request).expect("the listener responds").status, 418);

    let web_sidecar = mesh.sidecar("shop/web-1");
    assert!(web_sidecar.sum_metrics("leno_faults_injected_total{fault=\"abort\"}") >= 50.0);
    assert!(web_sidecar.sum_metrics("leno_faults_injected_total{fault=\"delay\"}") >= 2.0);
    let mut command = leno_tests::leno_command();
    let url = "http://stock:9080/broken";
    command.args(["explain", "request", "--from", "shop/web-1", "--url", url, "-f"]);
    let output = command.arg(mesh.manifest_file("")).output().expect("leno runs");
    let explain_output = String::from_utf8(output.stdout).expect("text");
    let expected = "FaultInjection shop/faults: broken aborts 100 % of such requests with 418";
    assert!(explain_output.contains(expected), "{explain_output}");
}
