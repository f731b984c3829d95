//! Reads `rateLimit` and `httpRoutes` of an `UpstreamTrafficSetting` of OSM or FSM: local limits and global limits.

use std::time::Duration;

use leno_model::{
    Descriptor, FixedResponse, Header, PathMatch, Rate, RateLimitKey, RateLimits, RateRule,
};

use super::filter::read_header;
use super::upstream_global_limit::{path_pattern_match, read_descriptors, read_global_limit};
use crate::field::{Field, MapFields};

/// The meaning of `burst`, which differs between OSM and FSM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BurstMeaning {
    /// `burst` is added to the capacity of the token bucket, which is the number of requests per period (OSM).
    AddsToCapacity,
    /// `burst` replaces the capacity of the token bucket, unless it is 0 (FSM).
    ReplacesCapacity,
}

impl BurstMeaning {
    /// Returns the meaning for the document's `apiVersion`.
    pub(super) fn for_version(version: &str) -> Self {
        match version.starts_with("policy.flomesh.io/") {
            true => Self::ReplacesCapacity,
            false => Self::AddsToCapacity,
        }
    }

    /// Returns the capacity of the token bucket for a limit of `count` requests per period.
    fn bucket_size(self, count: u32, burst: u32) -> u32 {
        match (self, burst) {
            (Self::AddsToCapacity, burst) => count.saturating_add(burst),
            (Self::ReplacesCapacity, 0) => count,
            (Self::ReplacesCapacity, burst) => burst,
        }
    }
}

/// Reads the limits of a `spec`. Limits for paths come first: requests to these paths are not counted by the limit for
/// all requests.
pub(super) fn read(spec: &MapFields<'_>, burst_meaning: BurstMeaning) -> Option<RateLimits> {
    let mut limits = RateLimits::default();
    let mut descriptors = Vec::new();
    for (index, route) in read_route_list(spec)?.iter().enumerate() {
        let (path, global_field) = read_route(route, index, burst_meaning, &mut limits.rules)?;
        if let Some(field) = global_field {
            let fields = field.read_fields(&["descriptors"])?;
            fields.require("descriptors")?;
            descriptors.extend(read_descriptors(&fields, &path_pattern_match(path))?);
        }
    }
    let Some(field) = spec.find("rateLimit") else {
        return add_descriptors(spec, limits, descriptors);
    };
    let fields = field.read_fields(&["local", "global"])?;
    if fields.find("local").is_none() && fields.find("global").is_none() {
        field.reject("has no limits", "add `local` or `global`");
    }
    if let Some(local) = fields.find("local") {
        read_local_limits(local, burst_meaning, &mut limits)?;
    }
    if let Some(field) = fields.find("global") {
        // Envoy sends a route's descriptors instead of the general descriptors; Leno sends both.
        let limit = read_global_limit(field)?;
        if !limit.descriptors.is_empty() && !descriptors.is_empty() {
            field.reject(
                "describes all requests, but routes have their own descriptors, which Envoy sends \
                 instead",
                "describe either all requests or those of routes",
            );
        }
        limits.global = Some(Box::new(limit));
    }
    add_descriptors(spec, limits, descriptors)
}

/// Adds the descriptors of routes, which are sent to the configured rate limit service.
fn add_descriptors(
    spec: &MapFields<'_>,
    mut limits: RateLimits,
    descriptors: Vec<Descriptor>,
) -> Option<RateLimits> {
    match &mut limits.global {
        Some(limit) => limit.descriptors.extend(descriptors),
        None if descriptors.is_empty() => return Some(limits),
        None => {
            spec.map_field().reject(
                "has descriptors for routes, but no rate limit service",
                "add `rateLimit.global.http`",
            );
            return None;
        }
    }
    if limits.global.as_ref().is_some_and(|limit| limit.descriptors.is_empty()) {
        spec.map_field().reject(
            "names a rate limit service, but has no descriptors",
            "add `descriptors` to `rateLimit.global.http`, or to routes",
        );
    }
    Some(limits)
}

/// Reads a route: returns its path and the field with its descriptors, and adds its local limit to `rules`.
fn read_route<'a>(
    route: &Field<'a>,
    index: usize,
    burst_meaning: BurstMeaning,
    rules: &mut Vec<RateRule>,
) -> Option<(String, Option<Field<'a>>)> {
    let fields = route.read_fields(&["path", "rateLimit"])?;
    let path_field = fields.require("path")?;
    let path = path_field.read_regex()?;
    let has_same_path = |rule: &RateRule| {
        rule.requests.iter().any(|request| match &request.path {
            PathMatch::Regex(other_path) => *other_path == path,
            _ => false,
        })
    };
    if rules.iter().any(has_same_path) {
        path_field.reject("has a limit in an earlier route", "remove one of the two");
        return Some((path, None));
    }
    let limit_fields = match fields.find("rateLimit") {
        Some(field) => Some(field.read_fields(&["local", "global"])?),
        None => None,
    };
    let find_limit = |key| limit_fields.as_ref().and_then(|limit_fields| limit_fields.find(key));
    let (local_field, global_field) = (find_limit("local"), find_limit("global"));
    if local_field.is_none() && global_field.is_none() {
        route.reject("has no limits", "add `rateLimit`, or remove the route");
    }
    if let Some(local_field) = local_field {
        let rule = read_request_limit(local_field, format!("httpRoutes[{index}]"), burst_meaning)?;
        rules.push(RateRule {
            requests: vec![path_pattern_match(path.clone())],
            stop: true,
            ..rule
        });
    }
    Some((path, global_field.cloned()))
}

