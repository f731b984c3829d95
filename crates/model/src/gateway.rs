//! A gateway: what comes in from outside the mesh, at which ports, and where it goes.
//!
//! What the Gateway API says of attachment (which routes, grants, secrets and host names belong
//! together) is decided before: this is the outcome.

use std::fmt;

use crate::name::{GatewayName, Name};
use crate::route::RouteRule;
use crate::tcp_rule::TcpRule;
use crate::tls_route::{HostPattern, TlsRule};

/// What the proxies of one Gateway API `Gateway` serve.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gateway {
    /// Its name.
    pub name: GatewayName,
    /// Its ports, each number once, in order.
    pub ports: Vec<GatewayPort>,
}

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
}
