//! Ingress: what policies open at a workload for clients that are not of the mesh.

use std::fmt;
use std::str::FromStr;

use crate::guest::below;
use crate::identity::{ServiceAccount, SpiffeId, TrustDomain};
use crate::ip_range::IpRange;
use crate::name::{InvalidName, Name, RouteGroupName, ServiceName};
use crate::route::RequestMatch;

/// An `IngressBackend` or an `AccessControl`: who may come in at some ports beside the members of the
/// mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngressPolicy {
    /// Its name.
    pub name: IngressName,
    /// The ports that it opens; of services of its own namespace.
    pub backends: Vec<IngressBackend>,
    /// Who may come in there.
    pub sources: Vec<IngressSource>,
    /// What they may ask; everything when there are none. Of its own namespace.
    pub groups: Vec<RouteGroupName>,
    /// Its creation in a cluster, in seconds; 0 in a file.
    pub created: i64,
}

impl IngressPolicy {
    /// Its rank among others for the same traffic: the oldest goes first, then the first by name.
    #[must_use]
    pub fn precedence(&self) -> (i64, &IngressName) {
        (self.created, &self.name)
    }
}

/// The name of an [`IngressPolicy`]; of two of one age the smaller one opens a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IngressName {
    /// The namespace that holds it.
    pub namespace: Name,
    /// What it is.
    pub kind: IngressKind,
    /// Its own name.
    pub name: Name,
}

/// `Kind namespace/name`.
impl fmt::Display for IngressName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.as_str(), self.namespace, self.name)
    }
}

/// Reads `Kind namespace/name`.
impl FromStr for IngressName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let read = || {
            let (kind, rest) = text.split_once(' ')?;
            let kind = *IngressKind::ALL.iter().find(|it| it.as_str() == kind)?;
            let (namespace, name) = rest.split_once('/')?;
            let (namespace, name) = (Name::new(namespace).ok()?, Name::new(name).ok()?);
            Some(Self { namespace, kind, name })
        };
        read().ok_or_else(|| InvalidName { text: text.to_owned() })
    }
}

/// The kinds that open ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IngressKind {
    /// Of OSM, osm-edge and FSM.
    IngressBackend,
    /// Of osm-edge and FSM.
    AccessControl,
}

impl IngressKind {
    /// Both.
    pub const ALL: &'static [Self] = &[Self::IngressBackend, Self::AccessControl];

    /// The word used in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::IngressBackend => "IngressBackend",
            Self::AccessControl => "AccessControl",
        }
    }
}

/// A port that is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngressBackend {
    /// The service whose workloads are meant.
    pub service: Name,
    /// Their port, not that of the service.
    pub port: u16,
    /// How clients come.
    pub entry: Entry,
}

/// How clients that are not of the mesh come in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Entry {
    /// With HTTP, in clear text.
    Http,
    /// With gRPC, in clear text.
    Grpc,
    /// With whatever the application speaks.
    Tcp,
    /// With HTTP inside TLS.
    Https {
        /// Whether they show a certificate.
        proof: Proof,
        /// The names that they may ask for; any when there are none.
        server_names: Vec<String>,
    },
}

impl Entry {
    /// Whether clients come without TLS of the mesh.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        !matches!(self, Self::Https { .. })
    }
}

/// Whether clients show a certificate of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Proof {
    /// They do, and it says who they are.
    Required,
    /// They need not.
    Skipped,
}

/// Who may come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IngressSource {
    /// Whoever has the address of a workload behind this service.
    Service(ServiceName),
    /// Whoever has one of these addresses.
    Range(IpRange),
    /// Whoever shows the certificate of this identity.
    Principal(SpiffeId),
    /// Whoever shows a certificate of this mesh for this name: a guest, or the account of a name such as
    /// `ACCOUNT.NAMESPACE.TRUST-DOMAIN`.
    Named(Name),
}

impl IngressSource {
    /// The account that is meant, if one of this trust domain is.
    #[must_use]
    pub fn account(&self, own: &TrustDomain) -> Option<ServiceAccount> {
        match self {
            Self::Principal(id) => (id.trust_domain == *own).then(|| id.account.clone()),
            Self::Named(name) => {
                let (account, namespace) = below(name, own)?.split_once('.')?;
                let is_label = !namespace.contains('.');
                is_label.then(|| ServiceAccount::new(namespace, account).ok()).flatten()
            }
            Self::Service(_) | Self::Range(_) => None,
        }
    }
}

/// What a policy opens at one port of a workload, as its sidecar has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Opening {
    /// The policy.
    pub policy: IngressName,
    /// The port of the application.
    pub port: u16,
    /// How clients come.
    pub entry: Entry,
    /// From where; from anywhere when absent.
    pub ranges: Option<Vec<IpRange>>,
    /// Who they are, any of these, where they show a certificate.
    pub accounts: Vec<ServiceAccount>,
    /// What guests are called, any of these, where they show a certificate.
    pub guests: Vec<Name>,
    /// What they may ask, any of these; everything when absent.
    pub requests: Option<Vec<RequestMatch>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_an_account_where_it_is_one_of_the_own_trust_domain() {
        let own = TrustDomain::new("cluster.local").unwrap();
        let account = |text: &str| {
            let source = match text.parse() {
                Ok(id) => IngressSource::Principal(id),
                Err(_) => IngressSource::Named(Name::new(text).unwrap()),
            };
            source.account(&own).map(|account| account.to_string())
        };
        for (text, expected) in [
            ("nginx.edge.cluster.local", Some("edge/nginx")),
            ("spiffe://cluster.local/ns/edge/sa/nginx", Some("edge/nginx")),
            ("spiffe://other/ns/edge/sa/nginx", None),
            ("nginx.edge.svc.cluster.local", None),
            ("edge.cluster.local", None),
            ("cluster.local", None),
            ("batch.corp.example", None),
        ] {
            assert_eq!(account(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn names_read_back_and_ingress_backends_come_first() {
        let name: IngressName = "IngressBackend shop/web".parse().unwrap();
        assert_eq!(name.to_string(), "IngressBackend shop/web");
        let other: IngressName = "AccessControl shop/a".parse().unwrap();
        assert!(name < other);
        for bad in ["", "IngressBackend", "IngressBackend shop", "Service shop/web"] {
            assert!(bad.parse::<IngressName>().is_err(), "{bad}");
        }
    }
}
