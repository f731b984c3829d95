//! Settings of another mesh apply if there are none of ours, from namespaces that the operator permits.

use super::*;

const OSM: &str = "config.openservicemesh.io";
const THEN: &str = "2025-01-01T00:00:00Z";

fn foreign_settings(spec: Value) -> (usize, WatchEvent) {
    let kind = index("MeshConfig", OSM);
    (kind, custom_event(kind, "osm-mesh-config", THEN, spec))
}

#[test]
fn a_strict_mesh_of_osm_is_strict_here() {
    let mut store = listed_store();
    let traffic = json!({"outboundPortExclusionList": [6379]});
    let (kind, event) = foreign_settings(json!({"traffic": traffic}));
    store.apply_event(kind, event);
    let found = updated_config(store.flush());
    assert_eq!((found.default_policy, found.egress), (DefaultPolicy::Deny, Egress::Deny));
    assert_eq!(store.mesh_exclusions().outbound_ports, BTreeSet::from([6379]));
    let open = json!({"enablePermissiveTrafficPolicyMode": true, "enableEgress": true});
    let (kind, event) = foreign_settings(json!({"traffic": open}));
    store.apply_event(kind, event);
    let found = updated_config(store.flush());
    assert_eq!((found.default_policy, found.egress), (DefaultPolicy::Allow, Egress::Allow));
    assert_eq!(store.mesh_exclusions(), crate::inject::Exclusions::default());
    store.apply_event(kind, removal_event("osm-system", "osm-mesh-config"));
    assert_eq!(describe_update(store.flush()), ["- MeshConfig"]);
}

#[test]
fn of_two_meshes_the_stricter_counts() {
    let mut store = listed_store();
    let open = json!({"enablePermissiveTrafficPolicyMode": true, "enableEgress": true});
    let (kind, event) = foreign_settings(json!({"traffic": open}));
    store.apply_event(kind, event);
    let fsm = index("MeshConfig", "config.flomesh.io");
    store.apply_event(fsm, custom_event(fsm, "fsm-mesh-config", THEN, json!({})));
    let found = updated_config(store.flush());
    assert_eq!((found.default_policy, found.egress), (DefaultPolicy::Deny, Egress::Deny));
}

#[test]
fn settings_of_namespaces_that_the_operator_does_not_name_are_ignored() {
    let mut store = listed_store();
    let open = json!({
        "enablePermissiveTrafficPolicyMode": true, "outboundPortExclusionList": [6379],
        "inboundPortExclusionList": [80],
    });
    // Regardless of its age and of other objects.
    let early = settings_of_osm("shop", "2020-01-01T00:00:00Z", json!({"traffic": open}));
    let (kind, early) = early;
    store.apply_event(kind, early);
    let update = store.flush().unwrap();
    assert_eq!(update.changes, []);
    let warnings: Vec<String> = update.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        ["MeshConfig shop/osm-mesh-config: metadata.namespace: is ignored: mesh-wide settings \
             are read only from the namespaces that the operator configures; write a MeshConfig of \
             leno.dev, or install with `--settings-namespaces shop`"]
    );
    let statements = store.changed_statements().unwrap();
    assert!(statements[0].diagnostic.as_ref().unwrap().contains("--settings-namespaces shop"));
    assert_eq!(store.mesh_exclusions(), crate::inject::Exclusions::default());
    let (_, named) = settings_of_osm("osm-system", THEN, json!({}));
    store.apply_event(kind, named);
    assert_eq!(updated_config(store.flush()).default_policy, DefaultPolicy::Deny);
    assert_eq!(store.mesh_exclusions(), crate::inject::Exclusions::default());
}

#[test]
fn of_one_mesh_the_oldest_settings_apply() {
    let mut store = listed_store();
    let (kind, oldest) = settings_of_osm("osm-system", THEN, json!({}));
    store.apply_event(kind, oldest);
    let open = json!({
        "enablePermissiveTrafficPolicyMode": true, "outboundPortExclusionList": [6379],
    });
    let later = settings_of_osm("leno-system", "2025-02-01T00:00:00Z", json!({"traffic": open}));
    store.apply_event(kind, later.1);
    let update = store.flush().unwrap();
    let warnings: Vec<String> = update.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "MeshConfig leno-system/osm-mesh-config: metadata.name: is ignored: osm-system/osm-mesh-config is \
          older; remove one of the two"
        ]
    );
    assert_eq!(updated_config(Some(update)).default_policy, DefaultPolicy::Deny);
    assert_eq!(store.mesh_exclusions(), crate::inject::Exclusions::default());
    let statements = store.changed_statements().unwrap();
    let diagnostics: Vec<_> = statements.iter().map(|it| it.diagnostic.is_some()).collect();
    assert_eq!(diagnostics, [true]);
    store.apply_event(kind, removal_event("osm-system", "osm-mesh-config"));
    let update = store.flush().unwrap();
    assert_eq!(update.warnings, []);
    assert_eq!(updated_config(Some(update)).default_policy, DefaultPolicy::Allow);
    assert_eq!(store.mesh_exclusions().outbound_ports, BTreeSet::from([6379]));
}

