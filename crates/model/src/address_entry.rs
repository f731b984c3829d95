//! Address entries: the service or workload at an address, sent to sidecars that query it.

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
    /// A service; its ports are those of the address.
    Service(ServiceName),
    /// A workload, called by its own address.
    Workload {
        /// The name of the workload.
        workload: WorkloadName,
        /// The application ports that services select. Other ports are outside the mesh.
        ports: BTreeMap<u16, AddressPort>,
    },
}

/// An application port that is reached by the address of its workload.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AddressPort {
    /// The service that the endpoint belongs to.
    pub service: ServiceName,
    /// The port of that service.
    pub port: u16,
    /// The protocol of the application at the port.
    pub protocol: Protocol,
    /// The mutual TLS endpoint of its sidecar; absent while the sidecar is not connected. Readiness of the
    /// workload does not matter to clients that call it by its own address.
    pub endpoint: Option<Arc<Endpoint>>,
}
