//! What to send, where, how fast and for how long.

use std::net::SocketAddr;
use std::time::Duration;

use leno_wire::http1::Malformed;

/// What to send, where, how fast and for how long.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What to send; at least one.
    pub targets: Vec<Target>,
    /// What is spoken.
    pub protocol: Protocol,
    /// What becomes of a connection after its response.
    pub reuse: Reuse,
    /// How fast.
    pub pace: Pace,
    /// How long requests are started and measured, after the warm-up.
    pub duration: Duration,
    /// How long requests are sent before any is measured.
    pub warm_up: Duration,
    /// After how many measured requests the run ends even if the time is not over.
    pub requests: Option<u64>,
    /// How long a connection may take to open, and how long a response may take to arrive.
    pub timeout: Duration,
    /// Decides the order of targets: the same seed, the same order.
    pub seed: u64,
}

impl Plan {
    /// HTTP/1.1 over one kept connection for ten seconds, in a closed loop: a start for others.
    #[must_use]
    pub const fn new(targets: Vec<Target>) -> Self {
        Self {
            targets,
            protocol: Protocol::Http1,
            reuse: Reuse::Keep,
            pace: Pace::Closed { connections: 1 },
            duration: Duration::from_secs(10),
            warm_up: Duration::ZERO,
            requests: None,
            timeout: Duration::from_secs(10),
            seed: 1,
        }
    }
}

/// One kind of request.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its name in the report, unique in the plan.
    pub name: String,
    /// Where to connect: the server, or the proxy for [`Form::Absolute`].
    pub address: SocketAddr,
    /// How the target is written in the request line; HTTP/1.1 only.
    pub form: Form,
    /// The method; with gRPC always POST.
    pub method: String,
    /// The path, with the query if any.
    pub path: String,
    /// The value of `Host` or `:authority`: a name or address, perhaps with a port.
    pub host: String,
    /// Further headers; `host` and `content-length` are written by us.
    pub headers: Vec<(String, String)>,
    /// The body, perhaps empty; with gRPC the message.
    pub body: Vec<u8>,
    /// Its share of the requests, relative to the sum over the targets; 0 takes nothing.
    pub weight: u32,
}

impl Target {
    /// A GET with weight 1 and nothing special about it.
    #[must_use]
    pub fn get(name: &str, address: SocketAddr, host: &str, path: &str) -> Self {
        Self {
            name: name.to_owned(),
            address,
            form: Form::Origin,
            method: "GET".to_owned(),
            path: path.to_owned(),
            host: host.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            weight: 1,
        }
    }
}

/// How the target is written in the request line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// `/path`, as servers expect it.
    #[default]
    Origin,
    /// `http://host/path`, as HTTP proxies expect it.
    Absolute,
}

/// What is spoken on the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// HTTP/1.1: one request under way on each connection.
    #[default]
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2 {
        /// How many requests can be under way on each connection.
        streams: usize,
    },
    /// gRPC, one message each way, over HTTP/2 with prior knowledge.
    Grpc {
        /// How many calls can be under way on each connection.
        streams: usize,
    },
}

impl Protocol {
    /// How many requests can be under way on each connection.
    #[must_use]
    pub const fn streams(self) -> usize {
        match self {
            Self::Http1 => 1,
            Self::Http2 { streams } | Self::Grpc { streams } => streams,
        }
    }
}

/// What becomes of a connection after its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reuse {
    /// It is kept for the next request.
    #[default]
    Keep,
    /// It is closed: each request opens one of its own, which is part of its latency.
    Fresh,
}

/// How fast requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Each of the connections sends its next request when the last is answered. Shows what a
    /// server can do at most; latencies are only those of a server that is never kept waiting.
    Closed {
        /// How many connections there are.
        connections: usize,
    },
    /// Requests are due at a constant rate, whatever the server does. Latencies count from then.
    Open {
        /// Requests per second.
        rate: u32,
        /// How many connections there are. When all are busy, requests that are due wait, at
        /// the server's expense.
        connections: usize,
    },
}

impl Pace {
    /// How many connections there are.
    #[must_use]
    pub const fn connections(self) -> usize {
        match self {
            Self::Closed { connections } | Self::Open { connections, .. } => connections,
        }
    }
}

