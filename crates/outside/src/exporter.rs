//! Exporter: sends requests to collectors, with retries.

use std::path::PathBuf;
use std::time::Duration;

use leno_model::Collector;
use tokio::time::{sleep, timeout};

use crate::export_request::{self, ExportError, ExportRequest, RejectedItems};
use crate::export_status::{ExportCounts, ExportStatus};
use crate::servers::{Connector, TlsSessions};

/// Sends requests to collectors, with retries.
#[derive(Debug)]
pub struct Exporter<D> {
    dial: D,
    sessions: TlsSessions,
}

impl<D: Connector> Exporter<D> {
    /// Creates an exporter that connects with `dial`. `roots` is a PEM file with trust roots of collectors; the
    /// default is the system's roots.
    pub fn new(dial: D, roots: Option<PathBuf>) -> Self {
        Self { dial, sessions: TlsSessions::new(roots) }
    }

    /// Sends OTLP requests in sequence. If one fails, the rest is dropped, unless the error concerns only this
    /// request. Returns the retry delay that the collector requests.
    pub async fn deliver_all(
        &self,
        collector: &Collector,
        requests: Vec<(Vec<u8>, u64)>,
        export_status: &mut ExportStatus<impl ExportCounts>,
    ) -> Option<Duration> {
        export_status.set_collector(collector);
        let mut is_taken = true;
        let mut asked = None;
        for export_request in requests.into_iter().map(ExportRequest::new_otlp) {
            if is_taken {
                let reported = self.try_patiently(collector, &export_request).await;
                if let Err(error) = &reported {
                    is_taken = error.is_of_export_request();
                    asked = error.retry_delay();
                }
                export_status.record_result(export_request.count, &reported);
            } else {
                export_status.record_lost(export_request.count);
            }
        }
        asked
    }

    /// Sends one request.
    pub async fn send_request(
        &self,
        collector: &Collector,
        export_request: &ExportRequest,
        export_status: &mut ExportStatus<impl ExportCounts>,
    ) {
        let reported = self.try_patiently(collector, export_request).await;
        export_status.set_collector(collector);
        export_status.record_result(export_request.count, &reported);
    }

    /// Sends a request, with retries; returns the part that the collector rejected.
    async fn try_patiently(
        &self,
        collector: &Collector,
        export_request: &ExportRequest,
    ) -> Result<RejectedItems, ExportError> {
        let mut pause = PAUSE_FIRST;
        let mut tries = TRIES_MAX;
        loop {
            let posted =
                export_request::send_export(collector, export_request, &self.dial, &self.sessions);
            let outcome = timeout(SEND_MAX, posted).await.unwrap_or(Err(ExportError::Late));
            tries -= 1;
            match outcome {
                Err(error) if error.may_pass() && tries > 0 => {
                    let asked = error.retry_delay().unwrap_or_default();
                    if asked > PAUSE_MAX {
                        return Err(error);
                    }
                    sleep(pause.max(asked)).await;
                }
                outcome => return outcome,
            }
            pause *= 2;
        }
    }
}

/// The timeout of one attempt.
const SEND_MAX: Duration = Duration::from_secs(10);
/// The maximum number of attempts.
const TRIES_MAX: u32 = 3;
/// The delay before the second attempt; it doubles for the third one.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
/// The longest accepted retry delay; beyond it the request is dropped.
const PAUSE_MAX: Duration = Duration::from_secs(10);
