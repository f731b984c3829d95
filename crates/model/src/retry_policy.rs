//! Retry policies: the retry settings of one account's requests to some services.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::action::RetryRule;
use crate::definition::{Definition, LABEL, ManifestBuilder, TextForm, TextProblem, TextSchema};
use crate::identity::ServiceAccount;
use crate::name::{Name, PolicyName, ServiceName};

/// A `Retry` of OSM, osm-edge or FSM. The retry settings of a route rule take precedence over the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The name of the policy.
    pub name: PolicyName,
    /// The account of the clients, in the policy's namespace.
    pub source: ServiceAccount,
    /// The destination services, at least one, each once.
    pub services: Vec<ServiceName>,
    /// The conditions and number of retries.
    pub rule: RetryRule,
    /// The timeout of one attempt until the response begins; no separate timeout when absent.
    pub response_timeout: Option<Duration>,
    /// The creation time in a cluster, in seconds; 0 in a file.
    pub created: i64,
}

impl RetryPolicy {
    /// Returns the precedence among policies for the same traffic: the oldest first, then the first by name.
    #[must_use]
    pub fn precedence(&self) -> (i64, &PolicyName) {
        (self.created, &self.name)
    }

    /// Returns the settings that are sent to the clients' sidecars for each of the policy's services.
    #[must_use]
    pub fn to_service_retry(&self) -> ServiceRetry {
        ServiceRetry {
            policy: self.name.clone(),
            rule: self.rule.clone(),
            response_timeout: self.response_timeout,
        }
    }
}

/// The retry settings of a workload's requests to one service, as sent to its sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServiceRetry {
    /// The name of the policy.
    pub policy: PolicyName,
    /// The conditions and number of retries.
    pub rule: RetryRule,
    /// The timeout of one attempt until the response begins; no separate timeout when absent.
    pub response_timeout: Option<Duration>,
}

/// The `spec` of a [`RetryPolicy`].
#[derive(Debug, Clone, PartialEq, Eq, Definition)]
pub struct RetrySpec {
    /// Account of the clients, in the policy's own namespace.
    pub source: RetrySource,
    /// Destination services, in any namespace.
    #[field(list(1, 256), required, check = RetryDestination::with_different_services)]
    pub destinations: Vec<RetryDestination>,
    /// Conditions and limits of retries.
    pub retry_policy: RetrySettings,
}

impl RetrySpec {
    /// Returns the policy with this name.
    #[must_use]
    pub fn into_policy(self, name: PolicyName) -> RetryPolicy {
        RetryPolicy {
            name,
            source: self.source.0,
            services: self.destinations.into_iter().map(|destination| destination.0).collect(),
            rule: self.retry_policy.rule,
            response_timeout: self.retry_policy.response_timeout,
            created: 0,
        }
    }
}

/// The account of the clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetrySource(ServiceAccount);

/// The fields of the source.
#[derive(Definition)]
#[definition(builds = RetrySource)]
struct RetrySourceFields {
    /// Kind of the source.
    #[expect(dead_code, reason = "the field has one value")]
    kind: RetrySourceKind,
    /// Name of the account.
    name: Name,
    /// Namespace of the account, which is the policy's.
    #[field(text = LABEL)]
    namespace: Name,
}

#[derive(Definition)]
enum RetrySourceKind {
    ServiceAccount,
}

impl RetrySourceFields {
    /// Requires the policy's own namespace: policies affect only clients there.
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<RetrySource> {
        let Self { name, namespace, .. } = self;
        let own_namespace = builder.namespace();
        if namespace != *own_namespace {
            builder.reject(
                format!("is in the namespace {namespace}, not in {own_namespace}"),
                "put the policy into the namespace of its source",
            );
            return None;
        }
        Some(RetrySource(ServiceAccount { namespace, name }))
    }
}

/// A destination service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryDestination(ServiceName);

impl RetryDestination {
    fn with_different_services(
        destinations: Vec<Self>,
        builder: &mut ManifestBuilder<'_>,
    ) -> Option<Vec<Self>> {
        let service_of = |destination: &Self| destination.0.clone();
        let (problem, hint) = ("is listed twice", "remove one of the two");
        builder
            .check_unique("destinations", &destinations, service_of, problem, hint)
            .then_some(destinations)
    }
}

/// The fields of a destination.
#[derive(Definition)]
#[definition(builds = RetryDestination)]
struct RetryDestinationFields {
    /// Kind of the destination.
    #[expect(dead_code, reason = "the field has one value")]
    kind: RetryDestinationKind,
    /// Name of the service.
    #[field(text = LABEL)]
    name: Name,
    /// Namespace of the service.
    #[field(text = LABEL)]
    namespace: Name,
}

#[derive(Definition)]
enum RetryDestinationKind {
    Service,
}

impl RetryDestinationFields {
    fn build_type(self, _: &mut ManifestBuilder<'_>) -> RetryDestination {
        RetryDestination(ServiceName { namespace: self.namespace, name: self.name })
    }
}

/// The conditions and limits of retries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetrySettings {
    rule: RetryRule,
    response_timeout: Option<Duration>,
}

/// The fields of the conditions and limits.
#[derive(Definition)]
#[definition(builds = RetrySettings)]
struct RetrySettingsFields {
    /// Conditions of a retry, separated by commas: statuses from 400 to 599, classes such as `5xx`, or conditions of Envoy.
    #[field(text = RETRY_ON)]
    retry_on: String,
    /// Timeout of an attempt until its response begins. `0s` means no limit.
    #[field(duration("0s", "24h"), absent = "no limit")]
    per_try_timeout: Option<Duration>,
    /// Maximum number of retries after the first attempt. 0 disables all retries.
    #[field(integer(0, RetryRule::MAX_ATTEMPTS), default = "1")]
    num_retries: u8,
    /// Pause before the first retry. It doubles each time, up to ten times the value, plus a random part of up to half.
    #[field(duration("0s", "24h"), default = "25ms")]
    retry_backoff_base_interval: Duration,
}

impl RetrySettingsFields {
    fn build_type(self, _: &mut ManifestBuilder<'_>) -> RetrySettings {
        let codes: BTreeSet<u16> =
            conditions(&self.retry_on).filter_map(condition_statuses).flatten().collect();
        RetrySettings {
            rule: RetryRule {
                codes: codes.into_iter().collect(),
                attempts: self.num_retries,
                backoff: self.retry_backoff_base_interval,
            },
            response_timeout: self.per_try_timeout.filter(|timeout| !timeout.is_zero()),
        }
    }
}

/// Returns the conditions in a comma-separated list.
fn conditions(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim)
}

/// A comma-separated list of retry conditions. A single status is a number in YAML.
const RETRY_ON: TextSchema = TextSchema::new(1024, |text| {
    match conditions(text).find(|word| condition_statuses(word).is_none()) {
        None => Ok(()),
        Some(word) => Err(TextProblem::new(
            format!("has the unsupported condition {word:?}"),
            "use statuses from 400 to 599, `5xx` or `4xx`, `gateway-error`, `retriable-4xx`, \
             `connect-failure`, `refused-stream`, `reset`, or for gRPC `unavailable`, \
             `deadline-exceeded`, `internal` or `resource-exhausted`",
        )),
    }
})
.with_form(TextForm::Literal);

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
