//! Reader of the `leno.dev/v1alpha1` `OutlierDetection` kind.

use std::time::Duration;

use leno_model::{
    EjectionTime, FailureClasses, FailureRate, HealthCheck, HealthProbe, Name, OutlierDetection,
    PolicyScope,
};

use super::literal_path::literal_path;
use super::service_policy::{number_or, percent_or, read_targets, time_or};
use crate::document::NodeValue;
use crate::field::{Field, MapFields};

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
    let window = time_or(&fields, "window", WINDOW_MIN, TIME_MAX, Duration::from_secs(10));
    let buckets = number_or(&fields, "buckets", 1, 60, 10);
    let (rate, consecutive) = read_limits(&fields)?;
    let percent = percent_or(&fields, "maxEjectionPercent", 1, 50);
    let min_healthy = number_or(&fields, "minHealthy", 1, ENDPOINTS_MAX, 1);
    let probe_requests = number_or(&fields, "probeRequests", 1, 1000, 1);
    let rule = OutlierDetection {
        failures: failures?,
        window: window?,
        buckets: u8::try_from(buckets?).ok()?,
        failure_rate: rate,
        consecutive_failures: consecutive,
        max_ejection_percent: percent?,
        min_healthy: min_healthy?,
        ejection_time: ejection_time(&fields)?,
        probe_requests: probe_requests?,
        health_check: match fields.find("healthCheck") {
            Some(field) => Some(Box::new(health_check(field)?)),
            None => None,
        },
    };
    Some((scope?, rule))
}

/// Reads the failure rate and the consecutive failures; both defaults apply only if neither field is present.
fn read_limits(fields: &MapFields<'_>) -> Option<(Option<FailureRate>, Option<u32>)> {
    let rate = match fields.find("failureRate") {
        Some(field) => Some(read_failure_rate(field)?),
        None => None,
    };
    let consecutive = match fields.find("consecutiveFailures") {
        Some(field) => Some(field.read_number(1, COUNT_MAX)?),
        None => None,
    };
    Some(match (rate, consecutive) {
        (None, None) => (Some(FailureRate { percent: 50, requests_min: 20 }), Some(5)),
        given => given,
    })
}

fn read_failure_rate(field: &Field<'_>) -> Option<FailureRate> {
    let fields = field.read_fields(&["percent", "minimumRequests"])?;
    let percent = fields.require("percent").and_then(|percent| percent.read_number(1, 100));
    let requests_min = number_or(&fields, "minimumRequests", 1, COUNT_MAX, 20);
    Some(FailureRate { percent: u8::try_from(percent?).ok()?, requests_min: requests_min? })
}

/// Reads the failure classes from the fields `failures` and `grpcStatuses`.
pub(super) fn read_failure_classes(fields: &MapFields<'_>) -> Option<FailureClasses> {
    let mut classes = FailureClasses::default();
    let (words, statuses) = (fields.find("failures"), fields.find("grpcStatuses"));
    if words.is_none() && statuses.is_none() {
        return Some(FailureClasses {
            connect: true,
            timeout: true,
            reset: true,
            server_errors: true,
            gateway_errors: false,
            grpc: vec![UNAVAILABLE],
        });
    }
    for word in words
        .into_iter()
        .flat_map(|field| field.read_each(CLASSES.len(), |f| f.read_choice(CLASSES)))
    {
        *word(&mut classes) = true;
    }
    if let Some(field) = statuses {
        classes.grpc = field.read_each(GRPC.len(), |status| status.read_choice(GRPC));
        classes.grpc.sort_unstable();
        classes.grpc.dedup();
    }
    let says_nothing =
        |field: &Field<'_>| matches!(field.value(), NodeValue::List(list) if list.is_empty());
    if classes.is_empty() && words.into_iter().chain(statuses).all(says_nothing) {
        fields.map_field().reject(
            "has no failure conditions",
            "list classes in `failures` or `grpcStatuses`, or remove both for the default",
        );
        return None;
    }
    // Unknown words have been rejected.
    Some(classes)
}

