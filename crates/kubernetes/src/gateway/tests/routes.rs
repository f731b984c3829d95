//! Routes at listeners.

use super::*;

fn add_http_route(name: &str, more: Value) -> Value {
    let mut listener = json!({"name": name, "port": 80, "protocol": "HTTP"});
    for (key, value) in more.as_object().unwrap() {
        listener[key] = value.clone();
    }
    listener
}

#[test]
fn namespaces_and_kinds_are_allowed_or_not() {
    let from = |from: &str| json!({"namespaces": {"from": from}});
    let team = |team: &str| json!({"namespaces": {"from": "Selector", "selector": {"matchLabels": {"team": team}}}});
    let kinds = json!({"namespaces": {"from": "All"}, "kinds": [{"kind": "GRPCRoute"}]});
    let no = "NotAllowedByListeners";
    for (allowed, word, namespace, expected) in [
        (json!({}), "HTTPRoute", "infra", "Accepted"),
        (json!({}), "HTTPRoute", "other", no),
        (from("Same"), "HTTPRoute", "infra", "Accepted"),
        (from("Same"), "HTTPRoute", "other", no),
        (from("All"), "HTTPRoute", "other", "Accepted"),
        (from("None"), "HTTPRoute", "infra", no),
        (team("b"), "HTTPRoute", "other", "Accepted"),
        (team("b"), "HTTPRoute", "infra", no),
        (team("b"), "HTTPRoute", "unknown", no),
        (json!({"namespaces": {"from": "Selector"}}), "HTTPRoute", "infra", no),
        (kinds.clone(), "GRPCRoute", "infra", "Accepted"),
        (kinds, "HTTPRoute", "infra", no),
        (from("All"), "TLSRoute", "infra", no),
        (from("All"), "TCPRoute", "infra", no),
    ] {
        let mut fixture =
            ClusterFixture::new(json!([add_http_route("l", json!({"allowedRoutes": allowed}))]));
        fixture.add_service("unknown", "web");
        let hosts: &[&str] = if word == "TLSRoute" { &["a.b"] } else { &[] };
        fixture.add_route(word, namespace, "r", json!({}), hosts);
        let found = fixture.parent_reasons(word, namespace, "r");
        assert_eq!(found, [expected, "ResolvedRefs"], "{allowed} {word} {namespace}");
        let attached = fixture.resolve_all().gateway_statuses[&object_id("infra", "edge")]
            .listeners[0]
            .attached;
        assert_eq!(attached, u32::from(expected == "Accepted"), "{allowed} {word} {namespace}");
    }
}

#[test]
fn a_route_is_programmed_where_its_gateway_is_and_a_listener_is_served() {
    let tls = json!({"certificateRefs": [{"name": "gone"}]});
    let listeners = json!([
        add_http_route("plain", json!({})),
        add_http_route("tls", json!({"port": 443, "protocol": "HTTPS", "tls": tls})),
    ]);
    for (section, runs, expected) in [
        ("plain", false, "Pending"),
        ("plain", true, "Programmed"),
        ("tls", true, "Invalid"),
        ("none", true, "Invalid"),
    ] {
        let mut fixture = ClusterFixture::new(listeners.clone());
        fixture.add_route("HTTPRoute", "infra", "r", json!({"sectionName": section}), &[]);
        if runs {
            fixture.run();
        }
        let route = RouteId { kind: "HTTPRoute", id: object_id("infra", "r") };
        let said = &fixture.resolve_all().parents[&route][0].conditions;
        assert_eq!(condition_reason(said, "Programmed"), expected, "{section} {runs}");
    }
}

#[test]
fn a_parent_is_a_listener_by_name_and_port() {
    let listeners =
        json!([add_http_route("a", json!({})), add_http_route("b", json!({"port": 81}))]);
    for (parent, expected, attached) in [
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
        let said = &resolved.gateway_statuses[&object_id("infra", "edge")];
        let found: Vec<u32> = said.listeners.iter().map(|it| it.attached).collect();
        assert_eq!(found, attached, "{parent}");
    }
}

