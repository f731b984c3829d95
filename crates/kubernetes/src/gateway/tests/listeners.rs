//! Tests the validation of listeners, alone and in combination.

use super::*;

fn listener_spec(name: &str, port: u16, protocol: &str, fields: Value) -> Value {
    let mut listener = json!({"name": name, "port": port, "protocol": protocol});
    for (key, value) in fields.as_object().unwrap() {
        listener[key] = value.clone();
    }
    listener
}

/// Returns for each listener: Accepted, Conflicted, ResolvedRefs, and its supported kinds.
fn listener_statuses(fixture: &ClusterFixture) -> Vec<([&'static str; 3], Vec<&'static str>)> {
    let resolved = fixture.resolve_all();
    let gateway_status = &resolved.gateway_statuses[&object_id("infra", "edge")];
    let describe_listener = |listener: &status::GatewayListenerStatus| {
        let reason = |condition_type| condition_reason(&listener.conditions, condition_type);
        ([reason("Accepted"), reason("Conflicted"), reason("ResolvedRefs")], listener.kinds.clone())
    };
    gateway_status.listeners.iter().map(describe_listener).collect()
}

#[test]
fn each_protocol_supports_its_kinds_of_routes() {
    let passthrough = json!({"tls": {"mode": "Passthrough"}});
    let with_options = json!({"tls": {"mode": "Passthrough", "options": {"a.b/c": "d"}}});
    let http = vec!["HTTPRoute", "GRPCRoute"];
    for (protocol, fields, accepted, kinds) in [
        ("HTTP", json!({}), "Accepted", http.clone()),
        ("TCP", json!({}), "Accepted", vec!["TCPRoute"]),
        ("TLS", passthrough, "Accepted", vec!["TLSRoute"]),
        ("TLS", json!({"tls": {"mode": "Terminate"}}), "UnsupportedValue", vec![]),
        ("TLS", json!({}), "UnsupportedValue", vec![]),
        ("TLS", with_options, "UnsupportedValue", vec![]),
        ("UDP", json!({}), "UnsupportedProtocol", vec![]),
        ("INVALID", json!({}), "UnsupportedProtocol", vec![]),
        ("HTTP", json!({"port": 15020}), "PortUnavailable", vec![]),
    ] {
        let fixture =
            ClusterFixture::new(json!([listener_spec("l", 80, protocol, fields.clone())]));
        let statuses = listener_statuses(&fixture);
        let expected = [accepted, "NoConflicts", "ResolvedRefs"];
        assert_eq!(statuses, [(expected, kinds)], "{protocol} {fields}");
    }
}

#[test]
fn unknown_fields_are_not_ignored() {
    let validation = json!({"caCertificateRefs": [{"name": "ca"}]});
    let tls = json!({"mode": "Passthrough", "frontendValidation": validation});
    for (protocol, fields, expected) in [
        ("TLS", json!({"tls": tls}), "UnsupportedValue"),
        ("HTTP", json!({"allowedRoutes": {"only": ["a"]}}), "UnsupportedValue"),
        ("HTTP", json!({"allowedRoutes": {"namespaces": {"only": ["a"]}}}), "UnsupportedValue"),
        ("HTTP", json!({"guard": true}), "UnsupportedValue"),
        ("HTTP", json!({"guard": null}), "Accepted"),
    ] {
        let fixture =
            ClusterFixture::new(json!([listener_spec("l", 80, protocol, fields.clone())]));
        assert_eq!(listener_statuses(&fixture)[0].0[0], expected, "{fields}");
    }
    let with_label = |key: &str| json!({"infrastructure": {"labels": {key: "a"}}});
    let with_annotation = |key: &str| json!({"infrastructure": {"annotations": {key: "a"}}});
    for (spec, expected) in [
        (json!({"allowedListeners": {"namespaces": {"from": "All"}}}), "Invalid"),
        (json!({"allowedListeners": {"namespaces": {"from": "None"}}}), "Accepted"),
        (json!({"backendTLS": {}}), "Invalid"),
        (json!({"infrastructure": {"odd": 1}}), "Invalid"),
        (with_label("team"), "Accepted"),
        (with_label("leno.dev/meshed"), "InvalidParameters"),
        (with_label("topology.kubernetes.io/zone"), "InvalidParameters"),
        (with_label("gateway.networking.k8s.io/gateway-name"), "InvalidParameters"),
        (with_annotation("service.beta.kubernetes.io/internal"), "Accepted"),
        (with_annotation("sub.leno.dev/x"), "InvalidParameters"),
    ] {
        let mut fixture = ClusterFixture::new(json!([]));
        let mut gateway = spec.clone();
        gateway["listeners"] = json!([listener_spec("l", 80, "HTTP", json!({}))]);
        fixture.add_gateway("edge", gateway);
        let gateway_status = &fixture.resolve_all().gateway_statuses[&object_id("infra", "edge")];
        assert_eq!(condition_reason(&gateway_status.conditions, "Accepted"), expected, "{spec}");
    }
}

#[test]
fn only_kinds_of_routes_that_match_the_protocol_are_supported() {
    for (protocol, kinds, reason, supported) in [
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
        let fields = json!({"allowedRoutes": {"kinds": kinds}});
        let fixture = ClusterFixture::new(json!([listener_spec("l", 80, protocol, fields)]));
        let expected = (["Accepted", "NoConflicts", reason], supported);
        assert_eq!(listener_statuses(&fixture), [expected], "{protocol} {kinds}");
    }
}

#[test]
fn listeners_of_one_port_may_differ_only_in_the_host_name() {
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
        let statuses: Vec<_> =
            listener_statuses(&fixture).into_iter().map(|(reasons, _)| reasons).collect();
        assert!(
            statuses.iter().all(|reasons| reasons[1] == conflict),
            "{first:?} {second:?}: {statuses:?}"
        );
        let is_conflict = conflict != "NoConflicts";
        assert!(
            !is_conflict || statuses.iter().all(|reasons| reasons[0] == conflict),
            "{statuses:?}"
        );
    }
}

