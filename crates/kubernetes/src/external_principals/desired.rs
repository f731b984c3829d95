//! Validates the requests for certificates of external principals, without I/O. The object store collects the
//! requests; the reconciler fulfills the valid requests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use leno_model::{
    ExternalPrincipalId, Name, SecretName, SubjectScope, TrustDomain, check_subject, domain_prefix,
};

use crate::well_known::CONTROL;

/// A request for a certificate of an external principal, to be stored in a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalCertificateRequest {
    /// The object that makes the request, such as an `AccessCert`.
    pub(crate) owner: OwnerObject,
    /// The identity of the external principal, which names the Secret.
    pub(crate) id: ExternalPrincipalId,
    /// The DNS names of the certificate: the `subjectAltNames` of the requesting object.
    pub(crate) names: Vec<Name>,
    /// The requested lifetime; `None` for the default of the control plane.
    pub(crate) lifetime: Option<Duration>,
    /// The creation time of the requesting object, in Unix seconds.
    pub(crate) created: i64,
}

/// The object that requests a certificate, and to which the Secret belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnerObject {
    pub(crate) api_version: String,
    pub(crate) kind: &'static str,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// Formats the object as `Kind namespace/name`.
impl fmt::Display for OwnerObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

impl ExternalCertificateRequest {
    /// Returns the scope that limits the names of the certificate. An `AccessCert` may name accounts of its own
    /// namespace only; mesh settings may name any account.
    pub(crate) fn subject_scope(&self) -> SubjectScope<'_> {
        match self.owner.kind {
            ACCESS_CERT => SubjectScope::Namespace(&self.id.secret.namespace),
            _ => SubjectScope::Mesh,
        }
    }

    /// Returns the sort key of the request: creation time, namespace and name of the requesting object. The request
    /// with the smallest key wins a conflict.
    fn precedence_key(&self) -> (i64, &str, &str) {
        (self.created, &self.owner.namespace, &self.owner.name)
    }

    /// Returns the path of a field in the requesting object, such as `spec.secret`. Mesh settings request the
    /// certificate of their ingress gateway.
    pub(super) fn field_path(&self, field: &str) -> String {
        match self.owner.kind {
            ACCESS_CERT => format!("spec.{field}"),
            _ => format!("spec.certificate.ingressGateway.{field}"),
        }
    }
}

/// The outcome of each request, by the UID of the requesting object: `Ok` if the Secret has a valid certificate,
/// otherwise the error. A request without an outcome has not been attempted yet.
pub type CertificateOutcomes = BTreeMap<String, Result<(), String>>;

/// The namespaces in which a control plane may write Secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecretPermissions {
    /// The namespaces that the administrator listed at installation.
    pub namespaces: BTreeSet<Name>,
    /// The control plane's own namespace, which is never allowed, even if listed: it contains the authority.
    pub own_namespace: Option<Name>,
}

/// The validated requests for certificates of external principals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DesiredCertificates {
    /// The accepted requests, at most one for each Secret.
    pub(crate) requests: Vec<ExternalCertificateRequest>,
    /// The UIDs of objects with rejected or unreadable requests. The Secrets of their earlier requests stay
    /// unchanged, because clients still use these certificates.
    pub(crate) unchanged_owners: BTreeSet<String>,
}

/// The accepted and the rejected requests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CertificateDecisions {
    pub(crate) desired: DesiredCertificates,
    /// The reasons for rejection, by the UID of the requesting object.
    pub(crate) rejected: BTreeMap<String, String>,
}

/// Validates all requests together, with the same result in every control plane. If several requests name the same
/// Secret, the oldest request is accepted. If several namespaces request the same name, all these requests are
/// rejected.
pub(crate) fn validate_requests(
    mut requests: Vec<ExternalCertificateRequest>,
    permissions: &SecretPermissions,
    trust_domain: &TrustDomain,
) -> CertificateDecisions {
    requests.sort_by(|left, right| left.precedence_key().cmp(&right.precedence_key()));
    let mut decisions = CertificateDecisions::default();
    let mut valid_requests = Vec::new();
    for request in requests {
        match rejection_reason(&request, permissions, trust_domain) {
            Some(reason) => decisions.reject(request, reason),
            None => valid_requests.push(request),
        }
    }
    let requesting_namespaces = namespaces_by_name(&valid_requests, trust_domain);
    let mut owners_by_secret: BTreeMap<SecretName, String> = BTreeMap::new();
    for request in valid_requests {
        // At the limit, new requests are rejected, because the oldest requests come first.
        let rejection = if decisions.desired.requests.len() == MAX_EXTERNAL_PRINCIPALS {
            Some(format!("spec: the limit of {MAX_EXTERNAL_PRINCIPALS} is exceeded; remove some"))
        } else {
            secret_conflict_reason(&request, &owners_by_secret)
                .or_else(|| name_conflict_reason(&request, &requesting_namespaces))
        };
        match rejection {
            Some(reason) => decisions.reject(request, reason),
            None => {
                owners_by_secret.insert(request.id.secret.clone(), request.owner.to_string());
                decisions.desired.requests.push(request);
            }
        }
    }
    decisions
}

