//! Converts Sermant's service governance rules, such as `servicecomb.rateLimiting.checkout`, to native policies.
//!
//! The last part of the key, here `checkout`, is the scenario: the requests that the item
//! `servicecomb.matchGroup.checkout` selects. All rules of a scenario apply to these requests.

use std::time::Duration;

use leno_registry::outline_document;
use serde_json::{Map, Value, json};

use super::group::{MatchGroup, find_value};
use crate::migrate::native_values::format_duration;

/// The equivalent object, and the remaining difference from the rule as a sentence.
type ConvertedRule = (Value, &'static str);

/// Converts the content of a rule, for the requests of a scenario's match group, to a native object with the
/// name `object_name`. Returns an error with the unsupported field, the reason and a hint.
pub(super) fn convert_rule(
    rule_type: &str,
    object_name: &str,
    namespace: &str,
    group: &MatchGroup,
    content: &str,
) -> Result<ConvertedRule, String> {
    let convert = match rule_type {
        "rateLimiting" => ConfigCenterRule::convert_rate_limit,
        "faultInjection" => ConfigCenterRule::convert_fault_injection,
        "circuitBreaker" => ConfigCenterRule::convert_circuit_breaker,
        _ => return Err(unsupported_type_error(rule_type)),
    };
    // Empty content is rejected; `{}` means a rule with all defaults.
    let fields = match outline_document(content) {
        Some(fields) => fields,
        None if content.trim() == "{}" => Vec::new(),
        None => return Err("not YAML, or empty".to_owned()),
    };
    convert(&ConfigCenterRule { object_name, namespace, group, fields: &fields })
}

/// Returns the reason why a legacy route rule, of Sermant's option `enabled-previous-rule`, is not converted;
/// `None` for other keys. A legacy key ends in a service name, as in `servicecomb.tagRule.orders`, not in a
/// scenario.
pub(super) fn legacy_rule_reason(key: &str) -> Option<String> {
    let suffix = key.strip_prefix("servicecomb.")?;
    let (rule_type, service) = suffix.split_once('.').unwrap_or((suffix, ""));
    let route_key = match rule_type {
        "tagRule" | "laneRule" if service.is_empty() => "servicecomb.routeRule".to_owned(),
        "tagRule" | "laneRule" => format!("servicecomb.routeRule.{service}"),
        "globalTagRule" | "globalLaneRule" => "servicecomb.globalRouteRule".to_owned(),
        _ => return None,
    };
    Some(format!(
        "keys of `enabled-previous-rule` are not supported: publish it under {route_key} manually"
    ))
}

/// Returns the error for rules of a type that is not converted: the reason, and the manual conversion.
fn unsupported_type_error(rule_type: &str) -> String {
    let reason_and_hint = match rule_type {
        "bulkhead" => {
            "it limits the concurrency of some requests: write `concurrency` of a RateLimit, which limits \
             all of them"
        }
        "instanceIsolation" => {
            "outlier detection has another algorithm: write an OutlierDetection with `failureRate`"
        }
        "retry" => {
            "its number of attempts may or may not include the first: write `retry` of an HTTPRoute rule"
        }
        "system" => {
            "protection by machine load is not supported: use `concurrency.adaptive` of a RateLimit"
        }
        "loadbalance" => "its algorithms are specific to client libraries: write a LoadBalancing",
        _ => "unknown key: convert it",
    };
    format!("{reason_and_hint}, by hand")
}

/// A rule in the configuration center, with the requests to which it applies.
struct ConfigCenterRule<'a> {
    /// The name of the native object and of its rule: the scenario as a valid object name.
    object_name: &'a str,
    /// The namespace of the native object.
    namespace: &'a str,
    group: &'a MatchGroup,
    /// The fields of the rule with their values, as in `("rate", "5")`.
    fields: &'a [(String, String)],
}

