//! Tests the zones of nodes as labels of workloads, and services that prefer their clients' zone.

use k8s_openapi::api::core::v1::Node;
use kube::core::PartialObjectMeta;

use super::*;

fn node_kind() -> usize {
    watched_kinds().iter().position(|watched| matches!(watched, WatchedKind::Nodes)).unwrap()
}

fn node_event(name: &str, zone: &str) -> WatchEvent {
    let labels = json!({"topology.kubernetes.io/zone": zone});
    let node: PartialObjectMeta<Node> = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
    }))
    .unwrap();
    WatchEvent::Applied(Box::new(ConvertedObject::from_node(node)))
}

fn pod_on(node: &str) -> WatchEvent {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "shop", "labels": {"leno.dev/meshed": "sidecar"}},
        "spec": {"nodeName": node, "containers": [{"name": "web"}]},
        "status": {"podIP": "10.1.0.1"},
    }))
    .unwrap();
    WatchEvent::Applied(Box::new(ConvertedObject::from_pod(pod)))
}

fn service_with_distribution(distribution: Value) -> WatchEvent {
    let service: KubeService = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.1", "selector": {"app": "web"}, "ports": [{"port": 80}],
                 "trafficDistribution": distribution},
    }))
    .unwrap();
    WatchEvent::Applied(Box::new(ConvertedObject::from_service(service)))
}

fn updated_zone(update: Option<RegistryUpdate>) -> Option<String> {
    match update.unwrap().changes.pop().unwrap() {
        Change::Upsert(Object::Workload(workload)) => {
            workload.labels.get("topology.kubernetes.io/zone").cloned()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_workload_is_in_the_zone_of_its_node() {
    let mut store = listed_store();
    store.apply_event(PODS, pod_on("n1"));
    assert_eq!(updated_zone(store.flush()), None);
    store.apply_event(node_kind(), node_event("n1", "east"));
    assert_eq!(updated_zone(store.flush()).as_deref(), Some("east"));
    store.apply_event(node_kind(), node_event("n2", "north"));
    assert!(store.flush().is_none());
    store.apply_event(node_kind(), node_event("n1", "west"));
    assert_eq!(updated_zone(store.flush()).as_deref(), Some("west"));
    store.apply_event(node_kind(), removal_event("", "n1"));
    assert_eq!(updated_zone(store.flush()), None);
}

#[test]
fn a_service_with_traffic_distribution_prefers_the_zone_of_the_client() {
    let mut store = listed_store();
    store.apply_event(SERVICES, service_with_distribution(json!("PreferClose")));
    let key = "TagRoute shop/web.traffic-distribution";
    assert_eq!(describe_update(store.flush()), ["+ Service shop/web", &format!("+ {key}")]);
    // A TagRoute of a user replaces the one that is derived from `trafficDistribution`.
    let kind = kind_index("TagRoute", "leno.dev");
    let written = json!({"service": "web", "preferSameTag": [{"tags": ["rack"]}]});
    store.apply_event(kind, custom_event(kind, "mine", "2025-01-01T00:00:00Z", written));
    assert_eq!(
        describe_update(store.flush()),
        [format!("- {key}"), "+ TagRoute shop/mine".to_owned()]
    );
    store.apply_event(kind, removal_event("shop", "mine"));
    assert_eq!(
        describe_update(store.flush()),
        ["- TagRoute shop/mine".to_owned(), format!("+ {key}")]
    );
    store.apply_event(SERVICES, service_with_distribution(json!(null)));
    assert_eq!(describe_update(store.flush()), [format!("- {key}")]);
}

#[test]
fn sermant_rules_about_client_tags_take_precedence_over_a_zone_preference() {
    let mut store = listed_store();
    store.apply_event(SERVICES, service_with_distribution(json!("PreferClose")));
    let key = "TagRoute shop/web.traffic-distribution";
    assert_eq!(describe_update(store.flush()), ["+ Service shop/web", &format!("+ {key}")]);
    let kind = kind_index("SermantRouteRule", "leno.dev");
    let published = |service: &str, kind: &str| {
        let (condition, tags) = match kind {
            "tag" => {
                let consumer_tag = json!({"rack": {"exact": "CONSUMER_TAG"}});
                (json!({"tags": consumer_tag}), json!({"rack": "CONSUMER_TAG"}))
            }
            _ => (json!({"headers": {"x": {"exact": "y"}}}), json!({"version": "2"})),
        };
        let rule = json!({"match": condition, "route": [{"weight": 100, "tags": tags}]});
        json!({
            "compat": "sermant",
            "key": format!("servicecomb.routeRule.{service}"),
            "rules": [{"kind": format!("routematcher.sermant.io/{kind}"), "rules": [rule]}],
        })
    };
    let rule = |spec: Value| custom_event(kind, "published", "2025-01-01T00:00:00Z", spec);
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
        store.apply_event(kind, rule(spec.clone()));
        let mut changes = describe_update(store.flush());
        changes.sort_by_key(|line| line.contains("Sermant"));
        assert_eq!(changes, expected, "{spec}");
    }
}

#[test]
fn a_service_without_a_selector_has_no_zone_preference() {
    let mut store = listed_store();
    store.apply_event(SERVICES, service_with_distribution(json!("PreferClose")));
    store.flush();
    let service: KubeService = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}],
                 "trafficDistribution": "PreferClose"},
    }))
    .unwrap();
    store.apply_event(
        SERVICES,
        WatchEvent::Applied(Box::new(ConvertedObject::from_service(service))),
    );
    let changes = describe_update(store.flush());
    assert_eq!(changes, ["- Service shop/web", "- TagRoute shop/web.traffic-distribution"]);
}

