//! Ingress policies without effect, and the reported reasons.

use super::*;

/// Returns the status of the policy that sorts first.
fn said(ledger: &mut Ledger) -> Result<(), String> {
    let statements = ledger.statements().expect("something is to be said");
    match statements.first().map(|it| it.said.clone()) {
        Some(Said::Current(said)) => said,
        other => panic!("{other:?}"),
    }
}

fn backend(name: &str) -> (usize, impl Fn(u16, &str) -> News) {
    let kind = index("IngressBackend", "policy.openservicemesh.io");
    let name = name.to_owned();
    let policy = move |port: u16, protocol: &str| {
        let spec = json!({
            "backends": [{"name": "web", "port": {"number": port, "protocol": protocol}}],
            "sources": [{"kind": "Service", "name": "edge", "namespace": "shop"}],
            "matches": [{"kind": "HTTPRouteGroup", "name": "g"}],
        });
        custom(kind, &name, "2025-01-01T00:00:00Z", spec)
    };
    (kind, policy)
}

fn selecting(name: &str, app: &str) -> News {
    let service: Served = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.2", "selector": {"app": app},
                 "ports": [{"port": 80, "targetPort": 8080}]},
    }))
    .unwrap();
    News::Seen(Box::new(Seen::service(service)))
}

fn controller(host_network: bool) -> News {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "edge-1", "namespace": "shop",
                     "labels": {"app": "edge", "leno.dev/meshed": "sidecar"}},
        "spec": {"containers": [{"name": "edge"}], "hostNetwork": host_network},
        "status": {"podIP": "10.1.0.9", "podIPs": [{"ip": "10.1.0.9"}]},
    }))
    .unwrap();
    News::Seen(Box::new(Seen::pod(pod)))
}

#[test]
fn what_opens_nothing_says_why_until_it_does() {
    opens_once_all_is_there(settled_with(true));
}

#[test]
fn an_installation_without_gateways_lets_the_pods_of_a_service_in() {
    opens_once_all_is_there(settled_with(false));
}

fn opens_once_all_is_there(mut ledger: Ledger) {
    let (kind, policy) = backend("a");
    let group = index("HTTPRouteGroup", "specs.smi-spec.io");
    let nobody = "endpoints not found for service shop/edge";
    let port = "spec.backends: no pod of the Service shop/web has the port 81";
    ledger.take(kind, policy(81, "http"));
    let no_service = "spec.backends: there is no Service shop/web that selects pods";
    assert_eq!(said(&mut ledger), Err(no_service.to_owned()));
    ledger.take(SERVICES, service("web", 8080));
    let no_group = "spec.matches: there is no HTTPRouteGroup shop/g";
    assert_eq!(said(&mut ledger), Err(no_group.to_owned()));
    ledger.take(PODS, pod("a", json!({})));
    assert_eq!(said(&mut ledger), Err(port.to_owned()));
    ledger.take(kind, policy(8080, "http"));
    assert_eq!(said(&mut ledger), Err(no_group.to_owned()));
    let routes = json!({"matches": [{"name": "all"}]});
    ledger.take(group, custom(group, "g", "2025-01-01T00:00:00Z", routes));
    assert_eq!(said(&mut ledger), Err(nobody.to_owned()));
    ledger.take(SERVICES, selecting("edge", "edge"));
    assert_eq!(said(&mut ledger), Err(nobody.to_owned()));
    // A pod in the host network has no address of its own.
    ledger.take(PODS, controller(true));
    let on_node = format!(
        "{nobody}: its pods have the addresses of their nodes (hostNetwork); write an IPRange with those addresses"
    );
    assert_eq!(said(&mut ledger), Err(on_node));
    ledger.take(PODS, controller(false));
    assert_eq!(said(&mut ledger), Ok(()));
    ledger.take(PODS, controller(false));
    assert!(ledger.statements().is_none(), "nothing is new");
    ledger.take(PODS, gone("shop", "edge-1"));
    assert_eq!(said(&mut ledger), Err(nobody.to_owned()));
}

/// Issue 27: such a source stayed closed, because only pods that a selector selects were sources.
#[test]
fn the_listed_addresses_of_a_service_without_a_selector_are_let_in() {
    for gateways in [true, false] {
        // The Service and its slice exist before the policy, or come later.
        for is_policy_first in [true, false] {
            let mut ledger = settled_with(gateways);
            let kind = index("IngressBackend", "policy.openservicemesh.io");
            let spec = json!({
                "backends": [{"name": "web", "port": {"number": 8080, "protocol": "http"}}],
                "sources": [{"kind": "Service", "name": "hand", "namespace": "shop"}],
            });
            let policy = || custom(kind, "a", "2025-01-01T00:00:00Z", spec.clone());
            if is_policy_first {
                ledger.take(kind, policy());
            }
            ledger.take(SERVICES, service("web", 8080));
            ledger.take(SERVICES, listed::by_hand());
            let slice = |endpoints: &[(&str, bool)]| listed::slice("hand-1", 8080, endpoints);
            ledger.take(listed::slices(), slice(&[("10.1.0.9", true)]));
            if !is_policy_first {
                ledger.flush();
                ledger.take(kind, policy());
            }
            let told = shown(ledger.flush());
            for line in ["+ Workload shop/hand-1.10-1-0-9", "+ Service shop/hand"] {
                assert!(told.iter().any(|it| it == line), "{line} {told:?}");
            }
            assert_eq!(said(&mut ledger), Ok(()));
            ledger.take(listed::slices(), slice(&[]));
            assert_eq!(shown(ledger.flush()), ["- Workload shop/hand-1.10-1-0-9"]);
            let nobody = "endpoints not found for service shop/hand";
            assert_eq!(said(&mut ledger), Err(nobody.to_owned()));
            ledger.take(kind, gone("shop", "a"));
            let told = shown(ledger.flush());
            assert!(told.iter().any(|it| it == "- Service shop/hand"), "{told:?}");
        }
    }
}

#[test]
fn two_services_do_not_open_one_port_in_two_ways() {
    let (kind, policy) = backend("a");
    let mut ledger = settled();
    for news in [service("web", 8080), service("www", 8080)] {
        ledger.take(SERVICES, news);
    }
    ledger.take(PODS, pod("a", json!({})));
    let first = json!({
        "backends": [{"name": "www", "port": {"number": 8080, "protocol": "grpc"}}],
        "sources": [{"kind": "IPRange", "name": "10.0.0.0/8"}],
    });
    let custom = custom(kind, "0", "2025-01-01T00:00:00Z", first);
    ledger.take(kind, custom);
    assert_eq!(said(&mut ledger), Ok(()));
    ledger.take(kind, policy(8080, "http"));
    let statements = ledger.statements().unwrap();
    let said: Vec<&Said> = statements.iter().map(|it| &it.said).collect();
    let [Said::Current(Ok(())), Said::Current(Err(second))] = said[..] else { panic!("{said:?}") };
    assert_eq!(
        second,
        "spec.backends: the IngressBackend shop/0 opens port 8080 of pods of shop/web with other \
         settings"
    );
}