#[test]
fn host_names_are_those_of_both_as_the_route_has_them() {
    let hostless: Option<&str> = None;
    for (listener, route, expected) in [
        (hostless, vec![], vec!["any"]),
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
        let more = listener.map_or(json!({}), |name| json!({"hostname": name}));
        let mut fixture = ClusterFixture::new(json!([add_http_route("l", more)]));
        fixture.add_route("HTTPRoute", "infra", "r", json!({}), &route);
        let said = fixture.parent_reasons("HTTPRoute", "infra", "r")[0];
        let reason = if expected.is_empty() { "NoMatchingListenerHostname" } else { "Accepted" };
        assert_eq!(said, reason, "{listener:?} {route:?}");
        let found: Vec<String> =
            hosts_at_listener(&fixture.resolve_all(), "l").into_iter().map(|it| it.0).collect();
        assert_eq!(found, expected, "{listener:?} {route:?}");
    }
}

#[test]
fn the_rules_of_a_host_name_are_in_the_order_of_their_routes() {
    let mut fixture = ClusterFixture::new(json!([add_http_route("l", json!({}))]));
    for (name, hosts) in [("c", vec!["a.b"]), ("a", vec!["a.b", "c.b"]), ("b", vec![])] {
        fixture.add_route("HTTPRoute", "infra", name, json!({}), &hosts);
    }
    let row = |host: &str, routes: &[&str]| {
        (host.to_owned(), routes.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(
        hosts_at_listener(&fixture.resolve_all(), "l"),
        [row("any", &["b"]), row("a.b", &["c", "a"]), row("c.b", &["a"])]
    );
}

#[test]
fn bad_backends_lose_their_share_and_the_others_keep_theirs() {
    let grant = json!({
        "from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "infra"}],
        "to": [{"group": "", "kind": "Service"}],
    });
    let good = json!({"name": "web", "port": 80, "weight": 1});
    for (bad, granted, expected, kept) in [
        (json!({"name": "web", "port": 80}), false, "ResolvedRefs", 2),
        (json!({"name": "none", "port": 80}), false, "BackendNotFound", 1),
        (json!({"name": "web", "port": 81}), false, "BackendNotFound", 1),
        (json!({"name": "web", "namespace": "other", "port": 80}), false, "RefNotPermitted", 1),
        (json!({"name": "web", "namespace": "other", "port": 80}), true, "ResolvedRefs", 2),
        (json!({"name": "web", "kind": "Odd", "group": "x.y"}), false, "InvalidKind", 1),
        (json!({"name": "web", "kind": "Odd"}), false, "InvalidKind", 1),
    ] {
        let mut fixture = ClusterFixture::new(json!([add_http_route("l", json!({}))]));
        if granted {
            fixture.add_object("ReferenceGrant", "other", "grant", grant.clone());
        }
        let mut bad = bad.clone();
        bad["weight"] = json!(3);
        let rules = json!([{"backendRefs": [good, bad]}, {"backendRefs": [good]}]);
        let spec = json!({"parentRefs": [{"name": "edge"}], "rules": rules});
        fixture.add_object("HTTPRoute", "infra", "r", spec);
        assert_eq!(
            fixture.parent_reasons("HTTPRoute", "infra", "r"),
            ["Accepted", expected],
            "{bad}"
        );
        let resolved = fixture.resolve_all();
        let gateway = resolved.gateways.values().next().unwrap();
        let GatewayPortRules::Http(listeners) = &gateway.ports[0].serves else { panic!() };
        let rules = &listeners[0].hosts[0].rules;
        let lost = if kept == 1 { 3 } else { 0 };
        assert_eq!(rules[0].backends.len(), kept, "{bad}");
        assert_eq!(rules[0].actions.ungranted_weight, lost, "{bad}");
        assert_eq!((rules[1].backends.len(), rules[1].actions.ungranted_weight), (1, 0), "{bad}");
    }
}

#[test]
fn backends_to_which_somebody_wants_tls_are_none() {
    let mut fixture = ClusterFixture::new(json!([add_http_route("l", json!({}))]));
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
fn routes_are_not_in_force_where_nothing_is_accepted() {
    let odd = add_http_route("odd", json!({"port": 15020}));
    let mut fixture = ClusterFixture::new(json!([odd, add_http_route("good", json!({}))]));
    for (parent, expected) in [
        (json!({"sectionName": "odd"}), "ListenersNotAccepted"),
        (json!({"sectionName": "good"}), "Accepted"),
        (json!({}), "Accepted"),
    ] {
        fixture.add_route("HTTPRoute", "infra", "r", parent.clone(), &[]);
        assert_eq!(fixture.parent_reasons("HTTPRoute", "infra", "r")[0], expected, "{parent}");
    }
    let spec = json!({"listeners": [add_http_route("good", json!({}))], "odd": 1});
    fixture.add_gateway("edge", spec);
    assert_eq!(fixture.parent_reasons("HTTPRoute", "infra", "r")[0], "ListenersNotAccepted");
    assert_eq!(
        fixture.resolve_all().gateway_statuses[&object_id("infra", "edge")].listeners[0].attached,
        1
    );
}

#[test]
fn a_version_that_cannot_be_read_is_refused_and_the_last_good_one_goes_on() {
    let mut fixture = ClusterFixture::new(json!([add_http_route("l", json!({}))]));
    fixture.add_route("HTTPRoute", "infra", "r", json!({}), &["a.b"]);
    let route = RouteId { kind: "HTTPRoute", id: object_id("infra", "r") };
    let good = fixture.facts.routes[&route].good.clone();
    fixture.add_route("HTTPRoute", "infra", "r", json!({}), &["NO"]);
    assert_eq!(fixture.parent_reasons("HTTPRoute", "infra", "r"), ["UnsupportedValue", "Pending"]);
    fixture.facts.routes.get_mut(&route).unwrap().good = good;
    assert_eq!(
        fixture.parent_reasons("HTTPRoute", "infra", "r"),
        ["UnsupportedValue", "ResolvedRefs"]
    );
    assert_eq!(
        hosts_at_listener(&fixture.resolve_all(), "l"),
        [("a.b".to_owned(), vec!["r".to_owned()])]
    );
    assert_eq!(
        fixture.resolve_all().gateway_statuses[&object_id("infra", "edge")].listeners[0].attached,
        0
    );
}

#[test]
fn a_session_is_for_the_most_specific_listener_of_its_port() {
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
    let shown: Vec<String> =
        rules.iter().map(|it| format!("{:?} {}", it.hostnames, it.backends.len())).collect();
    // Sessions of `narrow` that match no rule have no backend.
    let nowhere = "[Below(b), Below(x.b), Exact(a.b)] 0";
    assert_eq!(shown, ["[Exact(c.b)] 1", "[Below(b)] 1", "[Exact(a.b)] 1", nowhere]);
}

#[test]
fn a_session_is_for_the_route_whose_own_name_is_more_specific() {
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
            rules.iter().flat_map(|it| &it.hostnames).map(ToString::to_string).collect();
        assert_eq!(names, [listener, listener], "nothing beyond the listener's names");
        assert_eq!(rules[0].route.name.as_str(), expected, "{listener}: {older}, {newer}");
    }
}

#[test]
fn sessions_and_connections_have_their_ports() {
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
    let shown: Vec<String> =
        rules.iter().map(|it| format!("{} {:?}", it.route.name, it.hostnames)).collect();
    assert_eq!(shown, ["one [Exact(a.b)]", "two [Below(x.b)]"]);
    let tcp = |index: usize| match &gateway.ports[index].serves {
        GatewayPortRules::Tcp(rule) => (rule.route.name.to_string(), rule.backends.len()),
        other => panic!("{other:?}"),
    };
    assert_eq!(tcp(1), ("db".to_owned(), 1));
    assert_eq!(tcp(2), ("edge".to_owned(), 0));
    let led_to: Vec<String> = resolved.backends.iter().map(ToString::to_string).collect();
    assert_eq!(led_to, ["infra/web"]);
}
