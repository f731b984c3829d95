//! Clients of servers outside the mesh: connections, single exchanges, and telemetry export.
//!
//! A process has a [`Post`] that exports to collectors: a sidecar exports spans, access log records and
//! metrics, a control plane exports metrics. [`push_metrics`] exports metrics from a [`Teller`]. All resources
//! are bounded: the size of requests, timeouts, and the number of attempts.

mod exchange;
mod export_request;
mod fate;
pub mod message;
pub mod otlp;
mod post;
mod push;
mod retry_info;
mod servers;
mod source;

pub use exchange::drive_exchange;
pub use export_request::{ExportRequest, Failed, Refused};
pub use fate::{Counts, Fate};
pub use otlp::points::{Pages, Times};
pub use post::Post;
pub use push::{Teller, push_metrics};
pub use servers::{Dial, NoSession, Sessions, connect_permitted, connect_server};
pub use source::{Source, Value};

#[cfg(test)]
mod tests;
