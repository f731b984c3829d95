//! Exports spans in batches to the collector that the tracing settings name.

use std::rc::Rc;
use std::sync::Arc;

use leno_model::{Collector, CollectorProtocol};
use leno_outside::ExportRequest;
use tokio::sync::mpsc;

use super::otlp::spans;
use super::{BATCH_DELAY, MAX_BATCH_ENTRIES, TelemetryExporter, collect_batch, zipkin};
use crate::request_trace::TraceEntry;

/// Exports spans until all data threads have ended and the queue is empty.
pub(crate) async fn export_spans(
    exporter: Rc<TelemetryExporter>,
    mut entries: mpsc::Receiver<Arc<TraceEntry>>,
) {
    let mut batch = Vec::new();
    let mut export_status = exporter.span_export_status();
    while entries.recv_many(&mut batch, MAX_BATCH_ENTRIES).await > 0 {
        collect_batch(&mut entries, &mut batch, BATCH_DELAY).await;
        let settings = exporter.config_store.observability.active_settings();
        match settings.as_ref().and_then(|settings| settings.tracing_settings()) {
            Some(tracing) => {
                let export_request = encode_request(&exporter, &tracing.collector, &batch);
                exporter
                    .client
                    .send_request(&tracing.collector, &export_request, &mut export_status)
                    .await;
            }
            // Tracing was turned off meanwhile: the spans are dropped.
            None => export_status.reset_state(),
        }
        batch.clear();
    }
}

/// Encodes the spans of a batch in the format of the collector.
fn encode_request(
    exporter: &TelemetryExporter,
    collector: &Collector,
    batch: &[Arc<TraceEntry>],
) -> ExportRequest {
    let resource_identity = exporter.resource_identity();
    let count = batch.len() as u64;
    match collector.protocol {
        CollectorProtocol::OtlpHttp | CollectorProtocol::OtlpGrpc => {
            ExportRequest::new_otlp((spans::encode_request(&resource_identity, batch), count))
        }
        CollectorProtocol::Zipkin => ExportRequest {
            content_type: "application/json",
            bytes: zipkin::encode_spans(&resource_identity, batch),
            count,
        },
    }
}

/// Encodes all spans without sending them, to measure the cost of the encoding.
#[cfg(test)]
pub(crate) async fn encode_all(mut entries: mpsc::Receiver<Arc<TraceEntry>>) {
    let workload = leno_model::WorkloadName::new("bookinfo", "a").unwrap();
    let resource_identity = super::source::resource_identity(&workload, None);
    let mut batch = Vec::new();
    while entries.recv_many(&mut batch, MAX_BATCH_ENTRIES).await > 0 {
        std::hint::black_box(spans::encode_request(&resource_identity, &batch));
        batch.clear();
    }
}
