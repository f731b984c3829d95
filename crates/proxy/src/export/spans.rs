//! Export of spans in batches.

use std::rc::Rc;
use std::sync::Arc;

use leno_model::{Collector, CollectorProtocol};
use leno_outside::ExportRequest;
use tokio::sync::mpsc;

use super::otlp::spans;
use super::{BATCH_MAX, Courier, GATHER, collect_batch, zipkin};
use crate::seen::Seen;

/// Exports spans until all data threads have ended and the queue is empty.
pub(crate) async fn export_spans(courier: Rc<Courier>, mut intake: mpsc::Receiver<Arc<Seen>>) {
    let mut batch = Vec::new();
    let mut fate = courier.fate_of_spans();
    while intake.recv_many(&mut batch, BATCH_MAX).await > 0 {
        collect_batch(&mut intake, &mut batch, GATHER).await;
        let view = courier.world.sights.active_settings();
        match view.as_ref().and_then(|view| view.tracing_settings()) {
            Some(tracing) => {
                let export_request = export_request(&courier, &tracing.collector, &batch);
                courier.post.send_request(&tracing.collector, &export_request, &mut fate).await;
            }
            // Tracing was turned off meanwhile: the spans are dropped.
            None => fate.reset_state(),
        }
        batch.clear();
    }
}

fn export_request(courier: &Courier, collector: &Collector, batch: &[Arc<Seen>]) -> ExportRequest {
    let source = courier.source();
    let count = batch.len() as u64;
    match collector.protocol {
        CollectorProtocol::OtlpHttp | CollectorProtocol::OtlpGrpc => {
            ExportRequest::new_otlp((spans::encode_request(&source, batch), count))
        }
        CollectorProtocol::Zipkin => ExportRequest {
            kind: "application/json",
            bytes: zipkin::encode_spans(&source, batch),
            count,
        },
    }
}

/// Encodes spans as for a collector without sending them, to measure the cost.
#[cfg(test)]
pub(crate) async fn encode_all(mut intake: mpsc::Receiver<Arc<Seen>>) {
    let workload = leno_model::WorkloadName::new("bookinfo", "a").unwrap();
    let source = super::source::source(&workload, None);
    let mut batch = Vec::new();
    while intake.recv_many(&mut batch, BATCH_MAX).await > 0 {
        std::hint::black_box(spans::encode_request(&source, &batch));
        batch.clear();
    }
}
