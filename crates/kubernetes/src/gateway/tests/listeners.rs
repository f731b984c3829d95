//! Validation of listeners, alone and in combination.

use super::*;

fn listener_spec(name: &str, port: u16, protocol: &str, more: Value) -> Value {
    let mut listener = json!({"name": name, "port": port, "protocol": protocol});
    for (key, value) in more.as_object().unwrap() {
        listener[key] = value.clone();
    }
    listener
}

/// Returns for each listener: Accepted, Conflicted, ResolvedRefs, and its supported kinds.
fn listener_statuses(fixture: &ClusterFixture) -> Vec<([&'static str; 3], Vec<&'static str>)> {
    let resolved = fixture.resolve_all();
    let said = &resolved.gateway_statuses[&object_id("infra", "edge")];
    let row = |it: &status::GatewayListenerStatus| {
        let reason = |word| condition_reason(&it.conditions, word);
        ([reason("Accepted"), reason("Conflicted"), reason("ResolvedRefs")], it.kinds.clone())
    };
    said.listeners.iter().map(row).collect()
}

#[test]
fn each_protocol_takes_its_routes() {
    let passthrough = json!({"tls": {"mode": "Passthrough"}});
    let odd = json!({"tls": {"mode": "Passthrough", "options": {"a.b/c": "d"}}});
    let http = vec!["HTTPRoute", "GRPCRoute"];
    for (protocol, more, accepted, kinds) in [
        ("HTTP", json!({}), "Accepted", http.clone()),
        ("TCP", json!({}), "Accepted", vec!["TCPRoute"]),
        ("TLS", passthrough, "Accepted", vec!["TLSRoute"]),
        ("TLS", json!({"tls": {"mode": "Terminate"}}), "UnsupportedValue", vec![]),
        ("TLS", json!({}), "UnsupportedValue", vec![]),
        ("TLS", odd, "UnsupportedValue", vec![]),
        ("UDP", json!({}), "UnsupportedProtocol", vec![]),
        ("INVALID", json!({}), "UnsupportedProtocol", vec![]),
        ("HTTP", json!({"port": 15020}), "PortUnavailable", vec![]),
    ] {
        let fixture = ClusterFixture::new(json!([listener_spec("l", 80, protocol, more.clone())]));
        let found = listener_statuses(&fixture);
        let expected = [accepted, "NoConflicts", "ResolvedRefs"];
        assert_eq!(found, [(expected, kinds)], "{protocol} {more}");
    }
}

#[test]
fn what_is_not_known_is_not_ignored() {
    let validation = json!({"caCertificateRefs": [{"name": "ca"}]});
    let tls = json!({"mode": "Passthrough", "frontendValidation": validation});
    for (protocol, more, expected) in [
        ("TLS", json!({"tls": tls}), "UnsupportedValue"),
        ("HTTP", json!({"allowedRoutes": {"only": ["a"]}}), "UnsupportedValue"),
        ("HTTP", json!({"allowedRoutes": {"namespaces": {"only": ["a"]}}}), "UnsupportedValue"),
        ("HTTP", json!({"guard": true}), "UnsupportedValue"),
        ("HTTP", json!({"guard": null}), "Accepted"),
    ] {
        let fixture = ClusterFixture::new(json!([listener_spec("l", 80, protocol, more.clone())]));
        assert_eq!(listener_statuses(&fixture)[0].0[0], expected, "{more}");
    }
    let own = |key: &str| json!({"infrastructure": {"labels": {key: "a"}}});
    let note = |key: &str| json!({"infrastructure": {"annotations": {key: "a"}}});
    for (spec, expected) in [
        (json!({"allowedListeners": {"namespaces": {"from": "All"}}}), "Invalid"),
        (json!({"allowedListeners": {"namespaces": {"from": "None"}}}), "Accepted"),
        (json!({"backendTLS": {}}), "Invalid"),
        (json!({"infrastructure": {"odd": 1}}), "Invalid"),
        (own("team"), "Accepted"),
        (own("leno.dev/meshed"), "InvalidParameters"),
        (own("topology.kubernetes.io/zone"), "InvalidParameters"),
        (own("gateway.networking.k8s.io/gateway-name"), "InvalidParameters"),
        (note("service.beta.kubernetes.io/internal"), "Accepted"),
        (note("sub.leno.dev/x"), "InvalidParameters"),
    ] {
        let mut fixture = ClusterFixture::new(json!([]));
        let mut gateway = spec.clone();
        gateway["listeners"] = json!([listener_spec("l", 80, "HTTP", json!({}))]);
        fixture.add_gateway("edge", gateway);
        let said = &fixture.resolve_all().gateway_statuses[&object_id("infra", "edge")];
        assert_eq!(condition_reason(&said.conditions, "Accepted"), expected, "{spec}");
    }
}

#[test]
fn kinds_of_routes_are_those_that_fit() {
    for (protocol, kinds, reason, left) in [
        ("HTTP", json!([{"kind": "HTTPRoute"}]), "ResolvedRefs", vec!["HTTPRoute"]),
        ("HTTP", json!([{"kind": "InvalidRoute"}]), "InvalidRouteKinds", vec![]),
        (
            "HTTP",
            json!([{"kind": "InvalidRoute"}, {"kind": "HTTPRoute"}]),
            "InvalidRouteKinds",
            vec!["HTTPRoute"],
        ),
        ("HTTP", json!([{"kind": "HTTPRoute", "group": "x.y"}]), "InvalidRouteKinds", vec![]),
        ("TCP", json!([{"kind": "HTTPRoute"}]), "InvalidRouteKinds", vec![]),
    ] {
        let more = json!({"allowedRoutes": {"kinds": kinds}});
        let fixture = ClusterFixture::new(json!([listener_spec("l", 80, protocol, more)]));
        let expected = (["Accepted", "NoConflicts", reason], left);
        assert_eq!(listener_statuses(&fixture), [expected], "{protocol} {kinds}");
    }
}

#[test]
fn listeners_of_one_port_differ_in_host_name_and_nothing_else() {
    let host = |name: &str| json!({"hostname": name});
    let tls = |mode: &str, name: &str| json!({"tls": {"mode": mode}, "hostname": name});
    for (one, other, conflict) in [
        (("HTTP", 80, host("a.b")), ("HTTP", 80, host("c.b")), "NoConflicts"),
        (("HTTP", 80, host("a.b")), ("HTTP", 80, host("*.b")), "NoConflicts"),
        (("HTTP", 80, host("a.b")), ("HTTP", 80, json!({})), "NoConflicts"),
        (("HTTP", 80, host("a.b")), ("HTTP", 80, host("a.b")), "HostnameConflict"),
        (("HTTP", 80, json!({})), ("HTTP", 80, json!({})), "HostnameConflict"),
        (("HTTP", 80, host("a.b")), ("HTTP", 81, host("a.b")), "NoConflicts"),
        (("HTTP", 80, host("a.b")), ("TCP", 80, json!({})), "ProtocolConflict"),
        (("TCP", 80, json!({})), ("TCP", 80, json!({})), "HostnameConflict"),
        (
            ("TLS", 443, tls("Passthrough", "a.b")),
            ("TLS", 443, tls("Terminate", "c.b")),
            "ProtocolConflict",
        ),
        (("HTTP", 80, json!({})), ("INVALID", 80, json!({})), "NoConflicts"),
    ] {
        let (first, second) = (one.clone(), other.clone());
        let fixture = ClusterFixture::new(json!([
            listener_spec("one", one.1, one.0, one.2),
            listener_spec("other", other.1, other.0, other.2),
        ]));
        let found: Vec<_> = listener_statuses(&fixture).into_iter().map(|(it, _)| it).collect();
        assert!(found.iter().all(|it| it[1] == conflict), "{first:?} {second:?}: {found:?}");
        let blocked = conflict != "NoConflicts";
        assert!(!blocked || found.iter().all(|it| it[0] == conflict), "{found:?}");
    }
}

#[test]
fn certificates_are_there_and_may_be_used() {
    let grant = |from: &str, namespace: &str, to: &str, name: Value| {
        json!({
            "from": [{"group": "gateway.networking.k8s.io", "kind": from, "namespace": namespace}],
            "to": [{"group": "", "kind": to, "name": name}],
        })
    };
    let theirs = json!({"name": "cert", "namespace": "other"});
    for (certificate, grant, expected) in [
        (json!({"name": "cert"}), None, "ResolvedRefs"),
        (json!({"name": "cert", "kind": "Secret", "group": ""}), None, "ResolvedRefs"),
        (json!({"name": "missing"}), None, "InvalidCertificateRef"),
        (json!({"name": "broken"}), None, "InvalidCertificateRef"),
        (json!({"name": "cert", "kind": "Other"}), None, "InvalidCertificateRef"),
        (json!({"name": "cert", "group": "x.y"}), None, "InvalidCertificateRef"),
        (theirs.clone(), None, "RefNotPermitted"),
        (theirs.clone(), Some(grant("Gateway", "infra", "Secret", json!(null))), "ResolvedRefs"),
        (theirs.clone(), Some(grant("Gateway", "infra", "Secret", json!("cert"))), "ResolvedRefs"),
        (theirs.clone(), Some(grant("Gateway", "infra", "Secret", json!("x"))), "RefNotPermitted"),
        (theirs.clone(), Some(grant("Gateway", "x", "Secret", json!(null))), "RefNotPermitted"),
        (
            theirs.clone(),
            Some(grant("HTTPRoute", "infra", "Secret", json!(null))),
            "RefNotPermitted",
        ),
        (
            theirs.clone(),
            Some(grant("Gateway", "infra", "Service", json!(null))),
            "RefNotPermitted",
        ),
    ] {
        let more = json!({"tls": {"certificateRefs": [certificate]}});
        let mut fixture = ClusterFixture::new(json!([listener_spec("l", 443, "HTTPS", more)]));
        fixture.add_certificate("infra", "cert");
        fixture.add_certificate("other", "cert");
        fixture
            .facts
            .certificates
            .insert(object_id("infra", "broken"), Err("it is broken".to_owned()));
        if let Some(grant) = &grant {
            fixture.add_object("ReferenceGrant", "other", "grant", grant.clone());
        }
        let found = listener_statuses(&fixture)[0].0;
        assert_eq!(found, ["Accepted", "NoConflicts", expected], "{certificate} {grant:?}");
        // Without a key the listener is not served.
        let ports = fixture.resolve_all().gateways.values().next().unwrap().ports.len();
        assert_eq!(ports, usize::from(expected == "ResolvedRefs"), "{certificate} {grant:?}");
        // Only permitted Secrets are requested.
        let asked = !secrets_of(&fixture.facts).is_empty();
        let named = certificate["kind"] != "Other" && certificate["group"] != "x.y";
        assert_eq!(asked, named && expected != "RefNotPermitted", "{certificate} {grant:?}");
    }
}

#[test]
fn a_gateway_is_well_when_its_listeners_are_and_its_pods_and_its_address() {
    let good = listener_spec("good", 80, "HTTP", json!({}));
    let bad = listener_spec("bad", 81, "INVALID", json!({}));
    let wants = |address: Value| json!({"listeners": [good], "addresses": [address]});
    let only = |listeners: Value| json!({"listeners": listeners});
    let infrastructure = json!({"parametersRef": {"group": "a", "kind": "b", "name": "c"}});
    for (spec, runs, expected) in [
        (only(json!([good])), true, ["Accepted", "Programmed"]),
        (only(json!([good])), false, ["Accepted", "Pending"]),
        (only(json!([good, bad])), true, ["ListenersNotValid", "Programmed"]),
        (only(json!([bad])), true, ["ListenersNotValid", "Invalid"]),
        (wants(json!({"value": "192.0.2.7"})), true, ["Accepted", "Programmed"]),
        (wants(json!({"type": "IPAddress"})), true, ["Accepted", "Programmed"]),
        (wants(json!({"value": "192.0.2.8"})), true, ["Accepted", "AddressNotUsable"]),
        (wants(json!({"type": "x.y/z", "value": "a"})), true, ["UnsupportedAddress", "Invalid"]),
        (
            json!({"listeners": [good], "infrastructure": infrastructure}),
            true,
            ["InvalidParameters", "Invalid"],
        ),
        (
            json!({"listeners": [good], "tls": {"frontend": {"default": {}}}}),
            true,
            ["Invalid", "Invalid"],
        ),
    ] {
        let mut fixture = ClusterFixture::new(json!([]));
        fixture.add_gateway("edge", spec.clone());
        if runs {
            fixture.run();
        }
        let resolved = fixture.resolve_all();
        let said = &resolved.gateway_statuses[&object_id("infra", "edge")];
        let found = ["Accepted", "Programmed"].map(|word| condition_reason(&said.conditions, word));
        assert_eq!(found, expected, "{spec} {runs}");
        let served = !matches!(expected[1], "Invalid");
        assert_eq!(resolved.desired.len(), usize::from(served), "{spec}");
        assert_eq!(!resolved.gateways.values().next().unwrap().ports.is_empty(), served, "{spec}");
    }
}

#[test]
fn without_a_load_balancer_the_cluster_has_an_address() {
    let mut fixture = ClusterFixture::new(json!([listener_spec("l", 80, "HTTP", json!({}))]));
    fixture.run();
    let object = object_id("infra", "leno-gateway-edge");
    let mut addresses = |is_load_balancer| {
        let cluster = vec![GatewayAddress::from_ip("10.0.0.9")];
        let gateway_service = GatewayService { is_load_balancer, ingress: Vec::new(), cluster };
        fixture.facts.gateway_services.insert(object.clone(), gateway_service);
        let resolved = fixture.resolve_all();
        let said = &resolved.gateway_statuses[&object_id("infra", "edge")];
        (said.addresses.len(), condition_reason(&said.conditions, "Programmed"))
    };
    assert_eq!(addresses(true), (0, "AddressNotAssigned"));
    assert_eq!(addresses(false), (1, "Programmed"));
}

#[test]
fn gateways_of_other_classes_are_none_of_ours() {
    let mut fixture = ClusterFixture::new(json!([listener_spec("l", 80, "HTTP", json!({}))]));
    fixture.facts.classes.clear();
    fixture.add_route("HTTPRoute", "infra", "r", json!({}), &[]);
    let resolved = fixture.resolve_all();
    assert!(resolved.gateways.is_empty() && resolved.gateway_statuses.is_empty());
    assert!(resolved.parents.is_empty() && resolved.desired.is_empty());
    assert!(resolved.backends.is_empty());
}

#[test]
fn the_younger_of_two_that_would_share_their_pods_is_refused() {
    let long = "a".repeat(60);
    let mut fixture = ClusterFixture::new(json!([]));
    let spec = json!({"listeners": [listener_spec("l", 80, "HTTP", json!({}))]});
    for name in [format!("{long}x"), format!("{long}y")] {
        fixture.add_gateway(&name, spec.clone());
    }
    let resolved = fixture.resolve_all();
    let accepted = |name: String| {
        condition_reason(
            &resolved.gateway_statuses[&object_id("infra", &name)].conditions,
            "Accepted",
        )
    };
    assert_eq!(accepted(format!("{long}x")), "Accepted");
    assert_eq!(accepted(format!("{long}y")), "Invalid");
    assert_eq!(resolved.desired.len(), 1);
}

#[test]
fn a_name_that_is_no_label_is_said_to_be_none() {
    let mut fixture = ClusterFixture::new(json!([]));
    let spec = json!({"listeners": [listener_spec("l", 80, "HTTP", json!({}))]});
    for length in [64, 253] {
        let name = "a".repeat(length);
        fixture.add_gateway(&name, spec.clone());
        let route = json!({"parentRefs": [{"name": name}], "rules": []});
        fixture.add_object("HTTPRoute", "infra", "r", route);
        let resolved = fixture.resolve_all();
        let route = RouteId { kind: "HTTPRoute", id: object_id("infra", "r") };
        let of_route = &resolved.parents[&route][0].conditions;
        assert_eq!(condition_reason(of_route, "Accepted"), "ListenersNotAccepted", "{length}");
        let said = &resolved.gateway_statuses[&object_id("infra", &name)].conditions;
        assert_eq!(condition_reason(said, "Accepted"), "Invalid", "{length}");
        assert_eq!(condition_reason(said, "Programmed"), "Invalid", "{length}");
        assert_eq!(resolved.desired.len(), 0, "{length}");
    }
}
