//! Health checks: questions of a sidecar's own to the endpoints of a port, whether they are well.

use std::time::Duration;

/// How the endpoints of a port are asked, and what their answers lead to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HealthCheck {
    /// What is asked.
    pub probe: HealthProbe,
    /// From one check of an endpoint to the next, for each data thread.
    pub interval: Duration,
    /// How long an answer may take; no longer than the interval.
    pub timeout: Duration,
    /// An endpoint is removed after so many failed checks in a row; never 0.
    pub failures: u32,
    /// It is back after so many successful ones in a row; never 0.
    pub successes: u32,
}

/// What an endpoint is asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HealthProbe {
    /// A GET of this path; the statuses 200 to 399 are well, as for the kubelet.
    Http {
        /// A normal path, without a query.
        path: String,
    },
    /// The standard health service (`grpc.health.v1.Health/Check`).
    Grpc {
        /// Whose health; the whole server's when empty.
        service: String,
    },
}
