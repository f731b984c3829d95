//! Rules of a packet filter, as far as interception needs them, and how `nft` writes them.

use std::fmt;

use crate::range::Range;

/// Rules at one hook, tried in order; what none decides goes on as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) hook: Hook,
    pub(super) rules: Vec<Rule>,
}

/// Where connections are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hook {
    /// Those that processes of the namespace open.
    Output,
    /// Those that arrive.
    Prerouting,
}

/// What happens to a connection that all of these fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) matches: Vec<Match>,
    pub(super) verdict: Verdict,
}

/// One question about a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Match {
    /// Opened by this user.
    Uid(u32),
    /// Leaves by this interface.
    To(String),
    /// Came by this interface.
    From(String),
    /// TCP, to this port.
    Port(u16),
    /// UDP, to this port.
    UdpPort(u16),
    /// To an address of this range.
    In(Range),
    /// TCP.
    Tcp,
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It goes where it wanted to go.
    Return,
    /// It goes to this port of the namespace.
    Redirect(u16),
}

impl Hook {
    /// What its chain is called; the hook has the same name in `nft`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Prerouting => "prerouting",
        }
    }
}

/// The chains as `nft -f` reads them, in place of those that are there.
pub(super) fn to_text(chains: &[Chain]) -> String {
    let chains: String = chains.iter().map(ToString::to_string).collect();
    format!(
        "add table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n{chains}}}\n"
    )
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.hook.name();
        writeln!(f, "  chain {name} {{")?;
        writeln!(f, "    type nat hook {name} priority {PRIORITY}; policy accept;")?;
        for Rule { matches, verdict } in &self.rules {
            f.write_str("    ")?;
            for one in matches {
                write!(f, "{one} ")?;
            }
            writeln!(f, "{verdict}")?;
        }
        f.write_str("  }\n")
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid(uid) => write!(f, "meta skuid {uid}"),
            Self::To(name) => write!(f, "oifname \"{name}\""),
            Self::From(name) => write!(f, "iifname \"{name}\""),
            Self::Port(port) => write!(f, "tcp dport {port}"),
            Self::UdpPort(port) => write!(f, "udp dport {port}"),
            Self::In(range) => write!(f, "{} daddr {range}", range.version()),
            Self::Tcp => f.write_str("meta l4proto tcp"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Return => f.write_str("return"),
            Self::Redirect(port) => write!(f, "redirect to :{port}"),
        }
    }
}

/// What the table is called.
pub(super) const TABLE: &str = "leno";
/// That of address translation (`NF_IP_PRI_NAT_DST`).
pub(super) const PRIORITY: i32 = -100;
