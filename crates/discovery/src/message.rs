//! Defines the messages between proxy and control plane, as types of the model. The module `envelope` converts
//! them to the wire format.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use leno_model::{ServiceName, Snapshot, WorkloadName};
use tokio::sync::oneshot;

use crate::condition::ProxyReport;
use crate::key::{ChangeId, ResourceKey, ResourceVersion};

/// The first message of a proxy, for one workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The workload that the stream is for.
    pub workload: WorkloadName,
    /// The addresses of the proxy's inbound mTLS listeners, one for each application port.
    pub listeners: Vec<InboundListener>,
    /// The address of the proxy's admin endpoint; `None` if it has none.
    pub admin: Option<SocketAddr>,
    /// The process ID of the proxy, on its own machine.
    pub pid: u32,
    /// The proxy's software version, at most 64 bytes.
    pub version: String,
    /// The services that the proxy subscribes to at the beginning of the stream.
    pub services: Vec<ServiceName>,
    /// The addresses that the proxy queries at the beginning of the stream.
    pub addresses: Vec<IpAddr>,
    /// The DNS names that the proxy queries at the beginning of the stream.
    pub dns_names: Vec<ServiceName>,
    /// The number of the stream, which increases with each stream of this workload; 0 if unset.
    pub session: u64,
    /// The generation of the CA (its signing certificate and roots) that issued the proxy's certificate; 0 if
    /// unset.
    pub ca_generation: u64,
    /// A random number that identifies the proxy's process, also after it reconnects; 0 if unset.
    pub process: u64,
    /// The operational state of the proxy.
    pub report: ProxyReport,
    /// True if the proxy answers queries of operators over the stream.
    pub answers_queries: bool,
}

/// The mutual TLS address of one application port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InboundListener {
    /// The application's port.
    pub port: u16,
    /// The address of the sidecar's mutual TLS listener.
    pub address: SocketAddr,
}

/// The complete configuration of one workload, as sent by the control plane and applied by the proxy.
///
/// Unchanged services share their [`Arc`] between updates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigUpdate {
    /// The configuration of the workload, and of the services, addresses and names that it uses.
    pub snapshot: Arc<Snapshot>,
    /// Services that do not exist although they are subscribed or used by a rule.
    pub absent: BTreeSet<ServiceName>,
    /// The newest change that it contains.
    pub change: ChangeId,
}

/// The differences between the held and the desired resources of a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delta {
    /// The number that the acknowledgement or rejection refers to; counts from 1 in each stream.
    pub nonce: u64,
    /// The newest change that it contains.
    pub change: ChangeId,
    /// True if the configuration is complete after this delta; otherwise more deltas follow, and nothing is
    /// applied before they arrive.
    pub whole: bool,
    /// New and changed resources.
    pub upserts: Vec<Upsert>,
    /// Removed resources. Removing a service removes its endpoints.
    pub removed: Vec<ResourceKey>,
    /// All absent services, if that set changed.
    pub absent: Option<BTreeSet<ServiceName>>,
}

/// An encoded resource: decoded by [`crate::resource`], versioned by its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upsert {
    /// The key of the resource.
    pub key: ResourceKey,
    /// The encoded content of the resource.
    pub content: Bytes,
}

impl Upsert {
    /// Returns the version of the content.
    #[must_use]
    pub fn version(&self) -> ResourceVersion {
        ResourceVersion::from_content(&self.content)
    }
}

/// A proxy's rejection of a resource.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct ResourceRejection {
    /// The rejected resource.
    pub key: ResourceKey,
    /// The error, for the author of the resource; at most 512 bytes are sent.
    pub reason: String,
    /// The other resource that must change before this one can be accepted; `None` if this one is invalid in
    /// itself.
    pub because: Option<ResourceKey>,
}

impl ResourceRejection {
    /// Rejects a resource that is invalid in itself.
    #[must_use]
    pub fn new(key: ResourceKey, reason: impl Into<String>) -> Self {
        Self { key, reason: reason.into(), because: None }
    }
}

/// An issued certificate chain and the trusted roots; each certificate is DER-encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// The certificate chain: the leaf first, then the intermediates.
    pub chain: Vec<Vec<u8>>,
    /// The roots that the proxy trusts from now on.
    pub roots: Vec<Vec<u8>>,
}

/// The reason why no certificate was issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuanceFailure {
    /// A sentence for the operator of the proxy.
    pub reason: String,
    /// True if the same request cannot succeed later.
    pub is_final: bool,
}

impl From<String> for IssuanceFailure {
    /// Creates a failure that is not final.
    fn from(reason: String) -> Self {
        Self { reason, is_final: false }
    }
}

impl From<&str> for IssuanceFailure {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

/// The sender of a certificate, or of the reason that there is none.
pub type CertificateReply = oneshot::Sender<Result<IssuedCertificate, IssuanceFailure>>;
