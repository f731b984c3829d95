//! Circuit breaker: a failing service receives no requests for a while, and never more at a time than its
//! policy permits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{
    ApplicationResponse, Response, TestApplication, TestMesh, eventually, free_port, get,
};

use super::{MAX_WAIT, connected_sidecar, loopback_address};

const TRAFFIC_SETTING: &str = "---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: ratings, namespace: shop}
spec:
  host: ratings.shop.svc.cluster.local
  connectionSettings:
    http:
      maxRequests: 1
      circuitBreaking:
        {statTimeWindow: 10s, minRequestAmount: 5, degradedTimeWindow: 1s, errorRatioThreshold: 0.5}
";

#[test]
fn a_circuit_opens_for_an_unhealthy_service_and_closes_on_recovery() {
    let (is_failing, request_count) =
        (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let (release_sender, release_receiver) = std::sync::mpsc::channel::<()>();
    let release_receiver = std::sync::Mutex::new(release_receiver);
    let (failure_flag, counter) = (Arc::clone(&is_failing), Arc::clone(&request_count));
    let application = TestApplication::start(move |request| {
        counter.fetch_add(1, Ordering::SeqCst);
        if request.method_and_target().1 == "/wait" {
            let receiver = release_receiver.lock().expect("no thread panicked");
            receiver.recv_timeout(MAX_WAIT).expect("the test releases the response");
        }
        match failure_flag.load(Ordering::SeqCst) {
            true => ApplicationResponse::Bytes(
                b"HTTP/1.1 500 Sick\r\ncontent-length: 0\r\n\r\n".to_vec(),
            ),
            false => ApplicationResponse::ok("well"),
        }
    });
    let listener = free_port();
    let mesh = TestMesh::up(
        &[
            mesh_config("allow"),
            server_manifest("ratings", application.port(), &[]),
            client_manifest("web", &[], &[("ratings.shop", listener)]),
            TRAFFIC_SETTING.to_owned(),
        ]
        .concat(),
    );
    let listener = loopback_address(listener);
    let send_request = || get(listener, "/").expect("the listener responds");
    // Each data thread has its own circuit; connections are spread over all of them.
    eventually("the circuit is open", MAX_WAIT, || {
        let responses: Vec<Response> = (0..20).map(|_| send_request()).collect();
        assert!(
            responses.iter().all(|response| [500, 409].contains(&response.status)),
            "{responses:?}"
        );
        let is_rejected =
            |response: &Response| response.status == 409 && response.body == b"Coming soon ...";
        responses.iter().all(is_rejected).then_some(())
    });
    let admin_endpoint = connected_sidecar(&mesh, "shop/web-1");
    assert!(admin_endpoint.metric_value("leno_circuit_transitions_total{to=\"open\"}") >= 1.0);

    is_failing.store(false, Ordering::SeqCst);
    eventually("the circuit is closed", MAX_WAIT, || {
        (0..20).all(|_| send_request().status == 200).then_some(())
    });
    assert!(admin_endpoint.metric_value("leno_circuit_transitions_total{to=\"closed\"}") >= 1.0);

    // One request is in progress, and no other is admitted.
    let count_before = request_count.load(Ordering::SeqCst);
    let first_request =
        std::thread::spawn(move || get(listener, "/wait").expect("the listener responds").status);
    eventually("the first request is in progress", MAX_WAIT, || {
        (request_count.load(Ordering::SeqCst) > count_before).then_some(())
    });
    let second_response = send_request();
    assert_eq!(second_response.status, 503);
    release_sender.send(()).expect("the application waits");
    assert_eq!(first_request.join().expect("the thread did not panic"), 200);
    assert_eq!(send_request().status, 200);
}
