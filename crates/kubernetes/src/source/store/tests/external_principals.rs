//! Certificates for external principals: grants and statuses.

use super::*;
use crate::external_principals::SecretPermissions;

const FSM: &str = "policy.flomesh.io";
const THEN: &str = "2025-01-01T00:00:00Z";

fn store_with_grants() -> ObjectStore {
    let mut store = listed_store();
    let name = |text| Name::new(text).unwrap();
    store.set_grants(SecretPermissions {
        namespaces: [name("shop")].into(),
        own: Some(name("leno-system")),
    });
    store
}

fn cert_spec(namespace: &str, names: &[&str]) -> Value {
    json!({"subjectAltNames": names, "secret": {"name": "batch-tls", "namespace": namespace}})
}

/// Returns the status of the first object.
fn first_status(store: &mut ObjectStore) -> Option<Result<(), String>> {
    store.settle_external_principals();
    let statements = store.changed_statements()?;
    match statements.first().map(|it| it.content.clone()) {
        Some(StatusContent::Current(said)) => Some(said),
        None => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_said_before_something_has_come_of_it() {
    let mut store = store_with_grants();
    let kind = index("AccessCert", FSM);
    store.apply_event(
        kind,
        custom_event(kind, "a", THEN, cert_spec("shop", &["batch.corp.example"])),
    );
    assert_eq!(first_status(&mut store), None);
    let desired = store.external_principals().wanted[0].clone();
    assert_eq!(desired.id.to_string(), "leno://cluster.local/guest/shop/batch-tls");
    let reported =
        |outcome: Result<(), String>| Arc::new([(desired.owner.uid.clone(), outcome)].into());
    store.take_outcomes(reported(Err("spec.secret: no".to_owned())));
    assert_eq!(first_status(&mut store), Some(Err("spec.secret: no".to_owned())));
    store.take_outcomes(reported(Ok(())));
    assert_eq!(first_status(&mut store), Some(Ok(())));
    store.apply_event(kind, removal_event("shop", "a"));
    store.settle_external_principals();
    assert_eq!(store.external_principals().wanted, []);
}

#[test]
fn what_may_not_be_is_not_wished_for_and_says_why() {
    let kind = index("AccessCert", FSM);
    for (spec, expected) in [
        (cert_spec("other", &["batch.corp.example"]), "is not the namespace of the AccessCert"),
        (cert_spec("shop", &["ratings.bookinfo.cluster.local"]), "an account of another namespace"),
        (cert_spec("shop", &["web.shop.svc.cluster.local"]), "below the trust domain"),
    ] {
        let mut store = store_with_grants();
        store.apply_event(kind, custom_event(kind, "a", THEN, spec));
        let reason = first_status(&mut store).unwrap().unwrap_err();
        assert!(reason.contains(expected), "{reason}");
        assert_eq!(store.external_principals().wanted, []);
    }
    // Without a grant, and of another trust domain.
    let mut store = listed_store();
    store.apply_event(
        kind,
        custom_event(kind, "a", THEN, cert_spec("shop", &["batch.corp.example"])),
    );
    let reason = first_status(&mut store).unwrap().unwrap_err();
    assert!(reason.contains("install it with `--access-certs shop`"), "{reason}");
    let mut store = store_with_grants();
    store.apply_event(
        kind,
        custom_event(kind, "a", THEN, cert_spec("shop", &["a.shop.prod.example"])),
    );
    store.settle_external_principals();
    assert_eq!(store.external_principals().wanted.len(), 1);
    store.set_trust_domain(TrustDomain::new("shop.prod.example").unwrap());
    assert!(first_status(&mut store).unwrap().is_err());
}

#[test]
fn the_settings_of_another_mesh_want_one_for_an_ingress_controller() {
    let mut store = store_with_grants();
    let gateway = |namespace: &str| {
        let certificate = json!({
            "subjectAltNames": ["ingress-nginx.ingress-nginx.cluster.local"],
            "validityDuration": "24h",
            "secret": {"name": "nginx-client", "namespace": namespace},
        });
        let spec = json!({"certificate": {"ingressGateway": certificate}});
        settings_of_osm("osm-system", THEN, spec)
    };
    let (kind, event) = gateway("shop");
    store.apply_event(kind, event);
    store.settle_external_principals();
    assert_eq!(
        store.external_principals().wanted[0].owner.to_string(),
        "MeshConfig osm-system/osm-mesh-config"
    );
    assert!(store.flush().unwrap().warnings.is_empty());
    let (kind, event) = gateway("osm-system");
    store.apply_event(kind, event);
    store.settle_external_principals();
    assert_eq!(store.external_principals().wanted, []);
    let reported: Vec<String> =
        store.flush().unwrap().warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        reported,
        [
            "MeshConfig osm-system/osm-mesh-config: spec.certificate.ingressGateway.secret.namespace: the \
          control plane may not write Secrets in osm-system; install it with `--access-certs \
          osm-system` in addition to its current namespaces (with Helm: `accessCerts`)"
        ]
    );
}
