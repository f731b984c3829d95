//! Checks the ownership and validity of an external principal's Secret, and fills it with a new certificate,
//! without I/O. The reconciler applies the results.

use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::ObjectMeta;
use leno_identity::{
    Authority, AuthorityError, ExternalCertificate, ExternalSubject, StoredCertificate,
};

use super::desired::ExternalCertificateRequest;
use crate::well_known::ACCESS_CERT_KEY;

/// The state of a Secret, compared with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SecretState {
    /// Another client created the Secret, it was created for another object, or it has another type.
    OtherOwner,
    /// Its certificate is due for renewal, or does not match the request or the authority.
    RenewalDue,
    /// Its certificate is valid, and is due for renewal at this time.
    Valid(SystemTime),
}

/// The parameters of a certificate that is issued now.
#[derive(Clone, Copy)]
pub(super) struct IssuanceParameters<'a> {
    pub(super) authority: &'a Authority,
    /// The lifetime for requests that do not specify one.
    pub(super) lifetime: Duration,
    pub(super) now: SystemTime,
}

/// Compares an existing Secret with a request, and determines whether its certificate can stay.
pub(super) fn check_secret(
    secret: &Secret,
    request: &ExternalCertificateRequest,
    issuance: IssuanceParameters<'_>,
) -> SecretState {
    if !is_owned_by_request(&secret.metadata, request)
        // The type of a Secret is immutable, so another type cannot be corrected.
        || secret.type_.as_deref() != Some(TLS_SECRET_TYPE)
    {
        return SecretState::OtherOwner;
    }
    // A missing entry is read as empty text, with which the certificate is not valid.
    let read_entry = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        bytes.and_then(|bytes| str::from_utf8(&bytes.0).ok()).unwrap_or_default()
    };
    let stored_certificate = StoredCertificate {
        key_pem: read_entry(KEY_ENTRY),
        chain_pem: read_entry(CHAIN_ENTRY),
        roots_pem: read_entry(ROOTS_ENTRY),
    };
    let renewal_time = stored_certificate.renewal_time(
        issuance.authority,
        certificate_subject(request),
        certificate_lifetime(request, issuance),
    );
    // The owner reference may have the UID of an earlier object of the same name. The Secret is then written
    // again with the current UID, or garbage collection would delete it.
    let has_current_owner = !can_own_secret(request)
        || find_owner_reference(&secret.metadata, request)
            .is_some_and(|reference| reference.uid == request.owner.uid);
    match renewal_time.filter(|renewal_time| *renewal_time > issuance.now && has_current_owner) {
        Some(renewal_time) => SecretState::Valid(renewal_time),
        None => SecretState::RenewalDue,
    }
}

/// Returns true if a Secret was created for this request, or for an earlier object of its kind and name.
pub(super) fn is_owned_by_request(meta: &ObjectMeta, request: &ExternalCertificateRequest) -> bool {
    let annotation =
        meta.annotations.as_ref().and_then(|annotations| annotations.get(ACCESS_CERT_KEY));
    let has_annotation =
        annotation.is_some_and(|annotation| *annotation == request.owner.to_string());
    let has_label = meta.labels.as_ref().is_some_and(|labels| labels.contains_key(ACCESS_CERT_KEY));
    has_annotation
        && has_label
        && (!can_own_secret(request) || find_owner_reference(meta, request).is_some())
}

