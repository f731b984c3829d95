//! Observes each sidecar of the demo: request counters, connections, resource usage, and its reaction to plaintext.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use leno_telemetry::ProcessUsage;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::admin_client;
use crate::up::WorkloadState;

/// A snapshot of one workload's sidecar.
#[derive(Debug, Clone)]
pub(super) struct Observation {
    /// The workload's name without the namespace.
    pub(super) workload: String,
    /// True if the workload has an application with ports.
    pub(super) has_application: bool,
    /// Request counters by series.
    pub(super) series: Vec<RequestSeries>,
    /// Open connections.
    pub(super) connections: Vec<PeerConnection>,
    /// The resource usage of the sidecar's process; `None` if the system does not report it.
    pub(super) usage: Option<ProcessUsage>,
    /// The sidecar's listeners for other sidecars.
    pub(super) inbound_listeners: Vec<SocketAddr>,
}

/// Requests with the same labels, as the admin endpoint lists them.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct RequestSeries {
    /// `inbound` or `outbound`.
    pub(super) direction: String,
    /// The account of the verified peer, `namespace/name`; empty without mutual TLS.
    pub(super) peer: String,
    /// The number of requests.
    pub(super) requests: u64,
    /// The number of successful requests.
    pub(super) success: u64,
    /// The median latency, in milliseconds.
    pub(super) p50_ms: f64,
    /// The 90th percentile of the latency, in milliseconds.
    pub(super) p90_ms: f64,
    /// The 99th percentile of the latency, in milliseconds.
    pub(super) p99_ms: f64,
}

/// A connection, as the admin endpoint lists it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct PeerConnection {
    /// `inbound` or `outbound`.
    pub(super) direction: String,
    /// The verified SPIFFE ID of the peer; empty on a plaintext connection.
    pub(super) identity: String,
}

#[derive(Deserialize)]
struct RequestsPage {
    series: Vec<RequestSeries>,
}

#[derive(Deserialize)]
struct ConnectionsPage {
    connections: Vec<PeerConnection>,
}

impl Observation {
    /// Returns the series of requests from other sidecars.
    pub(super) fn inbound_series(&self) -> impl Iterator<Item = &RequestSeries> {
        self.series.iter().filter(|series| series.direction == "inbound")
    }

    /// Returns the number of requests in both directions.
    pub(super) fn request_count(&self) -> u64 {
        self.series.iter().map(|series| series.requests).sum()
    }
}

/// Observes every sidecar.
///
/// # Errors
/// If a sidecar is not running, or does not respond.
pub(super) async fn observe_sidecars(
    workload_states: &[WorkloadState],
) -> anyhow::Result<Vec<Observation>> {
    let mut observations = Vec::new();
    for state in workload_states {
        let name = &state.workload.name;
        let report = state
            .report
            .as_ref()
            .with_context(|| format!("the sidecar of {name} is not running"))?;
        let requests_page: RequestsPage = query_page(report.admin, "/requests").await?;
        let connections_page: ConnectionsPage = query_page(report.admin, "/connections").await?;
        let open_listeners = report.open_listeners.iter();
        let inbound_listeners =
            open_listeners.filter(|(listener, _)| listener.starts_with("inbound-"));
        observations.push(Observation {
            workload: name.name.to_string(),
            has_application: !state.workload.ports.is_empty(),
            series: requests_page.series,
            connections: connections_page.connections,
            usage: leno_telemetry::read_usage(report.pid).ok(),
            inbound_listeners: inbound_listeners.map(|(_, address)| *address).collect(),
        });
    }
    Ok(observations)
}

async fn query_page<T: serde::de::DeserializeOwned>(
    admin_address: SocketAddr,
    path: &str,
) -> anyhow::Result<T> {
    let response = admin_client::query_admin(admin_address, path).await?;
    serde_json::from_slice(&response).with_context(|| format!("GET http://{admin_address}{path}"))
}

/// Sends plain HTTP to a listener that requires mutual TLS. Returns true if the listener rejects the request.
pub(super) async fn rejects_plaintext(listener: SocketAddr) -> bool {
    let exchange = async {
        let mut stream = TcpStream::connect(listener).await?;
        stream.write_all(PLAIN_REQUEST).await?;
        let mut response = Vec::new();
        stream.take(MAX_RESPONSE_BYTES).read_to_end(&mut response).await?;
        Ok::<_, std::io::Error>(response)
    };
    match timeout(REJECTION_TIMEOUT, exchange).await {
        // A TLS alert is no HTTP response.
        Ok(Ok(response)) => !response.starts_with(b"HTTP/"),
        // The listener reset the connection.
        Ok(Err(_)) => true,
        // An open connection without a response is no rejection.
        Err(_) => false,
    }
}

/// An HTTP request, sent without TLS.
const PLAIN_REQUEST: &[u8] = b"GET /health HTTP/1.1\r\nhost: demo\r\nconnection: close\r\n\r\n";
/// The maximum number of bytes to read, enough to recognize an HTTP response.
const MAX_RESPONSE_BYTES: u64 = 1024;
/// The maximum time until the rejection; a sidecar rejects at once.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(5);
