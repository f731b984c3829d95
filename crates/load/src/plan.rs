//! What to send, where, how fast and for how long.

use std::net::SocketAddr;
use std::time::Duration;

use leno_wire::http1::Malformed;

/// What to send, where, how fast and for how long.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What to send; at least one.
    pub targets: Vec<Target>,
    /// How fast.
    pub pace: Pace,
    /// How long requests are started and measured, after the warm-up.
    pub duration: Duration,
    /// How long requests are sent before any is measured.
    pub warm_up: Duration,
    /// How long a connection may take to open, and how long a response may take to arrive.
    pub timeout: Duration,
    /// Decides the order of targets: the same seed, the same order.
    pub seed: u64,
}

/// One kind of request.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its name in the report, unique in the plan.
    pub name: String,
    /// Where to connect: the server, or the proxy for [`Form::Absolute`].
    pub address: SocketAddr,
    /// How the target is written in the request line.
    pub form: Form,
    /// The method.
    pub method: String,
    /// The path, with the query if any.
    pub path: String,
    /// The value of `Host`: a name or address, perhaps with a port.
    pub host: String,
    /// Further headers; `host` and `content-length` are written by us.
    pub headers: Vec<(String, String)>,
    /// The body, perhaps empty.
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

/// How fast requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Each of the connections sends its next request when the last is answered. Shows what a
    /// server can do at most; latencies are only those of a server that is never kept waiting.
    Closed {
        /// How many requests are under way at once.
        connections: usize,
    },
    /// Requests are due at a constant rate, whatever the server does. Latencies count from then.
    Open {
        /// Requests per second.
        rate: u32,
        /// How many requests can be under way at once; others that are due wait, at the
        /// server's expense.
        connections: usize,
    },
}

impl Pace {
    /// How many requests can be under way at once.
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
        if let Pace::Open { rate, .. } = self.pace
            && (rate == 0 || rate > RATE_MAX)
        {
            return Err(InvalidPlan::Rate);
        }
        if self.duration.is_zero() || self.duration > DURATION_MAX || self.warm_up > DURATION_MAX {
            return Err(InvalidPlan::Duration);
        }
        if self.timeout.is_zero() || self.timeout > DURATION_MAX {
            return Err(InvalidPlan::Timeout);
        }
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
    /// No rate, or one that no clock here can keep.
    #[error("rate: give 1 to {RATE_MAX} requests per second")]
    Rate,
    /// No duration, or a day is not enough.
    #[error("duration and warm-up: give more than nothing and at most a day")]
    Duration,
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
    #[error("target `{name}`: another has the same name, choose a new one")]
    NameRepeated {
        /// The name.
        name: String,
    },
    /// The request would not be valid HTTP/1.1.
    #[error("target `{name}`: not a valid request, correct it: {rule}")]
    Request {
        /// The target.
        name: String,
        /// The rule that the request would break.
        #[source]
        rule: Malformed,
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

/// A request per microsecond: more than one thread can send.
const RATE_MAX: u32 = 1_000_000;

/// A day.
const DURATION_MAX: Duration = Duration::from_secs(86_400);

/// Each target has a histogram of about 200 KiB.
const TARGETS_MAX: usize = 256;
