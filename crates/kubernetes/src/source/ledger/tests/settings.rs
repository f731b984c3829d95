//! Settings of another mesh apply if there are none of ours, from namespaces that the operator permits.

use super::*;

const OSM: &str = "config.openservicemesh.io";
const THEN: &str = "2025-01-01T00:00:00Z";

fn foreign(spec: Value) -> (usize, News) {
    let kind = index("MeshConfig", OSM);
    (kind, custom(kind, "osm-mesh-config", THEN, spec))
}

#[test]
fn a_strict_mesh_of_osm_is_strict_here() {
    let mut ledger = settled();
    let traffic = json!({"outboundPortExclusionList": [6379]});
    let (kind, news) = foreign(json!({"traffic": traffic}));
    ledger.take(kind, news);
    let found = config(ledger.flush());
    assert_eq!((found.mode, found.egress), (TrafficMode::Strict, Egress::Deny));
    assert_eq!(ledger.exclusions().outbound_ports, BTreeSet::from([6379]));
    let open = json!({"enablePermissiveTrafficPolicyMode": true, "enableEgress": true});
    let (kind, news) = foreign(json!({"traffic": open}));
    ledger.take(kind, news);
    let found = config(ledger.flush());
    assert_eq!((found.mode, found.egress), (TrafficMode::Permissive, Egress::Allow));
    assert_eq!(ledger.exclusions(), crate::inject::Exclusions::default());
    ledger.take(kind, gone("osm-system", "osm-mesh-config"));
    assert_eq!(shown(ledger.flush()), ["- MeshConfig"]);
}

#[test]
fn of_two_meshes_the_stricter_counts() {
    let mut ledger = settled();
    let open = json!({"enablePermissiveTrafficPolicyMode": true, "enableEgress": true});
    let (kind, news) = foreign(json!({"traffic": open}));
    ledger.take(kind, news);
    let fsm = index("MeshConfig", "config.flomesh.io");
    ledger.take(fsm, custom(fsm, "fsm-mesh-config", THEN, json!({})));
    let found = config(ledger.flush());
    assert_eq!((found.mode, found.egress), (TrafficMode::Strict, Egress::Deny));
}

#[test]
fn settings_of_namespaces_that_the_operator_does_not_name_are_ignored() {
    let mut ledger = settled();
    let open = json!({
        "enablePermissiveTrafficPolicyMode": true, "outboundPortExclusionList": [6379],
        "inboundPortExclusionList": [80],
    });
    // Regardless of its age and of other objects.
    let early = settings_of_osm("shop", "2020-01-01T00:00:00Z", json!({"traffic": open}));
    let (kind, early) = early;
    ledger.take(kind, early);
    let update = ledger.flush().unwrap();
    assert_eq!(update.changes, []);
    let warnings: Vec<String> = update.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        ["MeshConfig shop/osm-mesh-config: metadata.namespace: is ignored: mesh-wide settings \
             are read only from the namespaces that the operator configures; write a MeshConfig of \
             leno.dev, or install with `--settings-namespaces shop`"]
    );
    let statements = ledger.statements().unwrap();
    assert!(statements[0].remark.as_ref().unwrap().contains("--settings-namespaces shop"));
    assert_eq!(ledger.exclusions(), crate::inject::Exclusions::default());
    let (_, named) = settings_of_osm("osm-system", THEN, json!({}));
    ledger.take(kind, named);
    assert_eq!(config(ledger.flush()).mode, TrafficMode::Strict);
    assert_eq!(ledger.exclusions(), crate::inject::Exclusions::default());
}

#[test]
fn of_one_mesh_the_oldest_settings_apply() {
    let mut ledger = settled();
    let (kind, oldest) = settings_of_osm("osm-system", THEN, json!({}));
    ledger.take(kind, oldest);
    let open = json!({
        "enablePermissiveTrafficPolicyMode": true, "outboundPortExclusionList": [6379],
    });
    let later = settings_of_osm("leno-system", "2025-02-01T00:00:00Z", json!({"traffic": open}));
    ledger.take(kind, later.1);
    let update = ledger.flush().unwrap();
    let warnings: Vec<String> = update.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "MeshConfig leno-system/osm-mesh-config: metadata.name: is ignored: osm-system/osm-mesh-config is \
          older; remove one of the two"
        ]
    );
    assert_eq!(config(Some(update)).mode, TrafficMode::Strict);
    assert_eq!(ledger.exclusions(), crate::inject::Exclusions::default());
    let statements = ledger.statements().unwrap();
    let remarks: Vec<_> = statements.iter().map(|it| it.remark.is_some()).collect();
    assert_eq!(remarks, [true]);
    ledger.take(kind, gone("osm-system", "osm-mesh-config"));
    let update = ledger.flush().unwrap();
    assert_eq!(update.warnings, []);
    assert_eq!(config(Some(update)).mode, TrafficMode::Permissive);
    assert_eq!(ledger.exclusions().outbound_ports, BTreeSet::from([6379]));
}