#[test]
fn certificate_references_must_exist_and_be_permitted() {
    let grant = |from: &str, namespace: &str, to: &str, name: Value| {
        json!({
            "from": [{"group": "gateway.networking.k8s.io", "kind": from, "namespace": namespace}],
            "to": [{"group": "", "kind": to, "name": name}],
        })
    };
    let in_other_namespace = json!({"name": "cert", "namespace": "other"});
    for (certificate, grant, expected) in [
        (json!({"name": "cert"}), None, "ResolvedRefs"),
        (json!({"name": "cert", "kind": "Secret", "group": ""}), None, "ResolvedRefs"),
        (json!({"name": "missing"}), None, "InvalidCertificateRef"),
        (json!({"name": "broken"}), None, "InvalidCertificateRef"),
        (json!({"name": "cert", "kind": "Other"}), None, "InvalidCertificateRef"),
        (json!({"name": "cert", "group": "x.y"}), None, "InvalidCertificateRef"),
        (in_other_namespace.clone(), None, "RefNotPermitted"),
        (
            in_other_namespace.clone(),
            Some(grant("Gateway", "infra", "Secret", json!(null))),
            "ResolvedRefs",
        ),
        (
            in_other_namespace.clone(),
            Some(grant("Gateway", "infra", "Secret", json!("cert"))),
            "ResolvedRefs",
        ),
        (
            in_other_namespace.clone(),
            Some(grant("Gateway", "infra", "Secret", json!("x"))),
            "RefNotPermitted",
        ),
        (
            in_other_namespace.clone(),
            Some(grant("Gateway", "x", "Secret", json!(null))),
            "RefNotPermitted",
        ),
        (
            in_other_namespace.clone(),
            Some(grant("HTTPRoute", "infra", "Secret", json!(null))),
            "RefNotPermitted",
        ),
        (
            in_other_namespace.clone(),
            Some(grant("Gateway", "infra", "Service", json!(null))),
            "RefNotPermitted",
        ),
    ] {
        let fields = json!({"tls": {"certificateRefs": [certificate]}});
        let mut fixture = ClusterFixture::new(json!([listener_spec("l", 443, "HTTPS", fields)]));
        fixture.add_certificate("infra", "cert");
        fixture.add_certificate("other", "cert");
        fixture
            .inputs
            .certificates
            .insert(object_id("infra", "broken"), Err("it is broken".to_owned()));
        if let Some(grant) = &grant {
            fixture.add_object("ReferenceGrant", "other", "grant", grant.clone());
        }
        let reasons = listener_statuses(&fixture)[0].0;
        assert_eq!(reasons, ["Accepted", "NoConflicts", expected], "{certificate} {grant:?}");
        // Without a key the listener is not served.
        let ports = fixture.resolve_all().gateways.values().next().unwrap().ports.len();
        assert_eq!(ports, usize::from(expected == "ResolvedRefs"), "{certificate} {grant:?}");
        // Only permitted Secrets are requested.
        let is_requested = !collect_secrets(&fixture.inputs).is_empty();
        let is_secret = certificate["kind"] != "Other" && certificate["group"] != "x.y";
        assert_eq!(
            is_requested,
            is_secret && expected != "RefNotPermitted",
            "{certificate} {grant:?}"
        );
    }
}

