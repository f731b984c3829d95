//! Tests the updates about gateways, and their order.

use super::*;

/// Adds a gateway of our class, and a route from there to a service of the namespace.
fn add_gateway(store: &mut ObjectStore, backend: &str) {
    let group = "gateway.networking.k8s.io";
    let now = "2025-01-01T00:00:00Z";
    let class = json!({"controllerName": "leno.dev/gateway-controller"});
    store.apply_event(
        kind_index("GatewayClass", group),
        custom_event(kind_index("GatewayClass", group), "leno", now, class),
    );
    let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    let gateway = json!({"gatewayClassName": "leno", "listeners": listeners});
    store.apply_event(
        kind_index("Gateway", group),
        custom_event(kind_index("Gateway", group), "edge", now, gateway),
    );
    let rules = json!([{"backendRefs": [{"name": backend, "port": 80}]}]);
    let route = json!({"parentRefs": [{"name": "edge"}], "rules": rules});
    store.apply_event(
        kind_index("HTTPRoute", group),
        custom_event(kind_index("HTTPRoute", group), "r", now, route),
    );
    store.resolve_gateways();
}

#[test]
fn pods_without_sidecars_are_sent_if_a_gateway_routes_to_them() {
    let mut store = listed_store();
    store.apply_event(PODS, pod_event("plain", json!({"labels": {"app": "web"}})));
    store.apply_event(PODS, pod_event("other", json!({"labels": {"app": "db"}})));
    store.apply_event(SERVICES, service_event("web", 8080));
    store.resolve_gateways();
    assert_eq!(describe_update(store.flush()), ["+ Service shop/web"]);
    add_gateway(&mut store, "web");
    let update = store.flush().unwrap();
    let workload = update.changes.iter().find_map(|change| match change {
        Change::Upsert(Object::Workload(workload)) => Some(workload.clone()),
        _ => None,
    });
    let workload = workload.unwrap();
    assert_eq!((workload.name.to_string().as_str(), workload.sidecar), ("shop/plain", false));
    assert_eq!(workload.ports[0].port, 8080);
    assert_eq!(describe_update(Some(update)), ["+ Workload shop/plain", "+ Gateway shop/edge"]);
    store.apply_event(
        kind_index("HTTPRoute", "gateway.networking.k8s.io"),
        removal_event("shop", "r"),
    );
    store.resolve_gateways();
    assert_eq!(describe_update(store.flush()), ["- Workload shop/plain", "+ Gateway shop/edge"]);
    store.apply_event(
        kind_index("Gateway", "gateway.networking.k8s.io"),
        removal_event("shop", "edge"),
    );
    store.resolve_gateways();
    assert_eq!(describe_update(store.flush()), ["- Gateway shop/edge"]);
}

#[test]
fn listed_endpoints_are_sent_if_a_gateway_routes_to_them() {
    let slices =
        watched_kinds().iter().position(|watched| *watched == WatchedKind::Slices).unwrap();
    let slice = |address: &str| {
        let slice = serde_json::from_value(json!({
            "metadata": {
                "name": "db-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "db"},
            },
            "addressType": "IPv4", "ports": [{"name": "", "port": 5432}],
            "endpoints": [{"addresses": [address]}],
        }));
        WatchEvent::Applied(Box::new(ConvertedObject::from_slice(slice.unwrap())))
    };
    let mut store = listed_store();
    let db: KubeService = serde_json::from_value(json!({
        "metadata": {"name": "db", "namespace": "shop"}, "spec": {"ports": [{"port": 80}]},
    }))
    .unwrap();
    store.apply_event(SERVICES, WatchEvent::Applied(Box::new(ConvertedObject::from_service(db))));
    store.apply_event(slices, slice("10.0.0.1"));
    store.resolve_gateways();
    assert_eq!(describe_update(store.flush()), [] as [&str; 0]);
    add_gateway(&mut store, "db");
    let expected_changes =
        ["+ Workload shop/db-1.10-0-0-1", "+ Service shop/db", "+ Gateway shop/edge"];
    assert_eq!(describe_update(store.flush()), expected_changes);
    store.apply_event(slices, slice("10.0.0.2"));
    let expected_changes = ["- Workload shop/db-1.10-0-0-1", "+ Workload shop/db-1.10-0-0-2"];
    assert_eq!(describe_update(store.flush()), expected_changes);
    // The address of a pod of another namespace is not used.
    let pod_with_listed_address = |namespace: &str| {
        let pod = json!({
            "metadata": {"name": "a", "namespace": namespace}, "spec": {"containers": []},
            "status": {"podIP": "10.0.0.2"},
        });
        WatchEvent::Applied(Box::new(ConvertedObject::from_pod(
            serde_json::from_value(pod).unwrap(),
        )))
    };
    store.apply_event(PODS, pod_with_listed_address("bank"));
    let update = store.flush().unwrap();
    assert!(update.warnings[0].to_string().contains("a pod of another namespace"));
    assert_eq!(describe_update(Some(update)), ["- Workload shop/db-1.10-0-0-2"]);
    store.apply_event(PODS, removal_event("bank", "a"));
    assert_eq!(describe_update(store.flush()), ["+ Workload shop/db-1.10-0-0-2"]);
    // When the Service selects pods, endpoints of slices are no longer used.
    store.apply_event(SERVICES, service_event("db", 8080));
    store.resolve_gateways();
    assert_eq!(
        describe_update(store.flush()),
        ["- Workload shop/db-1.10-0-0-2", "+ Service shop/db"]
    );
    store.apply_event(slices, removal_event("shop", "db-1"));
    assert_eq!(describe_update(store.flush()), [] as [&str; 0]);
}

