//! Active health checks: requests that a sidecar sends to the endpoints of a port.

use std::time::Duration;

use crate::definition::{Definition, ManifestBuilder, TextProblem, TextSchema};
use crate::literal_path::LITERAL_PATH;

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
#[derive(Debug, Clone, PartialEq, Eq, Hash, Definition)]
#[definition(noun = "probe")]
pub enum HealthProbe {
    /// GET request; the statuses 200 to 399 are healthy, as for the kubelet.
    #[field(name = "httpGet")]
    Http {
        /// Path of the request, without a query.
        #[field(text = LITERAL_PATH)]
        path: String,
    },
    /// Call of the gRPC health checking protocol, `grpc.health.v1.Health/Check`; `SERVING` is healthy.
    Grpc {
        /// Name of the service to check; empty for the whole server.
        #[field(text = GRPC_SERVICE, default = "")]
        service: String,
    },
}

/// The fields of a health check; the defaults are those of OSM.
#[derive(Definition)]
#[definition(
    builds = HealthCheck,
    cel(
        "!has(self.timeout) || !has(self.interval) || duration(self.timeout) <= duration(self.interval)",
        "timeout must not exceed interval"
    )
)]
struct HealthCheckFields {
    /// The check request.
    #[field(include)]
    probe: HealthProbe,
    /// Time between two checks of an endpoint, with random jitter of up to a tenth in both directions.
    // More frequent checks would cause noticeable load.
    #[field(duration("100ms", "1h"), default = "10s")]
    interval: Duration,
    /// Timeout of a check, at most the interval.
    #[field(duration("100ms", "60s"), absent = "`1s`, or the interval if that is shorter")]
    timeout: Option<Duration>,
    /// Number of consecutive failed checks that eject the endpoint.
    #[field(integer(1, 1000), default = "3")]
    failure_threshold: u32,
    /// Number of consecutive successful checks that return it to service.
    #[field(integer(1, 1000), default = "1")]
    success_threshold: u32,
}

impl HealthCheckFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<HealthCheck> {
        let timeout = self.timeout.unwrap_or(DEFAULT_TIMEOUT.min(self.interval));
        if timeout > self.interval {
            let hint = "lower `timeout`, or raise `interval`";
            builder.reject("has a `timeout` above its `interval`", hint);
            return None;
        }
        Some(HealthCheck {
            probe: self.probe,
            interval: self.interval,
            timeout,
            failures: self.failure_threshold,
            successes: self.success_threshold,
        })
    }
}

/// The names of gRPC services: at most 256 printable ASCII characters.
const GRPC_SERVICE: TextSchema = TextSchema::new(256, |text| {
    match text.len() <= 256 && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(()),
        false => {
            let hint = "write it as its `.proto` file does, such as \"shop.v1.Ratings\"";
            Err(TextProblem::new("is not the name of a gRPC service", hint))
        }
    }
})
.with_pattern("^[!-~]*$");
/// The default timeout, unless the interval is shorter.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);
