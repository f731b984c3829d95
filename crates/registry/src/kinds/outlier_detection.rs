//! Reads the `leno.dev/v1alpha1` `OutlierDetection` kind.

use std::time::Duration;

use leno_model::{
    EjectionTime, FailureClasses, FailureRate, HealthCheck, HealthProbe, Name, OutlierDetection,
    PolicyScope,
};

use super::literal_path::read_literal_path;
use super::service_policy::{read_duration_or, read_number_or, read_percent_or, read_targets};
use crate::document::NodeValue;
use crate::field::{Field, MapFields};

/// Reads the `spec` of an `OutlierDetection`.
pub(super) fn read(namespace: &Name, spec: &Field<'_>) -> Option<(PolicyScope, OutlierDetection)> {
    let fields = spec.read_fields(&[
        "targetRefs",
        "failures",
        "grpcStatuses",
        "window",
        "buckets",
        "failureRate",
        "consecutiveFailures",
        "maxEjectionPercent",
        "minHealthy",
        "baseEjectionTime",
        "maxEjectionTime",
        "ejectionJitterPercent",
        "probeRequests",
        "healthCheck",
    ])?;
    let scope = read_targets(&fields, namespace);
    let failures = read_failure_classes(&fields);
    let window =
        read_duration_or(&fields, "window", MIN_WINDOW, MAX_DURATION, Duration::from_secs(10));
    let buckets = read_number_or(&fields, "buckets", 1, 60, 10);
    let (failure_rate, consecutive_failures) = read_failure_limits(&fields)?;
    let max_ejection_percent = read_percent_or(&fields, "maxEjectionPercent", 1, 50);
    let min_healthy = read_number_or(&fields, "minHealthy", 1, MAX_MIN_HEALTHY, 1);
    let probe_requests = read_number_or(&fields, "probeRequests", 1, 1000, 1);
    let outlier_detection = OutlierDetection {
        failures: failures?,
        window: window?,
        buckets: u8::try_from(buckets?).ok()?,
        failure_rate,
        consecutive_failures,
        max_ejection_percent: max_ejection_percent?,
        min_healthy: min_healthy?,
        ejection_time: read_ejection_time(&fields)?,
        probe_requests: probe_requests?,
        health_check: match fields.find("healthCheck") {
            Some(field) => Some(Box::new(read_health_check(field)?)),
            None => None,
        },
    };
    Some((scope?, outlier_detection))
}

/// Reads the failure rate and the consecutive failures; both defaults apply only if neither field is present.
fn read_failure_limits(fields: &MapFields<'_>) -> Option<(Option<FailureRate>, Option<u32>)> {
    let failure_rate = match fields.find("failureRate") {
        Some(field) => Some(read_failure_rate(field)?),
        None => None,
    };
    let consecutive_failures = match fields.find("consecutiveFailures") {
        Some(field) => Some(field.read_number(1, MAX_REQUEST_COUNT)?),
        None => None,
    };
    Some(match (failure_rate, consecutive_failures) {
        (None, None) => (Some(FailureRate { percent: 50, min_requests: 20 }), Some(5)),
        limits => limits,
    })
}

/// Reads the failure rate that ejects an endpoint, and the minimum number of requests for which it is computed.
fn read_failure_rate(field: &Field<'_>) -> Option<FailureRate> {
    let fields = field.read_fields(&["percent", "minimumRequests"])?;
    let percent = fields.require("percent").and_then(|percent| percent.read_number(1, 100));
    let min_requests = read_number_or(&fields, "minimumRequests", 1, MAX_REQUEST_COUNT, 20);
    Some(FailureRate { percent: u8::try_from(percent?).ok()?, min_requests: min_requests? })
}

