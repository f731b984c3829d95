//! Tests routes at listeners: attachment, host names, backends and precedence.

use super::*;

fn http_listener(name: &str, fields: Value) -> Value {
    let mut listener = json!({"name": name, "port": 80, "protocol": "HTTP"});
    for (key, value) in fields.as_object().unwrap() {
        listener[key] = value.clone();
    }
    listener
}

#[test]
fn listeners_restrict_namespaces_and_kinds_of_routes() {
    let from_namespaces = |from: &str| json!({"namespaces": {"from": from}});
    let from_team = |team: &str| json!({"namespaces": {"from": "Selector", "selector": {"matchLabels": {"team": team}}}});
    let kinds = json!({"namespaces": {"from": "All"}, "kinds": [{"kind": "GRPCRoute"}]});
    let not_allowed = "NotAllowedByListeners";
    for (allowed, kind_name, namespace, expected) in [
        (json!({}), "HTTPRoute", "infra", "Accepted"),
        (json!({}), "HTTPRoute", "other", not_allowed),
        (from_namespaces("Same"), "HTTPRoute", "infra", "Accepted"),
        (from_namespaces("Same"), "HTTPRoute", "other", not_allowed),
        (from_namespaces("All"), "HTTPRoute", "other", "Accepted"),
        (from_namespaces("None"), "HTTPRoute", "infra", not_allowed),
        (from_team("b"), "HTTPRoute", "other", "Accepted"),
        (from_team("b"), "HTTPRoute", "infra", not_allowed),
        (from_team("b"), "HTTPRoute", "unknown", not_allowed),
        (json!({"namespaces": {"from": "Selector"}}), "HTTPRoute", "infra", not_allowed),
        (kinds.clone(), "GRPCRoute", "infra", "Accepted"),
        (kinds, "HTTPRoute", "infra", not_allowed),
        (from_namespaces("All"), "TLSRoute", "infra", not_allowed),
        (from_namespaces("All"), "TCPRoute", "infra", not_allowed),
    ] {
        let mut fixture =
            ClusterFixture::new(json!([http_listener("l", json!({"allowedRoutes": allowed}))]));
        fixture.add_service("unknown", "web");
        let hosts: &[&str] = if kind_name == "TLSRoute" { &["a.b"] } else { &[] };
        fixture.add_route(kind_name, namespace, "r", json!({}), hosts);
        let reasons = fixture.parent_reasons(kind_name, namespace, "r");
        assert_eq!(reasons, [expected, "ResolvedRefs"], "{allowed} {kind_name} {namespace}");
        let attached_route_count =
            fixture.resolve_all().gateway_statuses[&object_id("infra", "edge")].listeners[0]
                .attached_route_count;
        assert_eq!(
            attached_route_count,
            u32::from(expected == "Accepted"),
            "{allowed} {kind_name} {namespace}"
        );
    }
}

#[test]
fn a_route_is_programmed_if_its_gateway_is_and_a_listener_is_served() {
    let tls = json!({"certificateRefs": [{"name": "gone"}]});
    let listeners = json!([
        http_listener("plain", json!({})),
        http_listener("tls", json!({"port": 443, "protocol": "HTTPS", "tls": tls})),
    ]);
    for (section, is_running, expected) in [
        ("plain", false, "Pending"),
        ("plain", true, "Programmed"),
        ("tls", true, "Invalid"),
        ("none", true, "Invalid"),
    ] {
        let mut fixture = ClusterFixture::new(listeners.clone());
        fixture.add_route("HTTPRoute", "infra", "r", json!({"sectionName": section}), &[]);
        if is_running {
            fixture.add_running_objects();
        }
        let route = RouteId { kind: "HTTPRoute", id: object_id("infra", "r") };
        let conditions = &fixture.resolve_all().parent_statuses[&route][0].conditions;
        assert_eq!(condition_reason(conditions, "Programmed"), expected, "{section} {is_running}");
    }
}