/// Reads the local limits, which each sidecar counts by itself, into `limits`.
fn read_local_limits(
    local: &Field<'_>,
    burst_meaning: BurstMeaning,
    limits: &mut RateLimits,
) -> Option<()> {
    let fields = local.read_fields(&["tcp", "http"])?;
    if let Some(tcp) = fields.find("tcp") {
        let tcp_fields = tcp.read_fields(&["connections", "unit", "burst"])?;
        limits.connections = Some(read_rate(&tcp_fields, "connections", burst_meaning)?);
    }
    if let Some(http) = fields.find("http") {
        let rule = read_request_limit(http, "rateLimit.local.http".to_owned(), burst_meaning)?;
        limits.rules.push(rule);
    }
    if fields.find("tcp").is_none() && fields.find("http").is_none() {
        local.reject("has no limits", "add `http` or `tcp`");
    }
    Some(())
}

/// Returns the elements of `httpRoutes`; empty if the field is absent.
fn read_route_list<'a>(spec: &MapFields<'a>) -> Option<Vec<Field<'a>>> {
    match spec.find("httpRoutes") {
        Some(field) => field.read_list(MAX_ROUTES),
        None => Some(Vec::new()),
    }
}

/// Reads a limit of requests per period as a rule with this name, which applies to all requests.
fn read_request_limit(
    field: &Field<'_>,
    name: String,
    burst_meaning: BurstMeaning,
) -> Option<RateRule> {
    let fields = field.read_fields(&[
        "requests",
        "unit",
        "burst",
        "responseStatusCode",
        "responseHeadersToAdd",
    ])?;
    let status = match fields.find("responseStatusCode") {
        Some(field) => match field.read_number(0, 599)? {
            // 0 is the schema's default, and means "the default status".
            0 => None,
            status if (400..=599).contains(&status) => u16::try_from(status).ok(),
            _ => {
                field.reject(
                    format!("{} is not an error status", field.quoted_value()),
                    "use 400 to 599",
                );
                return None;
            }
        },
        None => None,
    };
    let headers = read_response_headers(&fields);
    Some(RateRule {
        name,
        requests: Vec::new(),
        peers: Vec::new(),
        key: RateLimitKey::None,
        rate: read_rate(&fields, "requests", burst_meaning)?,
        stop: false,
        response: FixedResponse { status, body: None, headers },
    })
}

/// Reads `responseHeadersToAdd`, each name at most once.
fn read_response_headers(fields: &MapFields<'_>) -> Vec<Header> {
    let key = "responseHeadersToAdd";
    let headers = fields.read_each(key, MAX_HEADERS, read_header);
    let is_repeated = |(index, header): (usize, &Header)| {
        headers.iter().take(index).any(|previous| previous.name == header.name)
    };
    if let (Some(field), true) = (fields.find(key), headers.iter().enumerate().any(is_repeated)) {
        field
            .reject("has two headers with the same name", "join their values, separated by commas");
    }
    headers
}

/// Reads the number of tokens from the field `key`, the period from `unit`, and the capacity of the bucket from
/// `burst`.
fn read_rate(fields: &MapFields<'_>, key: &str, burst_meaning: BurstMeaning) -> Option<Rate> {
    let count = fields.require(key).and_then(|field| field.read_number(1, Rate::MAX_TOKENS));
    let period = fields.require("unit").and_then(|field| field.read_choice(UNITS));
    let burst = match fields.find("burst") {
        Some(field) => field.read_number(0, Rate::MAX_TOKENS)?,
        None => 0,
    };
    let count = count?;
    Some(Rate { count, period: period?, burst: burst_meaning.bucket_size(count, burst) })
}

/// The values of `unit`, and the periods that they mean.
const UNITS: &[(&str, Duration)] = &[
    ("second", Duration::from_secs(1)),
    ("minute", Duration::from_secs(60)),
    ("hour", Duration::from_secs(3600)),
];
/// Maximum number of `httpRoutes`, which are paths with their own limits.
const MAX_ROUTES: usize = 64;
/// Maximum number of headers per response, the same as for route rules.
const MAX_HEADERS: usize = 16;