impl ConfigCenterRule<'_> {
    /// Converts to a `RateLimit` of the services that enforce the rule. Sermant's period may be shorter than one
    /// second, the minimum of a native period: the number of requests and the period are then multiplied.
    fn convert_rate_limit(&self) -> Result<ConvertedRule, String> {
        self.reject_unknown_fields(&["rate", "limitRefreshPeriod", "timeoutDuration"])?;
        if self.group.callee.is_some() {
            return Err(
                "matches[].serviceName is not supported, because a RateLimit applies at the called service; \
                 list that service in `services`"
                    .to_owned(),
            );
        }
        if !self.read_duration("timeoutDuration", 0)?.is_zero() {
            return Err("timeoutDuration: requests are not queued: remove it".to_owned());
        }
        let rate = self.read_number("rate", 1000)?;
        let period = self.read_duration("limitRefreshPeriod", 1000)?;
        // Native periods are at least one second.
        let period_count =
            u32::try_from(1000_u128.div_ceil(period.as_millis().max(1)).max(1)).unwrap_or(1);
        let mut native_rule = self.new_native_rule();
        native_rule.insert("requests".to_owned(), json!(rate.saturating_mul(period_count.into())));
        native_rule.insert(
            "per".to_owned(),
            json!(format_exact_duration(period.saturating_mul(period_count))?),
        );
        native_rule.insert("burst".to_owned(), json!(rate));
        let target_refs = self.service_target_refs()?;
        Ok((
            self.native_object(
                "RateLimit",
                json!({"targetRefs": target_refs, "rules": [native_rule]}),
            ),
            "tokens are refilled continuously, not all at once at the end of a period",
        ))
    }

    /// Converts to a `FaultInjection`. If clients enforce the rule, it targets the service that they call,
    /// otherwise the services that enforce it.
    fn convert_fault_injection(&self) -> Result<ConvertedRule, String> {
        let supported_fields =
            ["type", "percentage", "delayTime", "errorCode", "fallbackType", "forceClosed"];
        self.reject_unknown_fields(&supported_fields)?;
        self.reject_manual_switch("forceClosed")?;
        let Some(Ok(percent @ 1..=100)) = self.read_text("percentage").map(str::parse::<u32>)
        else {
            return Err(
                "percentage: not between 1 and 100, so that no fault is injected".to_owned()
            );
        };
        let mut native_rule = self.new_native_rule();
        match self.read_text("type") {
            Some("delay") => {
                let delay = format_exact_duration(self.read_duration("delayTime", 0)?)?;
                native_rule
                    .insert("delay".to_owned(), json!({"fixedDelay": delay, "percent": percent}));
            }
            Some("abort") if self.read_text("fallbackType") == Some("ReturnNull") => {
                return Err(
                    "fallbackType: an empty response with status 200 is not supported: use \
                    ThrowException"
                        .to_owned(),
                );
            }
            Some("abort") => {
                let status = self.read_number("errorCode", 500)?;
                native_rule
                    .insert("abort".to_owned(), json!({"httpStatus": status, "percent": percent}));
            }
            _ => return Err("type: must be `delay` or `abort`".to_owned()),
        }
        let target_refs = match (&self.group.callee, self.group.services.is_empty()) {
            (None, _) => self.service_target_refs()?,
            (Some(callee), true) => single_target_ref(callee),
            (Some(_), false) => {
                return Err("services: clients are identified by service account: list them in `from` of a \
                    FaultInjection manually"
                    .to_owned());
            }
        };
        Ok((
            self.native_object(
                "FaultInjection",
                json!({"targetRefs": target_refs, "rules": [native_rule]}),
            ),
            "the sidecars of clients select requests at random, not at regular intervals",
        ))
    }

    /// Converts to a `CircuitBreaker`. Clients enforce it, so the group must name the called service, and no
    /// services that enforce the rule.
    fn convert_circuit_breaker(&self) -> Result<ConvertedRule, String> {
        self.reject_unknown_fields(&[
            "failureRateThreshold",
            "slowCallRateThreshold",
            "slowCallDurationThreshold",
            "minimumNumberOfCalls",
            "slidingWindowType",
            "slidingWindowSize",
            "waitDurationInOpenState",
            "permittedNumberOfCallsInHalfOpenState",
            "forceOpen",
            "forceClosed",
        ])?;
        self.reject_manual_switch("forceOpen")?;
        self.reject_manual_switch("forceClosed")?;
        let Some(callee) = self.group.callee.as_ref().filter(|_| self.group.services.is_empty())
        else {
            return Err(
                "a CircuitBreaker applies at the clients of a service: set only `serviceName`"
                    .to_owned(),
            );
        };
        if !self.group.matches.is_empty() {
            return Err("matches: a CircuitBreaker applies to all requests to a service".to_owned());
        }
        if self.read_text("slidingWindowType").is_some_and(|text| text != "time") {
            return Err("slidingWindowType: only `time` is supported".to_owned());
        }
        let window = self.read_duration("slidingWindowSize", 100)?;
        if window < Duration::from_secs(1) {
            return Err(
                "slidingWindowSize: Sermant truncates it to whole seconds, and 0 disables the window".to_owned()
            );
        }
        let trip = json!({
            "failures": ["connect", "timeout", "reset", "5xx"],
            "window": format_exact_duration(window)?,
            "minimumRequests": self.read_number("minimumNumberOfCalls", 100)?,
            "percent": self.read_number("failureRateThreshold", 50)?,
            "slow": {
                "threshold": format_exact_duration(self.read_duration("slowCallDurationThreshold", 60_000)?)?,
                "percent": self.read_number("slowCallRateThreshold", 100)?,
            },
            "openDuration": format_exact_duration(self.read_duration("waitDurationInOpenState", 60_000)?)?,
            "halfOpenRequests": self.read_number("permittedNumberOfCallsInHalfOpenState", 10)?,
        });
        let spec = json!({
            "targetRefs": single_target_ref(callee),
            "trip": trip,
            "response": {"status": 429},
        });
        Ok((
            self.native_object("CircuitBreaker", spec),
            "failures are those that a sidecar detects: no connection, no response, or status 5xx",
        ))
    }

    fn native_object(&self, kind: &str, spec: Value) -> Value {
        json!({
            "apiVersion": "leno.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": self.object_name, "namespace": self.namespace},
            "spec": spec,
        })
    }

    /// Creates a native rule with the name of the scenario, for the requests of the group.
    fn new_native_rule(&self) -> Map<String, Value> {
        let mut native_rule = Map::new();
        native_rule.insert("name".to_owned(), json!(self.object_name));
        if !self.group.matches.is_empty() {
            native_rule.insert("matches".to_owned(), json!(self.group.matches));
        }
        native_rule
    }

    /// Returns `targetRefs` with the services that enforce the rule. Returns an error if the group lists none,
    /// because Sermant then enforces the rule at every service.
    fn service_target_refs(&self) -> Result<Value, String> {
        match &self.group.services[..] {
            [] => {
                Err("services is missing, which selects every service; list the services"
                    .to_owned())
            }
            services => Ok(services.iter().map(|service| service_ref(service)).collect()),
        }
    }

    /// Rejects a rule with a field other than `supported_fields`: a rule is converted completely or not at all.
    fn reject_unknown_fields(&self, supported_fields: &[&str]) -> Result<(), String> {
        let mut field_names = self.fields.iter().map(|(name, _)| name.as_str());
        match field_names.find(|name| !supported_fields.contains(name)) {
            Some(unknown_field) => Err(format!("{unknown_field}: unknown field")),
            None => Ok(()),
        }
    }

    /// Rejects a rule that an operator has switched on or off permanently, as with `forceOpen: true`.
    fn reject_manual_switch(&self, field: &str) -> Result<(), String> {
        match self.read_text(field) {
            Some("true") => Err(format!("{field}: a manual switch has no equivalent")),
            _ => Ok(()),
        }
    }

    fn read_text(&self, field: &str) -> Option<&str> {
        find_value(self.fields, field)
    }

    /// Reads an integer. Returns `default`, which is Sermant's default, if the field is absent.
    fn read_number(&self, field: &str, default: u64) -> Result<u64, String> {
        match self.read_text(field) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| format!("{field}: {text:?} is not an integer")),
        }
    }

    /// Reads a duration: milliseconds, or a number with a unit, as in `10S`. Returns `default_ms`, which is
    /// Sermant's default, if the field is absent.
    fn read_duration(&self, field: &str, default_ms: u64) -> Result<Duration, String> {
        let Some(text) = self.read_text(field) else {
            return Ok(Duration::from_millis(default_ms));
        };
        let uppercase = text.to_ascii_uppercase();
        let digits = uppercase.trim_end_matches(|character: char| character.is_ascii_alphabetic());
        let unit = uppercase.get(digits.len()..).unwrap_or_default();
        let factor = match unit {
            "" | "MS" => 1,
            "S" => 1_000,
            "M" => 60_000,
            "H" => 3_600_000,
            _ => return Err(format!("{field}: {text:?} has an unknown unit of time")),
        };
        let amount: u64 =
            digits.parse().map_err(|_| format!("{field}: {text:?} is not a duration"))?;
        Ok(Duration::from_millis(amount.saturating_mul(factor)))
    }
}

