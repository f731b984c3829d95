//! Conversion of the rules of a scenario to native policies.

use std::time::Duration;

use leno_registry::outline_document;
use serde_json::{Map, Value, json};

use super::group::{MatchGroup, find_value};
use crate::migrate::native_values::format_duration;

/// The equivalent object, and the remaining difference from the rule as a sentence.
type ConvertedRule = (Value, &'static str);

/// Converts a family's rule for the requests of a group, or returns the unsupported field, the reason and a
/// hint.
pub(super) fn convert_rule(
    family: &str,
    name: (&str, &str),
    group: &MatchGroup,
    content: &str,
) -> Result<ConvertedRule, String> {
    // An empty text is not a rule: its defaults would be invented. A map without fields selects the defaults.
    let values = || match outline_document(content) {
        None if content.trim() == "{}" => Ok(Vec::new()),
        values => values.ok_or("not YAML, or empty"),
    };
    let rule = |values| ConfigCenterRule { name, group, values };
    match family {
        "rateLimiting" => rule(&values()?).convert_rate_limit(),
        "faultInjection" => rule(&values()?).convert_fault(),
        "circuitBreaker" => rule(&values()?).convert_circuit(),
        _ => Err(manual_conversion_hint(family)),
    }
}

/// Returns the reason why route rules under the keys of `enabled-previous-rule` are not converted: the rest of
/// the key is a service, not a scenario.
pub(super) fn previous_rule_reason(key: &str) -> Option<String> {
    let suffix = key.strip_prefix("servicecomb.")?;
    let (family, service) = suffix.split_once('.').unwrap_or((suffix, ""));
    let target = match family {
        "tagRule" | "laneRule" if service.is_empty() => "servicecomb.routeRule".to_owned(),
        "tagRule" | "laneRule" => format!("servicecomb.routeRule.{service}"),
        "globalTagRule" | "globalLaneRule" => "servicecomb.globalRouteRule".to_owned(),
        _ => return None,
    };
    Some(format!(
        "keys of `enabled-previous-rule` are not supported: publish it under {target} manually"
    ))
}

/// Returns the reason why a family is not converted, with the manual conversion.
fn manual_conversion_hint(family: &str) -> String {
    let hint = match family {
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
    format!("{hint}, by hand")
}

/// A rule in the configuration center, with the requests to which it applies.
struct ConfigCenterRule<'a> {
    /// The name of the scenario, and the namespace.
    name: (&'a str, &'a str),
    group: &'a MatchGroup,
    values: &'a [(String, String)],
}

impl ConfigCenterRule<'_> {
    fn convert_rate_limit(&self) -> Result<ConvertedRule, String> {
        self.reject_unknown_fields(&["rate", "limitRefreshPeriod", "timeoutDuration"])?;
        if self.group.callee.is_some() {
            return Err(
                "matches[].serviceName: a RateLimit applies at the called service: list it in `services`"
                    .to_owned(),
            );
        }
        if !self.read_time("timeoutDuration", 0)?.is_zero() {
            return Err("timeoutDuration: requests are not queued: remove it".to_owned());
        }
        let (rate, period) =
            (self.read_number("rate", 1000)?, self.read_time("limitRefreshPeriod", 1000)?);
        // Native periods are at least one second.
        let period_count = 1000_u128.div_ceil(period.as_millis().max(1)).max(1);
        let period_count = u32::try_from(period_count).unwrap_or(1);
        let mut rule = self.new_rule();
        rule.insert("requests".to_owned(), json!(rate.saturating_mul(period_count.into())));
        rule.insert(
            "per".to_owned(),
            json!(format_exact_duration(period.saturating_mul(period_count))?),
        );
        rule.insert("burst".to_owned(), json!(rate));
        let targets = self.target_services()?;
        Ok((
            self.native_object("RateLimit", json!({"targetRefs": targets, "rules": [rule]})),
            "tokens are refilled continuously, not all at once at the end of a period",
        ))
    }

    fn convert_fault(&self) -> Result<ConvertedRule, String> {
        let fields =
            ["type", "percentage", "delayTime", "errorCode", "fallbackType", "forceClosed"];
        self.reject_unknown_fields(&fields)?;
        self.reject_manual_switch("forceClosed")?;
        let percent = self.read_text("percentage").and_then(|text| text.parse::<u32>().ok());
        let percent = percent.filter(|percent| (1..=100).contains(percent));
        let percent =
            percent.ok_or("percentage: not between 1 and 100, so that no fault is injected")?;
        let mut rule = self.new_rule();
        match self.read_text("type") {
            Some("delay") => {
                let delay = format_exact_duration(self.read_time("delayTime", 0)?)?;
                rule.insert("delay".to_owned(), json!({"fixedDelay": delay, "percent": percent}));
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
                rule.insert("abort".to_owned(), json!({"httpStatus": status, "percent": percent}));
            }
            _ => return Err("type: must be `delay` or `abort`".to_owned()),
        }
        let targets = match (&self.group.callee, self.group.services.is_empty()) {
            (None, _) => self.target_services()?,
            (Some(callee), true) => target_refs(callee),
            (Some(_), false) => {
                return Err("services: clients are identified by service account: list them in `from` of a \
                    FaultInjection manually"
                    .to_owned());
            }
        };
        Ok((
            self.native_object("FaultInjection", json!({"targetRefs": targets, "rules": [rule]})),
            "the sidecars of clients select requests at random, not at regular intervals",
        ))
    }

    fn convert_circuit(&self) -> Result<ConvertedRule, String> {
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
        let window = self.read_time("slidingWindowSize", 100)?;
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
                "threshold": format_exact_duration(self.read_time("slowCallDurationThreshold", 60_000)?)?,
                "percent": self.read_number("slowCallRateThreshold", 100)?,
            },
            "openDuration": format_exact_duration(self.read_time("waitDurationInOpenState", 60_000)?)?,
            "halfOpenRequests": self.read_number("permittedNumberOfCallsInHalfOpenState", 10)?,
        });
        let spec =
            json!({"targetRefs": target_refs(callee), "trip": trip, "response": {"status": 429}});
        Ok((
            self.native_object("CircuitBreaker", spec),
            "failures are those that a sidecar detects: no connection, no response, or status 5xx",
        ))
    }

    fn native_object(&self, kind: &str, spec: Value) -> Value {
        json!({
            "apiVersion": "leno.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": self.name.0, "namespace": self.name.1},
            "spec": spec,
        })
    }

    /// Creates a native rule with the name of the scenario, for the requests of the group.
    fn new_rule(&self) -> Map<String, Value> {
        let mut rule = Map::new();
        rule.insert("name".to_owned(), json!(self.name.0));
        if !self.group.matches.is_empty() {
            rule.insert("matches".to_owned(), json!(self.group.matches));
        }
        rule
    }

    fn target_services(&self) -> Result<Value, String> {
        match &self.group.services[..] {
            [] => {
                Err("services: missing, which selects every service: list the services".to_owned())
            }
            services => Ok(services.iter().map(|service| service_ref(service)).collect()),
        }
    }

    /// Rejects fields other than `fields`: a rule is not converted in part.
    fn reject_unknown_fields(&self, fields: &[&str]) -> Result<(), String> {
        let mut paths = self.values.iter().map(|(path, _)| path.as_str());
        match paths.find(|path| !fields.contains(path)) {
            Some(unknown_path) => Err(format!("{unknown_path}: unknown field")),
            None => Ok(()),
        }
    }

    fn reject_manual_switch(&self, field: &str) -> Result<(), String> {
        match self.read_text(field) {
            Some("true") => Err(format!("{field}: a manual switch has no equivalent")),
            _ => Ok(()),
        }
    }

    fn read_text(&self, field: &str) -> Option<&str> {
        find_value(self.values, field)
    }

    fn read_number(&self, field: &str, default: u64) -> Result<u64, String> {
        match self.read_text(field) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| format!("{field}: {text:?} is not an integer")),
        }
    }

    /// Reads a duration: milliseconds, or a number with a unit, as in `10S`. Returns `default_ms` if the field
    /// is absent.
    fn read_time(&self, field: &str, default_ms: u64) -> Result<Duration, String> {
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

fn target_refs(service: &str) -> Value {
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
    fn unreadable_items_are_not_rules() {
        let group = MatchGroup { services: vec!["web".to_owned()], ..MatchGroup::default() };
        for content in ["{rate: 5", "rate: [", "", "  \n", "# nothing\n"] {
            for family in ["rateLimiting", "faultInjection", "circuitBreaker"] {
                let converted = convert_rule(family, ("a", "shop"), &group, content);
                assert_eq!(converted, Err("not YAML, or empty".to_owned()), "{content:?}");
            }
        }
        let (limit, _) = convert_rule("rateLimiting", ("a", "shop"), &group, "rate: 5").unwrap();
        assert_eq!(limit["spec"]["rules"][0]["burst"], 5);
        let (limit, _) = convert_rule("rateLimiting", ("a", "shop"), &group, "{}\n").unwrap();
        assert_eq!(limit["spec"]["rules"][0]["burst"], 1000);
    }
}
