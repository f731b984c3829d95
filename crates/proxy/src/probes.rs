//! Probes the application on behalf of the kubelet. The kubelet has no certificate of the mesh, so the sidecar would
//! reject probes that the kubelet sends to the application itself.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU16, NonZeroU32};
use std::str::FromStr;
use std::time::Duration;

use hyper::StatusCode;
use serde::Deserialize;

use crate::config::Interception;

mod grpc;
mod http;

/// The probes of a pod, by container and kind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Probes(BTreeMap<String, BTreeMap<ProbeKind, Probe>>);

/// The kind of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ProbeKind {
    Startup,
    Readiness,
    Liveness,
}

/// A probe of the application, with a valid configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Probe {
    action: ProbeAction,
    timeout: Duration,
}

/// The action of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ProbeAction {
    /// Sends an HTTP request.
    Http(http::HttpGet),
    /// Opens a TCP connection.
    Tcp(NonZeroU16),
    /// Calls the gRPC health service.
    Grpc(grpc::GrpcHealthCheck),
}

impl Probes {
    /// Parses `{"CONTAINER": {"readiness": {"httpGet": {…}}, …}, …}`, with the probe fields of Kubernetes.
    ///
    /// # Errors
    /// [`ProbesError`] if the text is not valid, or if a probe does not have exactly one action.
    pub fn from_json(text: &str) -> Result<Self, ProbesError> {
        let raw_probes: BTreeMap<String, BTreeMap<ProbeKind, RawProbe>> =
            serde_json::from_str(text)?;
        let mut probes = BTreeMap::new();
        for (container, container_probes) in raw_probes {
            let mut probes_by_kind = BTreeMap::new();
            for (kind, raw_probe) in container_probes {
                let probe = Probe::from_raw(raw_probe);
                let probe = probe.ok_or_else(|| {
                    let (container, kind) = (container.clone(), format!("{kind:?}").to_lowercase());
                    ProbesError::Action { container, kind }
                })?;
                probes_by_kind.insert(kind, probe);
            }
            probes.insert(container, probes_by_kind);
        }
        Ok(Self(probes))
    }

    /// Returns the probe for the path `CONTAINER/KIND`; `None` if the pod has no such probe.
    pub(crate) fn find_probe(&self, path: &str) -> Option<&Probe> {
        let (container, kind) = path.split_once('/')?;
        let kind = match kind {
            "startup" => ProbeKind::Startup,
            "readiness" => ProbeKind::Readiness,
            "liveness" => ProbeKind::Liveness,
            _ => return None,
        };
        self.0.get(container)?.get(&kind)
    }
}

impl FromStr for Probes {
    type Err = ProbesError;

    fn from_str(text: &str) -> Result<Self, ProbesError> {
        Self::from_json(text)
    }
}

/// An invalid description of probes.
#[derive(Debug, thiserror::Error)]
pub enum ProbesError {
    /// The text is not JSON of the form that [`Probes::from_json`] describes.
    #[error("invalid probes: {0}")]
    Json(#[from] serde_json::Error),
    /// A probe has no action, or more than one.
    #[error(
        "the {kind} probe of container `{container}` needs one of `httpGet`, `tcpSocket` and `grpc`"
    )]
    Action {
        /// The name of the container.
        container: String,
        /// The kind of the probe, in lower case.
        kind: String,
    },
}

impl Probe {
    /// Validates a probe; `None` unless it has exactly one action. The default timeout is 1 s.
    fn from_raw(raw_probe: RawProbe) -> Option<Self> {
        let action = match (raw_probe.http_get, raw_probe.tcp_socket, raw_probe.grpc) {
            (Some(get), None, None) => ProbeAction::Http(get),
            (None, Some(socket), None) => ProbeAction::Tcp(socket.port),
            (None, None, Some(check)) => ProbeAction::Grpc(check),
            _ => return None,
        };
        let seconds = raw_probe.timeout_seconds.map_or(1, NonZeroU32::get);
        let timeout = Duration::from_secs(seconds.into()).min(MAX_PROBE_TIMEOUT);
        Some(Self { action, timeout })
    }

    /// Runs the probe against the application at `address`.
    pub(crate) async fn run_probe(
        &self,
        address: IpAddr,
        interception: &Interception,
    ) -> Result<(), ProbeFailure> {
        let socket_address = |port: NonZeroU16| SocketAddr::new(address, port.get());
        let check = async {
            match &self.action {
                ProbeAction::Http(get) => {
                    get.run_check(socket_address(get.port), interception).await
                }
                ProbeAction::Tcp(port) => {
                    dial_application(socket_address(*port), interception).await.map(drop)
                }
                ProbeAction::Grpc(check) => {
                    check.run_check(socket_address(check.port), interception).await
                }
            }
        };
        tokio::time::timeout(self.timeout, check).await.unwrap_or(Err(ProbeFailure::Timeout))
    }
}

/// Opens a connection to the application, which the kernel does not redirect back to the sidecar.
async fn dial_application(
    address: SocketAddr,
    interception: &Interception,
) -> Result<tokio::net::TcpStream, ProbeFailure> {
    let connection = crate::dial::dial_address(address, interception).await;
    connection.map_err(|error| ProbeFailure::Connect(address.port(), error.kind()))
}

/// The failure of a probe. It contains no byte of a response body: the port is open to all clients, and the
/// kubelet does not put the body of a failed probe into its events either (kubernetes/kubernetes#99425).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeFailure {
    /// The port does not accept connections.
    Connect(u16, std::io::ErrorKind),
    /// The probe timed out.
    Timeout,
    /// The sidecar has too many probes in progress.
    Busy,
    /// The response is not in the protocol of the probe.
    InvalidResponse,
    /// The application returned an HTTP error status.
    Status(u16),
    /// The application returned a gRPC error status.
    GrpcStatus,
    /// The gRPC health service is not serving.
    NotServing,
}

impl ProbeFailure {
    /// Returns the status of the response to the kubelet, which appears in its event: the application's own
    /// status, if there is one.
    pub(crate) fn status_code(self) -> StatusCode {
        match self {
            // The kubelet does not treat lower statuses as failures.
            Self::Status(status) if status >= 400 => {
                StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY)
            }
            Self::Status(_) | Self::Connect(..) | Self::InvalidResponse => StatusCode::BAD_GATEWAY,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::Busy | Self::GrpcStatus | Self::NotServing => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl fmt::Display for ProbeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(port, kind) => {
                write!(f, "the application accepts no connection on port {port}: {kind}")
            }
            Self::Timeout => f.write_str("the application did not respond in time"),
            Self::Busy => f.write_str("the sidecar runs too many probes at the same time"),
            Self::InvalidResponse => f.write_str("the application sent no valid response"),
            Self::Status(status) => write!(f, "the application responded with status {status}"),
            Self::GrpcStatus => f.write_str("the application's health service rejected the check"),
            Self::NotServing => {
                f.write_str("the application's health service reports that it is not serving")
            }
        }
    }
}

/// A probe as Kubernetes describes it, before validation.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawProbe {
    http_get: Option<http::HttpGet>,
    tcp_socket: Option<TcpSocket>,
    grpc: Option<grpc::GrpcHealthCheck>,
    timeout_seconds: Option<NonZeroU32>,
}

/// The `tcpSocket` action.
#[derive(Deserialize)]
struct TcpSocket {
    port: NonZeroU16,
}

/// The maximum timeout of a probe, independent of its configuration.
const MAX_PROBE_TIMEOUT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
