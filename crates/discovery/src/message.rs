//! What the planes say to each other, in terms of the model.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use leno_model::{ServiceName, Snapshot, WorkloadName};
use tokio::sync::oneshot;

use crate::condition::ProxyReport;
use crate::key::{ChangeId, ResourceKey, Version};

/// How a proxy introduces itself for one workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The workload that the stream is for.
    pub workload: WorkloadName,
    /// Where its inbound mTLS listeners are, one for each application port.
    pub listeners: Vec<InboundListener>,
    /// Where its admin page is, if it has one.
    pub admin: Option<SocketAddr>,
    /// The process id of the proxy, on its own machine.
    pub pid: u32,
    /// The proxy's software version, at most 64 bytes.
    pub version: String,
    /// The services that it is subscribed to as the stream begins.
    pub services: Vec<ServiceName>,
    /// The addresses that it has asked for as the stream begins.
    pub addresses: Vec<IpAddr>,
    /// The names that it has looked up as the stream begins.
    pub looked_up: Vec<ServiceName>,
    /// Rises with each stream of this workload; 0 when it does not say.
    pub session: u64,
    /// Which signer and which roots its certificate is of; 0 when it does not say.
    pub edition: u64,
    /// A number that the process drew at its start; 0 when it does not say.
    pub process: u64,
    /// Its state for operators.
    pub report: ProxyReport,
    /// It answers queries of operators over the stream.
    pub answers_queries: bool,
}

/// Where one application port is reached through mutual TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InboundListener {
    /// The application's port.
    pub port: u16,
    /// Where the sidecar accepts mutual TLS for it.
    pub address: SocketAddr,
}

/// All that one workload should know, or knows: what the control plane offers and a proxy applies.
///
/// Services that did not change are the same [`Arc`] from one update to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The world.
    pub snapshot: Arc<Snapshot>,
    /// Services that were asked for, or are named by a rule, and do not exist.
    pub absent: BTreeSet<ServiceName>,
    /// The newest change that it contains.
    pub change: ChangeId,
}

/// The differences between what a proxy holds and what it should hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delta {
    /// Answered in the acknowledgement or refusal; counts from 1 in each stream.
    pub nonce: u64,
    /// The newest change that is contained.
    pub change: ChangeId,
    /// Whether the proxy holds all it should after this; otherwise the rest follows, and nothing
    /// is applied before it came.
    pub whole: bool,
    /// New and changed resources.
    pub upserts: Vec<Upsert>,
    /// Resources that are gone. A service takes its endpoints with it.
    pub removed: Vec<ResourceKey>,
    /// All services that do not exist, when that set changed.
    pub absent: Option<BTreeSet<ServiceName>>,
}

/// A resource as it travels: readable by [`crate::resource`], versioned by its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upsert {
    /// Which.
    pub key: ResourceKey,
    /// Its encoded content.
    pub content: Bytes,
}

impl Upsert {
    /// The version of this content.
    #[must_use]
    pub fn version(&self) -> Version {
        Version::of(&self.content)
    }
}

/// Why a proxy did not accept a resource.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct Refusal {
    /// The resource.
    pub key: ResourceKey,
    /// What is wrong with it, for its author; at most 512 bytes travel.
    pub reason: String,
    /// The other resource that must change before this one can be accepted, if it is not wrong
    /// in itself.
    pub because: Option<ResourceKey>,
}

impl Refusal {
    /// A resource that is wrong in itself.
    #[must_use]
    pub fn new(key: ResourceKey, reason: impl Into<String>) -> Self {
        Self { key, reason: reason.into(), because: None }
    }
}

/// A certificate as it travels, DER.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedBytes {
    /// The leaf first, then the intermediates.
    pub chain: Vec<Vec<u8>>,
    /// The roots to trust from now on.
    pub roots: Vec<Vec<u8>>,
}

/// The reason for which no certificate was issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotIssued {
    /// A sentence for the operator of the proxy.
    pub reason: String,
    /// The same proof cannot succeed later.
    pub is_final: bool,
}

impl From<String> for NotIssued {
    /// A reason that may pass.
    fn from(reason: String) -> Self {
        Self { reason, is_final: false }
    }
}

impl From<&str> for NotIssued {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

/// Receives the certificate, or the reason for which there is none.
pub type CertificateAnswer = oneshot::Sender<Result<IssuedBytes, NotIssued>>;
