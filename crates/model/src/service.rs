//! Services: names and ports that clients call, and selectors of their workloads.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::name::{Name, ServiceName};
use crate::workload::Workload;

/// A service: the ports that clients call, and the selector of the workloads that serve them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The name of the service.
    pub name: ServiceName,
    /// The labels that workloads of the same namespace must have. An empty selector selects no workload.
    pub selector: BTreeMap<String, String>,
    /// The ports, at least one; each port number occurs once.
    pub ports: Vec<ServicePort>,
    /// The cluster IPs; empty outside of a cluster and for headless services.
    pub addresses: BTreeSet<IpAddr>,
    /// True if workloads that are not ready are endpoints as well (`publishNotReadyAddresses`).
    pub unready: bool,
    /// The IP families of the workload addresses that the name resolves to if the service has no cluster IP.
    pub families: IpFamilies,
}

/// The IP families of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IpFamilies {
    /// Only IPv4 addresses.
    V4,
    /// Only IPv6 addresses.
    V6,
    /// IPv4 and IPv6 addresses.
    #[default]
    Both,
}

impl IpFamilies {
    /// True if an address is of one of the families.
    #[must_use]
    pub const fn includes_address(self, address: IpAddr) -> bool {
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
    /// The name of the port, if any.
    pub name: Option<Name>,
    /// The port number that clients call.
    pub port: u16,
    /// The target port in the workload.
    pub target: TargetPort,
    /// The protocol that the service declares; the protocol of the workload's port when absent.
    pub protocol: Option<Protocol>,
}

impl ServicePort {
    /// True for a port without a declared protocol that is server-first by convention: see [`is_server_first`].
    #[must_use]
    pub fn is_server_first(&self) -> bool {
        let target_number = match self.target {
            TargetPort::Number(number) => number,
            TargetPort::Name(_) => self.port,
        };
        self.protocol.is_none()
            && (is_server_first(self.name.as_ref(), self.port)
                || is_server_first(None, target_number))
    }
}

/// True for ports that are server-first by convention: the ports named `mysql`, `mongo`, `redis` or `smtp`,
/// also with a suffix after a hyphen, and the ports 25, 587, 3306, 4444, 6379, 9300 and 11211. Protocol detection
/// would delay each connection to a server-first port, because it waits for the client, which sends no bytes before the
/// server.
#[must_use]
pub fn is_server_first(name: Option<&Name>, number: u16) -> bool {
    let name_prefix = name.and_then(|name| name.as_str().split('-').next());
    SERVER_FIRST_PORTS.contains(&number)
        || name_prefix.is_some_and(|prefix| SERVER_FIRST_NAMES.contains(&prefix))
}

/// The port names of server-first protocols.
const SERVER_FIRST_NAMES: [&str; 4] = ["mysql", "mongo", "redis", "smtp"];
/// The default ports of SMTP, mail submission, MySQL, Galera, Redis, Elasticsearch's transport and memcached, as
/// in Linkerd's defaults.
const SERVER_FIRST_PORTS: [u16; 7] = [25, 587, 3306, 4444, 6379, 9300, 11211];

/// The target of a service port in the workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetPort {
    /// A port number.
    Number(u16),
    /// The name of a workload port.
    Name(Name),
}

impl TargetPort {
    /// Returns the number of the target port at a workload; `None` if the workload has no port of this name.
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

    /// True if both targets resolve to the same port of a workload.
    #[must_use]
    pub fn is_same_at(&self, other: &Self, workload: &Workload) -> bool {
        let own_number = self.number_at(workload);
        self == other || own_number.is_some() && own_number == other.number_at(workload)
    }

    /// True if the application of a workload may receive requests at this target port: the workload declares an HTTP
    /// protocol for the port, or one of `http_targets` resolves to the same port. `http_targets` are the targets of the
    /// service ports that are not declared as TCP.
    pub fn sees_requests_at<'a>(
        &self,
        workload: &Workload,
        http_targets: impl IntoIterator<Item = &'a Self>,
    ) -> bool {
        let target_number = self.number_at(workload);
        let is_http = |protocol: Protocol| !matches!(protocol, Protocol::Tcp | Protocol::Detect);
        let mut http_targets = http_targets.into_iter();
        workload.ports.iter().any(|port| Some(port.port) == target_number && is_http(port.protocol))
            || http_targets.any(|target| target.is_same_at(self, workload))
    }
}

/// The protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Protocol {
    /// HTTP/1.1.
    Http,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// gRPC, which implies HTTP/2.
    Grpc,
    /// Opaque bytes.
    Tcp,
    /// Detected from the first bytes of each connection.
    #[default]
    Detect,
}

impl Protocol {
    /// Returns the word used in manifests and metrics.
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
