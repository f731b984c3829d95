//! The settings of another mesh apply while there are none of ours, from namespaces that the operator names.

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
    // However old it is, and whether or not there are others.
    let early = settings_of_osm("shop", "2020-01-01T00:00:00Z", json!({"traffic": open}));
    let (kind, early) = early;
    ledger.take(kind, early);
    let update = ledger.flush().unwrap();
    assert_eq!(update.changes, []);
    let warnings: Vec<String> = update.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "MeshConfig shop/osm-mesh-config: metadata.namespace: is ignored: settings of the whole mesh are read \
          only from the namespaces that its operator names; write a MeshConfig of leno.dev, or install with \
          `--settings-namespaces shop`"
        ]
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
    // The fields of ours do not matter.
    for spec in
        [json!({"trafficMode": "strict"}), json!({"trustDomain": "prod.example"}), json!({})]
    {
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
        assert_eq!(
            warnings,
            [
                "MeshConfig osm-system/osm-mesh-config: spec: is ignored: the MeshConfig mesh of leno.dev is in \
              force; write into mesh what should hold, and remove this one"
            ],
            "{spec}"
        );
        // In an event, too.
        let statements = ledger.statements().unwrap();
        let remarks: Vec<&String> = statements.iter().filter_map(|it| it.remark.as_ref()).collect();
        assert!(remarks.iter().any(|it| it.contains("is ignored")), "{remarks:?}");
    }
    ledger.take(own, gone("", "mesh"));
    assert_eq!(config(ledger.flush()).egress, Egress::Deny);
    assert_eq!(ledger.exclusions().inbound_ports, BTreeSet::from([80]));
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
