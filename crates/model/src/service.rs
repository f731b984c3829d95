//! A service: a name and ports that clients call, and the labels that choose its workloads.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::name::{Name, ServiceName};
use crate::workload::Workload;

/// What clients call: ports, and a selector that chooses the workloads behind them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: ServiceName,
    /// Labels that a workload of the same namespace must carry; empty selects nothing.
    pub selector: BTreeMap<String, String>,
    /// Its ports, at least one, numbers unique.
    pub ports: Vec<ServicePort>,
    /// The addresses that a cluster gave it, by which clients call it too; none outside of one, and
    /// for services whose names lead to their workloads (headless ones).
    pub addresses: BTreeSet<IpAddr>,
    /// Whether workloads that are not ready are behind it too.
    pub unready: bool,
    /// Of which versions of IP the addresses are that its name leads to, where it has none itself.
    pub families: Families,
}

/// Versions of IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Families {
    /// Version 4 alone.
    V4,
    /// Version 6 alone.
    V6,
    /// Both.
    #[default]
    Both,
}

impl Families {
    /// Whether an address is of one of them.
    #[must_use]
    pub const fn has(self, address: IpAddr) -> bool {
        match self {
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
            Self::Both => true,
        }
    }
}

/// One port of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name, if it has one.
    pub name: Option<Name>,
    /// The number that clients use.
    pub port: u16,
    /// Where it leads in the workload.
    pub target: TargetPort,
    /// What is spoken there, if the service says so; otherwise the workload's port decides.
    pub protocol: Option<Protocol>,
}

impl ServicePort {
    /// True for a port without a declared protocol at which the server speaks first by convention: see [`is_server_first`].
    #[must_use]
    pub fn is_server_first(&self) -> bool {
        let target = match self.target {
            TargetPort::Number(number) => number,
            TargetPort::Name(_) => self.port,
        };
        self.protocol.is_none()
            && (is_server_first(self.name.as_ref(), self.port) || is_server_first(None, target))
    }
}

/// True for ports at which the server speaks first by convention: those named `mysql`, `mongo`, `redis` or `smtp`, or so with
/// a suffix after a hyphen, and port 25, 587, 3306, 4444, 6379, 9300 and 11211. Waiting for the first bytes of the client would
/// delay each connection there.
#[must_use]
pub fn is_server_first(name: Option<&Name>, number: u16) -> bool {
    let first_part = name.and_then(|name| name.as_str().split('-').next());
    SERVER_FIRST_PORTS.contains(&number)
        || first_part.is_some_and(|part| SERVER_FIRST_NAMES.contains(&part))
}

/// The names of server-first protocols, as the names of ports have them.
const SERVER_FIRST_NAMES: [&str; 4] = ["mysql", "mongo", "redis", "smtp"];
/// SMTP, mail submission, MySQL, Galera, Redis, Elasticsearch's transport and memcached: the defaults of Linkerd.
const SERVER_FIRST_PORTS: [u16; 7] = [25, 587, 3306, 4444, 6379, 9300, 11211];

/// Where a service port leads in the workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetPort {
    /// A port number.
    Number(u16),
    /// The name of a workload port.
    Name(Name),
}

impl TargetPort {
    /// The number of the port of a workload; none when the workload has no port of this name.
    #[must_use]
    pub fn number_at(&self, workload: &Workload) -> Option<u16> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Name(name) => {
                let mut ports = workload.ports.iter();
                ports.find(|port| port.name.as_ref() == Some(name)).map(|port| port.port)
            }
        }
    }

    /// Returns true when both lead to the same port of a workload.
    #[must_use]
    pub fn is_same_at(&self, other: &Self, workload: &Workload) -> bool {
        let number = self.number_at(workload);
        self == other || number.is_some() && number == other.number_at(workload)
    }

    /// True when the application of a workload may receive requests at this port: the workload declares another protocol
    /// than TCP there, or one of `clear`, the targets of ports that are not declared to carry TCP, leads there too.
    pub fn sees_requests_at<'a>(
        &self,
        workload: &Workload,
        clear: impl IntoIterator<Item = &'a Self>,
    ) -> bool {
        let number = self.number_at(workload);
        let is_clear = |it: Protocol| !matches!(it, Protocol::Tcp | Protocol::Detect);
        let mut clear = clear.into_iter();
        workload.ports.iter().any(|it| Some(it.port) == number && is_clear(it.protocol))
            || clear.any(|it| it.is_same_at(self, workload))
    }
}

/// What is spoken on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Protocol {
    /// HTTP/1.1.
    Http,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// gRPC, hence HTTP/2.
    Grpc,
    /// Opaque bytes.
    Tcp,
    /// Decided by the first bytes of each connection.
    #[default]
    Detect,
}

impl Protocol {
    /// The word used in manifests and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Http2 => "HTTP2",
            Self::Grpc => "GRPC",
            Self::Tcp => "TCP",
            Self::Detect => "detect",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