fn ejection_time(fields: &MapFields<'_>) -> Option<EjectionTime> {
    let (base, max) = (Duration::from_secs(30), Duration::from_secs(300));
    let base = time_or(fields, "baseEjectionTime", BASE_MIN, TIME_MAX, base)?;
    let max = time_or(fields, "maxEjectionTime", BASE_MIN, TIME_MAX, max.max(base))?;
    if max < base
        && let Some(field) = fields.find("maxEjectionTime")
    {
        field.reject(
            "is below `baseEjectionTime`",
            "raise `maxEjectionTime`, or lower `baseEjectionTime`",
        );
    }
    let jitter_percent = percent_or(fields, "ejectionJitterPercent", 0, 50)?;
    Some(EjectionTime { base, max, jitter_percent })
}

/// Reads the active health check; the defaults are those of OSM.
fn health_check(field: &Field<'_>) -> Option<HealthCheck> {
    let fields = field.read_fields(&[
        "httpGet",
        "grpc",
        "interval",
        "timeout",
        "failureThreshold",
        "successThreshold",
    ])?;
    let probe = health_probe(field, &fields);
    let interval = time_or(&fields, "interval", CHECK_MIN, INTERVAL_MAX, Duration::from_secs(10))?;
    let timeout =
        time_or(&fields, "timeout", CHECK_MIN, ANSWER_MAX, Duration::from_secs(1).min(interval))?;
    if timeout > interval {
        field
            .reject("has a `timeout` above its `interval`", "lower `timeout`, or raise `interval`");
    }
    let failures = number_or(&fields, "failureThreshold", 1, 1000, 3);
    let successes = number_or(&fields, "successThreshold", 1, 1000, 1);
    Some(HealthCheck {
        probe: probe?,
        interval,
        timeout,
        failures: failures?,
        successes: successes?,
    })
}

fn health_probe(field: &Field<'_>, fields: &MapFields<'_>) -> Option<HealthProbe> {
    match (fields.find("httpGet"), fields.find("grpc")) {
        (Some(get), None) => {
            let path = get.read_fields(&["path"])?.require("path").and_then(literal_path)?;
            Some(HealthProbe::Http { path })
        }
        (None, Some(grpc)) => {
            let fields = grpc.read_fields(&["service"])?;
            let service = match fields.find("service") {
                Some(service) => {
                    service.read_with(grpc_service, "the name of a gRPC service", SERVICE)?
                }
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

fn grpc_service(text: &str) -> Option<String> {
    let fits = text.len() <= 256 && text.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| text.to_owned())
}

/// The accessor of a failure class.
type FailureClassAccessor = fn(&mut FailureClasses) -> &mut bool;

const CLASSES: &[(&str, FailureClassAccessor)] = &[
    ("connect", |classes| &mut classes.connect),
    ("timeout", |classes| &mut classes.timeout),
    ("reset", |classes| &mut classes.reset),
    ("5xx", |classes| &mut classes.server_errors),
    ("gateway", |classes| &mut classes.gateway_errors),
];

/// The gRPC statuses that can count as failures; 0 is success.
pub(super) const GRPC: &[(&str, u8)] = &[
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
const UNAVAILABLE: u8 = 14;
/// Shorter windows have buckets without requests.
const WINDOW_MIN: Duration = Duration::from_millis(100);
/// More frequent checks would cause noticeable load.
const CHECK_MIN: Duration = Duration::from_millis(100);
/// Less frequent checks are useless.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// A slower endpoint is unhealthy by any standard.
const ANSWER_MAX: Duration = Duration::from_secs(60);
const SERVICE: &str = "write it as its `.proto` file does, such as \"shop.v1.Ratings\"";
const BASE_MIN: Duration = Duration::from_millis(10);
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);
const COUNT_MAX: u32 = 1_000_000;
const ENDPOINTS_MAX: u32 = 1_000_000;
