//! Clients of servers outside the mesh: connections, single exchanges, and telemetry export.
//!
//! A process has an [`Exporter`] that exports to collectors: a sidecar exports spans, access log records and
//! metrics, a control plane exports metrics. [`push_metrics`] exports metrics from a [`MetricSource`]. All
//! resources are bounded: the size of requests, timeouts, and the number of attempts.

mod exchange;
mod export_request;
mod export_status;
mod exporter;
pub mod message;
pub mod otlp;
mod push;
mod resource_identity;
mod retry_info;
mod servers;

pub use exchange::drive_exchange;
pub use export_request::{ExportError, ExportRequest, RejectedItems};
pub use export_status::{ExportCounts, ExportStatus};
pub use exporter::Exporter;
pub use otlp::points::{MetricRequests, TimeRange};
pub use push::{MetricSource, push_metrics};
pub use resource_identity::{AttributeValue, ResourceIdentity};
pub use servers::{Connector, TlsSessionError, TlsSessions, connect_permitted, connect_server};

#[cfg(test)]
mod tests;
