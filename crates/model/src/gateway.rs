//! A gateway: what comes in from outside the mesh, at which ports, and where it goes.
//!
//! What the Gateway API says of attachment (which routes, grants, secrets and host names belong
//! together) is decided before: this is the outcome.

use std::fmt;

use crate::identity::ServiceAccount;
use crate::name::{GatewayName, Name};
use crate::route::{RouteRule, WeightedBackend};
use crate::tcp_rule::TcpRule;
use crate::tls_route::{HostPattern, TlsRule};
use crate::workload::Workload;

/// What the proxies of one Gateway API `Gateway` serve.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gateway {
    /// Its name.
    pub name: GatewayName,
    /// Its ports, each number once, in order.
    pub ports: Vec<GatewayPort>,
}

impl Gateway {
    /// Where its rules lead, copies of requests included.
    pub fn backends(&self) -> impl Iterator<Item = &WeightedBackend> {
        self.ports.iter().flat_map(|port| port.serves.backends())
    }
}

/// The account that the proxies of a gateway run under, in its own namespace: the name of the
/// gateway after [`GATEWAY_ACCOUNT_PREFIX`], cut to what is a label.
#[must_use]
pub fn gateway_account(gateway: &GatewayName) -> Option<ServiceAccount> {
    let mut name = format!("{GATEWAY_ACCOUNT_PREFIX}{}", gateway.name);
    name.truncate(ACCOUNT_BYTES_MAX);
    let name = Name::new(name.trim_end_matches(['-', '.'])).ok()?;
    Some(ServiceAccount { namespace: gateway.namespace.clone(), name })
}

/// Whether a workload that says so by its label, and runs under this account, is a proxy of the
/// gateway. The label alone is anybody's.
#[must_use]
pub fn is_proxy_of(gateway: &GatewayName, workload: &Workload) -> bool {
    workload.sidecar
        && workload.name.namespace == gateway.namespace
        && workload.labels.get(GATEWAY_LABEL).is_some_and(|name| *name == gateway.name.as_str())
        && gateway_account(gateway).is_some_and(|account| account == workload.account)
}

/// What the names of the accounts of gateways begin with.
pub const GATEWAY_ACCOUNT_PREFIX: &str = "leno-gateway-";

/// The label of the proxies of a gateway, with its name (Gateway API, GEP-1762).
pub const GATEWAY_LABEL: &str = "gateway.networking.k8s.io/gateway-name";

/// RFC 1123: the longest label.
const ACCOUNT_BYTES_MAX: usize = 63;

/// One port that a gateway listens on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GatewayPort {
    /// The port number, 1 to 65535.
    pub port: u16,
    /// What it serves.
    pub serves: Serves,
}

/// What a port of a gateway serves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Serves {
    /// HTTP/1.1, and HTTP/2 whose clients know beforehand that it is spoken.
    Http(Vec<GatewayListener>),
    /// The same inside TLS that ends at the gateway.
    Https(Vec<GatewayListener>),
    /// TLS that goes on as it is, by the server name that its client asks for.
    Passthrough(Vec<TlsRule>),
    /// Bytes.
    Tcp(TcpRule),
}

impl Serves {
    /// Where its rules lead.
    pub fn backends(&self) -> impl Iterator<Item = &WeightedBackend> {
        let (listeners, tls, tcp): (&[GatewayListener], &[TlsRule], Option<&TcpRule>) = match self {
            Self::Http(listeners) | Self::Https(listeners) => (listeners, &[], None),
            Self::Passthrough(rules) => (&[], rules, None),
            Self::Tcp(rule) => (&[], &[], Some(rule)),
        };
        let hosts = listeners.iter().flat_map(|listener| &listener.hosts);
        let rules = hosts.flat_map(|host| &host.rules);
        let rules = rules.flat_map(|rule| rule.backends.iter().chain(&rule.actions.mirrors));
        let tls = tls.iter().flat_map(|rule| &rule.backends);
        rules.chain(tls).chain(tcp.into_iter().flat_map(|rule| &rule.backends))
    }
}

/// One listener of a port: the requests for some host names. Of several at one port, the one with
/// the most specific host name takes a request, and no other (Gateway API, listener isolation).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GatewayListener {
    /// Its name in the gateway.
    pub name: Name,
    /// For which host names; any when absent.
    pub hostname: Option<HostPattern>,
    /// What its sessions show to clients; of several, the first that the client can use. Empty
    /// without TLS.
    pub certificates: Vec<GatewayCertificate>,
    /// What becomes of its requests; those that none of these are about are answered 404.
    pub hosts: Vec<HostRules>,
}

/// What becomes of the requests for one host name, or for all below one. Of several, the most
/// specific host name decides which rules are looked at first; requests that none of them fit go
/// on to the next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostRules {
    /// For which host names; any that its listener takes when absent.
    pub hostname: Option<HostPattern>,
    /// The rules of all routes, in the order of routes: age, then namespace and name.
    pub rules: Vec<RouteRule>,
}

/// A certificate with its key, as a Secret of type `kubernetes.io/tls` holds them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct GatewayCertificate {
    /// The certificate and those that lead to its root, PEM.
    pub chain: String,
    /// The private key, PEM. Never printed.
    pub key: String,
}

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
