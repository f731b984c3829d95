//! The settings of another mesh hold where ours say nothing.

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
    ledger.take(kind, gone("", "osm-mesh-config"));
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
fn of_one_mesh_the_oldest_settings_are_heeded() {
    let mut ledger = settled();
    let (kind, oldest) = settings_of_osm("osm-system", THEN, json!({}));
    ledger.take(kind, oldest);
    let open = json!({
        "enablePermissiveTrafficPolicyMode": true, "outboundPortExclusionList": [6379],
    });
    let later = settings_of_osm("a-shop", "2025-02-01T00:00:00Z", json!({"traffic": open}));
    ledger.take(kind, later.1);
    let update = ledger.flush().unwrap();
    let told: Vec<String> = update.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "MeshConfig a-shop/osm-mesh-config: metadata.name: is not heeded: osm-system/osm-mesh-config \
          is older; remove one of the two"
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
fn what_our_own_settings_say_wins_and_is_said() {
    let mut ledger = settled();
    let own = index("MeshConfig", "leno.dev");
    let (kind, news) = foreign(json!({}));
    ledger.take(kind, news);
    ledger.take(own, custom(own, "mesh", THEN, json!({"trafficMode": "permissive"})));
    let update = ledger.flush().unwrap();
    let warnings: Vec<String> = update.warnings.iter().map(ToString::to_string).collect();
    let said = "spec.traffic.enablePermissiveTrafficPolicyMode: the MeshConfig of leno.dev says \
                `trafficMode: permissive`, which is in force; remove one of the two";
    assert_eq!(warnings, [format!("MeshConfig osm-mesh-config: {said}")]);
    let found = config(Some(update));
    assert_eq!((found.mode, found.egress), (TrafficMode::Permissive, Egress::Deny));
    // Beside the object, too.
    let statements = ledger.statements().unwrap();
    let remark = statements.iter().find_map(|statement| statement.remark.as_ref()).unwrap();
    assert!(remark.contains("`trafficMode: permissive`, which is in force"), "{remark}");
    // What ours leave open, theirs say: a trust domain is no opinion about the mode.
    ledger.take(own, custom(own, "mesh", THEN, json!({"trustDomain": "prod.example"})));
    let update = ledger.flush().unwrap();
    assert_eq!(update.warnings, []);
    let found = config(Some(update));
    assert_eq!(found.mode, TrafficMode::Strict);
    assert_eq!(found.trust_domain.to_string(), "prod.example");
}

#[test]
fn what_ours_no_longer_say_theirs_say_again() {
    let mut ledger = settled();
    let own = index("MeshConfig", "leno.dev");
    let (kind, news) = foreign(json!({}));
    ledger.take(kind, news);
    ledger.take(own, custom(own, "mesh", THEN, json!({"trafficMode": "permissive"})));
    assert_eq!(config(ledger.flush()).mode, TrafficMode::Permissive);
    ledger.take(own, custom(own, "mesh", THEN, json!({})));
    let update = ledger.flush().unwrap();
    assert_eq!(update.warnings, []);
    assert_eq!(config(Some(update)).mode, TrafficMode::Strict);
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