#[test]
fn a_parent_reference_selects_listeners_by_name_and_port() {
    let listeners = json!([http_listener("a", json!({})), http_listener("b", json!({"port": 81}))]);
    for (parent, expected, expected_counts) in [
        (json!({}), "Accepted", [1, 1]),
        (json!({"sectionName": "b"}), "Accepted", [0, 1]),
        (json!({"port": 80}), "Accepted", [1, 0]),
        (json!({"sectionName": "b", "port": 81}), "Accepted", [0, 1]),
        (json!({"sectionName": "b", "port": 80}), "NoMatchingParent", [0, 0]),
        (json!({"sectionName": "c"}), "NoMatchingParent", [0, 0]),
        (json!({"port": 82}), "NoMatchingParent", [0, 0]),
    ] {
        let mut fixture = ClusterFixture::new(listeners.clone());
        fixture.add_route("HTTPRoute", "infra", "r", parent.clone(), &[]);
        assert_eq!(fixture.parent_reasons("HTTPRoute", "infra", "r")[0], expected, "{parent}");
        let resolved = fixture.resolve_all();
        let gateway_status = &resolved.gateway_statuses[&object_id("infra", "edge")];
        let counts: Vec<u32> =
            gateway_status.listeners.iter().map(|listener| listener.attached_route_count).collect();
        assert_eq!(counts, expected_counts, "{parent}");
    }
}

#[test]
fn the_host_names_of_a_route_are_intersected_with_those_of_the_listener() {
    let no_hostname: Option<&str> = None;
    for (listener, route, expected) in [
        (no_hostname, vec![], vec!["any"]),
        (None, vec!["a.b"], vec!["a.b"]),
        (Some("a.b"), vec![], vec!["any"]),
        (Some("a.b"), vec!["a.b", "c.b"], vec!["a.b"]),
        (Some("a.b"), vec!["*.b"], vec!["*.b"]),
        (Some("*.b"), vec!["a.b", "x.a.b", "b", "ab"], vec!["a.b", "x.a.b"]),
        (Some("*.b"), vec!["*.b"], vec!["*.b"]),
        (Some("*.b"), vec!["*.a.b"], vec!["*.a.b"]),
        (Some("*.a.b"), vec!["*.b"], vec!["*.b"]),
        (Some("*.a.b"), vec!["*.c.b"], vec![]),
        (Some("a.b"), vec!["*.a.b"], vec![]),
    ] {
        let fields = listener.map_or(json!({}), |name| json!({"hostname": name}));
        let mut fixture = ClusterFixture::new(json!([http_listener("l", fields)]));
        fixture.add_route("HTTPRoute", "infra", "r", json!({}), &route);
        let accepted_reason = fixture.parent_reasons("HTTPRoute", "infra", "r")[0];
        let reason = if expected.is_empty() { "NoMatchingListenerHostname" } else { "Accepted" };
        assert_eq!(accepted_reason, reason, "{listener:?} {route:?}");
        let hosts: Vec<String> = hosts_at_listener(&fixture.resolve_all(), "l")
            .into_iter()
            .map(|rules| rules.0)
            .collect();
        assert_eq!(hosts, expected, "{listener:?} {route:?}");
    }
}

