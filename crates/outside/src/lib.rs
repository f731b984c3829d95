//! Clients of servers outside the mesh: connections, single exchanges, and telemetry export.
//!
//! A process exports to collectors with an [`Exporter`]. A sidecar exports spans, access log records and metrics, and a
//! control plane exports metrics. [`push_metrics`] exports metrics from a [`MetricSource`]. The size of requests, the
//! time and the number of attempts are bounded.

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
