//! Defines the plan of a run, and validates it.

use std::net::SocketAddr;
use std::time::Duration;

use leno_wire::http1::Malformed;

/// The plan of a run: its targets, protocol, load model and duration.
#[derive(Debug, Clone)]
pub struct LoadPlan {
    /// The targets; at least one.
    pub targets: Vec<LoadTarget>,
    /// The protocol of all connections.
    pub protocol: LoadProtocol,
    /// The treatment of a connection after a response.
    pub reuse: ConnectionReuse,
    /// The load model, with the number of connections.
    pub load_model: LoadModel,
    /// The time after the warm-up in which requests are started and measured.
    pub duration: Duration,
    /// The time in which requests are sent and not measured.
    pub warm_up: Duration,
    /// The maximum number of measured requests, after which the run ends early; unlimited if absent.
    pub requests: Option<u64>,
    /// The timeout of opening a connection, and of receiving a response.
    pub timeout: Duration,
    /// The seed of the order of targets.
    pub seed: u64,
}

impl LoadPlan {
    /// Creates a default plan: HTTP/1.1 over one kept connection for ten seconds, in a closed loop.
    #[must_use]
    pub const fn new(targets: Vec<LoadTarget>) -> Self {
        Self {
            targets,
            protocol: LoadProtocol::Http1,
            reuse: ConnectionReuse::Keep,
            load_model: LoadModel::Closed { connections: 1 },
            duration: Duration::from_secs(10),
            warm_up: Duration::ZERO,
            requests: None,
            timeout: Duration::from_secs(10),
            seed: 1,
        }
    }
}

/// A target: a kind of request that the run sends repeatedly.
#[derive(Debug, Clone)]
pub struct LoadTarget {
    /// The name of the target in the report, unique in the plan.
    pub name: String,
    /// The address to connect to: the server, or the proxy for [`TargetForm::Absolute`].
    pub address: SocketAddr,
    /// The form of the request target; HTTP/1.1 only.
    pub form: TargetForm,
    /// The method; always POST for gRPC.
    pub method: String,
    /// The path, with the query if any.
    pub path: String,
    /// The value of `Host` or `:authority`: a name or address, optionally with a port.
    pub host: String,
    /// Further headers; `host` and `content-length` are added automatically.
    pub headers: Vec<(String, String)>,
    /// The body, possibly empty; for gRPC the message.
    pub body: Vec<u8>,
    /// The weight of the target relative to the sum of all weights; 0 means no requests.
    pub weight: u32,
}

impl LoadTarget {
    /// Creates a plain GET with weight 1.
    #[must_use]
    pub fn get(name: &str, address: SocketAddr, host: &str, path: &str) -> Self {
        Self {
            name: name.to_owned(),
            address,
            form: TargetForm::Origin,
            method: "GET".to_owned(),
            path: path.to_owned(),
            host: host.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            weight: 1,
        }
    }
}

/// The form of the request target in the request line (RFC 9112 section 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TargetForm {
    /// `/path`, as origin servers expect it.
    #[default]
    Origin,
    /// `http://host/path`, as HTTP proxies expect it.
    Absolute,
}

/// The protocol of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadProtocol {
    /// HTTP/1.1: one request in progress per connection.
    #[default]
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2 {
        /// Maximum requests in progress per connection.
        streams: usize,
    },
    /// gRPC, unary calls over HTTP/2 with prior knowledge.
    Grpc {
        /// Maximum calls in progress per connection.
        streams: usize,
    },
}

impl LoadProtocol {
    /// Returns the maximum number of requests in progress per connection.
    #[must_use]
    pub const fn streams_per_connection(self) -> usize {
        match self {
            Self::Http1 => 1,
            Self::Http2 { streams } | Self::Grpc { streams } => streams,
        }
    }
}

/// The reuse of connections after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConnectionReuse {
    /// Connections are kept for the next request.
    #[default]
    Keep,
    /// Connections are closed: each request opens one, which is part of its latency.
    Fresh,
}

/// The load model: a closed loop, or an open loop at a constant rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadModel {
    /// Closed loop: each connection sends its next request as soon as the response to the previous one arrives. The
    /// throughput is the maximum of the server; the latencies do not include queueing.
    Closed {
        /// The number of connections.
        connections: usize,
    },
    /// Open loop: requests are due at a constant rate, independent of the server, and latencies are measured
    /// from their due time.
    Open {
        /// Requests per second.
        rate: u32,
        /// The number of connections. While all are busy, due requests wait, which counts as latency.
        connections: usize,
    },
}

impl LoadModel {
    /// Returns the number of connections.
    #[must_use]
    pub const fn connection_count(self) -> usize {
        match self {
            Self::Closed { connections } | Self::Open { connections, .. } => connections,
        }
    }
}