#[test]
fn a_gateway_is_programmed_if_its_listeners_pods_and_address_are_ready() {
    let valid = listener_spec("good", 80, "HTTP", json!({}));
    let invalid = listener_spec("bad", 81, "INVALID", json!({}));
    let with_address = |address: Value| json!({"listeners": [valid], "addresses": [address]});
    let with_listeners = |listeners: Value| json!({"listeners": listeners});
    let infrastructure = json!({"parametersRef": {"group": "a", "kind": "b", "name": "c"}});
    for (spec, is_running, expected) in [
        (with_listeners(json!([valid])), true, ["Accepted", "Programmed"]),
        (with_listeners(json!([valid])), false, ["Accepted", "Pending"]),
        (with_listeners(json!([valid, invalid])), true, ["ListenersNotValid", "Programmed"]),
        (with_listeners(json!([invalid])), true, ["ListenersNotValid", "Invalid"]),
        (with_address(json!({"value": "192.0.2.7"})), true, ["Accepted", "Programmed"]),
        (with_address(json!({"type": "IPAddress"})), true, ["Accepted", "Programmed"]),
        (with_address(json!({"value": "192.0.2.8"})), true, ["Accepted", "AddressNotUsable"]),
        (
            with_address(json!({"type": "x.y/z", "value": "a"})),
            true,
            ["UnsupportedAddress", "Invalid"],
        ),
        (
            json!({"listeners": [valid], "infrastructure": infrastructure}),
            true,
            ["InvalidParameters", "Invalid"],
        ),
        (
            json!({"listeners": [valid], "tls": {"frontend": {"default": {}}}}),
            true,
            ["Invalid", "Invalid"],
        ),
    ] {
        let mut fixture = ClusterFixture::new(json!([]));
        fixture.add_gateway("edge", spec.clone());
        if is_running {
            fixture.add_running_objects();
        }
        let resolved = fixture.resolve_all();
        let gateway_status = &resolved.gateway_statuses[&object_id("infra", "edge")];
        let reasons = ["Accepted", "Programmed"]
            .map(|condition_type| condition_reason(&gateway_status.conditions, condition_type));
        assert_eq!(reasons, expected, "{spec} {is_running}");
        let is_served = !matches!(expected[1], "Invalid");
        assert_eq!(resolved.desired.len(), usize::from(is_served), "{spec}");
        assert_eq!(
            !resolved.gateways.values().next().unwrap().ports.is_empty(),
            is_served,
            "{spec}"
        );
    }
}

#[test]
fn without_a_load_balancer_a_gateway_has_a_cluster_address() {
    let mut fixture = ClusterFixture::new(json!([listener_spec("l", 80, "HTTP", json!({}))]));
    fixture.add_running_objects();
    let object = object_id("infra", "leno-gateway-edge");
    let mut addresses = |is_load_balancer| {
        let cluster_addresses = vec![GatewayAddress::from_ip("10.0.0.9")];
        let gateway_service =
            GatewayService { is_load_balancer, ingress_addresses: Vec::new(), cluster_addresses };
        fixture.inputs.gateway_services.insert(object.clone(), gateway_service);
        let resolved = fixture.resolve_all();
        let gateway_status = &resolved.gateway_statuses[&object_id("infra", "edge")];
        (gateway_status.addresses.len(), condition_reason(&gateway_status.conditions, "Programmed"))
    };
    assert_eq!(addresses(true), (0, "AddressNotAssigned"));
    assert_eq!(addresses(false), (1, "Programmed"));
}

#[test]
fn gateways_of_other_classes_are_ignored() {
    let mut fixture = ClusterFixture::new(json!([listener_spec("l", 80, "HTTP", json!({}))]));
    fixture.inputs.classes.clear();
    fixture.add_route("HTTPRoute", "infra", "r", json!({}), &[]);
    let resolved = fixture.resolve_all();
    assert!(resolved.gateways.is_empty() && resolved.gateway_statuses.is_empty());
    assert!(resolved.parent_statuses.is_empty() && resolved.desired.is_empty());
    assert!(resolved.backends.is_empty());
}

#[test]
fn the_newer_of_two_gateways_with_the_same_resource_name_is_rejected() {
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
fn a_gateway_whose_name_is_not_a_label_is_invalid() {
    let mut fixture = ClusterFixture::new(json!([]));
    let spec = json!({"listeners": [listener_spec("l", 80, "HTTP", json!({}))]});
    for length in [64, 253] {
        let name = "a".repeat(length);
        fixture.add_gateway(&name, spec.clone());
        let route = json!({"parentRefs": [{"name": name}], "rules": []});
        fixture.add_object("HTTPRoute", "infra", "r", route);
        let resolved = fixture.resolve_all();
        let route = RouteId { kind: "HTTPRoute", id: object_id("infra", "r") };
        let route_conditions = &resolved.parent_statuses[&route][0].conditions;
        assert_eq!(
            condition_reason(route_conditions, "Accepted"),
            "ListenersNotAccepted",
            "{length}"
        );
        let gateway_conditions = &resolved.gateway_statuses[&object_id("infra", &name)].conditions;
        assert_eq!(condition_reason(gateway_conditions, "Accepted"), "Invalid", "{length}");
        assert_eq!(condition_reason(gateway_conditions, "Programmed"), "Invalid", "{length}");
        assert_eq!(resolved.desired.len(), 0, "{length}");
    }
}
