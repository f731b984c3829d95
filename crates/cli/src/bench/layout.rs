//! Defines the layouts: the topologies of proxies and applications, and the roles of their ports.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A topology of proxies and applications. Ports have roles, such as `entry`; requests to a role's port take the
/// described path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Layout {
    /// One client and one server, each behind its proxy; HTTP. The port `entry` forwards to the port `backend`.
    Http,
    /// The topology of [`Layout::Http`] for opaque TCP.
    Tcp,
    /// Two services of bookinfo: the port `entry-ratings` forwards to the port `ratings`, the port
    /// `entry-gateway` to `gateway`, and the port `outbound`, an HTTP proxy for the application behind
    /// `gateway`, to `ratings`.
    Bookinfo,
    /// One client and three servers, each behind its proxy. The ports `entry-1` to `entry-3` forward to
    /// the ports `backend-1` to `backend-3`.
    Fan,
    /// A consumer that calls one of three providers, which call one data source. The port `listener-1` forwards to
    /// any of the ports `provider-1` to `provider-3`; the data source is outside the mesh.
    Chain,
    /// The topology of [`Layout::Chain`] with rules that select providers by tag.
    TaggedChain,
}

impl Layout {
    /// Returns the layout's name in contender files.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Tcp => "tcp",
            Self::Bookinfo => "bookinfo",
            Self::Fan => "fan",
            Self::Chain => "chain",
            Self::TaggedChain => "tagged-chain",
        }
    }

    /// Returns the namespace of the layout's services, for contenders with namespaces.
    pub(super) const fn namespace(self) -> &'static str {
        match self {
            Self::Http | Self::Tcp | Self::Fan | Self::Chain | Self::TaggedChain => "bench",
            Self::Bookinfo => "bookinfo",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