impl LoadPlan {
    /// Validates the plan, except for the requests, which are validated when they are serialized.
    pub(crate) fn validate(&self) -> Result<(), InvalidPlan> {
        let connections = self.load_model.connection_count();
        if connections == 0 || connections > MAX_CONNECTIONS {
            return Err(InvalidPlan::Connections);
        }
        let streams = self.protocol.streams_per_connection();
        if streams == 0 || connections.saturating_mul(streams) > MAX_TOTAL_STREAMS {
            return Err(InvalidPlan::Streams);
        }
        if let LoadModel::Open { rate, .. } = self.load_model
            && (rate == 0 || rate > MAX_RATE)
        {
            return Err(InvalidPlan::Rate);
        }
        if self.duration.is_zero() || self.duration > MAX_DURATION || self.warm_up > MAX_DURATION {
            return Err(InvalidPlan::Duration);
        }
        if self.requests == Some(0) {
            return Err(InvalidPlan::NoRequests);
        }
        if self.timeout.is_zero() || self.timeout > MAX_DURATION {
            return Err(InvalidPlan::Timeout);
        }
        self.validate_targets()
    }

    fn validate_targets(&self) -> Result<(), InvalidPlan> {
        if self.targets.len() > MAX_TARGETS {
            return Err(InvalidPlan::TooManyTargets);
        }
        if self.targets.iter().all(|target| target.weight == 0) {
            return Err(InvalidPlan::NoTarget);
        }
        for (index, target) in self.targets.iter().enumerate() {
            if self.targets.iter().take(index).any(|earlier| earlier.name == target.name) {
                return Err(InvalidPlan::NameRepeated { name: target.name.clone() });
            }
            if target.form == TargetForm::Absolute && self.protocol != LoadProtocol::Http1 {
                return Err(InvalidPlan::ProxyWithHttp2);
            }
        }
        Ok(())
    }
}

/// The reason why a plan is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPlan {
    /// Zero connections, or too many.
    #[error("connections: use 1 to {MAX_CONNECTIONS}")]
    Connections,
    /// Zero streams, or too many.
    #[error(
        "streams: use at least 1, and at most {MAX_TOTAL_STREAMS} for all connections together"
    )]
    Streams,
    /// Zero threads, or too many.
    #[error("threads: use 1 to {MAX_THREADS}")]
    Threads,
    /// A rate of zero, or above the clock's resolution.
    #[error("rate: use 1 to {MAX_RATE} requests per second")]
    Rate,
    /// A duration of zero, or above a day.
    #[error("duration and warm-up: use more than zero and at most one day")]
    Duration,
    /// A limit of zero requests.
    #[error("requests: use at least 1")]
    NoRequests,
    /// A timeout of zero, or above a day.
    #[error("timeout: use more than zero and at most one day")]
    Timeout,
    /// No target has a weight.
    #[error("targets: set at least one with a weight above 0")]
    NoTarget,
    /// Too many targets for a report.
    #[error("targets: set at most {MAX_TARGETS}")]
    TooManyTargets,
    /// Two targets have the same name.
    #[error("target `{name}`: defined twice; define it once, with the sum of the weights")]
    NameRepeated {
        /// The name that occurs twice.
        name: String,
    },
    /// Requests in absolute form require HTTP/1.1.
    #[error("requests to an HTTP proxy use HTTP/1.1: omit either the proxy or HTTP/2")]
    ProxyWithHttp2,
    /// The request is invalid in HTTP/1.1.
    #[error("target `{name}`: not a valid request, correct it: {rule}")]
    Request {
        /// The name of the target.
        name: String,
        /// The violated rule.
        #[source]
        rule: Malformed,
    },
    /// The request is invalid in HTTP/2.
    #[error("target `{name}`: not a valid request, correct its {part}")]
    Http2Request {
        /// The name of the target.
        name: String,
        /// The invalid part of the request, such as `headers`.
        part: &'static str,
    },
    /// The request would open a tunnel or an upgrade.
    #[error("target `{name}`: CONNECT and Upgrade open tunnels, which are not supported")]
    Tunnel {
        /// The name of the target.
        name: String,
    },
}

/// The maximum number of connections, limited by the ports of one client address.
const MAX_CONNECTIONS: usize = 60_000;

/// The maximum number of requests in progress: each takes a few KiB of this process's memory.
const MAX_TOTAL_STREAMS: usize = 100_000;

/// The maximum number of threads, more than the cores of any tested machine.
pub(crate) const MAX_THREADS: usize = 256;

/// The maximum rate: one request per microsecond, more than one thread can send.
const MAX_RATE: u32 = 1_000_000;

/// The maximum duration and timeout: one day.
const MAX_DURATION: Duration = Duration::from_secs(86_400);

/// The maximum number of targets: each has a histogram of about 200 KiB.
const MAX_TARGETS: usize = 256;
