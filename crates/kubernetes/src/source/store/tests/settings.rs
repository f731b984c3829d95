//! Tests that settings of another mesh apply from the namespaces that the operator permits, if there is no
//! MeshConfig of Leno.

use super::*;

const OSM: &str = "config.openservicemesh.io";
const CREATED: &str = "2025-01-01T00:00:00Z";

fn foreign_settings(spec: Value) -> (usize, WatchEvent) {
    let kind = kind_index("MeshConfig", OSM);
    (kind, custom_event(kind, "osm-mesh-config", CREATED, spec))
}

#[test]
fn settings_of_osm_apply_to_the_mesh() {
    let mut store = listed_store();
    let traffic = json!({"outboundPortExclusionList": [6379]});
    let (kind, event) = foreign_settings(json!({"traffic": traffic}));
    store.apply_event(kind, event);
    let config = updated_config(store.flush());
    assert_eq!((config.default_policy, config.egress), (DefaultPolicy::Deny, Egress::Deny));
    assert_eq!(store.mesh_exclusions().outbound_ports, BTreeSet::from([6379]));
    let permissive = json!({"enablePermissiveTrafficPolicyMode": true, "enableEgress": true});
    let (kind, event) = foreign_settings(json!({"traffic": permissive}));
    store.apply_event(kind, event);
    let config = updated_config(store.flush());
    assert_eq!((config.default_policy, config.egress), (DefaultPolicy::Allow, Egress::Allow));
    assert_eq!(store.mesh_exclusions(), crate::inject::Exclusions::default());
    store.apply_event(kind, removal_event("osm-system", "osm-mesh-config"));
    assert_eq!(describe_update(store.flush()), ["- MeshConfig"]);
}

#[test]
fn the_stricter_settings_of_two_meshes_apply() {
    let mut store = listed_store();
    let permissive = json!({"enablePermissiveTrafficPolicyMode": true, "enableEgress": true});
    let (kind, event) = foreign_settings(json!({"traffic": permissive}));
    store.apply_event(kind, event);
    let fsm = kind_index("MeshConfig", "config.flomesh.io");
    store.apply_event(fsm, custom_event(fsm, "fsm-mesh-config", CREATED, json!({})));
    let config = updated_config(store.flush());
    assert_eq!((config.default_policy, config.egress), (DefaultPolicy::Deny, Egress::Deny));
}

#[test]
fn settings_of_namespaces_that_the_operator_does_not_configure_are_ignored() {
    let mut store = listed_store();
    let permissive = json!({
        "enablePermissiveTrafficPolicyMode": true, "outboundPortExclusionList": [6379],
        "inboundPortExclusionList": [80],
    });
    // The object is ignored although it is the oldest one, and with or without a permitted one.
    let early = settings_of_osm("shop", "2020-01-01T00:00:00Z", json!({"traffic": permissive}));
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
    let statuses = store.changed_statuses().unwrap();
    assert!(statuses[0].diagnostic.as_ref().unwrap().contains("--settings-namespaces shop"));
    assert_eq!(store.mesh_exclusions(), crate::inject::Exclusions::default());
    let (_, permitted) = settings_of_osm("osm-system", CREATED, json!({}));
    store.apply_event(kind, permitted);
    assert_eq!(updated_config(store.flush()).default_policy, DefaultPolicy::Deny);
    assert_eq!(store.mesh_exclusions(), crate::inject::Exclusions::default());
}

#[test]
fn the_oldest_settings_of_one_mesh_apply() {
    let mut store = listed_store();
    let (kind, oldest) = settings_of_osm("osm-system", CREATED, json!({}));
    store.apply_event(kind, oldest);
    let permissive = json!({
        "enablePermissiveTrafficPolicyMode": true, "outboundPortExclusionList": [6379],
    });
    let later =
        settings_of_osm("leno-system", "2025-02-01T00:00:00Z", json!({"traffic": permissive}));
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
    let statuses = store.changed_statuses().unwrap();
    let diagnostics: Vec<_> = statuses.iter().map(|status| status.diagnostic.is_some()).collect();
    assert_eq!(diagnostics, [true]);
    store.apply_event(kind, removal_event("osm-system", "osm-mesh-config"));
    let update = store.flush().unwrap();
    assert_eq!(update.warnings, []);
    assert_eq!(updated_config(Some(update)).default_policy, DefaultPolicy::Allow);
    assert_eq!(store.mesh_exclusions().outbound_ports, BTreeSet::from([6379]));
}

