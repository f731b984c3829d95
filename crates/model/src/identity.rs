//! Workload identities: service accounts in a trust domain, written as SPIFFE IDs.

use std::fmt;
use std::str::FromStr;

use crate::name::{InvalidName, Name};

/// The name of a trust domain (SPIFFE): all identities with this name are issued by the same root of trust. A DNS-like
/// name such as `cluster.local`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrustDomain(pub Name);

impl TrustDomain {
    /// Validates a trust domain.
    ///
    /// # Errors
    /// [`InvalidName`] if it is not a DNS-1123 subdomain.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        Name::new(text).map(Self)
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An account that workloads run under. Several workloads may share an account.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceAccount {
    /// The namespace of the account.
    pub namespace: Name,
    /// The name of the account.
    pub name: Name,
}

impl ServiceAccount {
    /// Validates the namespace and the name.
    ///
    /// # Errors
    /// [`InvalidName`] for the first of the two that is not a DNS-1123 subdomain.
    pub fn new(namespace: &str, name: &str) -> Result<Self, InvalidName> {
        Ok(Self { namespace: Name::new(namespace)?, name: Name::new(name)? })
    }
}

impl fmt::Display for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A verified or expected identity: `spiffe://<trust-domain>/ns/<namespace>/sa/<account>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpiffeId {
    /// The trust domain that issued the identity.
    pub trust_domain: TrustDomain,
    /// The account that the identity names.
    pub account: ServiceAccount,
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServiceAccount { namespace, name } = &self.account;
        write!(f, "spiffe://{}/ns/{namespace}/sa/{name}", self.trust_domain)
    }
}

impl FromStr for SpiffeId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let invalid = || InvalidName { text: text.chars().take(253).collect() };
        let path = text.strip_prefix("spiffe://").ok_or_else(invalid)?;
        let path_elements: Vec<&str> = path.split('/').collect();
        match path_elements.as_slice() {
            [domain, "ns", namespace, "sa", name] => Ok(Self {
                trust_domain: TrustDomain::new(domain)?,
                account: ServiceAccount::new(namespace, name)?,
            }),
            _ => Err(invalid()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spiffe_ids_round_trip() {
        let text = "spiffe://cluster.local/ns/bookinfo/sa/ratings";
        let id: SpiffeId = text.parse().unwrap();
        assert_eq!(id.to_string(), text);
    }

    #[test]
    fn other_uri_forms_are_rejected() {
        for invalid in [
            "https://cluster.local/ns/a/sa/b",
            "spiffe://cluster.local/sa/b/ns/a",
            "spiffe://cluster.local/ns/a/sa/b/c",
            "spiffe:///ns/a/sa/b",
            "spiffe://cluster.local/ns/a/sa/",
        ] {
            assert!(invalid.parse::<SpiffeId>().is_err(), "{invalid}");
        }
    }
}
