//! What is at an address: what a sidecar is told that asked for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::name::{ServiceName, WorkloadName};
use crate::service::Protocol;

/// What is at an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Occupant {
    /// Nothing of the mesh.
    Outside,
    /// A service; its ports are those of the address.
    Service(ServiceName),
    /// One workload.
    Workload {
        /// Which.
        workload: WorkloadName,
        /// The ports of its application that services lead to. Others are nothing of the mesh.
        ports: BTreeMap<u16, OccupantPort>,
    },
}

/// A port of an application that is reached by the address of its workload.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OccupantPort {
    /// The service whose endpoint it is.
    pub service: ServiceName,
    /// The port of that service.
    pub port: u16,
    /// What is spoken there.
    pub protocol: Protocol,
    /// Where its sidecar accepts mutual TLS; absent while that is not there. Whether the workload
    /// takes requests does not matter to who calls it by its own address.
    pub endpoint: Option<Arc<Endpoint>>,
}