#[test]
fn the_default_trust_domain_applies_unless_the_mesh_config_sets_one() {
    let mut store = ObjectStore::new(watched_kinds());
    store.set_trust_domain(TrustDomain::new("assumed.example").unwrap());
    store.set_settings_namespaces([Name::new("osm-system").unwrap()].into());
    for kind in 0..watched_kinds().len() {
        store.apply_event(kind, WatchEvent::ListStarted);
        store.apply_event(kind, WatchEvent::ListComplete);
    }
    let mut domain = |event: Option<(usize, WatchEvent)>| {
        if let Some((kind, event)) = event {
            store.apply_event(kind, event);
        }
        updated_config(store.flush()).trust_domain.to_string()
    };
    let own_kind = kind_index("MeshConfig", "leno.dev");
    let own_config = |spec: Value| Some((own_kind, custom_event(own_kind, "mesh", CREATED, spec)));
    assert_eq!(domain(None), "assumed.example");
    assert_eq!(domain(Some(foreign_settings(json!({})))), "assumed.example");
    assert_eq!(domain(own_config(json!({"egress": "allow"}))), "assumed.example");
    assert_eq!(domain(own_config(json!({"trustDomain": "said.example"}))), "said.example");
    assert_eq!(domain(Some((own_kind, removal_event("", "mesh")))), "assumed.example");
}

#[test]
fn a_mesh_config_with_settings_replaces_the_settings_of_another_mesh() {
    let mut store = listed_store();
    let own_kind = kind_index("MeshConfig", "leno.dev");
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
    // Any field other than the trust domain makes our MeshConfig replace the settings.
    for (spec, reported) in [
        (
            json!({"defaultPolicy": "deny"}),
            "MeshConfig osm-system/osm-mesh-config: spec: is ignored: the MeshConfig mesh of leno.dev is in force; \
             move the settings to mesh, and remove this one",
        ),
        (json!({"egress": "allow"}), WEAKER_THAN_OSM),
        (json!({"trustDomain": "prod.example", "egress": "allow"}), WEAKER_THAN_OSM),
    ] {
        store.apply_event(own_kind, custom_event(own_kind, "mesh", CREATED, spec.clone()));
        let update = store.flush();
        let config = store.mesh_config().unwrap();
        assert_eq!(config.egress, Egress::Allow, "{spec}");
        let expected = if spec["defaultPolicy"].is_string() {
            DefaultPolicy::Deny
        } else {
            DefaultPolicy::Allow
        };
        assert_eq!(config.default_policy, expected, "{spec}");
        assert_eq!(store.mesh_exclusions(), crate::inject::Exclusions::default(), "{spec}");
        assert_eq!(store.ingress_gateways().count(), 0, "{spec}");
        let warnings = update.map(|update| update.warnings).unwrap_or_default();
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings, [reported], "{spec}");
        // An event on the object reports it too.
        let statuses = store.changed_statuses().unwrap();
        let diagnostics: Vec<&String> =
            statuses.iter().filter_map(|status| status.diagnostic.as_ref()).collect();
        assert!(diagnostics.iter().any(|text| text.contains("is ignored")), "{diagnostics:?}");
    }
    store.apply_event(own_kind, removal_event("", "mesh"));
    assert_eq!(updated_config(store.flush()).egress, Egress::Deny);
    assert_eq!(store.mesh_exclusions().inbound_ports, BTreeSet::from([80]));
}

/// The warning about OSM's settings that deny when our MeshConfig has no default policy.
const WEAKER_THAN_OSM: &str = "MeshConfig osm-system/osm-mesh-config: spec: is ignored: the \
                               MeshConfig mesh of leno.dev is in force, and the mesh allows by default \
                               although this object denies; move the settings to mesh, such as \
                               `defaultPolicy: deny`, and remove this one";

#[test]
fn a_mesh_config_with_only_a_trust_domain_does_not_replace_settings_of_another_mesh() {
    let own_kind = kind_index("MeshConfig", "leno.dev");
    for spec in [json!({"trustDomain": "prod.example"}), json!({})] {
        let mut store = listed_store();
        store.apply_event(own_kind, custom_event(own_kind, "mesh", CREATED, spec.clone()));
        let (kind, event) =
            foreign_settings(json!({"traffic": {"inboundPortExclusionList": [80]}}));
        store.apply_event(kind, event);
        let update = store.flush().unwrap();
        assert_eq!(update.warnings, [], "{spec}");
        let config = updated_config(Some(update));
        assert_eq!(
            (config.default_policy, config.egress),
            (DefaultPolicy::Deny, Egress::Deny),
            "{spec}"
        );
        let is_set = config.trust_domain.to_string() == "prod.example";
        assert_eq!(is_set, spec["trustDomain"].is_string());
        assert_eq!(store.mesh_exclusions().inbound_ports, BTreeSet::from([80]), "{spec}");
    }
}

