//! Export of the control plane's metrics, to the collector that sidecars push to.
//!
//! The mesh owner collects the numbers as for a scrape; everything else runs in a separate task.

use std::sync::Arc;
use std::time::SystemTime;

use leno_model::MetricsPush;
use leno_outside::{
    ExportCounts, ExportStatus, Exporter, MetricRequests, MetricSource, ResourceIdentity,
    push_metrics,
};
use tokio::sync::{oneshot, watch};

use crate::admin::{AdminQueries, query_owner};
use crate::dial::DirectDialer;
use crate::owner::{AdminQuery, AdminResponse};
use crate::server::Gauges;

/// The metrics exporter.
pub(crate) struct MetricsExporter {
    /// The resource attributes.
    pub(crate) source: ResourceIdentity,
    pub(crate) post: Exporter<DirectDialer>,
    /// Counters of export results.
    pub(crate) gauges: Arc<Gauges>,
    /// The query channel of the mesh owner,
    pub(crate) queries: AdminQueries,
    /// and the last query, after the owner has ended.
    pub(crate) last: oneshot::Sender<(AdminQuery, oneshot::Sender<AdminResponse>)>,
    /// The configured destination.
    pub(crate) wanted: watch::Receiver<Option<Box<MetricsPush>>>,
    /// The seed of the jitter within an interval.
    pub(crate) seed: u64,
}

impl MetricsExporter {
    /// Exports until shutdown, and once more afterwards.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) {
        let Self { source, post, gauges, queries, last, wanted, seed } = self;
        let mut fate = ExportStatus::new("metrics", ExportCounters(gauges));
        let numbers = MetricsSource { source, queries, last };
        let over = async { drop(stop.wait_for(|stop| *stop).await) };
        push_metrics(&post, &mut fate, numbers, wanted, SystemTime::now(), seed, over).await;
    }
}

/// All metrics of the control plane.
struct MetricsSource {
    source: ResourceIdentity,
    queries: AdminQueries,
    last: oneshot::Sender<(AdminQuery, oneshot::Sender<AdminResponse>)>,
}

impl MetricSource for MetricsSource {
    fn source(&self) -> ResourceIdentity {
        self.source.clone()
    }

    async fn write_metrics(&mut self, pages: MetricRequests) -> Option<MetricRequests> {
        metric_pages(query_owner(&self.queries, AdminQuery::Points(Box::new(pages))).await?)
    }

    async fn write_last_metrics(self, pages: MetricRequests) -> Option<MetricRequests> {
        let (sender, response) = oneshot::channel();
        self.last.send((AdminQuery::Points(Box::new(pages)), sender)).ok()?;
        metric_pages(response.await.ok()?)
    }
}

fn metric_pages(response: AdminResponse) -> Option<MetricRequests> {
    match response {
        AdminResponse::Points(pages) => Some(*pages),
        AdminResponse::Json(_)
        | AdminResponse::Objects(_)
        | AdminResponse::Metrics(..)
        | AdminResponse::Sidecar(_) => None,
    }
}

struct ExportCounters(Arc<Gauges>);

impl ExportCounts for ExportCounters {
    fn add_exported(&self, count: u64) {
        self.0.push(count, 0);
    }

    fn add_rejected(&self, count: u64) {
        self.0.push(0, count);
    }
}
