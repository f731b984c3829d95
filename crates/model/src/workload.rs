//! Workloads: running instances of applications, and their outbound listeners.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::endpoint::Weight;
use crate::identity::ServiceAccount;
use crate::instance::Uid;
use crate::mesh::AdmissionSettings;
use crate::name::{Name, ServiceName, WorkloadName};
use crate::service::Protocol;

/// One running instance of an application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// The name of the workload.
    pub name: WorkloadName,
    /// The UID of the workload's pod; absent outside of Kubernetes.
    pub uid: Option<Uid>,
    /// The labels that services select it by.
    pub labels: BTreeMap<String, String>,
    /// The account that it runs under, in its own namespace.
    pub account: ServiceAccount,
    /// The ports of the application; empty for a pure client.
    pub ports: Vec<WorkloadPort>,
    /// The address that the application listens on, as seen from its sidecar.
    pub address: IpAddr,
    /// Further addresses, such as those of the other IP family in dual-stack clusters.
    pub other_addresses: BTreeSet<IpAddr>,
    /// The command that starts the application; empty if it is started otherwise.
    pub run: Vec<String>,
    /// Environment, directory, user and readiness check of `run`.
    pub run_options: Box<RunOptions>,
    /// Fixed outbound listeners.
    pub outbound_listeners: Vec<OutboundListener>,
    /// The admission settings, which override those of the namespace and the mesh.
    pub admission: AdmissionSettings,
    /// The weight among the endpoints of the workload's services.
    pub weight: Weight,
    /// True if the workload is ready. A workload that is starting, terminating or reporting unready is no
    /// endpoint of its services, except of those that include unready workloads.
    pub ready: bool,
    /// True while it terminates and still serves: it is an endpoint of its services while none of their
    /// workloads is ready.
    pub terminating: bool,
    /// True if it has a sidecar. Without one it is not a member of the mesh; gateways and sidecars reach it in
    /// plaintext.
    pub sidecar: bool,
}

/// The settings of the command that starts an application.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunOptions {
    /// Additional environment variables.
    pub env: BTreeMap<String, String>,
    /// The working directory; that of the supervisor when absent.
    pub cwd: Option<String>,
    /// The user that it runs as; that of the supervisor when absent.
    pub user: Option<RunUser>,
    /// The readiness request; an open port suffices when absent.
    pub http_get: Option<HttpGet>,
}

/// An operating system user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunUser {
    /// The user of this name.
    Named(String),
    /// The user of this UID, with the GID; the group of the user when absent.
    Numbered(u32, Option<u32>),
}

/// An HTTP/1.1 GET request that succeeds with a status from 200 to 299.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpGet {
    /// The port of the application.
    pub port: u16,
    /// The path, with the query if any.
    pub path: String,
}

impl Workload {
    /// Returns all of its addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        std::iter::once(self.address).chain(self.other_addresses.iter().copied())
    }
}

/// One port of a workload's application.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkloadPort {
    /// The name of the port, unique in the workload; services may refer to it by name.
    pub name: Option<Name>,
    /// The port number, 1 to 65535.
    pub port: u16,
    /// The protocol of the application at the port.
    pub protocol: Protocol,
}

/// A fixed local listener that forwards to one service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OutboundListener {
    /// The destination service.
    pub service: ServiceName,
    /// The port of the service.
    pub port: u16,
    /// The address that the sidecar listens on.
    pub listen: SocketAddr,
}
