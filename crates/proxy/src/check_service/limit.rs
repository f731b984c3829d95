//! Builds requests to rate limit services (`envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`), and decodes
//! their responses to decisions.

use std::time::Duration;

use bytes::Bytes;
use leno_model::{FixedResponse, HeaderEdits};
use leno_traffic::RequestView;
use leno_traffic::request_checks::{
    CompiledGlobalLimit, HeaderAction, HeaderChange, RequestDescriptor, request_edits,
    response_edits,
};
use prost::Message;

use super::CheckError;
use super::protobuf::{
    DescriptorStatus, HeaderValue, KeyValuePair, RateLimitDescriptor, RateLimitRequest,
    RateLimitResponse, UInt64Value,
};

/// The decision of a rate limit service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RateLimitResult {
    /// The request is within the limits and continues, with these edits of the request and response headers.
    WithinLimit { request: HeaderEdits, response: HeaderEdits },
    /// The request is over a limit. `wait` is the time until the limit resets, if known.
    OverLimit { response: FixedResponse, wait: Option<Duration> },
}

/// Builds the message of a rate limit request with these descriptors.
pub(crate) fn build_request(
    limit: &CompiledGlobalLimit,
    descriptors: Vec<RequestDescriptor>,
) -> Vec<u8> {
    let first_addend = descriptors.first().map_or(1, |descriptor| descriptor.hits_addend);
    // If all descriptors have the same `hits_addend`, it is set on the request, which older services support.
    let have_same_addend =
        descriptors.iter().all(|descriptor| descriptor.hits_addend == first_addend);
    let wire_descriptors = descriptors.into_iter().map(|descriptor| RateLimitDescriptor {
        entries: descriptor
            .entries
            .into_iter()
            .map(|(key, value)| KeyValuePair { key, value })
            .collect(),
        hits_addend: (!have_same_addend)
            .then(|| UInt64Value { value: descriptor.hits_addend.into() }),
    });
    let request = RateLimitRequest {
        domain: limit.rule.domain.clone(),
        descriptors: wire_descriptors.collect(),
        hits_addend: if have_same_addend { first_addend } else { 1 },
    };
    request.encode_to_vec()
}

/// Decodes a response of the service. `view`: the request; the decision may change its headers.
///
/// # Errors
/// [`CheckError::Unusable`] if the response cannot be decoded or applied.
pub(crate) fn parse_decision(
    message: Bytes,
    limit: &CompiledGlobalLimit,
    view: &RequestView<'_>,
) -> Result<RateLimitResult, CheckError> {
    let RateLimitResponse {
        overall_code,
        statuses,
        response_headers_to_add,
        request_headers_to_add,
        raw_body,
    } = RateLimitResponse::decode(message).map_err(unusable_response)?;
    let limit_headers =
        if limit.rule.rate_limit_headers { rate_limit_headers(&statuses) } else { Vec::new() };
    match overall_code {
        OK => {
            let mut headers_to_add = header_changes(response_headers_to_add)?;
            headers_to_add.extend(limit_headers);
            let response = response_edits(&headers_to_add).map_err(unusable_response)?;
            let request_changes = header_changes(request_headers_to_add)?;
            let request =
                request_edits(&request_changes, &[], view.fields).map_err(unusable_response)?;
            Ok(RateLimitResult::WithinLimit { request, response })
        }
        OVER_LIMIT => {
            let rule_response = limit.response.as_deref().cloned().unwrap_or_default();
            let body = String::from_utf8(raw_body).ok().filter(|body| !body.is_empty());
            // Invalid headers are omitted: the request is over the limit in any case.
            let response_changes =
                response_headers_to_add.into_iter().filter_map(|header| header_change(header).ok());
            let valid_edits = response_changes
                .chain(limit_headers)
                .filter_map(|change| response_edits(&[change]).ok());
            let headers_to_add =
                valid_edits.flat_map(|HeaderEdits { set, add, .. }| set.into_iter().chain(add));
            let headers = rule_response.headers.into_iter().chain(headers_to_add).collect();
            let response = FixedResponse {
                status: rule_response.status,
                body: rule_response.body.or(body),
                headers,
            };
            let exceeded_statuses = statuses.iter().filter(|status| status.code == OVER_LIMIT);
            Ok(RateLimitResult::OverLimit {
                response,
                wait: exceeded_statuses.filter_map(time_until_reset).max(),
            })
        }
        code => Err(unusable_response(format!("overall_code {code} is unknown"))),
    }
}

