//! Defines the nftables rules that redirect connections, and formats them in `nft` syntax.

use std::fmt;

use crate::cidr_range::CidrRange;

/// The rules at one hook, in order; connections that match no rule pass unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NftChain {
    pub(super) hook: NetfilterHook,
    pub(super) rules: Vec<NftRule>,
}

/// The netfilter hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NetfilterHook {
    /// Connections opened by processes of the namespace.
    Output,
    /// Incoming connections.
    Prerouting,
}

/// A verdict for connections that satisfy all matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NftRule {
    pub(super) matches: Vec<NftMatch>,
    pub(super) verdict: NftVerdict,
}

/// A condition of a rule, which nft(8) calls a match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NftMatch {
    /// A process of this user opened the connection.
    Uid(u32),
    /// The connection leaves through this interface.
    OutputInterface(String),
    /// The connection arrived through this interface.
    InputInterface(String),
    /// The connection uses TCP, to this port.
    TcpPort(u16),
    /// The packet uses UDP, to this port.
    UdpPort(u16),
    /// The destination is an address of this range.
    DestinationRange(CidrRange),
    /// The connection uses TCP.
    Tcp,
}

/// The verdict of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NftVerdict {
    /// The connection passes to its destination.
    Return,
    /// The connection is redirected to this port of the namespace.
    Redirect(u16),
}

impl NetfilterHook {
    /// Returns the name of the chain, which `nft` uses for the hook as well.
    pub(super) const fn chain_name(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Prerouting => "prerouting",
        }
    }
}

/// Formats the chains in `nft -f` syntax, replacing the existing table.
pub(super) fn to_text(chains: &[NftChain]) -> String {
    let chain_texts: String = chains.iter().map(ToString::to_string).collect();
    format!(
        "add table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n{chain_texts}}}\n"
    )
}

impl fmt::Display for NftChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.hook.chain_name();
        writeln!(f, "  chain {name} {{")?;
        writeln!(f, "    type nat hook {name} priority {PRIORITY}; policy accept;")?;
        for NftRule { matches, verdict } in &self.rules {
            f.write_str("    ")?;
            for nft_match in matches {
                write!(f, "{nft_match} ")?;
            }
            writeln!(f, "{verdict}")?;
        }
        f.write_str("  }\n")
    }
}

impl fmt::Display for NftMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid(uid) => write!(f, "meta skuid {uid}"),
            Self::OutputInterface(name) => write!(f, "oifname \"{name}\""),
            Self::InputInterface(name) => write!(f, "iifname \"{name}\""),
            Self::TcpPort(port) => write!(f, "tcp dport {port}"),
            Self::UdpPort(port) => write!(f, "udp dport {port}"),
            Self::DestinationRange(range) => write!(f, "{} daddr {range}", range.nft_family()),
            Self::Tcp => f.write_str("meta l4proto tcp"),
        }
    }
}

impl fmt::Display for NftVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Return => f.write_str("return"),
            Self::Redirect(port) => write!(f, "redirect to :{port}"),
        }
    }
}

/// The name of the table.
pub(super) const TABLE: &str = "leno";
/// The priority of destination NAT (`NF_IP_PRI_NAT_DST`).
pub(super) const PRIORITY: i32 = -100;
