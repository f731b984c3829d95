//! Guests: clients outside the mesh that show a certificate which the mesh made for them.

use std::fmt;
use std::str::FromStr;

use crate::identity::TrustDomain;
use crate::name::{InvalidName, Name, PolicyName, SecretName};

/// An `AccessCert`: a guest's certificate is wanted in a Secret of its own namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessCert {
    /// Its name.
    pub name: PolicyName,
    /// What the guest is called, at least once.
    pub subjects: Vec<Name>,
    /// The Secret, of its own namespace.
    pub secret: Name,
}

/// Whose a guest's certificate is: written as `leno://TRUST-DOMAIN/guest/NAMESPACE/SECRET`, by the Secret that it
/// was made for.
///
/// It is no SPIFFE id on purpose: whoever looks for a member of a mesh finds none, here and elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestId {
    /// Who vouches for it.
    pub trust_domain: TrustDomain,
    /// The Secret that the certificate was made for.
    pub secret: SecretName,
}

impl fmt::Display for GuestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SecretName { namespace, name } = &self.secret;
        write!(f, "{SCHEME}{}/guest/{namespace}/{name}", self.trust_domain)
    }
}

impl FromStr for GuestId {
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

/// Who says what a guest is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sponsor<'a> {
    /// Whoever may write into this namespace: names of its accounts are its own to give.
    Namespace(&'a Name),
    /// Whoever settles things for the whole mesh.
    Mesh,
}

/// Whether a guest may be called so, where members are of `trust_domain`.
///
/// Below the trust domain there are names of accounts alone, `ACCOUNT.NAMESPACE.TRUST-DOMAIN`, and each is for its own
/// namespace to give.
///
/// # Errors
/// [`BadSubject`], in words for whoever wrote the name.
pub fn check_subject(
    subject: &Name,
    sponsor: Sponsor<'_>,
    trust_domain: &TrustDomain,
) -> Result<(), BadSubject> {
    let last = subject.as_str().rsplit('.').next().unwrap_or_default();
    if last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(BadSubject::Address);
    }
    let Some(below) = below(subject, trust_domain) else {
        return Ok(());
    };
    let mut parts = below.split('.');
    let (Some(account), Some(namespace), None) = (parts.next(), parts.next(), parts.next()) else {
        return Err(BadSubject::Domain(trust_domain.clone()));
    };
    match sponsor {
        _ if account.is_empty() => Err(BadSubject::Domain(trust_domain.clone())),
        Sponsor::Namespace(own) if own.as_str() != namespace => {
            Err(BadSubject::Namespace { own: own.clone(), trust_domain: trust_domain.clone() })
        }
        Sponsor::Namespace(_) | Sponsor::Mesh => Ok(()),
    }
}

/// What stands before the trust domain in a name below it; empty for the trust domain itself.
#[must_use]
pub fn below<'a>(subject: &'a Name, trust_domain: &TrustDomain) -> Option<&'a str> {
    let rest = subject.as_str().strip_suffix(trust_domain.0.as_str())?;
    match rest {
        "" => Some(rest),
        _ => rest.strip_suffix('.'),
    }
}

/// Why a guest cannot be called so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSubject {
    /// It would be an address to some.
    #[error("is an address, not a name of the DNS")]
    Address,
    /// A name of the mesh that is not an account's.
    #[error(
        "is below the trust domain `{0}`, where only accounts have names: ACCOUNT.NAMESPACE.{0}"
    )]
    Domain(TrustDomain),
    /// The name of an account of somebody else.
    #[error(
        "is the name of an account of another namespace: here it ends in `.{own}.{trust_domain}`"
    )]
    Namespace {
        /// Whose names are to be given here.
        own: Name,
        /// Of which trust domain.
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
        let id: GuestId = text.parse().unwrap();
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
            assert!(bad.parse::<GuestId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_namespace_gives_names_of_its_own_accounts_and_of_nobody_in_the_mesh() {
        let domain = TrustDomain::new("cluster.local").unwrap();
        let own = Name::new("ingress-nginx").unwrap();
        let check =
            |subject: &str, sponsor| check_subject(&Name::new(subject).unwrap(), sponsor, &domain);
        let within = Sponsor::Namespace(&own);
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
            assert_eq!(check(subject, Sponsor::Mesh).is_ok(), by_mesh, "{subject}");
        }
    }
}
