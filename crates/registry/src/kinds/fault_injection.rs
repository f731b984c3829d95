//! Reads the `leno.dev/v1alpha1` `FaultInjection` kind.

use std::time::Duration;

use leno_model::{
    FaultAbort, FaultDelay, FaultRule, FixedResponse, GrpcFailure, Name, PolicyScope,
};

use super::access_policy::{read_elements, read_peer};
use super::http_route::read_match;
use super::response::{read_body, read_headers};
use super::service_policy::read_targets;
use crate::document::NodeValue;
use crate::duration::read_duration_within;
use crate::field::{Field, MapFields};
use crate::hint::Replacement;
use crate::schema_reader::read_definition;

/// Reads the `spec` of a `FaultInjection`.
pub(super) fn read(namespace: &Name, spec: &Field<'_>) -> Option<(PolicyScope, Vec<FaultRule>)> {
    let fields = spec.read_fields(&["targetRefs", "rules"])?;
    let scope = read_targets(&fields, namespace);
    let mut rules: Vec<FaultRule> = Vec::new();
    let field = fields.require("rules")?;
    for (index, element) in field.read_list(MAX_RULES)?.iter().enumerate() {
        let Some(rule) = read_rule(element, namespace, index) else { continue };
        if rules.iter().any(|existing| existing.name == rule.name) {
            element.reject("its name is used by another rule", "use another name");
        }
        rules.push(rule);
    }
    if matches!(field.value(), NodeValue::List(list) if list.is_empty()) {
        field.reject("is empty", "add a rule, or remove the policy");
    }
    Some((scope?, rules))
}

/// Reads one of the `rules`. A rule without `name` gets a name from its index, such as `rules[0]`.
fn read_rule(element: &Field<'_>, namespace: &Name, index: usize) -> Option<FaultRule> {
    let fields = element.read_fields(&["name", "matches", "from", "delay", "abort"])?;
    let name = match fields.find("name") {
        Some(field) => field.read_name()?.to_string(),
        None => format!("rules[{index}]"),
    };
    let requests =
        read_elements(&fields, "matches", "or leave it out for all requests", read_match);
    let peers = read_elements(&fields, "from", "or omit it for all clients", |field| {
        read_peer(field, namespace)
    });
    let delay = match fields.find("delay") {
        Some(field) => Some(read_delay(field)?),
        None => None,
    };
    let abort = match fields.find("abort") {
        Some(field) => Some(read_abort(field, namespace)?),
        None => None,
    };
    if delay.is_none() && abort.is_none() {
        element.reject("injects no fault", "add `delay` or `abort`");
        return None;
    }
    Some(FaultRule { name, requests: requests?, peers: peers?, delay, abort })
}

/// Reads `delay`: the time by which requests are delayed, and the percentage of requests.
fn read_delay(field: &Field<'_>) -> Option<FaultDelay> {
    let example = vec![("fixedDelay", Some("100ms"))];
    let fields = field.read_fields_with_examples(
        &["fixedDelay", "percent"],
        &[vec![("fixedDelay", None)], example],
    )?;
    let min_delay = Duration::from_millis(1);
    let duration = fields
        .require("fixedDelay")
        .and_then(|field| read_duration_within(field, min_delay, FaultDelay::MAX_DELAY));
    Some(FaultDelay { share_ppm: read_percent(&fields)?, duration: duration? })
}

/// Reads `abort`: the response in place of the upstream's, and the percentage of requests.
fn read_abort(field: &Field<'_>, namespace: &Name) -> Option<FaultAbort> {
    let fields = field.read_fields(&["httpStatus", "grpcStatus", "body", "headers", "percent"])?;
    let status = match fields.find("httpStatus") {
        Some(field) => {
            let status = u16::try_from(field.read_number(200, 599)?).ok()?;
            if !FixedResponse::is_valid_status(status) {
                field.reject("has no body", "use a status that permits a body, such as 503");
                return None;
            }
            Some(status)
        }
        None => None,
    };
    let grpc_status = match fields.find("grpcStatus") {
        Some(field) => Some(read_definition::<GrpcFailure>(field, namespace)?.number()),
        None => None,
    };
    if status.is_none() && grpc_status.is_none() {
        field.reject("has no status", "add `httpStatus`, `grpcStatus` or both");
    }
    let response = FixedResponse {
        status,
        body: read_body(&fields, "body")?,
        headers: read_headers(&fields, "headers"),
    };
    Some(FaultAbort { share_ppm: read_percent(&fields)?, response, grpc: grpc_status })
}

/// Reads `percent`, the percentage of requests, and returns it in parts per million. It must be above 0 and have at
/// most four decimals; the default is 100 %.
pub(super) fn read_percent(fields: &MapFields<'_>) -> Option<u32> {
    let Some(field) = fields.find("percent") else { return Some(WHOLE_PPM) };
    let parse_positive = |text: &str| parse_percent_ppm(text).filter(|share_ppm| *share_ppm > 0);
    let problem = format!("{} is not a percentage", field.quoted_value());
    match field.value() {
        NodeValue::Number(text) => {
            if let Some(share_ppm) = parse_positive(text) {
                return Some(share_ppm);
            }
        }
        NodeValue::Text(text) => {
            let number = text.trim_end_matches('%').trim_end();
            if parse_positive(number).is_some() {
                let hint = format!("write {number}, without quotes or a tag");
                field.reject_with_replacement(
                    problem,
                    hint,
                    Replacement::Number(number.to_owned()),
                );
                return None;
            }
        }
        _ => {}
    }
    field.reject(
        problem,
        "use a number above 0, up to 100, with at most four decimals, such as 12.5",
    );
    None
}

/// Parses a percentage of at most 100 with at most four decimals into parts per million.
fn parse_percent_ppm(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || decimals.len() > 4 || !are_digits(whole) || !are_digits(decimals) {
        return None;
    }
    // The fourth decimal of a percentage is one part per million.
    let decimal_ppm: u32 = format!("{decimals:0<4}").parse().ok()?;
    let share_ppm = whole.parse::<u32>().ok()?.checked_mul(10_000)?.checked_add(decimal_ppm)?;
    (share_ppm <= WHOLE_PPM).then_some(share_ppm)
}

/// 100 % in parts per million.
const WHOLE_PPM: u32 = 1_000_000;
/// Maximum number of rules per policy.
const MAX_RULES: usize = 64;

#[cfg(test)]
mod tests {
    use super::parse_percent_ppm;

    #[test]
    fn percentages_are_parsed_exactly() {
        for (text, expected) in [
            ("0", Some(0)),
            ("100", Some(1_000_000)),
            ("12.5", Some(125_000)),
            ("0.0001", Some(1)),
            ("0.00001", None),
            ("100.1", None),
            ("-1", None),
            (".5", None),
            ("1e1", None),
        ] {
            assert_eq!(parse_percent_ppm(text), expected, "{text}");
        }
    }
}
