//! Circuit breaker: a failing service receives no requests for a while, and never more at a time than its
//! policy permits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{Response, TestAnswer, TestApplication, TestMesh, eventually, free_port, get};

use super::{MAX_WAIT, connected_sidecar, loopback_address};

const SETTING: &str = "---
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
    let (sick, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let (held, let_go) = std::sync::mpsc::channel::<()>();
    let let_go = std::sync::Mutex::new(let_go);
    let (output, counted) = (Arc::clone(&sick), Arc::clone(&asked));
    let application = TestApplication::start(move |request| {
        counted.fetch_add(1, Ordering::SeqCst);
        if request.method_and_target().1 == "/wait" {
            let waits = let_go.lock().expect("nobody panicked");
            waits.recv_timeout(MAX_WAIT).expect("it is let go");
        }
        match output.load(Ordering::SeqCst) {
            true => TestAnswer::Bytes(b"HTTP/1.1 500 Sick\r\ncontent-length: 0\r\n\r\n".to_vec()),
            false => TestAnswer::ok("well"),
        }
    });
    let listener = free_port();
    let mesh = TestMesh::up(
        &[
            mesh_config("allow"),
            server_manifest("ratings", application.port(), &[]),
            client_manifest("web", &[], &[("ratings.shop", listener)]),
            SETTING.to_owned(),
        ]
        .concat(),
    );
    let listener = loopback_address(listener);
    let ask = || get(listener, "/").expect("the listener responds");
    // Each data thread has its own circuit; connections are spread over all of them.
    eventually("the circuit is open", MAX_WAIT, || {
        let answers: Vec<Response> = (0..20).map(|_| ask()).collect();
        assert!(answers.iter().all(|it| [500, 409].contains(&it.status)), "{answers:?}");
        let is_cut = |it: &Response| it.status == 409 && it.body == b"Coming soon ...";
        answers.iter().all(is_cut).then_some(())
    });
    let page = connected_sidecar(&mesh, "shop/web-1");
    assert!(page.metric_value("leno_circuit_transitions_total{to=\"open\"}") >= 1.0);

    sick.store(false, Ordering::SeqCst);
    eventually("it is closed", MAX_WAIT, || (0..20).all(|_| ask().status == 200).then_some(()));
    assert!(page.metric_value("leno_circuit_transitions_total{to=\"closed\"}") >= 1.0);

    // One request is in progress, and no other is admitted.
    let before = asked.load(Ordering::SeqCst);
    let first =
        std::thread::spawn(move || get(listener, "/wait").expect("the listener responds").status);
    eventually("it is under way", MAX_WAIT, || {
        (asked.load(Ordering::SeqCst) > before).then_some(())
    });
    let second = ask();
    assert_eq!(second.status, 503);
    held.send(()).expect("it waits");
    assert_eq!(first.join().expect("it did not panic"), 200);
    assert_eq!(ask().status, 200);
}