/// Issues a new certificate into the existing Secret or a new one. Metadata of other clients is kept; the entries
/// are replaced.
///
/// # Errors
/// The errors of [`ExternalCertificate::issue`].
pub(super) fn issue_into_secret(
    existing: Option<Secret>,
    request: &ExternalCertificateRequest,
    issuance: IssuanceParameters<'_>,
) -> Result<Secret, AuthorityError> {
    let lifetime = certificate_lifetime(request, issuance);
    let certificate = ExternalCertificate::issue(
        issuance.authority,
        certificate_subject(request),
        lifetime,
        issuance.now,
    )?;
    let mut secret = existing.unwrap_or_default();
    let meta = &mut secret.metadata;
    meta.name = Some(request.id.secret.name.to_string());
    meta.namespace = Some(request.id.secret.namespace.to_string());
    let labels = meta.labels.get_or_insert_default();
    labels.insert("app.kubernetes.io/part-of".to_owned(), "leno".to_owned());
    labels.insert(ACCESS_CERT_KEY.to_owned(), request.owner.kind.to_owned());
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(ACCESS_CERT_KEY.to_owned(), request.owner.to_string());
    if can_own_secret(request) {
        let owners = meta.owner_references.get_or_insert_default();
        // Removes the reference to this object or to an earlier object of its name.
        owners.retain(|reference| {
            (reference.kind.as_str(), &reference.name) != (request.owner.kind, &request.owner.name)
        });
        owners.push(OwnerReference {
            api_version: request.owner.api_version.clone(),
            kind: request.owner.kind.to_owned(),
            name: request.owner.name.clone(),
            uid: request.owner.uid.clone(),
            controller: Some(true),
            block_owner_deletion: None,
        });
    }
    secret.type_ = Some(TLS_SECRET_TYPE.to_owned());
    let text_entries = [
        (KEY_ENTRY, certificate.key_pem()),
        (CHAIN_ENTRY, certificate.chain_pem().to_owned()),
        (ROOTS_ENTRY, certificate.roots_pem().to_owned()),
    ];
    let entries = text_entries.map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())));
    secret.data = Some(entries.into());
    Ok(secret)
}

/// Returns true if the requesting object can be the owner of the Secret: Kubernetes requires that both have the
/// same namespace.
fn can_own_secret(request: &ExternalCertificateRequest) -> bool {
    request.owner.namespace == request.id.secret.namespace.as_str()
}

/// Returns the owner reference to the requesting object, or to an earlier object of its kind and name.
fn find_owner_reference<'a>(
    meta: &'a ObjectMeta,
    request: &ExternalCertificateRequest,
) -> Option<&'a OwnerReference> {
    let mut owners = meta.owner_references.iter().flatten();
    owners.find(|reference| {
        (reference.kind.as_str(), &reference.name) == (request.owner.kind, &request.owner.name)
    })
}

fn certificate_subject(request: &ExternalCertificateRequest) -> ExternalSubject<'_> {
    ExternalSubject {
        id: &request.id,
        names: &request.names,
        issuing_scope: request.subject_scope(),
    }
}

fn certificate_lifetime(
    request: &ExternalCertificateRequest,
    issuance: IssuanceParameters<'_>,
) -> Duration {
    request.lifetime.unwrap_or(issuance.lifetime)
}

/// The type of Secrets with a key, a chain and optionally roots. Ingress controllers read no other type.
const TLS_SECRET_TYPE: &str = "kubernetes.io/tls";
/// The entry with the private key.
const KEY_ENTRY: &str = "tls.key";
/// The entry with the certificate chain.
const CHAIN_ENTRY: &str = "tls.crt";
/// The entry with the trust roots.
const ROOTS_ENTRY: &str = "ca.crt";

#[cfg(test)]
mod tests {
    use leno_identity::AuthoritySource;
    use leno_model::{ExternalPrincipalId, Name, TrustDomain};

    use super::*;
    use crate::external_principals::{ACCESS_CERT, OwnerObject};

    const DAY: Duration = Duration::from_secs(24 * 3600);

    struct AuthorityFixture {
        _dir: tempfile::TempDir,
        authority: Authority,
    }

    fn create_fixture() -> AuthorityFixture {
        let dir = tempfile::tempdir().unwrap();
        let source = AuthoritySource::BuiltIn(dir.path().join("authority"));
        let domain = TrustDomain::new("cluster.local").unwrap();
        let authority = source.open_or_create(&domain, SystemTime::now()).unwrap();
        AuthorityFixture { _dir: dir, authority }
    }

