//! Implements both ends of the discovery protocol between the control plane and its proxies.
//!
//! The wire format is `proto/leno/discovery/v1/discovery.proto`: length-prefixed protobuf messages over one
//! mutually authenticated stream per workload ([`ALPN`]), similar to incremental xDS. A proxy sends the
//! versions that it holds; the control plane sends differences, one [`Delta`] at a time. The proxy applies each
//! delta as a whole and acknowledges it, or rejects it with a reason for each invalid resource.
//!
//! The decisions ([`publisher`], [`subscriber`], [`resource`]) have no IO and no clock; [`client`], [`join`]
//! and [`server`] perform the IO around them. Callers provide TLS.

pub mod budget;
pub mod client;
pub mod condition;
mod envelope;
pub mod event;
#[cfg(test)]
mod fixture;
pub mod frame;
mod held_versions;
pub mod join;
pub mod key;
pub mod message;
pub mod peer;
pub mod subscriptions;
mod unknown_endpoints;
#[rustfmt::skip]
mod proto;
mod keepalive;
pub mod publisher;
pub mod query;
pub mod queue;
pub mod resource;
pub mod server;
#[cfg(test)]
mod simulation;
pub mod stored;
pub mod subscriber;
mod tap;
pub mod traffic;

pub use budget::{Budget, Budgets};
pub use client::{DiscoveryError, ProxyRequest, UpdateHandler, follow_control_plane};
pub use condition::{MAX_CONDITIONS, ProxyCondition, ProxyReport};
pub use event::{Connected, ConnectionId, Event, PendingJoin, StateTaskResponse};
pub use join::{JoinError, join, serve_join};
pub use key::{ChangeId, ResourceKey, ResourceVersion};
pub use message::{
    CertificateReply, ConfigUpdate, Delta, Hello, InboundListener, IssuanceFailure,
    IssuedCertificate, ResourceRejection, Upsert,
};
pub use peer::{RegisteredSidecars, Registration, follow_peer, serve_peer};
pub use publisher::{AcknowledgedDelta, Publisher};
pub use query::{Queries, Query, QueryError, QueryResponse};
pub use queue::{ConnectionTurn, EventQueue, EventSender, QueuedEvent, event_queue};
pub use resource::InvalidResource;
pub use server::{OperatorSessions, ServeError, serve_proxy};
pub use stored::InvalidStoredConfig;
pub use subscriber::{StagedDelta, Subscriber};
pub use subscriptions::{SubscribedResources, SubscriptionChange};
pub use tap::{ActiveTap, MAX_TAPS, TapRecords, Taps, TooManyTaps};
pub use traffic::{Direction, RuleMatches, TrafficReport, TrafficSeries};
pub use unknown_endpoints::UnknownEndpoints;

/// The ALPN protocol of a workload's stream.
pub const ALPN: &[u8] = b"leno-discovery/1";

/// The ALPN protocol of a join: the client has no certificate yet.
pub const JOIN_ALPN: &[u8] = b"leno-join/1";

/// The ALPN protocol between control planes of one mesh.
pub const PEER_ALPN: &[u8] = b"leno-peer/1";

/// The maximum number of subscribed services of a proxy: a proxy subscribes to no more, and the control plane
/// ignores further ones. With names of ordinary length all of them fit into the first message of a stream.
pub const MAX_SUBSCRIPTIONS: usize = 4096;

/// The maximum number of addresses that a proxy queries; the control plane ignores further ones.
pub const MAX_ADDRESSES: usize = 4096;

/// The maximum number of DNS names that a proxy queries; the control plane ignores further ones.
pub const MAX_NAMES: usize = 1024;

/// The maximum number of addresses of a DNS name. Names with more addresses are resolved by cluster DNS.
pub const MAX_ADDRESSES_OF_NAME: usize = resource::MAX_ADDRESSES_OF_NAME;

/// The protocol version, checked in the first message of a stream.
pub const PROTOCOL: u32 = 1;
