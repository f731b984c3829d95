//! External principals: clients outside the mesh with a certificate that the mesh issued.

use std::fmt;
use std::str::FromStr;

use crate::identity::TrustDomain;
use crate::name::{InvalidName, Name, PolicyName, SecretName};

/// An `AccessCert`: requests a certificate for an external client, stored in a Secret of its own namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessCert {
    /// Its name.
    pub name: PolicyName,
    /// The DNS names of the certificate, at least one.
    pub subjects: Vec<Name>,
    /// The Secret, of its own namespace.
    pub secret: Name,
}

/// The identity in an external client's certificate: `leno://TRUST-DOMAIN/guest/NAMESPACE/SECRET`, by the
/// Secret that holds the certificate.
///
/// It is not a SPIFFE ID on purpose: no verifier can mistake it for a member of a mesh.
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
        write!(f, "{SCHEME}{}/guest/{namespace}/{name}", self.trust_domain)
    }
}

impl FromStr for ExternalPrincipalId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let invalid = || InvalidName { text: text.chars().take(253).collect() };
        let rest = text.strip_prefix(SCHEME).ok_or_else(invalid)?;
        let parts: Vec<&str> = rest.split('/').collect();
        match parts.as_slice() {
            [domain, "guest", namespace, name] => Ok(Self {
                trust_domain: TrustDomain::new(domain)?,
                secret: SecretName::new(namespace, name)?,
            }),
            _ => Err(invalid()),
        }
    }
}

/// The scope that is allowed to name an external client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubjectScope<'a> {
    /// Writers of this namespace: they may use the names of its accounts only.
    Namespace(&'a Name),
    /// Administrators of the mesh.
    Mesh,
}

/// Checks that an external client may have this name, in a mesh with this `trust_domain`.
///
/// All names below the trust domain belong to accounts, `ACCOUNT.NAMESPACE.TRUST-DOMAIN`, and only the
/// account's own namespace may use them.
///
/// # Errors
/// [`BadSubject`], with a message for the author of the name.
pub fn check_subject(
    subject: &Name,
    sponsor: SubjectScope<'_>,
    trust_domain: &TrustDomain,
) -> Result<(), BadSubject> {
    let last = subject.as_str().rsplit('.').next().unwrap_or_default();
    if last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(BadSubject::Address);
    }
    let Some(below) = domain_prefix(subject, trust_domain) else {
        return Ok(());
    };
    let mut parts = below.split('.');
    let (Some(account), Some(namespace), None) = (parts.next(), parts.next(), parts.next()) else {
        return Err(BadSubject::Domain(trust_domain.clone()));
    };
    match sponsor {
        _ if account.is_empty() => Err(BadSubject::Domain(trust_domain.clone())),
        SubjectScope::Namespace(own) if own.as_str() != namespace => {
            Err(BadSubject::Namespace { own: own.clone(), trust_domain: trust_domain.clone() })
        }
        SubjectScope::Namespace(_) | SubjectScope::Mesh => Ok(()),
    }
}

/// The part of a name before the trust domain; empty for the trust domain itself.
#[must_use]
pub fn domain_prefix<'a>(subject: &'a Name, trust_domain: &TrustDomain) -> Option<&'a str> {
    let rest = subject.as_str().strip_suffix(trust_domain.0.as_str())?;
    match rest {
        "" => Some(rest),
        _ => rest.strip_suffix('.'),
    }
}

/// The reason that a name is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSubject {
    /// Some clients parse it as an address.
    #[error("is an IP address, not a DNS name")]
    Address,
    /// A name below the trust domain that is not an account's.
    #[error(
        "is below the trust domain `{0}`, where only accounts have names: ACCOUNT.NAMESPACE.{0}"
    )]
    Domain(TrustDomain),
    /// The name of an account of another namespace.
    #[error(
        "is the name of an account of another namespace: names in this namespace end in `.{own}.{trust_domain}`"
    )]
    Namespace {
        /// The namespace of the policy.
        own: Name,
        /// The trust domain.
        trust_domain: TrustDomain,
    },
}

const SCHEME: &str = "leno://";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::SpiffeId;

    #[test]
    fn ids_read_back_as_printed_and_are_no_members() {
        let text = "leno://cluster.local/guest/shop/batch-client";
        let id: ExternalPrincipalId = text.parse().unwrap();
        assert_eq!(id.to_string(), text);
        assert!(text.parse::<SpiffeId>().is_err());
        for bad in [
            "spiffe://cluster.local/ns/shop/sa/batch-client",
            "spiffe://cluster.local/guest/shop/batch-client",
            "leno://cluster.local/ns/shop/batch-client",
            "leno://cluster.local/guest/shop",
            "leno://cluster.local/guest/shop/a/b",
            "leno:///guest/shop/a",
        ] {
            assert!(bad.parse::<ExternalPrincipalId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_namespace_gives_names_of_its_own_accounts_and_of_nobody_in_the_mesh() {
        let domain = TrustDomain::new("cluster.local").unwrap();
        let own = Name::new("ingress-nginx").unwrap();
        let check =
            |subject: &str, sponsor| check_subject(&Name::new(subject).unwrap(), sponsor, &domain);
        let within = SubjectScope::Namespace(&own);
        for (subject, by_namespace, by_mesh) in [
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
            assert_eq!(check(subject, within).is_ok(), by_namespace, "{subject}");
            assert_eq!(check(subject, SubjectScope::Mesh).is_ok(), by_mesh, "{subject}");
        }
    }
}
