//! Address entries: the service or workload at an address. The control plane sends an entry to each sidecar that
//! queries the address.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::name::{ServiceName, WorkloadName};
use crate::service::Protocol;

/// The service or workload at an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AddressEntry {
    /// An address outside the mesh.
    External,
    /// The cluster IP of a service. Ports of the address are ports of the service.
    Service(ServiceName),
    /// The address of a workload itself.
    Workload {
        /// The name of the workload.
        workload: WorkloadName,
        /// The application ports that services select. Other ports are outside the mesh.
        ports: BTreeMap<u16, AddressPort>,
    },
}

/// An application port of a workload that clients call by the workload's own address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AddressPort {
    /// The service that the endpoint belongs to.
    pub service: ServiceName,
    /// The port of that service.
    pub port: u16,
    /// The protocol of the application at the port.
    pub protocol: Protocol,
    /// The mutual TLS endpoint of the workload's sidecar; absent while the sidecar is not connected. The endpoint is
    /// present even if the workload is not ready: a client that calls its address selects no other endpoint.
    pub endpoint: Option<Arc<Endpoint>>,
}
