//! Facts about sidecars that a control plane writes into the cluster that it is in.

use std::net::IpAddr;

use crate::instance::Uid;
use crate::name::WorkloadName;

/// The facts of one control plane.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SidecarFacts {
    /// The clients without mutual TLS that the sidecars of this control plane rejected, in order of their workloads; at
    /// most [`REJECTED_CLIENTS_MAX`].
    pub rejected_clients: Vec<RejectedClient>,
    /// The connections of all sidecars; `None` while sidecars may still be on their way back.
    pub connections: Option<SidecarConnections>,
}

/// The connections of all sidecars, as one control plane knows them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SidecarConnections {
    /// The number of other control planes that report their sidecars to this one.
    pub peers: usize,
    /// The first ready workloads with a sidecar that is connected to none of them, in order; at most
    /// [`DISCONNECTED_MAX`].
    pub disconnected: Vec<WorkloadName>,
    /// The number of all of these.
    pub count: usize,
}

/// A client that a workload rejected because it came without mutual TLS.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RejectedClient {
    /// The workload.
    pub workload: WorkloadName,
    /// The pod with this name.
    pub uid: Option<Uid>,
    /// The address of the client.
    pub client: IpAddr,
    /// The port of the workload.
    pub port: u16,
    /// The kind of the client, by its address.
    pub kind: PlaintextClient,
}

/// The kind of a client that came without mutual TLS, by its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlaintextClient {
    /// A member of the mesh alone has this address: the client has a sidecar and connected past it.
    Member,
    /// No member has this address, or several workloads share it.
    Other,
}

impl PlaintextClient {
    /// The remedy for clients of this kind.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Member => {
                "call a Service for these pods, at a port and address that interception does not exclude, and not as the user of \
                 the sidecar"
            }
            Self::Other => {
                "start these clients with a sidecar, open the port to them with an IngressBackend, or accept plaintext while they \
                 move (in a cluster: annotation leno.dev/plaintext: accept)"
            }
        }
    }
}

/// An operator follows up a few clients; the rest of them are the same problem.
pub const REJECTED_CLIENTS_MAX: usize = 1024;
/// The names travel in an annotation.
pub const DISCONNECTED_MAX: usize = 32;