#[test]
fn ignored_strict_settings_are_reported_with_the_default_policy_of_the_mesh() {
    let mut store = listed_store();
    let own_kind = kind_index("MeshConfig", "leno.dev");
    let (kind, event) = settings_of_osm("shop", CREATED, json!({}));
    store.apply_event(kind, event);
    let list_warnings = |store: &mut ObjectStore| {
        let warnings = store.flush().unwrap().warnings;
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let expected = [
        "MeshConfig shop/osm-mesh-config: metadata.namespace: is ignored: mesh-wide settings are \
         read only from the namespaces that the operator configures, and the mesh allows by default \
         although this object denies; write a MeshConfig of leno.dev with `defaultPolicy: \
         deny`, or install with `--settings-namespaces shop`",
    ];
    assert_eq!(list_warnings(&mut store), expected);
    let statuses = store.changed_statuses().unwrap();
    assert!(statuses[0].diagnostic.as_ref().unwrap().contains("the mesh allows by default"));
    store.apply_event(
        own_kind,
        custom_event(own_kind, "mesh", CREATED, json!({"trustDomain": "prod.example"})),
    );
    assert_eq!(list_warnings(&mut store), expected);
    // A default policy that the operator sets is intended, so the warning does not mention it.
    for default_policy in ["allow", "deny"] {
        store.apply_event(
            own_kind,
            custom_event(own_kind, "mesh", CREATED, json!({"defaultPolicy": default_policy})),
        );
        let warnings = list_warnings(&mut store);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(!warnings[0].contains("by default"), "{warnings:?}");
    }
}

#[test]
fn nothing_is_sent_while_the_settings_of_another_mesh_cannot_be_read() {
    let kind = kind_index("MeshConfig", OSM);
    let mut store = ObjectStore::new(watched_kinds());
    for other in (0..watched_kinds().len()).filter(|other| *other != kind) {
        store.apply_event(other, WatchEvent::ListComplete);
    }
    store.apply_event(kind, WatchEvent::Forbidden("no".to_owned()));
    assert!(store.flush().is_none(), "the default policy is unknown");
    store.apply_event(kind, WatchEvent::KindNotServed);
    assert!(store.flush().is_some());
}

#[test]
fn the_api_server_stays_reachable_unless_a_setting_denies_it() {
    let mut store = listed_store();
    let watched =
        |kind: WatchedKind| watched_kinds().iter().position(|watched| *watched == kind).unwrap();
    let (service, slice) =
        (watched(WatchedKind::ApiServerService), watched(WatchedKind::ApiServerEndpoints));
    let object: KubeService = serde_json::from_value(json!({
        "metadata": {"name": "kubernetes", "namespace": "default"},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 443, "targetPort": 6443}]},
    }))
    .unwrap();
    store.apply_event(
        service,
        WatchEvent::Applied(Box::new(ConvertedObject::from_api_server_service(object))),
    );
    let endpoints = |address: &str| {
        let object = serde_json::from_value(json!({
            "metadata": {"name": "kubernetes", "namespace": "default"}, "addressType": "IPv4",
            "ports": [{"port": 6443}], "endpoints": [{"addresses": [address]}],
        }));
        WatchEvent::Applied(Box::new(ConvertedObject::from_api_server_endpoints(object.unwrap())))
    };
    store.apply_event(slice, endpoints("192.0.2.7"));
    // While egress is allowed, sidecars do not need the addresses.
    assert!(store.flush().is_none_or(|update| update.changes.is_empty()));
    let own_kind = kind_index("MeshConfig", "leno.dev");
    let apply_config = |store: &mut ObjectStore, spec: Value| {
        store.apply_event(own_kind, custom_event(own_kind, "mesh", CREATED, spec));
        let config = updated_config(store.flush());
        config.api_server.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        apply_config(&mut store, json!({"egress": "deny"})),
        ["10.96.0.1:443", "192.0.2.7:6443"]
    );
    let denied = json!({"egress": "deny", "apiServerEgress": "deny"});
    assert_eq!(apply_config(&mut store, denied), [] as [&str; 0]);
    apply_config(&mut store, json!({"egress": "deny"}));
    // A new API server replaces the previous one.
    store.apply_event(slice, endpoints("192.0.2.8"));
    let addresses = updated_config(store.flush()).api_server;
    assert_eq!(
        addresses,
        ["10.96.0.1:443", "192.0.2.8:6443"].map(|address| address.parse().unwrap()).into()
    );
    store.apply_event(slice, removal_event("default", "kubernetes"));
    assert_eq!(updated_config(store.flush()).api_server, ["10.96.0.1:443".parse().unwrap()].into());
}
