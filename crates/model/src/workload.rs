//! Workloads: running instances of applications, with their ports, start commands and outbound listeners.

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
    /// The labels by which services select the workload.
    pub labels: BTreeMap<String, String>,
    /// The account that the workload runs under, in the workload's namespace.
    pub account: ServiceAccount,
    /// The ports of the application; empty if it only calls other services.
    pub ports: Vec<WorkloadPort>,
    /// The address that the application listens on, as seen from its sidecar.
    pub address: IpAddr,
    /// Further addresses, such as those of the other IP family in dual-stack clusters.
    pub other_addresses: BTreeSet<IpAddr>,
    /// The command with which `leno` starts the application, and its arguments; empty if another program starts it.
    pub run: Vec<String>,
    /// The environment, directory, user and readiness check of the `run` command.
    pub run_options: Box<RunOptions>,
    /// The fixed outbound listeners of the workload's sidecar.
    pub outbound_listeners: Vec<OutboundListener>,
    /// The admission settings, which override those of the namespace and the mesh.
    pub admission: AdmissionSettings,
    /// The weight of the workload among the endpoints of a service.
    pub weight: Weight,
    /// True if the workload is ready. A workload that is starting, terminating or not ready is an endpoint only of
    /// services that include unready workloads.
    pub ready: bool,
    /// True if the workload is terminating and still serves. It is an endpoint of a service if no workload of the
    /// service is ready.
    pub terminating: bool,
    /// True if the workload has a sidecar. A workload without a sidecar is not a member of the mesh. The gateways and
    /// sidecars of the mesh call such a workload in plaintext.
    pub sidecar: bool,
}

/// The settings of the command that starts an application.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunOptions {
    /// Additional environment variables.
    pub env: BTreeMap<String, String>,
    /// The working directory; the supervisor's directory when absent.
    pub cwd: Option<String>,
    /// The user that the command runs as; the supervisor's user when absent.
    pub user: Option<RunUser>,
    /// The readiness check. When absent, the application is ready once its port accepts connections.
    pub readiness: Option<HttpGet>,
}

/// An operating system user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunUser {
    /// The user of this name.
    Named(String),
    /// The user with this UID. The second number is the GID; the primary group of the user when absent.
    Numbered(u32, Option<u32>),
}

/// A readiness check: an HTTP/1.1 GET request that succeeds with a status from 200 to 299.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpGet {
    /// The port of the application.
    pub port: u16,
    /// The path, with the query if any.
    pub path: String,
}

impl Workload {
    /// Returns all addresses of the workload, `address` first.
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