#[test]
fn a_trust_domain_is_assumed_where_none_of_ours_says_one() {
    let mut store = ObjectStore::new(watched_kinds());
    store.set_trust_domain(TrustDomain::new("assumed.example").unwrap());
    store.take_settings_of([Name::new("osm-system").unwrap()].into());
    for kind in 0..watched_kinds().len() {
        store.apply_event(kind, WatchEvent::Begin);
        store.apply_event(kind, WatchEvent::Complete);
    }
    let mut domain = |event: Option<(usize, WatchEvent)>| {
        if let Some((kind, event)) = event {
            store.apply_event(kind, event);
        }
        updated_config(store.flush()).trust_domain.to_string()
    };
    let own = index("MeshConfig", "leno.dev");
    let of_own = |spec: Value| Some((own, custom_event(own, "mesh", THEN, spec)));
    assert_eq!(domain(None), "assumed.example");
    assert_eq!(domain(Some(foreign_settings(json!({})))), "assumed.example");
    assert_eq!(domain(of_own(json!({"egress": "allow"}))), "assumed.example");
    assert_eq!(domain(of_own(json!({"trustDomain": "said.example"}))), "said.example");
    assert_eq!(domain(Some((own, removal_event("", "mesh")))), "assumed.example");
}

#[test]
fn nothing_of_another_mesh_applies_beside_our_own_settings() {
    let mut store = listed_store();
    let own = index("MeshConfig", "leno.dev");
    let gateway = json!({
        "subjectAltNames": ["ingress.example"], "validityDuration": "24h",
        "secret": {"name": "ingress", "namespace": "osm-system"},
    });
    let traffic = json!({"inboundPortExclusionList": [80], "enableEgress": false});
    let spec = json!({"traffic": traffic, "certificate": {"ingressGateway": gateway}});
    let (kind, event) = foreign_settings(spec);
    store.apply_event(kind, event);
    assert_eq!(updated_config(store.flush()).egress, Egress::Deny);
    assert_eq!(store.ingress_gateways().count(), 1);
    // One field in addition to the trust domain is enough.
    for (spec, reported) in [
        (
            json!({"defaultPolicy": "deny"}),
            "MeshConfig osm-system/osm-mesh-config: spec: is ignored: the MeshConfig mesh of leno.dev is in force; \
             move the settings to mesh, and remove this one",
        ),
        (json!({"egress": "allow"}), WEAKER_THAN_OSM),
        (json!({"trustDomain": "prod.example", "egress": "allow"}), WEAKER_THAN_OSM),
    ] {
        store.apply_event(own, custom_event(own, "mesh", THEN, spec.clone()));
        let update = store.flush();
        let found = store.mesh_config().unwrap();
        assert_eq!(found.egress, Egress::Allow, "{spec}");
        let expected = if spec["defaultPolicy"].is_string() {
            DefaultPolicy::Deny
        } else {
            DefaultPolicy::Allow
        };
        assert_eq!(found.default_policy, expected, "{spec}");
        assert_eq!(store.mesh_exclusions(), crate::inject::Exclusions::default(), "{spec}");
        assert_eq!(store.ingress_gateways().count(), 0, "{spec}");
        let warnings = update.map(|it| it.warnings).unwrap_or_default();
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings, [reported], "{spec}");
        // In an event, too.
        let statements = store.changed_statements().unwrap();
        let diagnostics: Vec<&String> =
            statements.iter().filter_map(|it| it.diagnostic.as_ref()).collect();
        assert!(diagnostics.iter().any(|it| it.contains("is ignored")), "{diagnostics:?}");
    }
    store.apply_event(own, removal_event("", "mesh"));
    assert_eq!(updated_config(store.flush()).egress, Egress::Deny);
    assert_eq!(store.mesh_exclusions().inbound_ports, BTreeSet::from([80]));
}

/// The warning about OSM's settings that deny when our MeshConfig has no default policy.
const WEAKER_THAN_OSM: &str = "MeshConfig osm-system/osm-mesh-config: spec: is ignored: the \
                               MeshConfig mesh of leno.dev is in force, and the mesh allows by default \
                               although this object denies; move the settings to mesh, such as \
                               `defaultPolicy: deny`, and remove this one";

