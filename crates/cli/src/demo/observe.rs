//! What the demo sees of each sidecar: its counts, its connections, its cost, and how it takes
//! plaintext.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use leno_telemetry::Usage;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::ask;
use crate::up::Standing;

/// What was seen of one workload's sidecar at one moment.
#[derive(Debug, Clone)]
pub(super) struct Observation {
    /// The workload's own name, without the namespace.
    pub(super) workload: String,
    /// Whether it has an application that serves.
    pub(super) serves: bool,
    /// What its requests were, by series.
    pub(super) series: Vec<Series>,
    /// The connections that were open.
    pub(super) connections: Vec<Connection>,
    /// What its process had taken; absent when the system does not tell.
    pub(super) usage: Option<Usage>,
    /// Its doors for other sidecars.
    pub(super) inbound: Vec<SocketAddr>,
}

/// Requests that share their labels, as the admin page tells of them.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Series {
    pub(super) direction: String,
    pub(super) peer: String,
    pub(super) requests: u64,
    pub(super) success: u64,
    pub(super) p50_ms: f64,
    pub(super) p90_ms: f64,
    pub(super) p99_ms: f64,
}

/// A connection, as the admin page tells of it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Connection {
    pub(super) direction: String,
    pub(super) identity: String,
}

#[derive(Deserialize)]
struct Requests {
    series: Vec<Series>,
}

#[derive(Deserialize)]
struct Connections {
    connections: Vec<Connection>,
}

impl Observation {
    /// The series of requests that came from other sidecars.
    pub(super) fn inbound_series(&self) -> impl Iterator<Item = &Series> {
        self.series.iter().filter(|series| series.direction == "inbound")
    }

    /// All requests that went through, either way.
    pub(super) fn requests(&self) -> u64 {
        self.series.iter().map(|series| series.requests).sum()
    }
}

/// Looks at every sidecar.
///
/// # Errors
/// When one of them does not answer.
pub(super) async fn observe(fleet: &[Standing]) -> anyhow::Result<Vec<Observation>> {
    let mut all = Vec::new();
    for member in fleet {
        let name = &member.workload.name;
        let report = member.report.as_ref();
        let report = report.with_context(|| format!("the sidecar of {name} is not running"))?;
        let requests: Requests = page(report.admin, "/requests").await?;
        let connections: Connections = page(report.admin, "/connections").await?;
        let doors = report.doors.iter();
        let inbound = doors.filter(|(door, _)| door.starts_with("inbound-"));
        all.push(Observation {
            workload: name.name.to_string(),
            serves: !member.workload.ports.is_empty(),
            series: requests.series,
            connections: connections.connections,
            usage: leno_telemetry::usage(report.pid).ok(),
            inbound: inbound.map(|(_, address)| *address).collect(),
        });
    }
    Ok(all)
}

async fn page<T: serde::de::DeserializeOwned>(admin: SocketAddr, path: &str) -> anyhow::Result<T> {
    let answer = ask::admin(admin, path).await?;
    serde_json::from_slice(&answer).with_context(|| format!("reading http://{admin}{path}"))
}

/// Speaks plain HTTP to a door that expects mutual TLS; whether it was refused.
pub(super) async fn refuses_plaintext(door: SocketAddr) -> bool {
    let spoken = async {
        let mut stream = TcpStream::connect(door).await?;
        stream.write_all(PLAIN_REQUEST).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    match timeout(REFUSAL_PATIENCE, spoken).await {
        // A TLS alert is an answer, but none that a client without TLS can use.
        Ok(Ok(answer)) => !answer.starts_with(b"HTTP/"),
        Ok(Err(_)) => true,
        Err(_) => false,
    }
}

/// What is asked without TLS.
const PLAIN_REQUEST: &[u8] = b"GET /health HTTP/1.1\r\nhost: demo\r\nconnection: close\r\n\r\n";
/// More than an alert, enough to recognise a response.
const ANSWER_BYTES_MAX: u64 = 1024;
/// A sidecar refuses at once.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(5);