#[test]
fn a_gateway_is_sent_after_its_secret_was_read() {
    let secrets =
        watched_kinds().iter().position(|watched| *watched == WatchedKind::Secrets).unwrap();
    let group = "gateway.networking.k8s.io";
    let now = "2025-01-01T00:00:00Z";
    let mut store = ObjectStore::new(watched_kinds());
    for kind in 0..watched_kinds().len() {
        store.apply_event(kind, WatchEvent::ListStarted);
    }
    let class = json!({"controllerName": "leno.dev/gateway-controller"});
    let kind = kind_index("GatewayClass", group);
    store.apply_event(kind, custom_event(kind, "leno", now, class));
    let tls = json!({"certificateRefs": [{"name": "cert"}]});
    let listener = json!({"name": "https", "port": 443, "protocol": "HTTPS", "tls": tls});
    let kind = kind_index("Gateway", group);
    let gateway = json!({"gatewayClassName": "leno", "listeners": [listener]});
    store.apply_event(kind, custom_event(kind, "edge", now, gateway));
    for kind in 0..watched_kinds().len() {
        let secrets_event = WatchEvent::SecretsReceived(Arc::default());
        store.apply_event(
            kind,
            if kind == secrets { secrets_event } else { WatchEvent::ListComplete },
        );
    }
    store.resolve_gateways();
    assert_eq!(store.progress().unlisted, ["Secret"]);
    assert!(store.flush().is_none());
    let referenced = store.referenced_secrets();
    assert_eq!(referenced.len(), 1);
    store.apply_event(secrets, WatchEvent::SecretsReceived(referenced));
    store.resolve_gateways();
    assert!(store.progress().is_synced());
    assert_eq!(describe_update(store.flush()), ["+ Gateway shop/edge"]);
    // Later updates do not wait for Secrets. That Secrets are forbidden causes a warning.
    store.apply_event(secrets, WatchEvent::Forbidden("no".to_owned()));
    store.resolve_gateways();
    assert!(store.flush().unwrap().warnings[0].to_string().starts_with("Secret:"));
}

