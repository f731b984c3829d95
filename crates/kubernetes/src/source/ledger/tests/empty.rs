//! Services of a cluster without a pod of the mesh cause no warning.

use super::*;

/// As cluster add-ons have them.
fn sticky(labels: Value) -> News {
    let service: Served = serde_json::from_value(json!({
        "metadata": {"name": "metrics-server", "namespace": "shop", "uid": "u"},
        "spec": {"clusterIP": "10.0.0.1", "selector": labels, "sessionAffinity": "ClientIP",
                 "internalTrafficPolicy": "Local",
                 "ports": [{"port": 443, "appProtocol": "example.com/odd"}]},
    }))
    .unwrap();
    News::Seen(Box::new(Seen::service(service)))
}

#[test]
fn a_service_is_remarked_upon_when_a_pod_with_a_sidecar_is_behind_it() {
    let mut ledger = settled();
    ledger.take(SERVICES, sticky(json!({"app": "web"})));
    let warnings = |ledger: &mut Ledger| {
        ledger.flush();
        let count = ledger.all_remarks().1.len();
        let statements = ledger.statements().unwrap_or_default();
        let remarked = statements.iter().filter(|it| it.remark.is_some()).count();
        (count, remarked)
    };
    assert_eq!(warnings(&mut ledger), (0, 0));
    let without = pod("web-1", json!({"labels": {"app": "web"}}));
    ledger.take(PODS, without);
    assert_eq!(warnings(&mut ledger), (0, 0));
    ledger.take(PODS, pod("web-2", json!({})));
    assert_eq!(warnings(&mut ledger), (3, 1));
    // The order does not matter.
    let mut ledger = settled();
    ledger.take(PODS, pod("web-2", json!({})));
    ledger.take(SERVICES, sticky(json!({"app": "web"})));
    assert_eq!(warnings(&mut ledger), (3, 1));
}
