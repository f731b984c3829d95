//! Gateways: listeners for traffic from outside the mesh, and its destinations.
//!
//! The control plane resolves the attachment of routes, the grants, the secrets and the host names as defined by the
//! Gateway API. These types hold the result, which is sent to the proxies of a gateway.

use std::fmt;

use crate::identity::ServiceAccount;
use crate::name::{GatewayName, Name};
use crate::route::{RouteRule, WeightedBackend};
use crate::tcp_rule::TcpRule;
use crate::tls_route::{HostPattern, TlsRule};
use crate::workload::Workload;

/// The configuration of the proxies of one Gateway API `Gateway`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gateway {
    /// The name of the gateway.
    pub name: GatewayName,
    /// The ports; each number occurs once, in order.
    pub ports: Vec<GatewayPort>,
}

impl Gateway {
    /// Returns the backends and mirror targets of all rules of all ports.
    pub fn backends(&self) -> impl Iterator<Item = &WeightedBackend> {
        self.ports.iter().flat_map(|port| port.serves.backends())
    }
}

/// Returns the account of a gateway's proxies, in the gateway's namespace. The account's name is
/// [`GATEWAY_ACCOUNT_PREFIX`] followed by the name of the gateway, truncated to 63 bytes. `None` if the result is not a
/// valid name.
#[must_use]
pub fn gateway_account(gateway: &GatewayName) -> Option<ServiceAccount> {
    let mut name = format!("{GATEWAY_ACCOUNT_PREFIX}{}", gateway.name);
    name.truncate(MAX_ACCOUNT_BYTES);
    let name = Name::new(name.trim_end_matches(['-', '.'])).ok()?;
    Some(ServiceAccount { namespace: gateway.namespace.clone(), name })
}

/// True if a workload is a proxy of the gateway: it has the gateway's label and the gateway's account. The label
/// alone is no proof, because any workload may set it.
#[must_use]
pub fn is_proxy_of(gateway: &GatewayName, workload: &Workload) -> bool {
    workload.sidecar
        && workload.name.namespace == gateway.namespace
        && workload.labels.get(GATEWAY_LABEL).is_some_and(|name| *name == gateway.name.as_str())
        && gateway_account(gateway).is_some_and(|account| account == workload.account)
}

/// The prefix of the account names of gateway proxies.
pub const GATEWAY_ACCOUNT_PREFIX: &str = "leno-gateway-";

/// The label of gateway proxies with the name of the gateway as its value (Gateway API, GEP-1762).
pub const GATEWAY_LABEL: &str = "gateway.networking.k8s.io/gateway-name";

/// The maximum length of a gateway's account name in bytes: that of a DNS label (RFC 1123).
const MAX_ACCOUNT_BYTES: usize = 63;

/// One port that a gateway listens on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GatewayPort {
    /// The port number, 1 to 65535.
    pub port: u16,
    /// The traffic that the port serves.
    pub serves: GatewayPortRules,
}

/// The traffic that a gateway port serves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GatewayPortRules {
    /// HTTP/1.1, and HTTP/2 with prior knowledge.
    Http(Vec<GatewayListener>),
    /// HTTP over TLS that the gateway terminates.
    Https(Vec<GatewayListener>),
    /// TLS passthrough, routed by server name.
    Passthrough(Vec<TlsRule>),
    /// Opaque TCP connections.
    Tcp(TcpRule),
}

impl GatewayPortRules {
    /// Returns the backends and mirror targets of all rules of the port.
    pub fn backends(&self) -> impl Iterator<Item = &WeightedBackend> {
        let (listeners, tls_rules, tcp_rule): (&[GatewayListener], &[TlsRule], Option<&TcpRule>) =
            match self {
                Self::Http(listeners) | Self::Https(listeners) => (listeners, &[], None),
                Self::Passthrough(rules) => (&[], rules, None),
                Self::Tcp(rule) => (&[], &[], Some(rule)),
            };
        let host_rules = listeners.iter().flat_map(|listener| &listener.hosts);
        let route_rules = host_rules.flat_map(|host| &host.rules);
        let route_backends =
            route_rules.flat_map(|rule| rule.backends.iter().chain(&rule.actions.mirrors));
        let tls_backends = tls_rules.iter().flat_map(|rule| &rule.backends);
        let tcp_backends = tcp_rule.into_iter().flat_map(|rule| &rule.backends);
        route_backends.chain(tls_backends).chain(tcp_backends)
    }
}

/// One listener of a port. If several listeners of a port match a request, only the listener with the most specific
/// host name handles it (Gateway API, listener isolation).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GatewayListener {
    /// The name of the listener, unique in the gateway.
    pub name: Name,
    /// The host name, or its subdomains, that the listener serves; any host when absent.
    pub hostname: Option<HostPattern>,
    /// The server certificates; a session uses the first one that the client supports. Empty without TLS.
    pub certificates: Vec<GatewayCertificate>,
    /// The rules by host name; unmatched requests receive a 404.
    pub hosts: Vec<HostRules>,
}

/// The rules for one host name or its subdomains. The rules of the most specific host name are evaluated first. If
/// none of them matches, the rules of the next less specific host name are evaluated.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostRules {
    /// The host name, or its subdomains; all hosts of the listener when absent.
    pub hostname: Option<HostPattern>,
    /// The rules of all routes for the host name, ordered by the age, then the namespace and name, of their routes.
    pub rules: Vec<RouteRule>,
}

/// A certificate and its key, as in a Secret of type `kubernetes.io/tls`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct GatewayCertificate {
    /// The certificate chain, PEM.
    pub chain: String,
    /// The private key, PEM. Never printed.
    pub key: String,
}

/// Formats the length of the chain only, so that the private key never reaches a log.
impl fmt::Debug for GatewayCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayCertificate")
            .field("chain", &self.chain.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_never_printed() {
        let certificate =
            GatewayCertificate { chain: "a chain".to_owned(), key: "a secret".to_owned() };
        assert!(!format!("{certificate:?}").contains("secret"));
    }

    #[test]
    fn accounts_of_gateways_are_labels() {
        let account = |name: &str| {
            let gateway = GatewayName::new("shop", name).unwrap();
            gateway_account(&gateway).unwrap().to_string()
        };
        assert_eq!(account("edge"), "shop/leno-gateway-edge");
        let long = format!("{}-{}", "a".repeat(49), "b".repeat(10));
        assert_eq!(account(&long), format!("shop/leno-gateway-{}", "a".repeat(49)));
    }
}
