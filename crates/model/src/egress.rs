//! Egress policies: external destinations that some accounts may reach although the mesh denies egress.

use crate::identity::ServiceAccount;
use crate::ip_range::IpRange;
use crate::name::{PolicyName, RouteGroupName};
use crate::request_match::RequestMatch;
use crate::tls_route::HostPattern;

/// An `Egress` of OSM, osm-edge or FSM. It has no effect while the mesh allows all egress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressPolicy {
    /// The name of the policy.
    pub name: PolicyName,
    /// The accounts that the policy applies to.
    pub sources: Vec<ServiceAccount>,
    /// The allowed hosts, for ports that match by HTTP host or TLS server name.
    pub hosts: Vec<HostPattern>,
    /// The allowed addresses; any when empty.
    pub ranges: Vec<IpRange>,
    /// The allowed ports, each with the source of the destination name.
    pub ports: Vec<EgressPort>,
    /// The route groups with the allowed requests, in the policy's namespace; all requests are allowed when empty.
    pub groups: Vec<RouteGroupName>,
}

/// A port that an egress policy allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressPort {
    /// The port number of the destination.
    pub port: u16,
    /// The source of the destination name.
    pub matched_by: MatchedBy,
}

/// The source of the destination name of an external connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MatchedBy {
    /// The host of each request.
    Http,
    /// The TLS server name.
    ServerName,
    /// The destination address; names are not checked.
    Address,
}

impl MatchedBy {
    /// All values, in the order of the documentation.
    pub const ALL: &'static [Self] = &[Self::Http, Self::ServerName, Self::Address];
}

/// An egress rule: the destinations that one policy allows a workload at one port, as sent to its sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EgressRule {
    /// The name of the policy.
    pub policy: PolicyName,
    /// The port of the destination.
    pub port: u16,
    /// The source of the destination name, which is compared with `hosts`.
    pub matched_by: MatchedBy,
    /// The allowed hosts; any when empty.
    pub hosts: Vec<HostPattern>,
    /// The allowed addresses; any when empty.
    pub ranges: Vec<IpRange>,
    /// The allowed requests; all when absent.
    pub requests: Option<Vec<RequestMatch>>,
}