impl Plan {
    /// Checks all but what the requests look like.
    pub(crate) fn check(&self) -> Result<(), InvalidPlan> {
        let connections = self.pace.connections();
        if connections == 0 || connections > CONNECTIONS_MAX {
            return Err(InvalidPlan::Connections);
        }
        let streams = self.protocol.streams();
        if streams == 0 || connections.saturating_mul(streams) > SLOTS_MAX {
            return Err(InvalidPlan::Streams);
        }
        if let Pace::Open { rate, .. } = self.pace
            && (rate == 0 || rate > RATE_MAX)
        {
            return Err(InvalidPlan::Rate);
        }
        if self.duration.is_zero() || self.duration > DURATION_MAX || self.warm_up > DURATION_MAX {
            return Err(InvalidPlan::Duration);
        }
        if self.requests == Some(0) {
            return Err(InvalidPlan::NoRequests);
        }
        if self.timeout.is_zero() || self.timeout > DURATION_MAX {
            return Err(InvalidPlan::Timeout);
        }
        self.check_targets()
    }

    fn check_targets(&self) -> Result<(), InvalidPlan> {
        if self.targets.len() > TARGETS_MAX {
            return Err(InvalidPlan::TooManyTargets);
        }
        if self.targets.iter().all(|target| target.weight == 0) {
            return Err(InvalidPlan::NoTarget);
        }
        for (index, target) in self.targets.iter().enumerate() {
            if self.targets.iter().take(index).any(|other| other.name == target.name) {
                return Err(InvalidPlan::NameRepeated { name: target.name.clone() });
            }
            if target.form == Form::Absolute && self.protocol != Protocol::Http1 {
                return Err(InvalidPlan::ProxyWithHttp2);
            }
        }
        Ok(())
    }
}

/// A plan that cannot be driven.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPlan {
    /// No connections, or too many.
    #[error("connections: give 1 to {CONNECTIONS_MAX}")]
    Connections,
    /// No streams, or too many.
    #[error("streams: give at least 1, and at most {SLOTS_MAX} over all connections")]
    Streams,
    /// No threads, or too many.
    #[error("threads: give 1 to {THREADS_MAX}")]
    Threads,
    /// No rate, or one that no clock here can keep.
    #[error("rate: give 1 to {RATE_MAX} requests per second")]
    Rate,
    /// No duration, or a day is not enough.
    #[error("duration and warm-up: give more than nothing and at most a day")]
    Duration,
    /// A run of no requests.
    #[error("requests: give at least 1")]
    NoRequests,
    /// No timeout, or a day is not enough.
    #[error("timeout: give more than nothing and at most a day")]
    Timeout,
    /// No target has a weight.
    #[error("targets: give at least one with a weight above 0")]
    NoTarget,
    /// More targets than the report should hold.
    #[error("targets: give at most {TARGETS_MAX}")]
    TooManyTargets,
    /// Two targets cannot be told apart in the report.
    #[error("target `{name}`: it is there twice, give it once, with the sum of the weights")]
    NameRepeated {
        /// The name.
        name: String,
    },
    /// HTTP proxies are asked in HTTP/1.1.
    #[error("an HTTP proxy is asked in HTTP/1.1: leave out either the proxy or HTTP/2")]
    ProxyWithHttp2,
    /// The request would not be valid HTTP/1.1.
    #[error("target `{name}`: not a valid request, correct it: {rule}")]
    Request {
        /// The target.
        name: String,
        /// The rule that the request would break.
        #[source]
        rule: Malformed,
    },
    /// The request would not be valid HTTP/2.
    #[error("target `{name}`: not a valid request, correct its {part}")]
    Http2Request {
        /// The target.
        name: String,
        /// What is wrong with it.
        part: &'static str,
    },
    /// The request asks for something that is no plain exchange of messages.
    #[error("target `{name}`: CONNECT and Upgrade open tunnels, which are not measured here")]
    Tunnel {
        /// The target.
        name: String,
    },
}

/// What the ports of one client address allow.
const CONNECTIONS_MAX: usize = 60_000;

/// Requests under way at once: each takes a few KiB here.
const SLOTS_MAX: usize = 100_000;

/// More than any machine that this was tried on has cores.
pub(crate) const THREADS_MAX: usize = 256;

/// A request per microsecond: more than one thread can send.
const RATE_MAX: u32 = 1_000_000;

/// A day.
const DURATION_MAX: Duration = Duration::from_secs(86_400);

/// Each target has a histogram of about 200 KiB.
const TARGETS_MAX: usize = 256;
