//! Runs active health checks of a port's endpoints over HTTP or gRPC, for outlier detection. Each outlier
//! monitor has one task.

use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use leno_model::{Endpoint, HealthCheck, HealthProbe, PortOutlierDetection, Protocol, Reason};
use leno_telemetry::Count;
use leno_traffic::outlier::{EndpointResult, FailureEvidence, classify_check};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::outlier_monitor::OutlierMonitor;
use super::{Checkout, ConnectWait, Upstream};
use crate::check_service::{CheckError, read_response};
use crate::http::body::BodyPiece;
use crate::http::grpc::health;
use crate::http::mirror::{discard_response, plain, send_buffered_request};
use crate::link::LinkHandle;
use crate::worker::Worker;

/// The health check task of an outlier monitor, which runs until this is dropped.
pub(super) struct HealthCheckTask(AbortHandle);

impl HealthCheckTask {
    /// Starts to check the endpoints of an outlier monitor, which may still be under construction.
    pub(super) fn start(
        worker: &Rc<Worker>,
        outlier_monitor: Weak<OutlierMonitor>,
        outlier_detection: Arc<PortOutlierDetection>,
        health_check: HealthCheck,
    ) -> Self {
        // Sidecars that receive a policy at the same time start with different endpoints.
        let first_index = usize::try_from(worker.random_number() >> 32).unwrap_or(0);
        let (worker, health_check) = (Rc::downgrade(worker), Rc::new(health_check));
        let health_checker =
            HealthChecker { worker, outlier_monitor, outlier_detection, health_check, first_index };
        let check_rounds = async move { while health_checker.run_round().await.is_some() {} };
        Self(tokio::task::spawn_local(check_rounds).abort_handle())
    }
}

impl Drop for HealthCheckTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The state of a health check task. Between two checks the task holds no strong reference to the thread's
/// state.
struct HealthChecker {
    worker: Weak<Worker>,
    outlier_monitor: Weak<OutlierMonitor>,
    /// The policy of the outlier monitor.
    outlier_detection: Arc<PortOutlierDetection>,
    health_check: Rc<HealthCheck>,
    /// The index of the first endpoint of each round, modulo their number.
    first_index: usize,
}

impl HealthChecker {
    /// Checks each endpoint once, evenly distributed over the interval. Returns `None` if the outlier monitor
    /// was dropped or the proxy drains.
    async fn run_round(&self) -> Option<()> {
        let (start, interval) = (Instant::now(), self.jittered_interval()?);
        let endpoints = self.current_endpoints()?;
        let endpoint_count = endpoints.len().max(1);
        let check_spacing = interval / u32::try_from(endpoint_count).unwrap_or(u32::MAX);
        let rotated_endpoints =
            endpoints.iter().cycle().skip(self.first_index % endpoint_count).take(endpoints.len());
        for (checked_count, endpoint) in (1_u32..).zip(rotated_endpoints) {
            self.check_endpoint(endpoint)?;
            sleep_until(start + check_spacing * checked_count).await;
        }
        sleep_until(start + interval).await;
        Some(())
    }

    /// Returns the interval with a jitter of 10 %, so that the checks of sidecars that started together
    /// diverge. `None` if the worker was dropped.
    fn jittered_interval(&self) -> Option<Duration> {
        // The upper 16 bits of a random number: divided by 2^16, they are a fraction below 1.
        let random = u32::try_from(self.worker.upgrade()?.random_number() >> 48).unwrap_or(0);
        let max_jitter = self.health_check.interval / 10;
        Some(
            self.health_check.interval - max_jitter
                + (max_jitter * 2).mul_f64(f64::from(random) / f64::from(1 << 16)),
        )
    }

    /// Returns the endpoints to check in the current configuration; an empty list for a TCP port. Returns `None` if
    /// the proxy drains, or no port has the policy any more. Updates the thread's state to that configuration as
    /// well, because on a thread without requests no other code does.
    fn current_endpoints(&self) -> Option<Arc<[Arc<Endpoint>]>> {
        let (worker, outlier_monitor) = (self.worker.upgrade()?, self.outlier_monitor.upgrade()?);
        if worker.is_draining() {
            return None;
        }
        let config = worker.config_store.current_config()?;
        worker.retire_removed_endpoints(&config);
        let port = config.compiled.port_with_detection(&self.outlier_detection)?;
        let now = worker.config_store.age();
        outlier_monitor.update_endpoints(&worker, &port.endpoints, config.version, now);
        if port.protocol != Protocol::Tcp {
            return Some(port.endpoints.clone());
        }
        // A TCP port takes no HTTP or gRPC checks, so the state of its endpoints is unknown.
        for endpoint in port.endpoints.iter() {
            outlier_monitor.record_check(
                &worker.upstream_for(endpoint),
                FailureEvidence::Unknown,
                now,
            );
        }
        Some(Arc::new([]))
    }

    /// Starts the check of one endpoint, unless it was removed from the configuration. Returns `None` if the
    /// worker was dropped.
    fn check_endpoint(&self, endpoint: &Arc<Endpoint>) -> Option<()> {
        let (worker, outlier_monitor) = (self.worker.upgrade()?, self.outlier_monitor.clone());
        if worker.config_store.is_current(endpoint) {
            let (endpoint, health_check) = (endpoint.clone(), self.health_check.clone());
            // The task is not aborted: it ends within the timeout of a check, which is at most the interval.
            tokio::task::spawn_local(
                EndpointCheck { worker, outlier_monitor, endpoint, health_check }.run_check(),
            );
        }
        Some(())
    }
}