/// Reads the failure classes from the fields `failures` and `grpcStatuses`. Without both fields, the classes
/// `connect`, `timeout`, `reset` and `5xx` and the gRPC status `UNAVAILABLE` count as failures.
pub(super) fn read_failure_classes(fields: &MapFields<'_>) -> Option<FailureClasses> {
    let mut classes = FailureClasses::default();
    let (class_field, status_field) = (fields.find("failures"), fields.find("grpcStatuses"));
    if class_field.is_none() && status_field.is_none() {
        return Some(FailureClasses {
            connect: true,
            timeout: true,
            reset: true,
            server_errors: true,
            gateway_errors: false,
            grpc: vec![UNAVAILABLE],
        });
    }
    for class_accessor in class_field.into_iter().flat_map(|field| {
        field.read_each(FAILURE_CLASSES.len(), |class| class.read_choice(FAILURE_CLASSES))
    }) {
        *class_accessor(&mut classes) = true;
    }
    if let Some(field) = status_field {
        classes.grpc =
            field.read_each(GRPC_STATUSES.len(), |status| status.read_choice(GRPC_STATUSES));
        classes.grpc.sort_unstable();
        classes.grpc.dedup();
    }
    let is_empty_list =
        |field: &Field<'_>| matches!(field.value(), NodeValue::List(list) if list.is_empty());
    if classes.is_empty() && class_field.into_iter().chain(status_field).all(is_empty_list) {
        fields.map_field().reject(
            "has no failure conditions",
            "list classes in `failures` or `grpcStatuses`, or remove both for the default",
        );
        return None;
    }
    // Unknown words are no classes here; `read_choice` has rejected the document because of them.
    Some(classes)
}

/// Reads the base and the maximum ejection time and the jitter. The maximum defaults to 300 s, or to the base if that
/// is longer.
fn read_ejection_time(fields: &MapFields<'_>) -> Option<EjectionTime> {
    let base = read_duration_or(
        fields,
        "baseEjectionTime",
        MIN_EJECTION_TIME,
        MAX_DURATION,
        Duration::from_secs(30),
    )?;
    let default_max = Duration::from_secs(300).max(base);
    let max =
        read_duration_or(fields, "maxEjectionTime", MIN_EJECTION_TIME, MAX_DURATION, default_max)?;
    if max < base
        && let Some(field) = fields.find("maxEjectionTime")
    {
        field.reject(
            "is below `baseEjectionTime`",
            "raise `maxEjectionTime`, or lower `baseEjectionTime`",
        );
    }
    let jitter_percent = read_percent_or(fields, "ejectionJitterPercent", 0, 50)?;
    Some(EjectionTime { base, max, jitter_percent })
}

/// Reads the active health check; the defaults are those of OSM.
fn read_health_check(field: &Field<'_>) -> Option<HealthCheck> {
    let fields = field.read_fields(&[
        "httpGet",
        "grpc",
        "interval",
        "timeout",
        "failureThreshold",
        "successThreshold",
    ])?;
    let probe = read_health_probe(field, &fields);
    let interval = read_duration_or(
        &fields,
        "interval",
        MIN_HEALTH_CHECK_DURATION,
        MAX_HEALTH_CHECK_INTERVAL,
        Duration::from_secs(10),
    )?;
    let timeout = read_duration_or(
        &fields,
        "timeout",
        MIN_HEALTH_CHECK_DURATION,
        MAX_HEALTH_CHECK_TIMEOUT,
        Duration::from_secs(1).min(interval),
    )?;
    if timeout > interval {
        field
            .reject("has a `timeout` above its `interval`", "lower `timeout`, or raise `interval`");
    }
    let failure_threshold = read_number_or(&fields, "failureThreshold", 1, 1000, 3);
    let success_threshold = read_number_or(&fields, "successThreshold", 1, 1000, 1);
    Some(HealthCheck {
        probe: probe?,
        interval,
        timeout,
        failures: failure_threshold?,
        successes: success_threshold?,
    })
}