#[test]
fn a_trust_domain_of_ours_does_not_end_the_settings_of_another_mesh() {
    let own = index("MeshConfig", "leno.dev");
    for spec in [json!({"trustDomain": "prod.example"}), json!({})] {
        let mut store = listed_store();
        store.apply_event(own, custom_event(own, "mesh", THEN, spec.clone()));
        let (kind, event) =
            foreign_settings(json!({"traffic": {"inboundPortExclusionList": [80]}}));
        store.apply_event(kind, event);
        let update = store.flush().unwrap();
        assert_eq!(update.warnings, [], "{spec}");
        let found = updated_config(Some(update));
        assert_eq!(
            (found.default_policy, found.egress),
            (DefaultPolicy::Deny, Egress::Deny),
            "{spec}"
        );
        let is_said = found.trust_domain.to_string() == "prod.example";
        assert_eq!(is_said, spec["trustDomain"].is_string());
        assert_eq!(store.mesh_exclusions().inbound_ports, BTreeSet::from([80]), "{spec}");
    }
}

#[test]
fn strict_settings_that_are_ignored_are_reported_with_the_mode_of_the_mesh() {
    let mut store = listed_store();
    let own = index("MeshConfig", "leno.dev");
    let (kind, event) = settings_of_osm("shop", THEN, json!({}));
    store.apply_event(kind, event);
    let reported = |store: &mut ObjectStore| {
        let warnings = store.flush().unwrap().warnings;
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let expected = [
        "MeshConfig shop/osm-mesh-config: metadata.namespace: is ignored: mesh-wide settings are \
         read only from the namespaces that the operator configures, and the mesh allows by default \
         although this object denies; write a MeshConfig of leno.dev with `defaultPolicy: \
         deny`, or install with `--settings-namespaces shop`",
    ];
    assert_eq!(reported(&mut store), expected);
    let statements = store.changed_statements().unwrap();
    assert!(statements[0].diagnostic.as_ref().unwrap().contains("the mesh allows by default"));
    store.apply_event(own, custom_event(own, "mesh", THEN, json!({"trustDomain": "prod.example"})));
    assert_eq!(reported(&mut store), expected);
    // The operator sets a default policy.
    for default_policy in ["allow", "deny"] {
        store.apply_event(
            own,
            custom_event(own, "mesh", THEN, json!({"defaultPolicy": default_policy})),
        );
        let reported = reported(&mut store);
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert!(!reported[0].contains("by default"), "{reported:?}");
    }
}

#[test]
fn nothing_is_reported_while_the_settings_of_another_mesh_may_not_be_read() {
    let kind = index("MeshConfig", OSM);
    let mut store = ObjectStore::new(watched_kinds());
    for other in (0..watched_kinds().len()).filter(|other| *other != kind) {
        store.apply_event(other, WatchEvent::Complete);
    }
    store.apply_event(kind, WatchEvent::Forbidden("no".to_owned()));
    assert!(store.flush().is_none(), "what is enforced is not known");
    store.apply_event(kind, WatchEvent::Absent);
    assert!(store.flush().is_some());
}

#[test]
fn the_api_server_stays_reachable_unless_a_setting_denies_it() {
    let mut store = listed_store();
    let watched =
        |wanted: WatchedKind| watched_kinds().iter().position(|it| *it == wanted).unwrap();
    let (service, slice) =
        (watched(WatchedKind::ApiServerService), watched(WatchedKind::ApiServerEndpoints));
    let object: Served = serde_json::from_value(json!({
        "metadata": {"name": "kubernetes", "namespace": "default"},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 443, "targetPort": 6443}]},
    }))
    .unwrap();
    store.apply_event(
        service,
        WatchEvent::Seen(Box::new(ConvertedObject::api_server_service(object))),
    );
    let endpoints = |address: &str| {
        let object = serde_json::from_value(json!({
            "metadata": {"name": "kubernetes", "namespace": "default"}, "addressType": "IPv4",
            "ports": [{"port": 6443}], "endpoints": [{"addresses": [address]}],
        }));
        WatchEvent::Seen(Box::new(ConvertedObject::api_server_endpoints(object.unwrap())))
    };
    store.apply_event(slice, endpoints("192.0.2.7"));
    // The addresses are not needed while egress is allowed.
    assert!(store.flush().is_none_or(|update| update.changes.is_empty()));
    let own = index("MeshConfig", "leno.dev");
    let set = |store: &mut ObjectStore, spec: Value| {
        store.apply_event(own, custom_event(own, "mesh", THEN, spec));
        let config = updated_config(store.flush());
        config.api_server.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(set(&mut store, json!({"egress": "deny"})), ["10.96.0.1:443", "192.0.2.7:6443"]);
    let closed = json!({"egress": "deny", "apiServerEgress": "deny"});
    assert_eq!(set(&mut store, closed), [] as [&str; 0]);
    set(&mut store, json!({"egress": "deny"}));
    // A new API server replaces the previous one.
    store.apply_event(slice, endpoints("192.0.2.8"));
    let found = updated_config(store.flush()).api_server;
    assert_eq!(found, ["10.96.0.1:443", "192.0.2.8:6443"].map(|it| it.parse().unwrap()).into());
    store.apply_event(slice, removal_event("default", "kubernetes"));
    assert_eq!(updated_config(store.flush()).api_server, ["10.96.0.1:443".parse().unwrap()].into());
}
