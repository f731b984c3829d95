//! Ingress policies: ports of workloads that accept clients outside the mesh.

use std::fmt;
use std::str::FromStr;

use crate::external_principal::domain_prefix;
use crate::identity::{ServiceAccount, SpiffeId, TrustDomain};
use crate::ip_range::IpRange;
use crate::name::{InvalidName, Name, RouteGroupName, ServiceName};
use crate::request_match::RequestMatch;

/// An `IngressBackend` or an `AccessControl`: allows clients outside the mesh at some ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngressPolicy {
    /// The name of the policy.
    pub name: IngressName,
    /// The ports that the policy opens, of services in the policy's namespace.
    pub backends: Vec<IngressBackend>,
    /// The clients that the policy allows.
    pub sources: Vec<IngressSource>,
    /// The route groups with the allowed requests, in the policy's namespace; all requests are allowed when empty.
    pub groups: Vec<RouteGroupName>,
    /// The creation time in a cluster, in seconds; 0 in a file.
    pub created: i64,
}

impl IngressPolicy {
    /// Returns the precedence among policies for the same traffic: the oldest first, then the first by name.
    #[must_use]
    pub fn precedence(&self) -> (i64, &IngressName) {
        (self.created, &self.name)
    }
}

/// The name of an [`IngressPolicy`]. Among policies of the same age for one port, the smallest name takes
/// precedence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IngressName {
    /// The namespace of the policy.
    pub namespace: Name,
    /// The kind of the policy.
    pub kind: IngressKind,
    /// The name of the policy, unique for its kind in the namespace.
    pub name: Name,
}

/// Formats as `Kind namespace/name`.
impl fmt::Display for IngressName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.as_str(), self.namespace, self.name)
    }
}

/// Parses `Kind namespace/name`.
impl FromStr for IngressName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let parse = || {
            let (kind, full_name) = text.split_once(' ')?;
            let kind = *IngressKind::ALL.iter().find(|candidate| candidate.as_str() == kind)?;
            let (namespace, name) = full_name.split_once('/')?;
            let (namespace, name) = (Name::new(namespace).ok()?, Name::new(name).ok()?);
            Some(Self { namespace, kind, name })
        };
        parse().ok_or_else(|| InvalidName { text: text.to_owned() })
    }
}

/// The kinds of ingress policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IngressKind {
    /// An `IngressBackend` of OSM, osm-edge or FSM.
    IngressBackend,
    /// An `AccessControl` of osm-edge or FSM.
    AccessControl,
}

impl IngressKind {
    /// All values, in the order of the documentation.
    pub const ALL: &'static [Self] = &[Self::IngressBackend, Self::AccessControl];

    /// Returns the word used in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::IngressBackend => "IngressBackend",
            Self::AccessControl => "AccessControl",
        }
    }
}

/// A port that accepts external clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngressBackend {
    /// The service that selects the workloads.
    pub service: Name,
    /// The workload port, not the service port.
    pub port: u16,
    /// The protocol of clients.
    pub protocol: IngressProtocol,
}

/// The protocol of external clients.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IngressProtocol {
    /// HTTP without TLS.
    Http,
    /// gRPC without TLS.
    Grpc,
    /// Any protocol of the application; the sidecar terminates no TLS.
    Tcp,
    /// HTTP over TLS.
    Https {
        /// The client certificate requirement.
        client_certificate: ClientCertificateMode,
        /// The accepted server names; any when empty.
        server_names: Vec<String>,
    },
}

impl IngressProtocol {
    /// True if the sidecar does not terminate TLS for the clients.
    #[must_use]
    pub fn is_plaintext(&self) -> bool {
        !matches!(self, Self::Https { .. })
    }
}

/// The client certificate requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientCertificateMode {
    /// A certificate of the mesh is required, and identifies the client.
    Required,
    /// No certificate is required.
    Skipped,
}

/// One entry of the clients that an ingress policy allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IngressSource {
    /// Clients with the address of a workload of this service.
    Service(ServiceName),
    /// Clients with an address in this range.
    Range(IpRange),
    /// Clients with a certificate of this identity.
    Principal(SpiffeId),
    /// Clients with a certificate of this mesh for this DNS name. A name of the form
    /// `ACCOUNT.NAMESPACE.TRUST-DOMAIN` means that account; any other name means an external principal.
    Named(Name),
}

impl IngressSource {
    /// Returns the account that the entry names; `None` if it names no account of this trust domain.
    #[must_use]
    pub fn account_in(&self, trust_domain: &TrustDomain) -> Option<ServiceAccount> {
        match self {
            Self::Principal(id) => (id.trust_domain == *trust_domain).then(|| id.account.clone()),
            Self::Named(name) => {
                let (account, namespace) = domain_prefix(name, trust_domain)?.split_once('.')?;
                let is_namespace = !namespace.contains('.');
                is_namespace.then(|| ServiceAccount::new(namespace, account).ok()).flatten()
            }
            Self::Service(_) | Self::Range(_) => None,
        }
    }
}

/// An ingress rule: one port that a policy opens, as sent to the workload's sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IngressRule {
    /// The name of the policy.
    pub policy: IngressName,
    /// The port of the application.
    pub port: u16,
    /// The protocol of clients.
    pub protocol: IngressProtocol,
    /// The allowed client addresses; any when absent.
    pub ranges: Option<Vec<IpRange>>,
    /// The allowed accounts, if a client certificate is required.
    pub accounts: Vec<ServiceAccount>,
    /// The DNS names of the allowed external principals, if a client certificate is required.
    pub external_principals: Vec<Name>,
    /// The allowed requests; one matching entry is enough. All requests are allowed when absent.
    pub requests: Option<Vec<RequestMatch>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_the_own_trust_domain_is_an_account() {
        let trust_domain = TrustDomain::new("cluster.local").unwrap();
        let account = |text: &str| {
            let source = match text.parse() {
                Ok(id) => IngressSource::Principal(id),
                Err(_) => IngressSource::Named(Name::new(text).unwrap()),
            };
            source.account_in(&trust_domain).map(|account| account.to_string())
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
    fn ingress_names_round_trip_and_sort_by_kind() {
        let name: IngressName = "IngressBackend shop/web".parse().unwrap();
        assert_eq!(name.to_string(), "IngressBackend shop/web");
        let other: IngressName = "AccessControl shop/a".parse().unwrap();
        assert!(name < other);
        for invalid in ["", "IngressBackend", "IngressBackend shop", "Service shop/web"] {
            assert!(invalid.parse::<IngressName>().is_err(), "{invalid}");
        }
    }
}
