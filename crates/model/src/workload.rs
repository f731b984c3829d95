//! A workload: one running instance of an application, and the doors it is given.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::endpoint::Weight;
use crate::identity::ServiceAccount;
use crate::instance::Uid;
use crate::mesh::Admission;
use crate::name::{Name, ServiceName, WorkloadName};
use crate::service::Protocol;

/// One running instance of an application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Its name.
    pub name: WorkloadName,
    /// The UID of its pod; absent where it is none of Kubernetes.
    pub uid: Option<Uid>,
    /// What services select it by.
    pub labels: BTreeMap<String, String>,
    /// The account it runs under, in its own namespace.
    pub account: ServiceAccount,
    /// Where the application listens; empty for a pure client.
    pub ports: Vec<WorkloadPort>,
    /// The address that the application listens on, as seen from its sidecar.
    pub address: IpAddr,
    /// Others that it has: of the other version of IP, where a cluster gives addresses of both.
    pub other_addresses: BTreeSet<IpAddr>,
    /// The command that starts the application; empty when somebody else starts it.
    pub run: Vec<String>,
    /// Environment, directory, user and readiness check of `run`.
    pub run_options: Box<RunOptions>,
    /// Fixed local doors to other services.
    pub doors: Vec<Door>,
    /// Who is let in, where that differs from its namespace and the mesh.
    pub admission: Admission,
    /// How much it gets beside the others of its services.
    pub weight: Weight,
    /// Whether it takes requests now. One that does not (it starts, or ends, or says that it is
    /// not ready) is no endpoint of its services, except of those that want such ones too.
    pub ready: bool,
    /// True while it terminates and still serves: an endpoint of its services while none of their workloads is ready.
    pub terminating: bool,
    /// True when it has a sidecar. Without one it is no member of the mesh; gateways and sidecars reach it in plaintext.
    pub sidecar: bool,
}

/// The settings of the command that starts an application.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunOptions {
    /// The environment, on top of the supervisor's own.
    pub env: BTreeMap<String, String>,
    /// The directory that it runs in; that of the supervisor when absent.
    pub cwd: Option<String>,
    /// The user that it runs as; that of the supervisor when absent.
    pub user: Option<RunUser>,
    /// The request that succeeds when the application is ready; an open port suffices when absent.
    pub http_get: Option<HttpGet>,
}

/// A user of the operating system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunUser {
    /// By name.
    Named(String),
    /// By number, with the number of the group: that of the user when absent.
    Numbered(u32, Option<u32>),
}

/// A request of HTTP/1.1 by GET that succeeds with a status from 200 to 299.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpGet {
    /// The port of the application.
    pub port: u16,
    /// The path, with a query if there is one.
    pub path: String,
}

impl Workload {
    /// All of its addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        std::iter::once(self.address).chain(self.other_addresses.iter().copied())
    }
}

/// One port of a workload's application.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WorkloadPort {
    /// Its name, unique in the workload; services may refer to it by name.
    pub name: Option<Name>,
    /// The port number, 1 to 65535.
    pub port: u16,
    /// What is spoken there.
    pub protocol: Protocol,
}

/// A fixed local listener whose traffic goes to one service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Door {
    /// The service behind the door.
    pub service: ServiceName,
    /// The service's port.
    pub port: u16,
    /// Where the sidecar listens for the application.
    pub listen: SocketAddr,
}