/// Reads the request of a health check: an HTTP GET, or a call of the gRPC health service.
fn read_health_probe(field: &Field<'_>, fields: &MapFields<'_>) -> Option<HealthProbe> {
    match (fields.find("httpGet"), fields.find("grpc")) {
        (Some(http_get), None) => {
            let path =
                http_get.read_fields(&["path"])?.require("path").and_then(read_literal_path)?;
            Some(HealthProbe::Http { path })
        }
        (None, Some(grpc)) => {
            let grpc_fields = grpc.read_fields(&["service"])?;
            let service = match grpc_fields.find("service") {
                Some(service) => service.read_with(
                    parse_grpc_service,
                    "the name of a gRPC service",
                    GRPC_SERVICE_HINT,
                )?,
                None => String::new(),
            };
            Some(HealthProbe::Grpc { service })
        }
        (None, None) => {
            field.reject("has no probe", "give `httpGet` or `grpc`");
            None
        }
        (Some(_), Some(_)) => {
            field.reject("has two probes", "give `httpGet` or `grpc`, not both");
            None
        }
    }
}

/// Returns the text if it can be the name of a gRPC service: at most 256 printable ASCII characters.
fn parse_grpc_service(text: &str) -> Option<String> {
    let is_valid = text.len() <= 256 && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_valid.then(|| text.to_owned())
}

/// A function that returns the flag of a failure class.
type FailureClassAccessor = fn(&mut FailureClasses) -> &mut bool;

/// The failure classes by name.
const FAILURE_CLASSES: &[(&str, FailureClassAccessor)] = &[
    ("connect", |classes| &mut classes.connect),
    ("timeout", |classes| &mut classes.timeout),
    ("reset", |classes| &mut classes.reset),
    ("5xx", |classes| &mut classes.server_errors),
    ("gateway", |classes| &mut classes.gateway_errors),
];

/// The gRPC statuses that can count as failures; 0 is success.
pub(super) const GRPC_STATUSES: &[(&str, u8)] = &[
    ("CANCELLED", 1),
    ("UNKNOWN", 2),
    ("INVALID_ARGUMENT", 3),
    ("DEADLINE_EXCEEDED", 4),
    ("NOT_FOUND", 5),
    ("ALREADY_EXISTS", 6),
    ("PERMISSION_DENIED", 7),
    ("RESOURCE_EXHAUSTED", 8),
    ("FAILED_PRECONDITION", 9),
    ("ABORTED", 10),
    ("OUT_OF_RANGE", 11),
    ("UNIMPLEMENTED", 12),
    ("INTERNAL", 13),
    ("UNAVAILABLE", UNAVAILABLE),
    ("DATA_LOSS", 15),
    ("UNAUTHENTICATED", 16),
];
/// The gRPC status `UNAVAILABLE`.
const UNAVAILABLE: u8 = 14;
/// Minimum length of the window: in a shorter window, most buckets would have no requests.
const MIN_WINDOW: Duration = Duration::from_millis(100);
/// Minimum interval and timeout of health checks: more frequent checks would cause noticeable load.
const MIN_HEALTH_CHECK_DURATION: Duration = Duration::from_millis(100);
/// Maximum interval of health checks.
const MAX_HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// Maximum timeout of a health check.
const MAX_HEALTH_CHECK_TIMEOUT: Duration = Duration::from_secs(60);
/// The hint for an invalid name of a gRPC service.
const GRPC_SERVICE_HINT: &str = "write it as its `.proto` file does, such as \"shop.v1.Ratings\"";
/// Minimum ejection time.
const MIN_EJECTION_TIME: Duration = Duration::from_millis(10);
/// Maximum window and ejection time.
const MAX_DURATION: Duration = Duration::from_secs(24 * 3600);
/// Maximum value of the fields that count requests or failures.
const MAX_REQUEST_COUNT: u32 = 1_000_000;
/// Maximum value of `minHealthy`.
const MAX_MIN_HEALTHY: u32 = 1_000_000;
