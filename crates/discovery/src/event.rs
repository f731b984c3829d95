//! Defines the events from connections to the state task, and its responses. The state task is the single task
//! that owns the state of the control plane.
//!
//! Every connection sends [`Event`]s into one bounded queue that the state task reads one at a time
//! ([`crate::queue`]); until an event is taken, further changes of its connection are merged. The state task
//! responds to each connection through a separate `tokio::sync::watch` channel. The channel keeps only the
//! newest [`StateTaskResponse`], so the state task never waits for a slow proxy.

use std::fmt;
use std::net::IpAddr;

use leno_model::WorkloadName;
use tokio::sync::watch;

use crate::condition::ProxyReport;
use crate::key::ChangeId;
use crate::message::{CertificateReply, ConfigUpdate, Hello, InboundListener, ResourceRejection};
use crate::peer::RegisteredSidecars;
use crate::subscriptions::SubscriptionChange;
use crate::traffic::TrafficReport;
use crate::unknown_endpoints::UnknownEndpoints;

/// An event of a connection.
#[derive(Debug)]
pub enum Event {
    /// A proxy sent its Hello. This is always the first event of a connection.
    Connected(Box<Connected>),
    /// The inbound listeners of a proxy changed.
    Listeners {
        /// The connection of the proxy.
        connection: ConnectionId,
        /// All inbound listeners.
        listeners: Vec<InboundListener>,
    },
    /// The operational state of a proxy changed.
    Reported {
        /// The connection of the proxy.
        connection: ConnectionId,
        /// The complete state.
        report: Box<ProxyReport>,
    },
    /// The subscriptions of a proxy changed.
    SubscriptionsChanged {
        /// The connection of the proxy.
        connection: ConnectionId,
        /// All changes since the last event of this kind.
        change: Box<SubscriptionChange>,
    },
    /// A proxy has applied all changes up to this one, except for the resources that it rejected.
    Applied {
        /// The connection of the proxy.
        connection: ConnectionId,
        /// The change of the newest configuration.
        change: ChangeId,
        /// The number of resources that are withheld because the proxy rejected them.
        rejected_count: usize,
        /// The bytes of deltas sent since the last event of this kind.
        bytes: u64,
    },
    /// A proxy rejected resources; it continues to use their previous versions.
    Rejected {
        /// The connection of the proxy.
        connection: ConnectionId,
        /// The rejections, at least one.
        rejections: Vec<ResourceRejection>,
    },
    /// A proxy reported its traffic.
    Traffic {
        /// The connection of the proxy.
        connection: ConnectionId,
        /// The traffic since the last report.
        traffic: Box<TrafficReport>,
    },
    /// A proxy requested a new certificate for its workload.
    CertificateRequested {
        /// The connection of the proxy.
        connection: ConnectionId,
        /// A certificate signing request, DER.
        csr: Vec<u8>,
        /// The sender of the response; dropping it makes the proxy retry.
        reply: CertificateReply,
    },
    /// A client without a certificate requested its first one. Belongs to no connection.
    JoinRequested(PendingJoin),
    /// Another control plane reported its connected sidecars. Belongs to no proxy's connection.
    PeerSidecars {
        /// The stream to that control plane.
        connection: ConnectionId,
        /// Sidecars that connected or changed their addresses.
        connected: RegisteredSidecars,
        /// Sidecars that disconnected.
        disconnected: Vec<WorkloadName>,
    },
    /// Another control plane subscribed to the connected sidecars.
    PeerConnected,
    /// The stream to another control plane ended.
    PeerDisconnected {
        /// The stream to that control plane.
        connection: ConnectionId,
    },
    /// The connection of a proxy ended. This is always its last event, unless its task was aborted: then only
    /// [`watch::Sender::is_closed`] indicates it.
    Disconnected {
        /// The connection of the proxy.
        connection: ConnectionId,
    },
}

/// The connection of a proxy that has sent its Hello.
#[derive(Debug)]
pub struct Connected {
    /// The ID of the connection in later events.
    pub connection: ConnectionId,
    /// The first message of the proxy. The proxy's certificate authorizes it for the workload of this message.
    pub hello: Hello,
    /// The sender of the state task's responses. Dropping it ends the connection.
    pub responses: watch::Sender<StateTaskResponse>,
}

/// A request for a first certificate.
pub struct PendingJoin {
    /// The one-time join token.
    pub token: String,
    /// The workload that the token must belong to.
    pub workload: WorkloadName,
    /// A certificate signing request, DER.
    pub csr: Vec<u8>,
    /// The address of the client.
    pub source: IpAddr,
    /// The sender of the response.
    pub reply: CertificateReply,
}

/// Formats without the token.
impl fmt::Debug for PendingJoin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingJoin").field("workload", &self.workload).finish_non_exhaustive()
    }
}

/// The state task's response to a connection. A newer response replaces one that the connection has not read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StateTaskResponse {
    /// No response yet.
    #[default]
    Pending,
    /// The configuration for the proxy.
    Config(ConfigUpdate),
    /// The configuration for the proxy. The proxy retains the endpoints that it holds and that may still exist.
    PartialConfig(ConfigUpdate, UnknownEndpoints),
    /// The connection must end, with this reason.
    Goodbye(String),
}

/// The ID of a connection, unique while the control plane runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::proto::JoinRequest;

    #[test]
    fn a_token_is_never_printed() {
        let (reply, _) = oneshot::channel();
        let token = "leno-join-secret".to_owned();
        let workload: WorkloadName = "bookinfo/gateway-1".parse().unwrap();
        let request =
            JoinRequest { token: token.clone(), workload: workload.to_string(), csr: vec![1] };
        let event = Event::JoinRequested(PendingJoin {
            token,
            workload,
            csr: vec![1],
            source: [127, 0, 0, 1].into(),
            reply,
        });
        for text in [format!("{event:?}"), format!("{request:?}")] {
            assert!(text.contains("gateway-1") && !text.contains("secret"), "{text}");
        }
    }
}
