//! Certificates for external principals: grants and statuses.

use super::*;
use crate::guests::Grants;

const FSM: &str = "policy.flomesh.io";
const THEN: &str = "2025-01-01T00:00:00Z";

fn granted() -> Ledger {
    let mut ledger = settled();
    let name = |text| Name::new(text).unwrap();
    ledger.grant(Grants { namespaces: [name("shop")].into(), own: Some(name("leno-system")) });
    ledger
}

fn cert(namespace: &str, names: &[&str]) -> Value {
    json!({"subjectAltNames": names, "secret": {"name": "batch-tls", "namespace": namespace}})
}

/// Returns the status of the first object.
fn said(ledger: &mut Ledger) -> Option<Result<(), String>> {
    ledger.settle_guests();
    let statements = ledger.statements()?;
    match statements.first().map(|it| it.said.clone()) {
        Some(Said::Current(said)) => Some(said),
        None => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_said_before_something_has_come_of_it() {
    let mut ledger = granted();
    let kind = index("AccessCert", FSM);
    ledger.take(kind, custom(kind, "a", THEN, cert("shop", &["batch.corp.example"])));
    assert_eq!(said(&mut ledger), None);
    let wish = ledger.guests().wanted[0].clone();
    assert_eq!(wish.id.to_string(), "leno://cluster.local/guest/shop/batch-tls");
    let told = |outcome: Result<(), String>| Arc::new([(wish.owner.uid.clone(), outcome)].into());
    ledger.take_outcomes(told(Err("spec.secret: no".to_owned())));
    assert_eq!(said(&mut ledger), Some(Err("spec.secret: no".to_owned())));
    ledger.take_outcomes(told(Ok(())));
    assert_eq!(said(&mut ledger), Some(Ok(())));
    ledger.take(kind, gone("shop", "a"));
    ledger.settle_guests();
    assert_eq!(ledger.guests().wanted, []);
}

#[test]
fn what_may_not_be_is_not_wished_for_and_says_why() {
    let kind = index("AccessCert", FSM);
    for (spec, expected) in [
        (cert("other", &["batch.corp.example"]), "is not the namespace of the AccessCert"),
        (cert("shop", &["ratings.bookinfo.cluster.local"]), "an account of another namespace"),
        (cert("shop", &["web.shop.svc.cluster.local"]), "below the trust domain"),
    ] {
        let mut ledger = granted();
        ledger.take(kind, custom(kind, "a", THEN, spec));
        let why = said(&mut ledger).unwrap().unwrap_err();
        assert!(why.contains(expected), "{why}");
        assert_eq!(ledger.guests().wanted, []);
    }
    // Without a grant, and of another trust domain.
    let mut ledger = settled();
    ledger.take(kind, custom(kind, "a", THEN, cert("shop", &["batch.corp.example"])));
    let why = said(&mut ledger).unwrap().unwrap_err();
    assert!(why.contains("install it with `--access-certs shop`"), "{why}");
    let mut ledger = granted();
    ledger.take(kind, custom(kind, "a", THEN, cert("shop", &["a.shop.prod.example"])));
    ledger.settle_guests();
    assert_eq!(ledger.guests().wanted.len(), 1);
    ledger.assume(TrustDomain::new("shop.prod.example").unwrap());
    assert!(said(&mut ledger).unwrap().is_err());
}

#[test]
fn the_settings_of_another_mesh_want_one_for_an_ingress_controller() {
    let mut ledger = granted();
    let gateway = |namespace: &str| {
        let certificate = json!({
            "subjectAltNames": ["ingress-nginx.ingress-nginx.cluster.local"],
            "validityDuration": "24h",
            "secret": {"name": "nginx-client", "namespace": namespace},
        });
        let spec = json!({"certificate": {"ingressGateway": certificate}});
        settings_of_osm("osm-system", THEN, spec)
    };
    let (kind, news) = gateway("shop");
    ledger.take(kind, news);
    ledger.settle_guests();
    assert_eq!(
        ledger.guests().wanted[0].owner.to_string(),
        "MeshConfig osm-system/osm-mesh-config"
    );
    assert!(ledger.flush().unwrap().warnings.is_empty());
    let (kind, news) = gateway("osm-system");
    ledger.take(kind, news);
    ledger.settle_guests();
    assert_eq!(ledger.guests().wanted, []);
    let told: Vec<String> =
        ledger.flush().unwrap().warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "MeshConfig osm-system/osm-mesh-config: spec.certificate.ingressGateway.secret.namespace: the \
          control plane may not write Secrets in osm-system; install it with `--access-certs \
          osm-system` in addition to its current namespaces (with Helm: `accessCerts`)"
        ]
    );
}