#[test]
fn the_rules_of_a_host_name_are_in_the_order_of_their_routes() {
    let mut fixture = ClusterFixture::new(json!([http_listener("l", json!({}))]));
    for (name, hosts) in [("c", vec!["a.b"]), ("a", vec!["a.b", "c.b"]), ("b", vec![])] {
        fixture.add_route("HTTPRoute", "infra", name, json!({}), &hosts);
    }
    let row = |host: &str, routes: &[&str]| {
        (host.to_owned(), routes.iter().map(|route| (*route).to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(
        hosts_at_listener(&fixture.resolve_all(), "l"),
        [row("any", &["b"]), row("a.b", &["c", "a"]), row("c.b", &["a"])]
    );
}

#[test]
fn invalid_backends_keep_their_weight_and_get_no_requests() {
    let grant = json!({
        "from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "infra"}],
        "to": [{"group": "", "kind": "Service"}],
    });
    let valid_backend = json!({"name": "web", "port": 80, "weight": 1});
    for (tested_backend, has_grant, expected, valid_count) in [
        (json!({"name": "web", "port": 80}), false, "ResolvedRefs", 2),
        (json!({"name": "none", "port": 80}), false, "BackendNotFound", 1),
        (json!({"name": "web", "port": 81}), false, "BackendNotFound", 1),
        (json!({"name": "web", "namespace": "other", "port": 80}), false, "RefNotPermitted", 1),
        (json!({"name": "web", "namespace": "other", "port": 80}), true, "ResolvedRefs", 2),
        (json!({"name": "web", "kind": "Odd", "group": "x.y"}), false, "InvalidKind", 1),
        (json!({"name": "web", "kind": "Odd"}), false, "InvalidKind", 1),
    ] {
        let mut fixture = ClusterFixture::new(json!([http_listener("l", json!({}))]));
        if has_grant {
            fixture.add_object("ReferenceGrant", "other", "grant", grant.clone());
        }
        let mut tested_backend = tested_backend.clone();
        tested_backend["weight"] = json!(3);
        let rules = json!([{"backendRefs": [valid_backend, tested_backend]}, {"backendRefs": [valid_backend]}]);
        let spec = json!({"parentRefs": [{"name": "edge"}], "rules": rules});
        fixture.add_object("HTTPRoute", "infra", "r", spec);
        assert_eq!(
            fixture.parent_reasons("HTTPRoute", "infra", "r"),
            ["Accepted", expected],
            "{tested_backend}"
        );
        let resolved = fixture.resolve_all();
        let gateway = resolved.gateways.values().next().unwrap();
        let GatewayPortRules::Http(listeners) = &gateway.ports[0].serves else { panic!() };
        let rules = &listeners[0].hosts[0].rules;
        let expected_weight = if valid_count == 1 { 3 } else { 0 };
        assert_eq!(rules[0].backends.len(), valid_count, "{tested_backend}");
        assert_eq!(rules[0].actions.ungranted_weight, expected_weight, "{tested_backend}");
        assert_eq!(
            (rules[1].backends.len(), rules[1].actions.ungranted_weight),
            (1, 0),
            "{tested_backend}"
        );
    }
}

#[test]
fn backends_with_a_tls_policy_are_not_supported() {
    let mut fixture = ClusterFixture::new(json!([http_listener("l", json!({}))]));
    fixture.add_route("HTTPRoute", "infra", "r", json!({}), &[]);
    let policy = json!({"targetRefs": [{"group": "", "kind": "Service", "name": "web"}]});
    fixture.add_object("BackendTLSPolicy", "other", "p", policy.clone());
    assert_eq!(fixture.parent_reasons("HTTPRoute", "infra", "r"), ["Accepted", "ResolvedRefs"]);
    fixture.add_object("BackendTLSPolicy", "infra", "p", policy);
    assert_eq!(
        fixture.parent_reasons("HTTPRoute", "infra", "r"),
        ["Accepted", "UnsupportedProtocol"]
    );
    assert!(fixture.resolve_all().backends.is_empty());
}

#[test]
fn a_route_of_a_rejected_listener_or_gateway_is_not_accepted() {
    let rejected = http_listener("odd", json!({"port": 15020}));
    let mut fixture = ClusterFixture::new(json!([rejected, http_listener("good", json!({}))]));
    for (parent, expected) in [
        (json!({"sectionName": "odd"}), "ListenersNotAccepted"),
        (json!({"sectionName": "good"}), "Accepted"),
        (json!({}), "Accepted"),
    ] {
        fixture.add_route("HTTPRoute", "infra", "r", parent.clone(), &[]);
        assert_eq!(fixture.parent_reasons("HTTPRoute", "infra", "r")[0], expected, "{parent}");
    }
    let spec = json!({"listeners": [http_listener("good", json!({}))], "odd": 1});
    fixture.add_gateway("edge", spec);
    assert_eq!(fixture.parent_reasons("HTTPRoute", "infra", "r")[0], "ListenersNotAccepted");
    assert_eq!(
        fixture.resolve_all().gateway_statuses[&object_id("infra", "edge")].listeners[0]
            .attached_route_count,
        1
    );
}

#[test]
fn an_invalid_version_is_rejected_and_the_last_valid_one_stays_in_force() {
    let mut fixture = ClusterFixture::new(json!([http_listener("l", json!({}))]));
    fixture.add_route("HTTPRoute", "infra", "r", json!({}), &["a.b"]);
    let route = RouteId { kind: "HTTPRoute", id: object_id("infra", "r") };
    let last_valid = fixture.inputs.routes[&route].last_valid.clone();
    fixture.add_route("HTTPRoute", "infra", "r", json!({}), &["NO"]);
    assert_eq!(fixture.parent_reasons("HTTPRoute", "infra", "r"), ["UnsupportedValue", "Pending"]);
    fixture.inputs.routes.get_mut(&route).unwrap().last_valid = last_valid;
    assert_eq!(
        fixture.parent_reasons("HTTPRoute", "infra", "r"),
        ["UnsupportedValue", "ResolvedRefs"]
    );
    assert_eq!(
        hosts_at_listener(&fixture.resolve_all(), "l"),
        [("a.b".to_owned(), vec!["r".to_owned()])]
    );
    assert_eq!(
        fixture.resolve_all().gateway_statuses[&object_id("infra", "edge")].listeners[0]
            .attached_route_count,
        0
    );
}

#[test]
fn a_tls_connection_uses_the_most_specific_listener_of_its_port() {
    let listener = |name: &str, hostname: &str| {
        json!({"name": name, "port": 443, "protocol": "TLS", "hostname": hostname,
               "tls": {"mode": "Passthrough"}})
    };
    let listeners = [("wide", "*.b"), ("narrow", "*.x.b"), ("exact", "a.b")];
    let listeners: Vec<_> = listeners.map(|(name, hostname)| listener(name, hostname)).into();
    let mut fixture = ClusterFixture::new(json!(listeners));
    let wide = json!({"sectionName": "wide"});
    fixture.add_route("TLSRoute", "infra", "one", wide.clone(), &["*.b"]);
    fixture.add_route("TLSRoute", "infra", "two", wide, &["q.x.b", "c.b"]);
    fixture.add_route("TLSRoute", "infra", "three", json!({"sectionName": "exact"}), &["a.b"]);
    let resolved = fixture.resolve_all();
    let gateway = resolved.gateways.values().next().unwrap();
    let GatewayPortRules::Passthrough(rules) = &gateway.ports[0].serves else { panic!() };
    let described: Vec<String> =
        rules.iter().map(|rule| format!("{:?} {}", rule.hostnames, rule.backends.len())).collect();
    // Sessions at the listener `narrow` that match no route have no backend.
    let no_backend = "[Below(b), Below(x.b), Exact(a.b)] 0";
    assert_eq!(described, ["[Exact(c.b)] 1", "[Below(b)] 1", "[Exact(a.b)] 1", no_backend]);
}

#[test]
fn a_tls_connection_uses_the_route_with_the_more_specific_host_name() {
    for (listener, older, newer, expected) in [
        ("a.b", "*.b", "a.b", "newer"),
        ("a.b", "a.b", "*.b", "older"),
        ("*.x.b", "*.b", "*.x.b", "newer"),
        ("*.x.b", "*.x.b", "*.x.b", "older"),
    ] {
        let mut fixture = ClusterFixture::new(json!([
            {"name": "l", "port": 443, "protocol": "TLS", "hostname": listener, "tls": {"mode": "Passthrough"}},
        ]));
        fixture.add_route("TLSRoute", "infra", "older", json!({}), &[older]);
        fixture.add_route("TLSRoute", "infra", "newer", json!({}), &[newer]);
        let resolved = fixture.resolve_all();
        let gateway = resolved.gateways.values().next().unwrap();
        let GatewayPortRules::Passthrough(rules) = &gateway.ports[0].serves else { panic!() };
        let names: Vec<String> =
            rules.iter().flat_map(|rule| &rule.hostnames).map(ToString::to_string).collect();
        assert_eq!(names, [listener, listener], "only names of the listener");
        assert_eq!(rules[0].route.name.as_str(), expected, "{listener}: {older}, {newer}");
    }
}

#[test]
fn tls_and_tcp_routes_apply_on_the_ports_of_their_listeners() {
    let listeners = json!([
        {"name": "tls", "port": 443, "protocol": "TLS", "hostname": "*.b", "tls": {"mode": "Passthrough"}},
        {"name": "tcp", "port": 5432, "protocol": "TCP"},
        {"name": "idle", "port": 5433, "protocol": "TCP"},
    ]);
    let mut fixture = ClusterFixture::new(listeners);
    fixture.add_route("TLSRoute", "infra", "one", json!({}), &["a.b", "a.c"]);
    fixture.add_route("TLSRoute", "infra", "two", json!({}), &["*.x.b"]);
    fixture.add_route("TCPRoute", "infra", "db", json!({"sectionName": "tcp"}), &[]);
    fixture.add_route("TCPRoute", "infra", "late", json!({"sectionName": "tcp"}), &[]);
    let resolved = fixture.resolve_all();
    let gateway = resolved.gateways.values().next().unwrap();
    let GatewayPortRules::Passthrough(rules) = &gateway.ports[0].serves else { panic!() };
    let described: Vec<String> =
        rules.iter().map(|rule| format!("{} {:?}", rule.route.name, rule.hostnames)).collect();
    assert_eq!(described, ["one [Exact(a.b)]", "two [Below(x.b)]"]);
    let describe_tcp_rule = |index: usize| match &gateway.ports[index].serves {
        GatewayPortRules::Tcp(rule) => (rule.route.name.to_string(), rule.backends.len()),
        other => panic!("{other:?}"),
    };
    assert_eq!(describe_tcp_rule(1), ("db".to_owned(), 1));
    assert_eq!(describe_tcp_rule(2), ("edge".to_owned(), 0));
    let backends: Vec<String> = resolved.backends.iter().map(ToString::to_string).collect();
    assert_eq!(backends, ["infra/web"]);
}
