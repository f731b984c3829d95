//! Layouts: what a contender is asked to build, and the ports it has to listen and lead to.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which services there are and how they are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Layout {
    /// One client and one server, each behind its proxy; HTTP. The port `entrance` leads to the
    /// port `backend`.
    Http,
    /// The same for bytes that are nobody's business.
    Tcp,
    /// Two services of bookinfo: the port `entrance-ratings` leads to the port `ratings`, the
    /// port `entrance-gateway` to `gateway`, and the port `outbound`, which is an HTTP proxy
    /// for the application behind `gateway`, leads to `ratings`.
    Bookinfo,
    /// One client and three servers, each behind its proxy. The ports `entrance-1` to
    /// `entrance-3` lead to the ports `backend-1` to `backend-3`.
    Fan,
    /// A consumer that asks one of three providers, which ask one source of data. The port
    /// `door-1` leads to any of the ports `provider-1` to `provider-3`; the source of data is no
    /// part of the mesh.
    Chain,
    /// The same with rules that choose among the providers by tag.
    TaggedChain,
}

impl Layout {
    /// The word in contender files.
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

    /// The namespace of its services, where a contender has such.
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