fn single_target_ref(service: &str) -> Value {
    json!([service_ref(service)])
}

fn service_ref(service: &str) -> Value {
    json!({"kind": "Service", "name": service})
}

fn format_exact_duration(duration: Duration) -> Result<String, String> {
    format_duration(duration)
        .ok_or_else(|| format!("{duration:?} is not a multiple of a millisecond"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_and_empty_content_is_rejected_and_braces_mean_defaults() {
        let group = MatchGroup { services: vec!["web".to_owned()], ..MatchGroup::default() };
        let convert = |rule_type: &str, content: &str| {
            convert_rule(rule_type, "checkout", "shop", &group, content)
        };
        for content in ["{rate: 5", "rate: [", "", "  \n", "# nothing\n"] {
            for rule_type in ["rateLimiting", "faultInjection", "circuitBreaker"] {
                let converted = convert(rule_type, content);
                assert_eq!(converted, Err("not YAML, or empty".to_owned()), "{content:?}");
            }
        }
        let (rate_limit, _) = convert("rateLimiting", "rate: 5").unwrap();
        assert_eq!(rate_limit["spec"]["rules"][0]["burst"], 5);
        let (rate_limit, _) = convert("rateLimiting", "{}\n").unwrap();
        assert_eq!(rate_limit["spec"]["rules"][0]["burst"], 1000);
    }
}