#[test]
fn only_gateways_wait_for_their_own_secrets() {
    let secrets =
        watched_kinds().iter().position(|watched| *watched == WatchedKind::Secrets).unwrap();
    let group = "gateway.networking.k8s.io";
    let now = "2025-01-01T00:00:00Z";
    let gateway = |store: &mut ObjectStore, name: &str, port: u16, secret: Option<&str>| {
        let mut listener = json!({"name": "l", "port": port, "protocol": "HTTP"});
        if let Some(secret) = secret {
            listener["protocol"] = json!("HTTPS");
            listener["tls"] = json!({"certificateRefs": [{"name": secret}]});
        }
        let kind = kind_index("Gateway", group);
        let spec = json!({"gatewayClassName": "leno", "listeners": [listener]});
        store.apply_event(kind, custom_event(kind, name, now, spec));
        store.resolve_gateways();
    };
    let mut store = ObjectStore::new(watched_kinds());
    for kind in 0..watched_kinds().len() {
        store.apply_event(kind, WatchEvent::ListStarted);
    }
    let class = json!({"controllerName": "leno.dev/gateway-controller"});
    let kind = kind_index("GatewayClass", group);
    store.apply_event(kind, custom_event(kind, "leno", now, class));
    gateway(&mut store, "a", 443, Some("cert"));
    for kind in 0..watched_kinds().len() {
        let secrets_event = WatchEvent::SecretsReceived(Arc::default());
        store.apply_event(
            kind,
            if kind == secrets { secrets_event } else { WatchEvent::ListComplete },
        );
    }
    store.resolve_gateways();
    assert!(store.flush().is_none());
    // Unreadable Secrets delay neither the mesh nor other gateways.
    store.apply_event(secrets, WatchEvent::Unavailable("no".to_owned()));
    store.resolve_gateways();
    assert!(store.progress().is_synced());
    assert_eq!(describe_update(store.flush()), [] as [&str; 0]);
    gateway(&mut store, "b", 80, None);
    assert_eq!(describe_update(store.flush()), ["+ Gateway shop/b"]);
    store.apply_event(secrets, WatchEvent::SecretsReceived(store.referenced_secrets()));
    store.resolve_gateways();
    assert_eq!(describe_update(store.flush()), ["+ Gateway shop/a"]);
    // A changed gateway keeps its configuration until its new Secret has been read. Other gateways do not wait.
    gateway(&mut store, "a", 444, Some("other"));
    assert_eq!(describe_update(store.flush()), [] as [&str; 0]);
    gateway(&mut store, "b", 81, None);
    assert_eq!(describe_update(store.flush()), ["+ Gateway shop/b"]);
}

#[test]
fn unreferenced_secrets_are_dropped() {
    let secrets =
        watched_kinds().iter().position(|watched| *watched == WatchedKind::Secrets).unwrap();
    let mut store = listed_store();
    add_gateway(&mut store, "web");
    let kind = kind_index("Gateway", "gateway.networking.k8s.io");
    let listener = json!({"name": "l", "port": 443, "protocol": "HTTPS",
                          "tls": {"certificateRefs": [{"name": "cert"}]}});
    let spec = |listener| json!({"gatewayClassName": "leno", "listeners": [listener]});
    let now = "2025-01-01T00:00:00Z";
    store.apply_event(kind, custom_event(kind, "edge", now, spec(listener.clone())));
    store.resolve_gateways();
    let referenced = store.referenced_secrets();
    let secret = k8s_openapi::api::core::v1::Secret {
        metadata: serde_json::from_value(json!({"name": "cert", "namespace": "shop"})).unwrap(),
        ..Default::default()
    };
    store.apply_event(
        secrets,
        WatchEvent::Applied(Box::new(ConvertedObject::from_secret(secret, &referenced))),
    );
    store.apply_event(secrets, WatchEvent::SecretsReceived(referenced));
    store.resolve_gateways();
    assert_eq!(store.gateways.as_ref().unwrap().inputs.certificates.len(), 1);
    let plain = json!({"name": "l", "port": 80, "protocol": "HTTP"});
    store.apply_event(kind, custom_event(kind, "edge", now, spec(plain)));
    store.resolve_gateways();
    assert_eq!(store.gateways.as_ref().unwrap().inputs.certificates.len(), 0);
    // A new reference waits until the Secret has been read again.
    store.flush();
    store.apply_event(kind, custom_event(kind, "edge", now, spec(listener)));
    store.resolve_gateways();
    assert_eq!(describe_update(store.flush()), [] as [&str; 0]);
}

