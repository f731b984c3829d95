//! The telemetry of a process: metrics and their exposition, lines of the access log, trace contexts, the queue and
//! the limits of log lines, and escapes for terminals.
//!
//! Each thread counts in its own [`MetricsShard`], with plain loads and stores. [`Telemetry`] computes the sums
//! on demand.

pub mod access_log;
pub mod changes;
pub mod grpc;
pub mod histogram;
pub mod line_queue;
pub mod log_limit;
pub mod names;
pub mod recent_table;
pub mod rule;
pub mod series;
pub mod shard;
pub mod telemetry;
pub mod terminal;
pub mod trace;
pub mod usage;

mod cell;
mod dropped_lines;
mod exemplar;
mod exposition;
mod metric_visitor;
mod outcome_table;
mod status;

pub use access_log::{AccessLogEntry, LogValue, TemplatePart, write_fields, write_json};
pub use changes::{ChangeTracker, RuleChange, SeriesChange, TelemetryChanges};
pub use dropped_lines::DroppedLines;
pub use exemplar::Exemplar;
pub use exposition::{
    AliasNames, ExpositionFormat, ExpositionWriter, InvalidExposition, sanitize_exposition,
};
pub use grpc::GrpcStatus;
pub use histogram::{Histogram, SparseHistogram, bucket_duration};
pub use line_queue::{LineQueue, QueueFull, lines_dropped};
pub use log_limit::{LogLimit, LogLimits, PermittedLine};
pub use metric_visitor::{DurationBuckets, MetricValue, MetricVisitor};
pub use names::{ConnectionSide, Count, Gauge, Level};
pub use recent_table::RecentTable;
pub use rule::{MAX_RULES, RuleLabels, RuleNumber};
pub use series::{FailureCount, MAX_SERIES, RequestLabels, RequestRecord, SeriesId, SeriesSummary};
pub use shard::MetricsShard;
pub use telemetry::Telemetry;
pub use terminal::{EscapingWriter, escape_controls, is_terminal_control, with_causes};
pub use usage::{ProcessUsage, StatUsage, read_stat_usage, read_usage};