#[test]
fn a_trust_domain_is_assumed_where_none_of_ours_says_one() {
    let mut ledger = Ledger::new(kinds());
    ledger.assume(TrustDomain::new("assumed.example").unwrap());
    ledger.take_settings_of([Name::new("osm-system").unwrap()].into());
    for kind in 0..kinds().len() {
        ledger.take(kind, News::Begin);
        ledger.take(kind, News::Complete);
    }
    let mut domain = |news: Option<(usize, News)>| {
        if let Some((kind, news)) = news {
            ledger.take(kind, news);
        }
        config(ledger.flush()).trust_domain.to_string()
    };
    let own = index("MeshConfig", "leno.dev");
    let of_own = |spec: Value| Some((own, custom(own, "mesh", THEN, spec)));
    assert_eq!(domain(None), "assumed.example");
    assert_eq!(domain(Some(foreign(json!({})))), "assumed.example");
    assert_eq!(domain(of_own(json!({"egress": "allow"}))), "assumed.example");
    assert_eq!(domain(of_own(json!({"trustDomain": "said.example"}))), "said.example");
    assert_eq!(domain(Some((own, gone("", "mesh")))), "assumed.example");
}

#[test]
fn nothing_of_another_mesh_applies_beside_our_own_settings() {
    let mut ledger = settled();
    let own = index("MeshConfig", "leno.dev");
    let gateway = json!({
        "subjectAltNames": ["ingress.example"], "validityDuration": "24h",
        "secret": {"name": "ingress", "namespace": "osm-system"},
    });
    let traffic = json!({"inboundPortExclusionList": [80], "enableEgress": false});
    let spec = json!({"traffic": traffic, "certificate": {"ingressGateway": gateway}});
    let (kind, news) = foreign(spec);
    ledger.take(kind, news);
    assert_eq!(config(ledger.flush()).egress, Egress::Deny);
    assert_eq!(ledger.ingress_gateways().count(), 1);
    // One field in addition to the trust domain is enough.
    for (spec, told) in [
        (
            json!({"trafficMode": "strict"}),
            "MeshConfig osm-system/osm-mesh-config: spec: is ignored: the MeshConfig mesh of leno.dev is in force; \
             move the settings to mesh, and remove this one",
        ),
        (json!({"egress": "allow"}), WEAKER_THAN_OSM),
        (json!({"trustDomain": "prod.example", "egress": "allow"}), WEAKER_THAN_OSM),
    ] {
        ledger.take(own, custom(own, "mesh", THEN, spec.clone()));
        let update = ledger.flush();
        let found = ledger.mesh_config().unwrap();
        assert_eq!(found.egress, Egress::Allow, "{spec}");
        let expected = if spec["trafficMode"].is_string() {
            TrafficMode::Strict
        } else {
            TrafficMode::Permissive
        };
        assert_eq!(found.mode, expected, "{spec}");
        assert_eq!(ledger.exclusions(), crate::inject::Exclusions::default(), "{spec}");
        assert_eq!(ledger.ingress_gateways().count(), 0, "{spec}");
        let warnings = update.map(|it| it.warnings).unwrap_or_default();
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings, [told], "{spec}");
        // In an event, too.
        let statements = ledger.statements().unwrap();
        let remarks: Vec<&String> = statements.iter().filter_map(|it| it.remark.as_ref()).collect();
        assert!(remarks.iter().any(|it| it.contains("is ignored")), "{remarks:?}");
    }
    ledger.take(own, gone("", "mesh"));
    assert_eq!(config(ledger.flush()).egress, Egress::Deny);
    assert_eq!(ledger.exclusions().inbound_ports, BTreeSet::from([80]));
}

/// The warning about strict settings of OSM when our MeshConfig has no mode.
const WEAKER_THAN_OSM: &str = "MeshConfig osm-system/osm-mesh-config: spec: is ignored: the \
                               MeshConfig mesh of leno.dev is in force, and the mesh is permissive \
                               although this object is strict; move the settings to mesh, such as \
                               `trafficMode: strict`, and remove this one";

