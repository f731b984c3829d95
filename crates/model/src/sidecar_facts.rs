//! Observations about sidecars that a control plane reports in the Kubernetes objects of its own cluster: rejected
//! plaintext clients and disconnected workloads.

use std::net::IpAddr;

use crate::instance::Uid;
use crate::name::WorkloadName;

/// The observations of one control plane, which are reported in Kubernetes events and annotations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SidecarFacts {
    /// Clients that the sidecars of this control plane rejected for lack of mutual TLS, ordered by workload; at
    /// most [`MAX_REJECTED_CLIENTS`].
    pub rejected_clients: Vec<RejectedClient>,
    /// The connections of all sidecars; `None` while sidecars may still be reconnecting after a start of the control
    /// plane.
    pub connections: Option<SidecarConnections>,
}

/// The connection state of all sidecars, as known to one control plane.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SidecarConnections {
    /// The number of other control planes that report their connected sidecars to this control plane.
    pub peers: usize,
    /// The ready workloads whose sidecar is not connected to any control plane: the first ones by name, at most
    /// [`MAX_DISCONNECTED`].
    pub disconnected: Vec<WorkloadName>,
    /// The total number of disconnected workloads, including those that `disconnected` does not list.
    pub count: usize,
}

/// A client that a workload rejected for lack of mutual TLS.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RejectedClient {
    /// The name of the workload.
    pub workload: WorkloadName,
    /// The UID of the workload's pod, if any.
    pub uid: Option<Uid>,
    /// The address of the client.
    pub client: IpAddr,
    /// The port of the workload.
    pub port: u16,
    /// The kind of the client, by its address.
    pub kind: PlaintextClient,
}

/// The kind of a client without mutual TLS, by its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlaintextClient {
    /// The address belongs to exactly one member of the mesh: the client has a sidecar and bypassed it.
    Member,
    /// The address belongs to no member, or to several workloads.
    Other,
}

impl PlaintextClient {
    /// Returns the hint for clients of this kind.
    #[must_use]
    pub const fn hint(self) -> &'static str {
        match self {
            Self::Member => {
                "call a Service for these pods, at a port and address that interception does not exclude, and not as the user of \
                 the sidecar"
            }
            Self::Other => {
                "start these clients with a sidecar, open the port to them with an IngressBackend, or accept plaintext \
                 during the migration (in a cluster: annotation leno.dev/mtls: permissive)"
            }
        }
    }
}

/// The maximum number of clients in [`SidecarFacts::rejected_clients`].
pub const MAX_REJECTED_CLIENTS: usize = 1024;
/// The maximum number of listed workloads: an annotation stores their names.
pub const MAX_DISCONNECTED: usize = 32;