/// One check of one endpoint.
struct EndpointCheck {
    worker: Rc<Worker>,
    outlier_monitor: Weak<OutlierMonitor>,
    endpoint: Arc<Endpoint>,
    health_check: Rc<HealthCheck>,
}

impl EndpointCheck {
    /// Runs the check within its timeout, and records the result.
    async fn run_check(self) {
        let upstream = self.worker.upstream_for(&self.endpoint);
        let result = match timeout(self.health_check.timeout, self.send_check(&upstream)).await {
            Ok(Ok(result)) => result,
            Ok(Err(reason)) => EndpointResult::Failed(reason),
            Err(_) => EndpointResult::Failed(Reason::RequestTimeout),
        };
        let evidence = classify_check(result);
        let counter = match evidence {
            FailureEvidence::Success => Count::HealthChecksOk,
            FailureEvidence::Failure => Count::HealthChecksFailed,
            FailureEvidence::Unknown => Count::HealthChecksUnknown,
        };
        self.worker.metrics.add(counter, 1);
        tracing::debug!(workload = %self.endpoint.id.workload, ending = ?result, failed = ?evidence, "health check finished");
        if let Some(outlier_monitor) = self.outlier_monitor.upgrade() {
            outlier_monitor.record_check(&upstream, evidence, self.worker.config_store.age());
        }
    }

    /// Sends the check in the protocol of its probe. Returns the response, or the reason why there is none.
    async fn send_check(&self, upstream: &Rc<Upstream>) -> Result<EndpointResult, Reason> {
        match &self.health_check.probe {
            HealthProbe::Http { path } => self.send_http_check(upstream, path).await,
            HealthProbe::Grpc { .. } if upstream.is_unmeshed() || upstream.uses_http1() => {
                Err(Reason::Unsupported)
            }
            HealthProbe::Grpc { service } => {
                match upstream.acquire(&self.worker, None, ConnectWait::Full).await? {
                    Checkout::Link(link) => self.send_grpc_check(&link, service).await,
                    Checkout::Http1(_) | Checkout::Http2(_) => Err(Reason::Unsupported),
                }
            }
        }
    }

    async fn send_http_check(
        &self,
        upstream: &Rc<Upstream>,
        path: &str,
    ) -> Result<EndpointResult, Reason> {
        let head = self.request_head("GET", path, "");
        let status = match upstream.acquire(&self.worker, None, ConnectWait::Full).await? {
            Checkout::Link(link) => {
                let stream =
                    send_buffered_request(&self.worker, &link, head.as_bytes(), Vec::new()).await?;
                discard_response(&stream).await?
            }
            Checkout::Http1(connection) => {
                let is_reused = connection.is_reused;
                let response = plain::exchange_over_http1(
                    &self.worker,
                    upstream,
                    connection,
                    head.into(),
                    Vec::new(),
                )
                .await;
                response.map_err(|reason| match reason {
                    // A server may close a connection after any idle time.
                    Reason::UpstreamReset if is_reused => Reason::UpstreamRefused,
                    reason => reason,
                })?
            }
            // No circuit breaker limits health checks.
            Checkout::Http2(checkout) => {
                plain::exchange_over_http2(
                    &self.worker,
                    upstream,
                    None,
                    checkout,
                    head.into(),
                    Vec::new(),
                )
                .await?
            }
        };
        Ok(EndpointResult::Response { status, grpc: None })
    }

    async fn send_grpc_check(
        &self,
        link: &LinkHandle,
        service: &str,
    ) -> Result<EndpointResult, Reason> {
        let grpc_fields = "content-type: application/grpc\r\nte: trailers\r\n";
        let head = self.request_head("POST", health::METHOD, grpc_fields);
        let body = vec![BodyPiece::Data(health::encode_check(service))];
        let stream = send_buffered_request(&self.worker, link, head.as_bytes(), body).await?;
        let grpc_status = match read_response(&stream).await {
            Ok(response) => match health::decode_check(response) {
                Ok(true) => GRPC_OK,
                Ok(false) | Err(_) => GRPC_UNAVAILABLE,
            },
            Err(CheckError::Mesh(reason)) => return Err(reason),
            Err(CheckError::Grpc(grpc_status)) => grpc_status.parse().unwrap_or(GRPC_UNAVAILABLE),
            Err(_) => GRPC_UNAVAILABLE,
        };
        Ok(EndpointResult::Response { status: 200, grpc: Some(grpc_status) })
    }

    /// Returns the head of the check request. `extra_fields`: further header lines, each with its line end.
    fn request_head(&self, method: &str, path: &str, extra_fields: &str) -> String {
        let id = &self.endpoint.id;
        let host = format!("{}.{}:{}", id.service.name, id.service.namespace, id.port);
        format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: {USER_AGENT}\r\n{extra_fields}\r\n"
        )
    }
}

/// The `user-agent` of health checks.
const USER_AGENT: &str = concat!("leno-probe/", env!("CARGO_PKG_VERSION"));
/// The gRPC status of an application that serves.
const GRPC_OK: u8 = 0;
/// The gRPC status of an application that does not serve, or whose response is invalid.
const GRPC_UNAVAILABLE: u8 = 14;