    impl AuthorityFixture {
        fn issuance_at(&self, now: SystemTime) -> IssuanceParameters<'_> {
            IssuanceParameters { authority: &self.authority, lifetime: DAY, now }
        }
    }

    fn certificate_request(kind: &'static str, namespace: &str) -> ExternalCertificateRequest {
        ExternalCertificateRequest {
            owner: OwnerObject {
                api_version: "policy.flomesh.io/v1alpha1".to_owned(),
                kind,
                namespace: namespace.to_owned(),
                name: "batch".to_owned(),
                uid: "u-1".to_owned(),
            },
            id: ExternalPrincipalId {
                trust_domain: TrustDomain::new("cluster.local").unwrap(),
                secret: "shop/batch-tls".parse().unwrap(),
            },
            names: vec![Name::new("batch.corp.example").unwrap()],
            lifetime: None,
            created: 0,
        }
    }

    #[test]
    fn a_secret_has_the_form_of_ingress_controllers_and_is_owned_by_its_object() {
        let (fixture, now) = (create_fixture(), SystemTime::now());
        let request = certificate_request(ACCESS_CERT, "shop");
        let secret = issue_into_secret(None, &request, fixture.issuance_at(now)).unwrap();
        assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
        let keys: Vec<&str> = secret.data.iter().flatten().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["ca.crt", "tls.crt", "tls.key"]);
        let owner = &secret.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("AccessCert", "u-1"));
        assert!(matches!(
            check_secret(&secret, &request, fixture.issuance_at(now)),
            SecretState::Valid(_)
        ));
        // The renewal is due well before the certificate expires.
        let later = now + DAY.mul_f64(0.7);
        assert_eq!(
            check_secret(&secret, &request, fixture.issuance_at(later)),
            SecretState::RenewalDue
        );
        let other = create_fixture();
        assert_eq!(
            check_secret(&secret, &request, other.issuance_at(now)),
            SecretState::RenewalDue,
            "another signer"
        );
        let mut renamed = request.clone();
        renamed.names = vec![Name::new("other.corp.example").unwrap()];
        assert_eq!(
            check_secret(&secret, &renamed, fixture.issuance_at(now)),
            SecretState::RenewalDue
        );
    }

    #[test]
    fn a_secret_that_was_not_created_for_the_request_is_foreign() {
        let (fixture, now) = (create_fixture(), SystemTime::now());
        let request = certificate_request(ACCESS_CERT, "shop");
        let own_secret = issue_into_secret(None, &request, fixture.issuance_at(now)).unwrap();
        let changes: [fn(&mut Secret); 6] = [
            |secret| secret.metadata.annotations = None,
            |secret| secret.metadata.labels = None,
            |secret| secret.metadata.owner_references = None,
            |secret| {
                secret.metadata.owner_references.as_mut().unwrap()[0].name = "other".to_owned()
            },
            |secret| secret.type_ = Some("Opaque".to_owned()),
            |secret| {
                let annotations = secret.metadata.annotations.as_mut().unwrap();
                annotations.insert(ACCESS_CERT_KEY.to_owned(), "AccessCert shop/other".to_owned());
            },
        ];
        for change in changes {
            let mut secret = own_secret.clone();
            change(&mut secret);
            assert_eq!(
                check_secret(&secret, &request, fixture.issuance_at(now)),
                SecretState::OtherOwner
            );
        }
        // A recreated object of the same name takes the Secret over.
        let mut recreated = request.clone();
        recreated.owner.uid = "u-2".to_owned();
        assert_eq!(
            check_secret(&own_secret, &recreated, fixture.issuance_at(now)),
            SecretState::RenewalDue
        );
        let taken_over =
            issue_into_secret(Some(own_secret), &recreated, fixture.issuance_at(now)).unwrap();
        assert_eq!(taken_over.metadata.owner_references.as_ref().unwrap().len(), 1);
        assert!(matches!(
            check_secret(&taken_over, &recreated, fixture.issuance_at(now)),
            SecretState::Valid(_)
        ));
    }

    #[test]
    fn labels_of_other_writers_are_kept_and_settings_of_another_namespace_own_nothing() {
        let (fixture, now) = (create_fixture(), SystemTime::now());
        let request = certificate_request("MeshConfig", "osm-system");
        let mut secret = issue_into_secret(None, &request, fixture.issuance_at(now)).unwrap();
        assert_eq!(secret.metadata.owner_references, None);
        assert!(matches!(
            check_secret(&secret, &request, fixture.issuance_at(now)),
            SecretState::Valid(_)
        ));
        let labels = secret.metadata.labels.as_mut().unwrap();
        labels.insert("team".to_owned(), "edge".to_owned());
        let hour = Duration::from_secs(3600);
        let brief = ExternalCertificateRequest { lifetime: Some(hour), ..request };
        let again = issue_into_secret(Some(secret), &brief, fixture.issuance_at(now)).unwrap();
        assert_eq!(again.metadata.labels.as_ref().unwrap()["team"], "edge");
        let SecretState::Valid(renewal_time) =
            check_secret(&again, &brief, fixture.issuance_at(now))
        else {
            panic!()
        };
        assert!(renewal_time < now + hour);
    }
}
