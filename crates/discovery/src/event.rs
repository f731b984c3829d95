//! What connections tell the one task that owns the mesh, and what it tells them.
//!
//! Every connection sends [`Event`]s into one bounded queue that the owner reads, one at a time
//! ([`crate::queue`]); what changes meanwhile is put together. The owner answers each connection through a `watch` of its own, where the newest [`Standing`] wins, so
//! it never waits for a slow proxy.

use std::fmt;
use std::net::IpAddr;

use leno_model::WorkloadName;
use tokio::sync::watch;

use crate::condition::ProxyReport;
use crate::desired::WantedChange;
use crate::doubt::Doubt;
use crate::key::ChangeId;
use crate::message::{CertificateAnswer, Hello, InboundListener, Refusal, Update};
use crate::peer::Registered;
use crate::traffic::Traffic;

/// Something that happened on a connection.
#[derive(Debug)]
pub enum Event {
    /// A proxy introduced itself. Always the first event of its connection.
    Connected(Box<Connected>),
    /// Its inbound listeners are now these.
    Listeners {
        /// Whose.
        connection: ConnectionId,
        /// All of them.
        listeners: Vec<InboundListener>,
    },
    /// Its state for operators is now this.
    Reported {
        /// The proxy's.
        connection: ConnectionId,
        /// All of it.
        report: Box<ProxyReport>,
    },
    /// It wants to know other services, addresses and names than before.
    Wanted {
        /// The connection with this desired state.
        connection: ConnectionId,
        /// All that changed since the last event of this kind.
        change: Box<WantedChange>,
    },
    /// It has applied everything up to this change, but for what it refuses.
    Applied {
        /// Who.
        connection: ConnectionId,
        /// The newest offer's change.
        change: ChangeId,
        /// How many resources are held back because it refused them.
        refused: usize,
        /// How many bytes of deltas it was sent since it last said so.
        bytes: u64,
    },
    /// It refused resources; the versions it had before keep serving.
    Refused {
        /// Who.
        connection: ConnectionId,
        /// At least one.
        refusals: Vec<Refusal>,
    },
    /// It tells what it counted.
    Traffic {
        /// Who.
        connection: ConnectionId,
        /// Since it last told.
        traffic: Box<Traffic>,
    },
    /// It wants a new certificate for its workload.
    Certify {
        /// Who.
        connection: ConnectionId,
        /// A certificate signing request, DER.
        csr: Vec<u8>,
        /// Where it waits; dropping this tells it to try again.
        answer: CertificateAnswer,
    },
    /// Somebody without a certificate wants its first one. Belongs to no connection.
    Join(Joining),
    /// Another control plane tells who is connected to it. Belongs to no proxy's connection.
    Elsewhere {
        /// The stream to that control plane.
        connection: ConnectionId,
        /// These are, from now on or at other addresses.
        here: Registered,
        /// These are not any more.
        gone: Vec<WorkloadName>,
    },
    /// Another control plane wants to hear who is connected here.
    PeerArrived,
    /// The stream to another control plane ended.
    PeerLeft {
        /// Which.
        connection: ConnectionId,
    },
    /// The connection ended. Always its last event, unless its task was aborted: then only
    /// [`watch::Sender::is_closed`] tells.
    Left {
        /// Whose.
        connection: ConnectionId,
    },
}

/// A proxy that introduced itself.
#[derive(Debug)]
pub struct Connected {
    /// The name of the connection in later events.
    pub connection: ConnectionId,
    /// What it says; its workload must be one that its certificate lets it speak for.
    pub hello: Hello,
    /// Where the owner says what the proxy should know. Dropping it ends the connection.
    pub standing: watch::Sender<Standing>,
}

/// Somebody without a certificate who wants its first one.
pub struct Joining {
    /// The one-time join token.
    pub token: String,
    /// The workload that the token must be bound to.
    pub workload: WorkloadName,
    /// A certificate signing request, DER.
    pub csr: Vec<u8>,
    /// The address that it came from.
    pub source: IpAddr,
    /// Where the answer is awaited.
    pub answer: CertificateAnswer,
}

/// Without the token.
impl fmt::Debug for Joining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joining").field("workload", &self.workload).finish_non_exhaustive()
    }
}

/// What the owner of the mesh has to say to a connection; the newest wins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Standing {
    /// Nothing yet.
    #[default]
    Pending,
    /// The proxy should know this.
    Offer(Update),
    /// The proxy should know this, and keep the endpoints in doubt if it has them.
    Partial(Update, Doubt),
    /// The connection must end, for this reason.
    Goodbye(String),
}

/// One connection, unique while the control plane runs.
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
        let (answer, _) = oneshot::channel();
        let token = "leno-join-secret".to_owned();
        let workload: WorkloadName = "bookinfo/gateway-1".parse().unwrap();
        let request =
            JoinRequest { token: token.clone(), workload: workload.to_string(), csr: vec![1] };
        let event = Event::Join(Joining {
            token,
            workload,
            csr: vec![1],
            source: [127, 0, 0, 1].into(),
            answer,
        });
        for text in [format!("{event:?}"), format!("{request:?}")] {
            assert!(text.contains("gateway-1") && !text.contains("secret"), "{text}");
        }
    }
}
