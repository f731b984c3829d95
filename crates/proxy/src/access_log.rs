//! Writes the access log: the control thread writes the entries of the data threads to standard output, or sends them
//! to a collector.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_model::{AccessLog, LogFormat, LogPart, Reason};
use leno_telemetry::{
    AccessLogEntry, GrpcStatus, LineQueue, TemplatePart, write_fields, write_json,
};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::mpsc;

use crate::export::{self, TelemetryExporter};
use crate::record::Hedge;
use crate::request_trace::TraceEntry;

/// Writes entries to standard output, or sends them to a collector, until all data threads have ended. If the
/// reader of the output is too slow, data threads drop and count further entries instead of waiting.
pub(crate) async fn write_entries(
    mut entries: mpsc::Receiver<Arc<TraceEntry>>,
    exporter: Rc<TelemetryExporter>,
) {
    let mut line_queue = None;
    let mut batch = Vec::new();
    let mut lines = String::new();
    let mut export_status = exporter.log_export_status();
    let mut log_settings = AccessLog::json();
    while entries.recv_many(&mut batch, MAX_BATCH_ENTRIES).await > 0 {
        // Entries recorded before the log is turned off use the previous destination.
        if let Some(current_settings) = exporter
            .config_store()
            .observability
            .active_settings()
            .and_then(|settings| settings.access_log().cloned())
        {
            log_settings = current_settings;
        }
        if let Some(collector) = &log_settings.collector {
            export::collect_batch(&mut entries, &mut batch, export::BATCH_DELAY).await;
            exporter
                .export_log_entries(collector, &log_settings.format, &batch, &mut export_status)
                .await;
            batch.clear();
            continue;
        }
        export::collect_batch(&mut entries, &mut batch, export::POLL_INTERVAL).await;
        lines.clear();
        for trace_entry in batch.drain(..) {
            append_log_line(&trace_entry, &log_settings.format, &mut lines);
        }
        let queue = match &mut line_queue {
            Some(queue) => queue,
            None => match LineQueue::start("access-log", std::io::stdout()) {
                Ok(queue) => line_queue.insert(queue),
                Err(error) => return tracing::error!(%error, "cannot write the access log"),
            },
        };
        while queue.push(lines.as_bytes()).is_err() {
            tokio::time::sleep(FULL_QUEUE_PAUSE).await;
        }
        if queue.is_closed() {
            return tracing::error!("cannot write the access log: its reader has closed it");
        }
    }
    // The caller bounds the wait for a blocked reader.
    while line_queue.as_ref().is_some_and(|queue| !queue.is_empty()) {
        tokio::time::sleep(FULL_QUEUE_PAUSE).await;
    }
}

/// Appends the log line of a request in this format, with a line break.
pub(crate) fn append_log_line(trace_entry: &TraceEntry, format: &LogFormat, output: &mut String) {
    with_log_entry(trace_entry, |entry| match format {
        LogFormat::Json => write_json(entry, output),
        LogFormat::Template(template) => {
            let parts = template.parts().iter().map(|part| match part {
                LogPart::Text(text) => TemplatePart::Text(text),
                LogPart::Field(name) => TemplatePart::Field(name),
            });
            write_fields(entry, parts, output);
        }
    });
}

/// Calls `use_entry` with the log entry of a request. The entry borrows texts that exist only during the call.
pub(crate) fn with_log_entry<T>(
    trace_entry: &TraceEntry,
    use_entry: impl FnOnce(&AccessLogEntry<'_>) -> T,
) -> T {
    let TraceEntry { labels, outcome, .. } = trace_entry;
    let start_time =
        OffsetDateTime::from(trace_entry.started_at()).format(&Rfc3339).unwrap_or_default();
    let policy = trace_entry.policy.as_ref().map(ToString::to_string).unwrap_or_default();
    let trace_id = trace_entry.span.map(|span| span.trace.to_string()).unwrap_or_default();
    let span_id = trace_entry.span.map(|span| span.id.to_string()).unwrap_or_default();
    use_entry(&AccessLogEntry {
        start_time: &start_time,
        direction: labels.direction,
        method: &trace_entry.method,
        path: &trace_entry.path,
        protocol: labels.protocol,
        authority: &trace_entry.authority,
        status: outcome.status,
        reason: outcome.reason,
        grpc_status: outcome.grpc.map(GrpcStatus::label).unwrap_or_default(),
        service: &labels.service,
        route: &labels.route,
        policy: &policy,
        dry_run_reason: trace_entry.dry_run_reason.map(Reason::label).unwrap_or_default(),
        peer: &labels.peer,
        downstream: Some(trace_entry.downstream),
        upstream: trace_entry.upstream,
        bytes_in: outcome.bytes_in,
        bytes_out: outcome.bytes_out,
        duration: outcome.duration,
        // Not measured, but fields of OSM's access log.
        time_to_first_byte: None,
        upstream_time: None,
        retries: trace_entry.retries,
        hedge: trace_entry.hedge.map_or("", Hedge::as_str),
        forwarded_for: &trace_entry.forwarded_for,
        user_agent: &trace_entry.user_agent,
        request_id: &trace_entry.request_id,
        // Not recorded, but a field of OSM's access log.
        server_name: "",
        trace_id: &trace_id,
        span_id: &span_id,
    })
}

/// The pause between two attempts to add lines to a full queue.
const FULL_QUEUE_PAUSE: Duration = Duration::from_millis(5);
/// The maximum number of entries that are written at once.
const MAX_BATCH_ENTRIES: usize = 256;
