//! Zones of nodes as labels of workloads, and services that prefer their clients' zone.

use k8s_openapi::api::core::v1::Node;
use kube::core::PartialObjectMeta;

use super::*;

fn nodes() -> usize {
    kinds().iter().position(|it| matches!(it, Watched::Nodes)).unwrap()
}

fn node(name: &str, zone: &str) -> WatchEvent {
    let labels = json!({"topology.kubernetes.io/zone": zone});
    let node: PartialObjectMeta<Node> = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
    }))
    .unwrap();
    WatchEvent::Seen(Box::new(Seen::node(node)))
}

fn pod_on(node: &str) -> WatchEvent {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "shop", "labels": {"leno.dev/meshed": "sidecar"}},
        "spec": {"nodeName": node, "containers": [{"name": "web"}]},
        "status": {"podIP": "10.1.0.1"},
    }))
    .unwrap();
    WatchEvent::Seen(Box::new(Seen::pod(pod)))
}

fn near(distribution: Value) -> WatchEvent {
    let service: Served = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.1", "selector": {"app": "web"}, "ports": [{"port": 80}],
                 "trafficDistribution": distribution},
    }))
    .unwrap();
    WatchEvent::Seen(Box::new(Seen::service(service)))
}

fn zone(update: Option<Update>) -> Option<String> {
    match update.unwrap().changes.pop().unwrap() {
        Change::Upsert(Object::Workload(workload)) => {
            workload.labels.get("topology.kubernetes.io/zone").cloned()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_workload_is_in_the_zone_of_its_node() {
    let mut store = settled();
    store.take(PODS, pod_on("n1"));
    assert_eq!(zone(store.flush()), None);
    store.take(nodes(), node("n1", "east"));
    assert_eq!(zone(store.flush()).as_deref(), Some("east"));
    store.take(nodes(), node("n2", "north"));
    assert!(store.flush().is_none());
    store.take(nodes(), node("n1", "west"));
    assert_eq!(zone(store.flush()).as_deref(), Some("west"));
    store.take(nodes(), gone("", "n1"));
    assert_eq!(zone(store.flush()), None);
}

#[test]
fn a_service_that_asks_for_it_prefers_the_zone_of_the_client() {
    let mut store = settled();
    store.take(SERVICES, near(json!("PreferClose")));
    let key = "TagRoute shop/web.traffic-distribution";
    assert_eq!(shown(store.flush()), ["+ Service shop/web", &format!("+ {key}")]);
    // Rules of users take precedence.
    let kind = index("TagRoute", "leno.dev");
    let written = json!({"service": "web", "sameTag": [{"tags": ["rack"]}]});
    store.take(kind, custom(kind, "mine", "2025-01-01T00:00:00Z", written));
    assert_eq!(shown(store.flush()), [format!("- {key}"), "+ TagRoute shop/mine".to_owned()]);
    store.take(kind, gone("shop", "mine"));
    assert_eq!(shown(store.flush()), ["- TagRoute shop/mine".to_owned(), format!("+ {key}")]);
    store.take(SERVICES, near(json!(null)));
    assert_eq!(shown(store.flush()), [format!("- {key}")]);
}

#[test]
fn what_a_configuration_centre_says_of_callers_counts_before_a_preference() {
    let mut store = settled();
    store.take(SERVICES, near(json!("PreferClose")));
    let key = "TagRoute shop/web.traffic-distribution";
    assert_eq!(shown(store.flush()), ["+ Service shop/web", &format!("+ {key}")]);
    let kind = index("SermantRouteRule", "leno.dev");
    let published = |of: &str, kind: &str| {
        let (fit, tags) = match kind {
            "tag" => {
                let own = json!({"rack": {"exact": "CONSUMER_TAG"}});
                (json!({"tags": own}), json!({"rack": "CONSUMER_TAG"}))
            }
            _ => (json!({"headers": {"x": {"exact": "y"}}}), json!({"version": "2"})),
        };
        let rule = json!({"match": fit, "route": [{"weight": 100, "tags": tags}]});
        json!({
            "compat": "sermant",
            "key": format!("servicecomb.routeRule.{of}"),
            "rules": [{"kind": format!("routematcher.sermant.io/{kind}"), "rules": [rule]}],
        })
    };
    let rule = |spec: Value| custom(kind, "published", "2025-01-01T00:00:00Z", spec);
    for (spec, expected) in [
        (published("web", "flow"), vec!["+ SermantRouteRule shop/published".to_owned()]),
        (
            published("web", "tag"),
            vec![format!("- {key}"), "+ SermantRouteRule shop/published".to_owned()],
        ),
        (
            published("other", "tag"),
            vec![format!("+ {key}"), "+ SermantRouteRule shop/published".to_owned()],
        ),
    ] {
        store.take(kind, rule(spec.clone()));
        let mut reported = shown(store.flush());
        reported.sort_by_key(|line| line.contains("Sermant"));
        assert_eq!(reported, expected, "{spec}");
    }
}

#[test]
fn a_service_without_a_selector_prefers_nothing() {
    let mut store = settled();
    store.take(SERVICES, near(json!("PreferClose")));
    store.flush();
    let service: Served = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}],
                 "trafficDistribution": "PreferClose"},
    }))
    .unwrap();
    store.take(SERVICES, WatchEvent::Seen(Box::new(Seen::service(service))));
    let reported = shown(store.flush());
    assert_eq!(reported, ["- Service shop/web", "- TagRoute shop/web.traffic-distribution"]);
}