#[test]
fn an_invalid_weight_is_reported_for_its_pod() {
    let mut store = listed_store();
    store.apply_event(PODS, pod_event("a", json!({"annotations": {"leno.dev/weight": "heavy"}})));
    let update = store.flush().unwrap();
    let reported: Vec<String> = update.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        reported,
        ["Pod shop/a: metadata.annotations[\"leno.dev/weight\"]: \"heavy\" is not a weight; 100 \
             is in force; use a number from 1 to 1000, or remove it"]
    );
    let statuses = store.changed_statuses().unwrap();
    let diagnostics: Vec<_> = statuses.iter().map(|status| status.diagnostic.is_some()).collect();
    assert_eq!(diagnostics, [true]);
    // A pod outside the mesh causes no warnings.
    let external_client = json!({"labels": {}, "annotations": {"leno.dev/weight": "heavy"}});
    store.apply_event(PODS, pod_event("a", external_client));
    assert_eq!(store.flush().unwrap().warnings, []);
    assert_eq!(store.changed_statuses().unwrap(), []);
}

#[test]
fn unsupported_settings_are_reported_for_their_service_or_namespace() {
    let mut store = listed_store();
    store.apply_event(PODS, pod_event("web-1", json!({})));
    store.apply_event(SERVICES, service_with_distribution(json!("PreferSameNode")));
    store.apply_event(NAMESPACES, namespace_event("shop", "dney"));
    let statuses = store.changed_statuses().unwrap();
    let reported: Vec<(String, bool)> = statuses
        .iter()
        .map(|status| {
            (status.target.to_string(), status.rejection.is_some() && status.diagnostic.is_none())
        })
        .collect();
    assert_eq!(
        reported,
        [("Service shop/web".to_owned(), false), ("Namespace shop".to_owned(), true)]
    );
    assert!(statuses.iter().all(|status| status.content == StatusContent::NoStatus));
    // The events disappear with their causes.
    store.apply_event(SERVICES, service_with_distribution(json!(null)));
    store.apply_event(NAMESPACES, namespace_event("shop", "deny"));
    assert_eq!(store.changed_statuses().unwrap(), []);
}

#[test]
fn services_without_a_selector_are_sent_only_with_gateways() {
    for gateways in [true, false] {
        let mut store = store_with_gateways_option(gateways);
        let service: KubeService = serde_json::from_value(json!({
            "metadata": {"name": "outside", "namespace": "shop"},
            "spec": {"clusterIP": "10.0.0.7", "ports": [{"port": 80}]},
        }))
        .unwrap();
        store.apply_event(
            SERVICES,
            WatchEvent::Applied(Box::new(ConvertedObject::from_service(service))),
        );
        assert!(store.flush().is_none(), "sidecars treat its address as outside the mesh");
        let name = ServiceName::new("shop", "outside").unwrap();
        assert_eq!(store.mesh_service(&name).is_some(), gateways, "only gateways use it");
    }
}