impl CertificateDecisions {
    fn reject(&mut self, request: ExternalCertificateRequest, reason: String) {
        self.desired.unchanged_owners.insert(request.owner.uid.clone());
        self.rejected.insert(request.owner.uid, reason);
    }
}

/// Returns the reason that a request is invalid, regardless of other requests; `None` if it is valid.
fn rejection_reason(
    request: &ExternalCertificateRequest,
    permissions: &SecretPermissions,
    trust_domain: &TrustDomain,
) -> Option<String> {
    let namespace = &request.id.secret.namespace;
    if permissions.own_namespace.as_ref() == Some(namespace) {
        let field = request.field_path("secret.namespace");
        return Some(format!(
            "{field}: {namespace} is the namespace of {CONTROL}, with the authority of the mesh; \
             use another"
        ));
    }
    if !permissions.namespaces.contains(namespace) {
        let field = request.field_path("secret.namespace");
        return Some(format!(
            "{field}: the control plane may not write Secrets in {namespace}; install it with \
             `--access-certs {namespace}` in addition to its current namespaces (with Helm: \
             `accessCerts`)"
        ));
    }
    request.names.iter().enumerate().find_map(|(index, name)| {
        let reason = check_subject(name, request.subject_scope(), trust_domain).err()?;
        let field = request.field_path(&format!("subjectAltNames[{index}]"));
        Some(format!("{field}: `{name}` {reason}; use a name outside the mesh"))
    })
}

/// Returns the names outside the trust domain, each with the namespaces that request it. A name below the trust
/// domain is the name of an account, and `check_subject` has already decided which namespace may request it.
fn namespaces_by_name(
    requests: &[ExternalCertificateRequest],
    trust_domain: &TrustDomain,
) -> BTreeMap<Name, BTreeSet<Name>> {
    let mut requesting_namespaces: BTreeMap<Name, BTreeSet<Name>> = BTreeMap::new();
    for request in requests {
        for name in request.names.iter().filter(|name| domain_prefix(name, trust_domain).is_none())
        {
            let namespaces = requesting_namespaces.entry(name.clone()).or_default();
            namespaces.insert(request.id.secret.namespace.clone());
        }
    }
    requesting_namespaces
}

/// Returns the reason to reject a request because an older object uses its Secret, if one does.
fn secret_conflict_reason(
    request: &ExternalCertificateRequest,
    owners_by_secret: &BTreeMap<SecretName, String>,
) -> Option<String> {
    let secret = &request.id.secret;
    let older_owner = owners_by_secret.get(secret)?;
    let field = request.field_path("secret");
    Some(format!("{field}: {older_owner} is older and uses {secret}; name another Secret"))
}

/// Returns the reason to reject a request because another namespace requests one of its names, if one does. Age
/// does not decide: the author of an old object could edit it to claim a name of another namespace.
fn name_conflict_reason(
    request: &ExternalCertificateRequest,
    requesting_namespaces: &BTreeMap<Name, BTreeSet<Name>>,
) -> Option<String> {
    request.names.iter().enumerate().find_map(|(index, name)| {
        let own_namespace = &request.id.secret.namespace;
        let namespaces = requesting_namespaces.get(name)?.iter();
        let other_namespaces: Vec<&str> =
            namespaces.filter(|namespace| *namespace != own_namespace).map(Name::as_str).collect();
        let field = request.field_path(&format!("subjectAltNames[{index}]"));
        (!other_namespaces.is_empty()).then(|| {
            let joined_namespaces = other_namespaces.join(", ");
            format!(
                "{field}: {name} is also requested in {joined_namespaces}, and issued to no AccessCert; use \
                 another name"
            )
        })
    })
}

