//! The contract of the two planes, both ends: resources, publisher, subscriber, client, server.
//!
//! The wire is `proto/leno/discovery/v1/discovery.proto`: length-prefixed protobuf messages over
//! one mutually authenticated stream per workload ([`ALPN`]), with the discipline of incremental
//! xDS. A proxy says what it holds; the control plane sends differences, one [`Delta`] at a time,
//! each applied whole and acknowledged, or refused with a reason per resource.
//!
//! Decisions ([`publisher`], [`subscriber`], [`resource`]) have no IO and no clock; [`client`],
//! [`join`] and [`server`] are the shells around them. TLS is the business of their callers.

pub mod budget;
pub mod client;
pub mod condition;
pub mod desired;
mod doubt;
mod envelope;
pub mod event;
#[cfg(test)]
mod fixture;
pub mod frame;
mod holdings;
pub mod join;
pub mod key;
pub mod message;
pub mod peer;
#[rustfmt::skip]
mod proto;
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
mod vigil;

pub use budget::{Budget, Budgets};
pub use client::{FollowError, Follower, Request, follow};
pub use condition::{CONDITIONS_MAX, Condition, ProxyReport};
pub use desired::{Wanted, WantedChange};
pub use doubt::Doubt;
pub use event::{Connected, ConnectionId, Event, Joining, Standing};
pub use join::{JoinError, join, serve_join};
pub use key::{ChangeId, ResourceKey, Version};
pub use message::{
    CertificateAnswer, Delta, Hello, InboundListener, IssuedBytes, NotIssued, Refusal, Update,
    Upsert,
};
pub use peer::{Registered, Registration, follow_peer, serve_peer};
pub use publisher::{Acked, Publisher};
pub use query::{ProxyAnswer, Queries, Query, QueryError};
pub use queue::{EventQueue, EventSender, Queued, Turn, event_queue};
pub use resource::InvalidResource;
pub use server::{Operators, ServeError, serve};
pub use stored::UnusableWorld;
pub use subscriber::{Staged, Subscriber};
pub use tap::{TAPS_MAX, Tapped, Tapping, Taps, TooManyTaps};
pub use traffic::{Direction, RuleHits, Traffic, TrafficSeries};

/// The protocol of a workload's stream, agreed in the TLS handshake.
pub const ALPN: &[u8] = b"leno-discovery/1";

/// The protocol of a join: the client has no certificate yet.
pub const JOIN_ALPN: &[u8] = b"leno-join/1";

/// The protocol between control planes of one mesh.
pub const PEER_ALPN: &[u8] = b"leno-peer/1";

/// How many services one proxy may be subscribed to: a proxy asks for no more, and the control plane
/// remembers no more of what it asks for. With names of ordinary length all of them fit into the
/// first message of a stream.
pub const SUBSCRIPTIONS_MAX: usize = 4096;

/// How many addresses one proxy may ask for; as with services.
pub const ADDRESSES_MAX: usize = 4096;

/// How many names one proxy may ask for; as with services.
pub const NAMES_MAX: usize = 1024;

/// The most addresses that a name stands for: who is behind more is left to the cluster's resolver.
pub const ADDRESSES_OF_NAME_MAX: usize = resource::ADDRESSES_OF_NAME_MAX;

/// The version of the contract, checked in the first message of a stream.
pub const PROTOCOL: u32 = 1;
