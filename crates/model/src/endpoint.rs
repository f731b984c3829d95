//! An endpoint: one place where one port of a service can be reached.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::identity::ServiceAccount;
use crate::name::{ServiceName, WorkloadName};

/// Which endpoint: the workload that serves a service port. Load and failure state follow it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId {
    /// The service it serves.
    pub service: ServiceName,
    /// The service's port.
    pub port: u16,
    /// The workload behind it.
    pub workload: WorkloadName,
}

/// One place where one port of a service can be reached: the inbound door of a sidecar, or, for
/// gateways, an application without one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Its identity across changes of address.
    pub id: EndpointId,
    /// Where its sidecar accepts mutual TLS; where the application itself is without a sidecar.
    pub address: SocketAddr,
    /// The only account whose certificate is accepted there. Absent without a sidecar: then it is
    /// reached in clear text, which only gateways are told of.
    pub account: Option<ServiceAccount>,
    /// The labels of its workload that the service's tag rules name.
    pub tags: BTreeMap<String, String>,
}

impl Endpoint {
    /// Whether both are one place: a connection to the one is a connection to the other, whatever
    /// rules make of its tags.
    #[must_use]
    pub fn is_same_place(&self, other: &Self) -> bool {
        self.id == other.id && self.address == other.address && self.account == other.account
    }
}