/// The kind of objects that request a certificate in their own namespace.
pub(crate) const ACCESS_CERT: &str = "AccessCert";
/// The maximum number of requested certificates. Each causes a read of its Secret every minute.
const MAX_EXTERNAL_PRINCIPALS: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn test_domain() -> TrustDomain {
        TrustDomain::new("cluster.local").unwrap()
    }

    fn test_permissions() -> SecretPermissions {
        let name = |text| Name::new(text).unwrap();
        SecretPermissions {
            namespaces: [name("shop"), name("ingress"), name("leno-system")].into(),
            own_namespace: Some(name("leno-system")),
        }
    }

    fn certificate_request(
        kind: &'static str,
        secret: &str,
        names: &[&str],
        created: i64,
    ) -> ExternalCertificateRequest {
        let secret: SecretName = secret.parse().unwrap();
        ExternalCertificateRequest {
            owner: OwnerObject {
                api_version: "policy.flomesh.io/v1alpha1".to_owned(),
                kind,
                namespace: secret.namespace.to_string(),
                name: format!("{}-{created}", secret.name),
                uid: format!("u-{created}"),
            },
            id: ExternalPrincipalId { trust_domain: test_domain(), secret },
            names: names.iter().map(|name| Name::new(name).unwrap()).collect(),
            lifetime: None,
            created,
        }
    }

    /// Returns the reasons of the rejected requests, after a check that all other requests are accepted.
    fn list_rejections(requests: Vec<ExternalCertificateRequest>) -> Vec<String> {
        let decisions = validate_requests(requests.clone(), &test_permissions(), &test_domain());
        assert_eq!(decisions.desired.requests.len() + decisions.rejected.len(), requests.len());
        decisions.rejected.into_values().collect()
    }

    #[test]
    fn only_listed_namespaces_get_secrets_and_never_the_namespace_of_the_authority() {
        assert_eq!(
            list_rejections(vec![certificate_request(ACCESS_CERT, "shop/a", &["a.example"], 1)]),
            [""; 0]
        );
        for (secret, expected) in [
            ("other/a", "may not write Secrets in other; install it with `--access-certs other`"),
            ("leno-system/leno-authority", "with the authority of the mesh"),
        ] {
            let rejected =
                list_rejections(vec![certificate_request(ACCESS_CERT, secret, &["a.example"], 1)]);
            assert!(rejected[0].contains(expected), "{rejected:?}");
        }
    }

    #[test]
    fn a_namespace_may_name_its_own_accounts_and_mesh_settings_any_account() {
        let name = ["nginx.ingress.cluster.local"];
        assert_eq!(
            list_rejections(vec![certificate_request(ACCESS_CERT, "ingress/a", &name, 1)]),
            [""; 0]
        );
        assert_eq!(
            list_rejections(vec![certificate_request("MeshConfig", "shop/a", &name, 1)]),
            [""; 0]
        );
        let rejected = list_rejections(vec![certificate_request(ACCESS_CERT, "shop/a", &name, 1)]);
        assert_eq!(
            rejected,
            [
                "spec.subjectAltNames[0]: `nginx.ingress.cluster.local` is the name of an account of \
              another namespace: names in this namespace end in `.shop.cluster.local`; use a name outside the mesh"
            ]
        );
    }

    #[test]
    fn the_oldest_request_gets_the_secret_and_a_name_belongs_to_one_namespace() {
        let requests = vec![
            certificate_request(ACCESS_CERT, "shop/a", &["a.example"], 2),
            certificate_request(ACCESS_CERT, "shop/a", &["b.example"], 1),
        ];
        assert_eq!(
            list_rejections(requests),
            ["spec.secret: AccessCert shop/a-1 is older and uses shop/a; name another Secret"]
        );
        let requests = vec![
            certificate_request(ACCESS_CERT, "ingress/b", &["b.example", "a.example"], 2),
            certificate_request(ACCESS_CERT, "shop/a", &["a.example"], 1),
            certificate_request(ACCESS_CERT, "shop/c", &["c.example"], 3),
            // An invalid request does not conflict with valid requests.
            certificate_request(ACCESS_CERT, "other/a", &["c.example"], 4),
        ];
        let decisions = validate_requests(requests, &test_permissions(), &test_domain());
        let unchanged: Vec<&str> =
            decisions.desired.unchanged_owners.iter().map(String::as_str).collect();
        assert_eq!(unchanged, ["u-1", "u-2", "u-4"]);
        assert_eq!(
            decisions.rejected["u-2"],
            "spec.subjectAltNames[1]: a.example is also requested in shop, and issued to no \
             AccessCert; use another name"
        );
        assert_eq!(decisions.desired.requests[0].owner.uid, "u-3");
        let same_namespace = vec![
            certificate_request(ACCESS_CERT, "shop/a", &["a.example"], 1),
            certificate_request(ACCESS_CERT, "shop/b", &["a.example"], 2),
        ];
        assert_eq!(list_rejections(same_namespace), [""; 0]);
    }
}
