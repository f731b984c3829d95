//! Reads the `Retry` kind of OSM, osm-edge and FSM: retries of requests from one account to several services.

use std::collections::BTreeSet;
use std::time::Duration;

use leno_model::{Name, PolicyName, RetryPolicy, RetryRule, ServiceAccount, ServiceName};

use super::ObjectMetadata;
use super::egress::read_unique;
use super::http_route::{DEFAULT_RETRIES, DEFAULT_RETRY_BACKOFF};
use super::service_policy::read_number_or;
use super::smi::read_account;
use crate::document::NodeValue;
use crate::duration::read_duration;
use crate::field::{Field, MapFields};

/// Reads the `spec` of a `Retry`.
pub(super) fn read(metadata: ObjectMetadata, spec: &Field<'_>) -> Option<RetryPolicy> {
    let fields = spec.read_fields(&["source", "destinations", "retryPolicy"])?;
    let name = PolicyName { namespace: metadata.namespace, name: metadata.name };
    let source = fields.require("source").and_then(|field| read_source(field, &name.namespace));
    let services = read_unique(&fields, "destinations", "name the services", read_service);
    let rule_and_timeout = fields.require("retryPolicy").and_then(read_retry_rule);
    let (rule, response_timeout) = rule_and_timeout?;
    Some(RetryPolicy {
        name,
        source: source?,
        services: services?,
        rule,
        response_timeout,
        created: 0,
    })
}

/// Reads the source account. It must be in the policy's own namespace: policies affect only clients there.
fn read_source(field: &Field<'_>, own_namespace: &Name) -> Option<ServiceAccount> {
    let source = read_account(field)?;
    if source.namespace != *own_namespace {
        field.reject(
            format!("is in the namespace {}, not in {own_namespace}", source.namespace),
            "put the policy into the namespace of its source",
        );
        return None;
    }
    Some(source)
}

/// Reads one of the `destinations`: a service; requests to it are retried.
fn read_service(element: &Field<'_>) -> Option<ServiceName> {
    let fields = element.read_fields(&["kind", "name", "namespace"])?;
    let kind = fields.require("kind").and_then(|kind| kind.read_choice(&[("Service", ())]));
    let name = fields.require("name").and_then(Field::read_label);
    let namespace = fields.require("namespace").and_then(Field::read_label);
    kind?;
    Some(ServiceName { namespace: namespace?, name: name? })
}

/// Reads `retryPolicy`: the retry rule, and the timeout of each try.
fn read_retry_rule(field: &Field<'_>) -> Option<(RetryRule, Option<Duration>)> {
    let keys = ["retryOn", "perTryTimeout", "numRetries", "retryBackoffBaseInterval"];
    let fields = field.read_fields(&keys)?;
    let codes = fields.require("retryOn").and_then(read_conditions);
    let upper_bound = u32::from(RetryRule::MAX_ATTEMPTS);
    let max_retries = read_number_or(&fields, "numRetries", 0, upper_bound, DEFAULT_RETRIES.into());
    let backoff = match fields.find("retryBackoffBaseInterval") {
        Some(field) => read_duration(field),
        None => Some(DEFAULT_RETRY_BACKOFF),
    };
    let try_timeout = read_try_timeout(&fields);
    let attempts = u8::try_from(max_retries?).ok()?;
    Some((RetryRule { codes: codes?, attempts, backoff: backoff? }, try_timeout?))
}

/// Reads the timeout of each try; `Some(None)` if the field is absent or zero, which means "no limit".
fn read_try_timeout(fields: &MapFields<'_>) -> Option<Option<Duration>> {
    match fields.find("perTryTimeout") {
        Some(field) => {
            read_duration(field).map(|timeout| Some(timeout).filter(|timeout| !timeout.is_zero()))
        }
        None => Some(None),
    }
}

/// Reads a comma-separated list of retry conditions as statuses.
fn read_conditions(field: &Field<'_>) -> Option<Vec<u16>> {
    let text = match field.value() {
        // A single status is a YAML number.
        NodeValue::Number(text) => text.as_str(),
        _ => field.read_text()?,
    };
    let mut codes = BTreeSet::new();
    for word in text.split(',').map(str::trim) {
        let Some(statuses) = condition_statuses(word) else {
            field.reject(
                format!("{word:?} is not a supported condition"),
                "use statuses from 400 to 599, `5xx` or `4xx`, `gateway-error`, `retriable-4xx`, \
                 `connect-failure`, `refused-stream`, `reset`, or for gRPC `unavailable`, \
                 `deadline-exceeded`, `internal` or `resource-exhausted`",
            );
            return None;
        };
        codes.extend(statuses);
    }
    Some(codes.into_iter().collect())
}

/// Returns the statuses of a retry condition: one of Envoy's `x-envoy-retry-on` and `x-envoy-retry-grpc-on`, or a status or
/// status class of Pipy. Conditions about failures without a response have no statuses, because these failures are always
/// retried. `None` for an unknown condition.
fn condition_statuses(word: &str) -> Option<Vec<u16>> {
    if let Some(status) = word.parse().ok().filter(|status| RetryRule::CODES.contains(status)) {
        return Some(vec![status]);
    }
    Some(match word {
        "5xx" => (500..=599).collect(),
        "4xx" => (400..=499).collect(),
        "gateway-error" => vec![502, 503, 504],
        "retriable-4xx" => vec![409],
        "connect-failure" | "refused-stream" | "reset" | "reset-before-request" => Vec::new(),
        // The HTTP equivalents of these gRPC statuses.
        "unavailable" => vec![503],
        "deadline-exceeded" => vec![504],
        "internal" => vec![500],
        "resource-exhausted" => vec![429],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_conditions_are_mapped_to_statuses() {
        for (word, expected) in [
            ("503", Some(vec![503])),
            ("gateway-error", Some(vec![502, 503, 504])),
            ("connect-failure", Some(vec![])),
            ("unavailable", Some(vec![503])),
            ("399", None),
            ("600", None),
            ("2xx", None),
            ("retriable-status-codes", None),
            ("", None),
        ] {
            assert_eq!(condition_statuses(word), expected, "{word}");
        }
        let statuses = condition_statuses("5xx").unwrap();
        assert_eq!(
            (statuses.first(), statuses.last(), statuses.len()),
            (Some(&500), Some(&599), 100)
        );
    }
}