#[test]
fn a_policy_reports_endpoints_that_gateways_exclude() {
    let limit = kind_index("RateLimit", "leno.dev");
    let access = kind_index("AccessPolicy", "leno.dev");
    let enforced = |store: &mut ObjectStore| -> Vec<(&str, &str, String)> {
        let statuses = store.changed_statuses().unwrap_or_default();
        let policies = statuses.iter().filter_map(|status| match &status.content {
            StatusContent::Conditions(conditions) => {
                conditions.iter().find(|condition| condition.name == "Enforced")
            }
            _ => None,
        });
        policies
            .map(|condition| (condition.status, condition.reason, condition.message.clone()))
            .collect()
    };
    let mut store = listed_store();
    store.apply_event(SERVICES, service_event("web", 8080));
    store.apply_event(PODS, pod_event("meshed", json!({})));
    let now = "2025-01-01T00:00:00Z";
    let rules = json!([{"requests": 10, "per": "1s"}]);
    let spec = json!({"targetRefs": [{"kind": "Service", "name": "web"}], "rules": rules});
    store.apply_event(limit, custom_event(limit, "a", now, spec));
    let deny = json!({"deny": [{"requests": [{"path": {"value": "/admin"}}]}]});
    store.apply_event(access, custom_event(access, "b", now, deny));
    let allow = json!({"allow": [{"requests": [{"path": {"value": "/public"}}]}]});
    store.apply_event(access, custom_event(access, "c", now, allow));
    add_gateway(&mut store, "web");
    store.flush();
    let enforced_condition =
        ("True", "Enforced", "clients exclude no endpoints for lack of a sidecar".to_owned());
    assert_eq!(
        enforced(&mut store),
        [enforced_condition.clone(), enforced_condition.clone(), enforced_condition.clone()]
    );
    // With `defaultPolicy: allow`, a policy that allows rejects no request, so it needs no sidecar.
    store.apply_event(PODS, pod_event("plain", json!({"labels": {"app": "web"}})));
    let not_enforced = (
        "False",
        "EndpointsWithoutSidecar",
        "only a sidecar enforces the policy; clients do not use endpoints without one: shop/plain"
            .to_owned(),
    );
    let mut conditions = enforced(&mut store);
    conditions.sort();
    assert_eq!(conditions, [not_enforced.clone(), not_enforced, enforced_condition.clone()]);
    store.apply_event(PODS, removal_event("shop", "plain"));
    assert_eq!(
        enforced(&mut store),
        [enforced_condition.clone(), enforced_condition.clone(), enforced_condition]
    );
}

#[test]
fn a_policy_is_not_enforced_if_a_gateway_reaches_the_pods_through_another_service() {
    let limit = kind_index("RateLimit", "leno.dev");
    let mut store = listed_store();
    store.apply_event(SERVICES, service_event("web", 8080));
    store.apply_event(SERVICES, service_event("front", 8080));
    store.apply_event(PODS, pod_event("plain", json!({"labels": {"app": "web"}})));
    let rules = json!([{"requests": 10, "per": "1s"}]);
    let spec = json!({"targetRefs": [{"kind": "Service", "name": "web"}], "rules": rules});
    store.apply_event(limit, custom_event(limit, "a", "2025-01-01T00:00:00Z", spec));
    add_gateway(&mut store, "front");
    store.flush();
    let statuses = store.changed_statuses().unwrap();
    let enforced = statuses.iter().find_map(|status| match &status.content {
        StatusContent::Conditions(conditions) => {
            conditions.iter().find(|condition| condition.name == "Enforced")
        }
        _ => None,
    });
    assert_eq!(
        enforced.map(|condition| (condition.status, condition.reason)),
        Some(("False", "EndpointsWithoutSidecar"))
    );
}

/// Like gateways, sidecars exclude endpoints without a sidecar if a Service also has endpoints with a sidecar.
#[test]
fn a_policy_reports_endpoints_that_sidecars_exclude() {
    let limit = kind_index("RateLimit", "leno.dev");
    let mut store = listed_store();
    store.apply_event(SERVICES, service_event("web", 8080));
    store.apply_event(PODS, pod_event("plain", json!({"labels": {"app": "web"}})));
    let rules = json!([{"requests": 10, "per": "1s"}]);
    let spec = json!({"targetRefs": [{"kind": "Service", "name": "web"}], "rules": rules});
    store.apply_event(limit, custom_event(limit, "a", "2025-01-01T00:00:00Z", spec));
    store.flush();
    let enforced = |store: &mut ObjectStore| {
        store.flush();
        let statuses = store.changed_statuses().expect("the change concerns the policy");
        let condition = statuses.iter().find_map(|status| match &status.content {
            StatusContent::Conditions(conditions) => {
                conditions.iter().find(|condition| condition.name == "Enforced")
            }
            _ => None,
        });
        condition.map(|condition| (condition.status, condition.message.clone())).unwrap()
    };
    // Sidecars do not route connections to a Service without any sidecar.
    assert_eq!(enforced(&mut store).0, "True");
    store.apply_event(PODS, pod_event("meshed", json!({})));
    let (status, message) = enforced(&mut store);
    assert_eq!(status, "False");
    assert!(message.ends_with("clients do not use endpoints without one: shop/plain"), "{message}");
    store.apply_event(PODS, removal_event("shop", "meshed"));
    assert_eq!(enforced(&mut store).0, "True");
}
