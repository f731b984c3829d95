//! Tests the certificates of external principals: permissions and statuses.

use super::*;
use crate::external_principals::SecretPermissions;

const FSM: &str = "policy.flomesh.io";
const CREATED: &str = "2025-01-01T00:00:00Z";

fn store_with_permissions() -> ObjectStore {
    let mut store = listed_store();
    let name = |text| Name::new(text).unwrap();
    store.set_secret_permissions(SecretPermissions {
        namespaces: [name("shop")].into(),
        own_namespace: Some(name("leno-system")),
    });
    store
}

fn cert_spec(namespace: &str, names: &[&str]) -> Value {
    json!({"subjectAltNames": names, "secret": {"name": "batch-tls", "namespace": namespace}})
}

/// Returns the status of the first object.
fn first_status(store: &mut ObjectStore) -> Option<Result<(), String>> {
    store.validate_external_principals();
    let statuses = store.changed_statuses()?;
    match statuses.first().map(|status| status.content.clone()) {
        Some(StatusContent::Current(current)) => Some(current),
        None => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_access_cert_has_no_status_before_its_outcome_is_known() {
    let mut store = store_with_permissions();
    let kind = kind_index("AccessCert", FSM);
    store.apply_event(
        kind,
        custom_event(kind, "a", CREATED, cert_spec("shop", &["batch.corp.example"])),
    );
    assert_eq!(first_status(&mut store), None);
    let desired = store.external_principals().requests[0].clone();
    assert_eq!(desired.id.to_string(), "leno://cluster.local/guest/shop/batch-tls");
    let outcomes =
        |outcome: Result<(), String>| Arc::new([(desired.owner.uid.clone(), outcome)].into());
    store.set_outcomes(outcomes(Err("spec.secret: no".to_owned())));
    assert_eq!(first_status(&mut store), Some(Err("spec.secret: no".to_owned())));
    store.set_outcomes(outcomes(Ok(())));
    assert_eq!(first_status(&mut store), Some(Ok(())));
    store.apply_event(kind, removal_event("shop", "a"));
    store.validate_external_principals();
    assert_eq!(store.external_principals().requests, []);
}

#[test]
fn forbidden_access_certs_are_reported_and_not_issued() {
    let kind = kind_index("AccessCert", FSM);
    for (spec, expected) in [
        (cert_spec("other", &["batch.corp.example"]), "is not the namespace of the AccessCert"),
        (cert_spec("shop", &["ratings.bookinfo.cluster.local"]), "an account of another namespace"),
        (cert_spec("shop", &["web.shop.svc.cluster.local"]), "below the trust domain"),
    ] {
        let mut store = store_with_permissions();
        store.apply_event(kind, custom_event(kind, "a", CREATED, spec));
        let reason = first_status(&mut store).unwrap().unwrap_err();
        assert!(reason.contains(expected), "{reason}");
        assert_eq!(store.external_principals().requests, []);
    }
    // Without permission, and of another trust domain.
    let mut store = listed_store();
    store.apply_event(
        kind,
        custom_event(kind, "a", CREATED, cert_spec("shop", &["batch.corp.example"])),
    );
    let reason = first_status(&mut store).unwrap().unwrap_err();
    assert!(reason.contains("install it with `--access-certs shop`"), "{reason}");
    let mut store = store_with_permissions();
    store.apply_event(
        kind,
        custom_event(kind, "a", CREATED, cert_spec("shop", &["a.shop.prod.example"])),
    );
    store.validate_external_principals();
    assert_eq!(store.external_principals().requests.len(), 1);
    store.set_trust_domain(TrustDomain::new("shop.prod.example").unwrap());
    assert!(first_status(&mut store).unwrap().is_err());
}

#[test]
fn the_settings_of_another_mesh_request_a_certificate_for_an_ingress_controller() {
    let mut store = store_with_permissions();
    let gateway = |namespace: &str| {
        let certificate = json!({
            "subjectAltNames": ["ingress-nginx.ingress-nginx.cluster.local"],
            "validityDuration": "24h",
            "secret": {"name": "nginx-client", "namespace": namespace},
        });
        let spec = json!({"certificate": {"ingressGateway": certificate}});
        settings_of_osm("osm-system", CREATED, spec)
    };
    let (kind, event) = gateway("shop");
    store.apply_event(kind, event);
    store.validate_external_principals();
    assert_eq!(
        store.external_principals().requests[0].owner.to_string(),
        "MeshConfig osm-system/osm-mesh-config"
    );
    assert!(store.flush().unwrap().warnings.is_empty());
    let (kind, event) = gateway("osm-system");
    store.apply_event(kind, event);
    store.validate_external_principals();
    assert_eq!(store.external_principals().requests, []);
    let warnings: Vec<String> =
        store.flush().unwrap().warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "MeshConfig osm-system/osm-mesh-config: spec.certificate.ingressGateway.secret.namespace: the \
          control plane may not write Secrets in osm-system; install it with `--access-certs \
          osm-system` in addition to its current namespaces (with Helm: `accessCerts`)"
        ]
    );
}