#[test]
fn a_trust_domain_of_ours_does_not_end_the_settings_of_another_mesh() {
    let own = index("MeshConfig", "leno.dev");
    for spec in [json!({"trustDomain": "prod.example"}), json!({})] {
        let mut ledger = settled();
        ledger.take(own, custom(own, "mesh", THEN, spec.clone()));
        let (kind, news) = foreign(json!({"traffic": {"inboundPortExclusionList": [80]}}));
        ledger.take(kind, news);
        let update = ledger.flush().unwrap();
        assert_eq!(update.warnings, [], "{spec}");
        let found = config(Some(update));
        assert_eq!((found.mode, found.egress), (TrafficMode::Strict, Egress::Deny), "{spec}");
        let is_said = found.trust_domain.to_string() == "prod.example";
        assert_eq!(is_said, spec["trustDomain"].is_string());
        assert_eq!(ledger.exclusions().inbound_ports, BTreeSet::from([80]), "{spec}");
    }
}

#[test]
fn strict_settings_that_are_ignored_are_told_with_the_mode_of_the_mesh() {
    let mut ledger = settled();
    let own = index("MeshConfig", "leno.dev");
    let (kind, news) = settings_of_osm("shop", THEN, json!({}));
    ledger.take(kind, news);
    let told = |ledger: &mut Ledger| {
        let warnings = ledger.flush().unwrap().warnings;
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let expected = [
        "MeshConfig shop/osm-mesh-config: metadata.namespace: is ignored: mesh-wide settings are \
         read only from the namespaces that the operator configures, and the mesh is permissive \
         although this object is strict; write a MeshConfig of leno.dev with `trafficMode: \
         strict`, or install with `--settings-namespaces shop`",
    ];
    assert_eq!(told(&mut ledger), expected);
    let statements = ledger.statements().unwrap();
    assert!(statements[0].remark.as_ref().unwrap().contains("the mesh is permissive"));
    ledger.take(own, custom(own, "mesh", THEN, json!({"trustDomain": "prod.example"})));
    assert_eq!(told(&mut ledger), expected);
    // The operator specifies a mode.
    for mode in ["permissive", "strict"] {
        ledger.take(own, custom(own, "mesh", THEN, json!({"trafficMode": mode})));
        let told = told(&mut ledger);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(!told[0].contains("permissive"), "{told:?}");
    }
}

#[test]
fn nothing_is_told_while_the_settings_of_another_mesh_may_not_be_read() {
    let kind = index("MeshConfig", OSM);
    let mut ledger = Ledger::new(kinds());
    for other in (0..kinds().len()).filter(|other| *other != kind) {
        ledger.take(other, News::Complete);
    }
    ledger.take(kind, News::Forbidden("no".to_owned()));
    assert!(ledger.flush().is_none(), "what is enforced is not known");
    ledger.take(kind, News::Absent);
    assert!(ledger.flush().is_some());
}

#[test]
fn the_api_server_stays_reachable_unless_a_setting_denies_it() {
    let mut ledger = settled();
    let watched = |wanted: Watched| kinds().iter().position(|it| *it == wanted).unwrap();
    let (service, slice) =
        (watched(Watched::ApiServerService), watched(Watched::ApiServerEndpoints));
    let object: Served = serde_json::from_value(json!({
        "metadata": {"name": "kubernetes", "namespace": "default"},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 443, "targetPort": 6443}]},
    }))
    .unwrap();
    ledger.take(service, News::Seen(Box::new(Seen::api_server_service(object))));
    let endpoints = |address: &str| {
        let object = serde_json::from_value(json!({
            "metadata": {"name": "kubernetes", "namespace": "default"}, "addressType": "IPv4",
            "ports": [{"port": 6443}], "endpoints": [{"addresses": [address]}],
        }));
        News::Seen(Box::new(Seen::api_server_endpoints(object.unwrap())))
    };
    ledger.take(slice, endpoints("192.0.2.7"));
    // The addresses are not needed while egress is allowed.
    assert!(ledger.flush().is_none_or(|update| update.changes.is_empty()));
    let own = index("MeshConfig", "leno.dev");
    let set = |ledger: &mut Ledger, spec: Value| {
        ledger.take(own, custom(own, "mesh", THEN, spec));
        let config = config(ledger.flush());
        config.api_server.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(set(&mut ledger, json!({"egress": "deny"})), ["10.96.0.1:443", "192.0.2.7:6443"]);
    let closed = json!({"egress": "deny", "apiServerEgress": "deny"});
    assert_eq!(set(&mut ledger, closed), [] as [&str; 0]);
    set(&mut ledger, json!({"egress": "deny"}));
    // A new API server replaces the previous one.
    ledger.take(slice, endpoints("192.0.2.8"));
    let found = config(ledger.flush()).api_server;
    assert_eq!(found, ["10.96.0.1:443", "192.0.2.8:6443"].map(|it| it.parse().unwrap()).into());
    ledger.take(slice, gone("default", "kubernetes"));
    assert_eq!(config(ledger.flush()).api_server, ["10.96.0.1:443".parse().unwrap()].into());
}
