//! Active health checks: requests that a sidecar sends to the endpoints of a port.

use std::time::Duration;

/// The health check of the endpoints of a port, and its thresholds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HealthCheck {
    /// The check request.
    pub probe: HealthProbe,
    /// The time between two checks of an endpoint. Each data thread of the sidecar sends its own checks.
    pub interval: Duration,
    /// The timeout of a check; at most the interval.
    pub timeout: Duration,
    /// The number of consecutive failed checks that eject an endpoint; never 0.
    pub failures: u32,
    /// The number of consecutive successful checks that return an ejected endpoint to service; never 0.
    pub successes: u32,
}

/// A health check request, which the sidecar sends on its own. The probes of outlier detection are different: they are
/// requests of clients to an endpoint that was ejected.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HealthProbe {
    /// A GET of this path; the statuses 200 to 399 are healthy, as for the kubelet.
    Http {
        /// A normalized path, without a query.
        path: String,
    },
    /// A call of the gRPC health checking protocol (`grpc.health.v1.Health/Check`).
    Grpc {
        /// The name of the service to check; the whole server when empty.
        service: String,
    },
}