#[test]
fn a_weight_that_is_none_is_said_beside_its_pod() {
    let mut store = settled();
    store.take(PODS, pod("a", json!({"annotations": {"leno.dev/weight": "heavy"}})));
    let update = store.flush().unwrap();
    let reported: Vec<String> = update.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        reported,
        ["Pod shop/a: metadata.annotations[\"leno.dev/weight\"]: \"heavy\" is not a weight; 100 \
             is in force; use a number from 1 to 1000, or remove it"]
    );
    let statements = store.statements().unwrap();
    let diagnostics: Vec<_> = statements.iter().map(|it| it.diagnostic.is_some()).collect();
    assert_eq!(diagnostics, [true]);
    // Unmeshed pods cause no warnings.
    let external_client = json!({"labels": {}, "annotations": {"leno.dev/weight": "heavy"}});
    store.take(PODS, pod("a", external_client));
    assert_eq!(store.flush().unwrap().warnings, []);
    assert_eq!(store.statements().unwrap(), []);
}

#[test]
fn what_is_not_supported_of_a_service_or_namespace_is_said_beside_it() {
    let mut store = settled();
    store.take(PODS, pod("web-1", json!({})));
    store.take(SERVICES, near(json!("PreferSameNode")));
    store.take(NAMESPACES, namespace("shop", "stict"));
    let statements = store.statements().unwrap();
    let said: Vec<(String, bool)> = statements
        .iter()
        .map(|it| (it.target.to_string(), it.refusal.is_some() && it.diagnostic.is_none()))
        .collect();
    assert_eq!(said, [("Service shop/web".to_owned(), false), ("Namespace shop".to_owned(), true)]);
    assert!(statements.iter().all(|it| it.said == Said::Nothing));
    // The event disappears with its cause.
    store.take(SERVICES, near(json!(null)));
    store.take(NAMESPACES, namespace("shop", "strict"));
    assert_eq!(store.statements().unwrap(), []);
}

#[test]
fn sidecars_are_not_reported_of_services_without_a_selector() {
    for gateways in [true, false] {
        let mut store = settled_with(gateways);
        let service: Served = serde_json::from_value(json!({
            "metadata": {"name": "outside", "namespace": "shop"},
            "spec": {"clusterIP": "10.0.0.7", "ports": [{"port": 80}]},
        }))
        .unwrap();
        store.take(SERVICES, WatchEvent::Seen(Box::new(Seen::service(service))));
        assert!(store.flush().is_none(), "to them its address is outside the mesh");
        let name = ServiceName::new("shop", "outside").unwrap();
        assert_eq!(store.service(&name).is_some(), gateways, "gateways alone lead there");
    }
}
