//! Sends the export requests of a process to collectors, with retries and timeouts.

use std::path::PathBuf;
use std::time::Duration;

use leno_model::Collector;
use tokio::time::{sleep, timeout};

use crate::export_request::{self, ExportError, ExportRequest, RejectedItems};
use crate::export_status::{ExportCounts, ExportStatus};
use crate::servers::{Connector, TlsSessions};

/// The exporter of a process, which sends export requests to collectors, with retries.
#[derive(Debug)]
pub struct Exporter<C> {
    connector: C,
    sessions: TlsSessions,
}

impl<C: Connector> Exporter<C> {
    /// Creates an exporter that connects with `connector`. `roots_file` is a PEM file with trust roots of
    /// collectors; the default is the system's roots.
    pub fn new(connector: C, roots_file: Option<PathBuf>) -> Self {
        Self { connector, sessions: TlsSessions::new(roots_file) }
    }

    /// Sends OTLP requests in sequence; each is an encoded body with the number of its items. If a request fails, the
    /// remaining requests are dropped, unless the error concerns only the failed request. Returns the retry delay of the
    /// last failed request, if it has one.
    pub async fn send_all(
        &self,
        collector: &Collector,
        requests: Vec<(Vec<u8>, u64)>,
        export_status: &mut ExportStatus<impl ExportCounts>,
    ) -> Option<Duration> {
        export_status.set_collector(collector);
        let mut collector_accepts = true;
        let mut requested_delay = None;
        for export_request in requests.into_iter().map(ExportRequest::new_otlp) {
            if collector_accepts {
                let result = self.send_with_retries(collector, &export_request).await;
                if let Err(error) = &result {
                    collector_accepts = error.concerns_only_request();
                    requested_delay = error.retry_delay();
                }
                export_status.record_result(export_request.count, &result);
            } else {
                export_status.record_lost(export_request.count);
            }
        }
        requested_delay
    }

    /// Sends one request, and records its result.
    pub async fn send_request(
        &self,
        collector: &Collector,
        export_request: &ExportRequest,
        export_status: &mut ExportStatus<impl ExportCounts>,
    ) {
        let result = self.send_with_retries(collector, export_request).await;
        export_status.set_collector(collector);
        export_status.record_result(export_request.count, &result);
    }

    /// Sends a request with up to [`MAX_ATTEMPTS`] attempts. Returns the items that the collector rejected.
    async fn send_with_retries(
        &self,
        collector: &Collector,
        export_request: &ExportRequest,
    ) -> Result<RejectedItems, ExportError> {
        let mut retry_delay = FIRST_RETRY_DELAY;
        let mut remaining_attempts = MAX_ATTEMPTS;
        loop {
            let attempt = export_request::send_export(
                collector,
                export_request,
                &self.connector,
                &self.sessions,
            );
            let outcome =
                timeout(ATTEMPT_TIMEOUT, attempt).await.unwrap_or(Err(ExportError::TimedOut));
            remaining_attempts -= 1;
            match outcome {
                Err(error) if error.is_retryable() && remaining_attempts > 0 => {
                    let requested_delay = error.retry_delay().unwrap_or_default();
                    if requested_delay > MAX_RETRY_DELAY {
                        return Err(error);
                    }
                    sleep(retry_delay.max(requested_delay)).await;
                }
                outcome => return outcome,
            }
            retry_delay *= 2;
        }
    }
}

/// The timeout of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of attempts for one request.
const MAX_ATTEMPTS: u32 = 3;
/// The delay before the second attempt; it doubles for the third one.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(500);
/// The maximum retry delay; if the collector requests a longer one, the request is dropped.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);
