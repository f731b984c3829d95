//! Exports the control plane's metrics periodically to the collector that sidecars export to.
//!
//! The state task collects the numbers as for a scrape. Encoding and sending run in a separate task.

use std::sync::Arc;
use std::time::SystemTime;

use leno_model::MetricsPush;
use leno_outside::{
    ExportCounts, ExportStatus, Exporter, MetricRequests, MetricSource, ResourceIdentity,
    push_metrics,
};
use tokio::sync::{oneshot, watch};

use crate::admin::{AdminQueries, query_state_task};
use crate::dial::DirectDialer;
use crate::server::ConnectionCounters;
use crate::state_task::{AdminQuery, AdminResponse};

/// The metrics exporter.
pub(crate) struct MetricsExporter {
    /// The resource attributes.
    pub(crate) resource_identity: ResourceIdentity,
    pub(crate) exporter: Exporter<DirectDialer>,
    /// Counters of export results.
    pub(crate) connection_counters: Arc<ConnectionCounters>,
    /// The query channel of the state task.
    pub(crate) queries: AdminQueries,
    /// The channel of the final query, after the state task has ended.
    pub(crate) final_query: oneshot::Sender<(AdminQuery, oneshot::Sender<AdminResponse>)>,
    /// The configured destination.
    pub(crate) destination: watch::Receiver<Option<Box<MetricsPush>>>,
    /// The seed of the jitter within an interval.
    pub(crate) seed: u64,
}

impl MetricsExporter {
    /// Exports periodically until shutdown, and a final time after the state task has ended.
    pub(crate) async fn export_metrics(self, mut stop: watch::Receiver<bool>) {
        let Self {
            resource_identity,
            exporter,
            connection_counters,
            queries,
            final_query,
            destination,
            seed,
        } = self;
        let mut export_status = ExportStatus::new("metrics", ExportCounters(connection_counters));
        let metrics = ControlMetrics { resource_identity, queries, final_query };
        let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
        push_metrics(
            &exporter,
            &mut export_status,
            metrics,
            destination,
            SystemTime::now(),
            seed,
            stopped,
        )
        .await;
    }
}

/// The control plane's metrics as a source for `push_metrics`, collected with queries to the state task.
struct ControlMetrics {
    resource_identity: ResourceIdentity,
    queries: AdminQueries,
    final_query: oneshot::Sender<(AdminQuery, oneshot::Sender<AdminResponse>)>,
}

impl MetricSource for ControlMetrics {
    fn identity(&self) -> ResourceIdentity {
        self.resource_identity.clone()
    }

    async fn write_metrics(&mut self, requests: MetricRequests) -> Option<MetricRequests> {
        into_metric_requests(
            query_state_task(&self.queries, AdminQuery::Points(Box::new(requests))).await?,
        )
    }

    async fn write_final_metrics(self, requests: MetricRequests) -> Option<MetricRequests> {
        let (sender, response) = oneshot::channel();
        self.final_query.send((AdminQuery::Points(Box::new(requests)), sender)).ok()?;
        into_metric_requests(response.await.ok()?)
    }
}

/// Returns the export requests in the state task's response to [`AdminQuery::Points`]; `None` for any other response.
fn into_metric_requests(response: AdminResponse) -> Option<MetricRequests> {
    match response {
        AdminResponse::Points(requests) => Some(*requests),
        AdminResponse::Json(_)
        | AdminResponse::Objects(_)
        | AdminResponse::Metrics(..)
        | AdminResponse::Sidecar(_) => None,
    }
}

/// Adds the results of exports to the control plane's counters.
struct ExportCounters(Arc<ConnectionCounters>);

impl ExportCounts for ExportCounters {
    fn add_exported(&self, count: u64) {
        self.0.record_export(count, 0);
    }

    fn add_rejected(&self, count: u64) {
        self.0.record_export(0, count);
    }
}
