//! Reads service policies by the definition of the kind's rule. The kinds of other meshes have modules, which use the
//! functions for durations, numbers and shares. Functions return `None` for an invalid field that they have rejected.

use std::time::Duration;

use leno_model::definition::Definition;
use leno_model::{
    FaultRules, Name, PolicyScope, RequestCheck, ServicePolicy, ServicePolicyKind,
    ServicePolicyName, ServiceRule, TargetedRule,
};

use super::upstream_rate_limit::BurstMeaning;
use super::{ObjectMetadata, sermant_removal, traffic_warmup, upstream_traffic_setting};
use crate::document::NodeValue;
use crate::duration::read_duration_within;
use crate::field::{Field, MapFields};
use crate::schema_reader::read_definition;

/// Reads the `spec` of a service policy of any kind. `version` is the document's `apiVersion`.
pub(super) fn read(
    kind: ServicePolicyKind,
    version: &str,
    metadata: ObjectMetadata,
    spec: &Field<'_>,
) -> Option<ServicePolicy> {
    let name = ServicePolicyName { kind, namespace: metadata.namespace, name: metadata.name };
    let namespace = &name.namespace;
    let (scope, rule) = match kind {
        ServicePolicyKind::OutlierDetection => {
            read_targeted(namespace, spec, ServiceRule::OutlierDetection)
        }
        ServicePolicyKind::SermantRemoval => sermant_removal::read(namespace, spec)
            .map(|rule| (PolicyScope::Namespace, ServiceRule::SermantRemoval(rule))),
        ServicePolicyKind::CircuitBreaker => {
            read_targeted(namespace, spec, ServiceRule::CircuitBreaker)
        }
        ServicePolicyKind::UpstreamTrafficSetting => {
            let burst_meaning = BurstMeaning::for_version(version);
            upstream_traffic_setting::read(namespace, burst_meaning, spec).map(
                |(scope, settings)| {
                    (scope, ServiceRule::UpstreamTrafficSetting(Box::new(settings)))
                },
            )
        }
        ServicePolicyKind::RateLimit => read_targeted(namespace, spec, ServiceRule::RateLimit),
        ServicePolicyKind::FaultInjection => read_targeted(namespace, spec, |rules: FaultRules| {
            ServiceRule::FaultInjection(rules.into_rules())
        }),
        ServicePolicyKind::LoadBalancing => {
            read_targeted(namespace, spec, ServiceRule::LoadBalancing)
        }
        // A warm-up is the slow start of new endpoints, which is a setting of load balancing.
        ServicePolicyKind::TrafficWarmup => traffic_warmup::read(&name, spec)
            .map(|(scope, rule)| (scope, ServiceRule::LoadBalancing(rule))),
        ServicePolicyKind::Hedging => read_targeted(namespace, spec, ServiceRule::Hedging),
        ServicePolicyKind::JwtValidation => read_targeted(namespace, spec, |rule| {
            ServiceRule::RequestCheck(RequestCheck::Tokens(rule))
        }),
        ServicePolicyKind::ExternalAuthorization => read_targeted(namespace, spec, |rule| {
            ServiceRule::RequestCheck(RequestCheck::Authorization(rule))
        }),
    }?;
    // A document has no creation time; for objects of a cluster, the creation time is set later.
    Some(ServicePolicy { name, scope, rule, created: 0 })
}

/// Reads a `spec` with `targetRefs` by the definition of its rule. `to_rule` makes it a rule of a service policy.
fn read_targeted<R: Definition>(
    namespace: &Name,
    spec: &Field<'_>,
    to_rule: impl FnOnce(R) -> ServiceRule,
) -> Option<(PolicyScope, ServiceRule)> {
    let policy: TargetedRule<R> = read_definition(spec, namespace)?;
    let (targets, rule) = policy.into_targets_and_rule();
    Some((PolicyScope::Services(targets), to_rule(rule)))
}

/// Reads a duration from `min` to `max`, or returns `default` if the field is absent.
pub(super) fn read_duration_or(
    fields: &MapFields<'_>,
    key: &str,
    min: Duration,
    max: Duration,
    default: Duration,
) -> Option<Duration> {
    match fields.find(key) {
        Some(field) => read_duration_within(field, min, max),
        None => Some(default),
    }
}

/// Reads a number from `min` to `max`, or returns `default` if the field is absent.
pub(super) fn read_number_or(
    fields: &MapFields<'_>,
    key: &str,
    min: u32,
    max: u32,
    default: u32,
) -> Option<u32> {
    match fields.find(key) {
        Some(field) => field.read_number(min, max),
        None => Some(default),
    }
}

/// Reads an optional limit of at least `min`: `Some(None)` if the field is absent, and `None` if it is invalid.
pub(super) fn read_optional_limit(
    fields: &MapFields<'_>,
    key: &str,
    min: u32,
) -> Option<Option<u32>> {
    match fields.find(key) {
        Some(field) => field.read_number(min, u32::MAX).map(Some),
        None => Some(None),
    }
}

/// Reads a percentage from `min` to 100, or returns `default` if the field is absent.
pub(super) fn read_percent_or(
    fields: &MapFields<'_>,
    key: &str,
    min: u8,
    default: u8,
) -> Option<u8> {
    let number = read_number_or(fields, key, min.into(), 100, default.into())?;
    u8::try_from(number).ok()
}

/// Reads a number from 0 to 1 with at most six decimal places, in parts per million.
pub(super) fn read_share(field: &Field<'_>) -> Option<u32> {
    let share_ppm = match field.value() {
        NodeValue::Number(text) => parse_share_ppm(text),
        _ => None,
    };
    if share_ppm.is_none() {
        field.reject(
            format!("{} is not a share", field.quoted_value()),
            "use a number from 0 to 1 with at most six decimals, such as 0.6",
        );
    }
    share_ppm
}

/// Parses a number from 0 to 1 into parts per million; `None` if it is invalid or has more than six decimal places.
fn parse_share_ppm(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if decimals.len() > 6 || !are_digits(whole) || !are_digits(decimals) || text == "." {
        return None;
    }
    let whole_number: u32 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let millionths: u32 = format!("{decimals:0<6}").parse().ok()?;
    let share_ppm = whole_number.checked_mul(1_000_000)?.checked_add(millionths)?;
    (share_ppm <= 1_000_000).then_some(share_ppm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_parsed_exactly() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1", Some(1_000_000)),
            ("1.0", Some(1_000_000)),
            ("0.6", Some(600_000)),
            (".5", Some(500_000)),
            ("0.000001", Some(1)),
            ("0.0000001", None),
            ("1.1", None),
            ("-0.1", None),
            ("1e-1", None),
            (".", None),
        ] {
            assert_eq!(parse_share_ppm(text), expected, "{text}");
        }
    }
}
