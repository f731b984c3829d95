//! Servers outside the mesh: the way there, one exchange, and what collectors among them are told.
//!
//! A process has a [`Post`] that takes parcels to collectors: a sidecar for spans, lines of its access
//! log and metrics, a control plane for metrics. [`push_metrics`] is the road of the last of these, from
//! a [`Teller`] who has the numbers. Everything is bounded: what is sent at once, how long and how often
//! that is tried.

mod exchange;
mod fate;
pub mod message;
pub mod otlp;
mod parcel;
mod post;
mod push;
mod retry_info;
mod servers;
mod source;

pub use exchange::over;
pub use fate::{Counts, Fate};
pub use otlp::points::{Pages, Times};
pub use parcel::{Failed, Parcel, Refused};
pub use post::Post;
pub use push::{Teller, push_metrics};
pub use servers::{Dial, NoSession, Sessions, connect, connect_permitted};
pub use source::{Source, Value};

#[cfg(test)]
mod tests;