/// Converts the headers of a response to changes.
fn header_changes(headers: Vec<HeaderValue>) -> Result<Vec<HeaderChange>, CheckError> {
    headers.into_iter().map(header_change).collect()
}

/// Converts a header to a change that appends it. An error means that `raw_value` is not UTF-8.
fn header_change(header: HeaderValue) -> Result<HeaderChange, CheckError> {
    let value = match header.raw_value.is_empty() {
        true => header.value,
        false => String::from_utf8(header.raw_value).map_err(unusable_response)?,
    };
    Ok(HeaderChange { name: header.key.to_ascii_lowercase(), value, action: HeaderAction::Append })
}

/// Describes the limit with the fewest remaining requests in the three headers of
/// `draft-polli-ratelimit-headers-03`, as Envoy writes them. Returns no headers if no status has a limit.
fn rate_limit_headers(statuses: &[DescriptorStatus]) -> Vec<HeaderChange> {
    let limited_statuses =
        statuses.iter().filter_map(|status| Some((status, status.current_limit.as_ref()?)));
    let Some((lowest_status, limit)) =
        limited_statuses.clone().min_by_key(|(status, _)| status.limit_remaining)
    else {
        return Vec::new();
    };
    let mut quotas = limit.requests_per_unit.to_string();
    for (_, limit) in limited_statuses {
        let Some(window) = unit_seconds(limit.unit) else { continue };
        quotas.push_str(&format!(", {};w={window}", limit.requests_per_unit));
        let is_quotable = |byte: u8| byte.is_ascii_graphic() && !b"\"\\".contains(&byte);
        if !limit.name.is_empty() && limit.name.bytes().all(is_quotable) {
            quotas.push_str(&format!(";name=\"{}\"", limit.name));
        }
    }
    let reset_seconds = time_until_reset(lowest_status).unwrap_or_default().as_secs();
    [
        ("x-ratelimit-limit", quotas),
        ("x-ratelimit-remaining", lowest_status.limit_remaining.to_string()),
        ("x-ratelimit-reset", reset_seconds.to_string()),
    ]
    .map(|(name, value)| HeaderChange {
        name: name.to_owned(),
        value,
        action: HeaderAction::Replace,
    })
    .into()
}

/// Returns the time until the limit of a descriptor resets; `None` if it is unknown or invalid.
fn time_until_reset(status: &DescriptorStatus) -> Option<Duration> {
    let time = status.duration_until_reset.as_ref()?;
    Some(Duration::new(u64::try_from(time.seconds).ok()?, u32::try_from(time.nanos).ok()?))
}

/// Returns the length of a unit in seconds, by its number in `RateLimitResponse.RateLimit.Unit`; `None` if the unit is
/// unknown. A month counts as 30 days, a year as 365 days.
fn unit_seconds(unit: i32) -> Option<u64> {
    const DAY: u64 = 24 * 3600;
    let (_, seconds) =
        [(1, 1), (2, 60), (3, 3600), (4, DAY), (5, 30 * DAY), (6, 365 * DAY), (7, 7 * DAY)]
            .into_iter()
            .find(|(candidate, _)| *candidate == unit)?;
    Some(seconds)
}

fn unusable_response(problem: impl std::fmt::Display) -> CheckError {
    CheckError::Unusable(problem.to_string())
}

/// The path of the gRPC method.
pub(crate) const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// `OK` of `RateLimitResponse.Code`.
const OK: i32 = 1;
/// `OVER_LIMIT` of `RateLimitResponse.Code`.
const OVER_LIMIT: i32 = 2;

#[cfg(test)]
mod tests;
