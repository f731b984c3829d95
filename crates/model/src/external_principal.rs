//! External principals: clients outside the mesh with a certificate that the mesh issued. Checks the DNS names that
//! their certificates may have.

use std::fmt;
use std::str::FromStr;

use crate::identity::TrustDomain;
use crate::name::{InvalidName, Name, PolicyName, SecretName};

/// An `AccessCert`: a request for a certificate of an external client, which is stored in a Secret of the same
/// namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessCert {
    /// The name of the object.
    pub name: PolicyName,
    /// The DNS names of the certificate, at least one.
    pub subjects: Vec<Name>,
    /// The Secret for the certificate, in the namespace of the object.
    pub secret: Name,
}

/// The identity in an external client's certificate, `leno://TRUST-DOMAIN/guest/NAMESPACE/SECRET`: it names the
/// Secret that holds the certificate.
///
/// The identity is deliberately not a SPIFFE ID: no verifier can mistake it for a member of a mesh.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExternalPrincipalId {
    /// The issuing trust domain.
    pub trust_domain: TrustDomain,
    /// The Secret that holds the certificate.
    pub secret: SecretName,
}

impl fmt::Display for ExternalPrincipalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SecretName { namespace, name } = &self.secret;
        write!(f, "{URI_SCHEME}{}/guest/{namespace}/{name}", self.trust_domain)
    }
}

impl FromStr for ExternalPrincipalId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let invalid = || InvalidName { text: text.chars().take(253).collect() };
        let path = text.strip_prefix(URI_SCHEME).ok_or_else(invalid)?;
        let path_elements: Vec<&str> = path.split('/').collect();
        match path_elements.as_slice() {
            [domain, "guest", namespace, name] => Ok(Self {
                trust_domain: TrustDomain::new(domain)?,
                secret: SecretName::new(namespace, name)?,
            }),
            _ => Err(invalid()),
        }
    }
}

/// The scope in which an external client is named: it limits the names that are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubjectScope<'a> {
    /// A policy of this namespace. Below the trust domain, only the names of the namespace's own accounts are
    /// allowed.
    Namespace(&'a Name),
    /// A setting of the mesh. Below the trust domain, the names of all accounts are allowed.
    Mesh,
}

/// Checks that an external client may have this DNS name, in a mesh with this `trust_domain`.
///
/// All names below the trust domain belong to accounts, `ACCOUNT.NAMESPACE.TRUST-DOMAIN`, and only the
/// account's own namespace may use them.
///
/// # Errors
/// [`InvalidSubject`], with a message for the author of the name.
pub fn check_subject(
    subject: &Name,
    scope: SubjectScope<'_>,
    trust_domain: &TrustDomain,
) -> Result<(), InvalidSubject> {
    let last_label = subject.as_str().rsplit('.').next().unwrap_or_default();
    if last_label.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(InvalidSubject::Address);
    }
    let Some(account_labels) = domain_prefix(subject, trust_domain) else {
        return Ok(());
    };
    let mut labels = account_labels.split('.');
    let (Some(account), Some(namespace), None) = (labels.next(), labels.next(), labels.next())
    else {
        return Err(InvalidSubject::Domain(trust_domain.clone()));
    };
    match scope {
        _ if account.is_empty() => Err(InvalidSubject::Domain(trust_domain.clone())),
        SubjectScope::Namespace(own_namespace) if own_namespace.as_str() != namespace => {
            Err(InvalidSubject::Namespace {
                own: own_namespace.clone(),
                trust_domain: trust_domain.clone(),
            })
        }
        SubjectScope::Namespace(_) | SubjectScope::Mesh => Ok(()),
    }
}

/// Returns the part of a name before the trust domain, without the dot; empty for the trust domain itself, and
/// `None` for a name that is not below the trust domain.
#[must_use]
pub fn domain_prefix<'a>(subject: &'a Name, trust_domain: &TrustDomain) -> Option<&'a str> {
    let prefix = subject.as_str().strip_suffix(trust_domain.0.as_str())?;
    match prefix {
        "" => Some(prefix),
        _ => prefix.strip_suffix('.'),
    }
}

/// The reason that a name is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSubject {
    /// The last label is a number, so some clients parse the name as an IP address.
    #[error("is an IP address, not a DNS name")]
    Address,
    /// The name is below the trust domain, and not the name of an account.
    #[error(
        "is below the trust domain `{0}`, where only accounts have names: ACCOUNT.NAMESPACE.{0}"
    )]
    Domain(TrustDomain),
    /// The name belongs to an account of another namespace.
    #[error(
        "is the name of an account of another namespace: names in this namespace end in `.{own}.{trust_domain}`"
    )]
    Namespace {
        /// The namespace of the policy.
        own: Name,
        /// The trust domain of the mesh.
        trust_domain: TrustDomain,
    },
}

/// The URI scheme of the identities, with `://`.
const URI_SCHEME: &str = "leno://";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::SpiffeId;

    #[test]
    fn external_principal_ids_round_trip_and_are_no_spiffe_ids() {
        let text = "leno://cluster.local/guest/shop/batch-client";
        let id: ExternalPrincipalId = text.parse().unwrap();
        assert_eq!(id.to_string(), text);
        assert!(text.parse::<SpiffeId>().is_err());
        for invalid in [
            "spiffe://cluster.local/ns/shop/sa/batch-client",
            "spiffe://cluster.local/guest/shop/batch-client",
            "leno://cluster.local/ns/shop/batch-client",
            "leno://cluster.local/guest/shop",
            "leno://cluster.local/guest/shop/a/b",
            "leno:///guest/shop/a",
        ] {
            assert!(invalid.parse::<ExternalPrincipalId>().is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_namespace_may_use_names_of_its_own_accounts_only() {
        let trust_domain = TrustDomain::new("cluster.local").unwrap();
        let namespace = Name::new("ingress-nginx").unwrap();
        let check = |subject: &str, scope| {
            check_subject(&Name::new(subject).unwrap(), scope, &trust_domain)
        };
        let namespace_scope = SubjectScope::Namespace(&namespace);
        for (subject, allowed_for_namespace, allowed_for_mesh) in [
            ("batch.corp.example", true, true),
            ("batch", true, true),
            ("notcluster.local", true, true),
            ("ingress-nginx.ingress-nginx.cluster.local", true, true),
            ("ratings.bookinfo.cluster.local", false, true),
            ("cluster.local", false, false),
            ("ingress-nginx.cluster.local", false, false),
            ("nginx.ingress-nginx.svc.cluster.local", false, false),
            ("10.0.0.1", false, false),
        ] {
            assert_eq!(check(subject, namespace_scope).is_ok(), allowed_for_namespace, "{subject}");
            assert_eq!(check(subject, SubjectScope::Mesh).is_ok(), allowed_for_mesh, "{subject}");
        }
    }
}
