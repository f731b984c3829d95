//! Egress policies: what some accounts reach outside the mesh although it lets nobody out.

use crate::identity::ServiceAccount;
use crate::ip_range::IpRange;
use crate::name::{PolicyName, RouteGroupName};
use crate::route::RequestMatch;
use crate::tls_route::HostPattern;

/// An `Egress` of OSM, osm-edge or FSM. What it says means nothing while the mesh lets everybody out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressPolicy {
    /// Its name.
    pub name: PolicyName,
    /// Who is let out.
    pub sources: Vec<ServiceAccount>,
    /// To which hosts, where something names them.
    pub hosts: Vec<HostPattern>,
    /// To which addresses; to any when there are none.
    pub ranges: Vec<IpRange>,
    /// To which ports.
    pub ports: Vec<EgressPort>,
    /// What of HTTP; everything when there are none. Of its own namespace.
    pub groups: Vec<RouteGroupName>,
}

/// A port that somebody is let out to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressPort {
    /// The port.
    pub port: u16,
    /// What tells where a connection goes.
    pub told_by: ToldBy,
}

/// What tells where a connection to what is outside goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ToldBy {
    /// The host of each request.
    Http,
    /// The name that a client of TLS asks for.
    ServerName,
    /// The address alone.
    Address,
}

impl ToldBy {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::Http, Self::ServerName, Self::Address];
}

/// What one policy lets a workload reach at one port, as its sidecar has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Outlet {
    /// The policy.
    pub policy: PolicyName,
    /// The port.
    pub port: u16,
    /// What tells where a connection goes.
    pub told_by: ToldBy,
    /// To which hosts; to any when there are none.
    pub hosts: Vec<HostPattern>,
    /// To which addresses; to any when there are none.
    pub ranges: Vec<IpRange>,
    /// Which requests; all when absent.
    pub requests: Option<Vec<RequestMatch>>,
}
