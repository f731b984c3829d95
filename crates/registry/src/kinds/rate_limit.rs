//! Reads the `leno.dev/v1alpha1` `RateLimit` kind.

use leno_model::{
    AdaptiveConcurrency, Concurrency, FixedResponse, Name, PolicyScope, Rate, RateLimitKey,
    RateLimits, RateRule,
};

use super::access_policy::{read_elements, read_peer};
use super::http_route::{read_header_name, read_match};
use super::service_policy::{read_number_or, read_targets};
use super::{global_limit, response};
use crate::document::NodeValue;
use crate::duration::read_duration_within;
use crate::field::{Field, MapFields};

/// Reads the `spec` of a `RateLimit`: limits of connections, of requests per period, and of concurrent requests, and
/// limits that a rate limit service counts.
pub(super) fn read(namespace: &Name, spec: &Field<'_>) -> Option<(PolicyScope, RateLimits)> {
    let fields =
        spec.read_fields(&["targetRefs", "connections", "rules", "concurrency", "global"])?;
    let scope = read_targets(&fields, namespace);
    let connections = match fields.find("connections") {
        Some(field) => {
            let connection_fields = field.read_fields(&["count", "per", "burst"])?;
            Some(read_rate(&connection_fields, "count")?)
        }
        None => None,
    };
    let mut rules: Vec<RateRule> = Vec::new();
    let mut has_limits = connections.is_some();
    if let Some(field) = fields.find("rules") {
        for (index, element) in field.read_list(MAX_RULES)?.iter().enumerate() {
            has_limits = true;
            let Some(rule) = read_rule(element, namespace, index) else { continue };
            if rules.iter().any(|existing| existing.name == rule.name) {
                element.reject("its name is used by another rule", "use another name");
            }
            rules.push(rule);
        }
    }
    let concurrency = match fields.find("concurrency") {
        Some(field) => {
            has_limits = true;
            Some(read_concurrency(field)?)
        }
        None => None,
    };
    let global = match fields.find("global") {
        Some(field) => {
            has_limits = true;
            Some(Box::new(global_limit::read(field, namespace)?))
        }
        None => None,
    };
    if !has_limits {
        spec.reject("has no limits", "add `rules`, `connections`, `concurrency` or `global`");
        return None;
    }
    Some((scope?, RateLimits { connections, rules, concurrency, global }))
}

/// Reads `concurrency`: the maximum number of concurrent requests, fixed or adapted to the measured latency, and the
/// response to requests beyond it.
fn read_concurrency(field: &Field<'_>) -> Option<Concurrency> {
    let fields = field.read_fields(&["requests", "adaptive", "response"])?;
    let requests = fields.require("requests")?.read_number(1, Rate::MAX_TOKENS)?;
    let adaptive = match fields.find("adaptive") {
        Some(field) => {
            let adaptive_fields =
                field.read_fields(&["minConcurrency", "latencyTolerancePercent"])?;
            let min_concurrency = read_number_or(
                &adaptive_fields,
                "minConcurrency",
                1,
                requests,
                DEFAULT_MIN_CONCURRENCY.min(requests),
            )?;
            let tolerance_percent = read_number_or(
                &adaptive_fields,
                "latencyTolerancePercent",
                1,
                MAX_LATENCY_TOLERANCE,
                DEFAULT_LATENCY_TOLERANCE,
            )?;
            Some(AdaptiveConcurrency {
                min_concurrency,
                latency_tolerance_percent: u16::try_from(tolerance_percent).ok()?,
            })
        }
        None => None,
    };
    let response = match fields.find("response") {
        Some(field) => response::read(field)?,
        None => FixedResponse::default(),
    };
    Some(Concurrency { requests, adaptive, response })
}

/// Reads one of the `rules`. A rule without `name` gets a name from its index, such as `rules[0]`.
fn read_rule(element: &Field<'_>, namespace: &Name, index: usize) -> Option<RateRule> {
    let fields = element.read_fields(&[
        "name", "matches", "from", "key", "maxKeys", "requests", "per", "burst", "stop", "response",
    ])?;
    let name = match fields.find("name") {
        Some(field) => field.read_name()?.to_string(),
        None => format!("rules[{index}]"),
    };
    let requests =
        read_elements(&fields, "matches", "or leave it out for all requests", read_match);
    let peers = read_elements(&fields, "from", "or omit it for all clients", |field| {
        read_peer(field, namespace)
    });
    let key = read_key(&fields);
    let rate = read_rate(&fields, "requests");
    let stop = match fields.find("stop") {
        Some(field) => field.read_boolean()?,
        None => false,
    };
    let response = match fields.find("response") {
        Some(field) => response::read(field)?,
        None => FixedResponse::default(),
    };
    let (requests, peers) = (requests?, peers?);
    Some(RateRule { name, requests, peers, key: key?, rate: rate?, stop, response })
}

/// Reads the key that selects the token bucket of a request: `key: client`, or `key: {header: NAME}`. Without a key, all
/// requests share one bucket.
fn read_key(fields: &MapFields<'_>) -> Option<RateLimitKey> {
    let Some(field) = fields.find("key") else {
        if let Some(max_keys) = fields.find("maxKeys") {
            max_keys.reject(
                "requires several buckets, but there is only one",
                "add `key`, or remove it",
            );
        }
        return Some(RateLimitKey::None);
    };
    let buckets = read_number_or(fields, "maxKeys", 1, Rate::MAX_BUCKETS, DEFAULT_BUCKETS)?;
    if let NodeValue::Map(_) = field.value() {
        let header = field.read_fields(&["header"])?.require("header")?.clone();
        let name = read_header_name(&header, header.read_text()?)?;
        return Some(RateLimitKey::Header { name, buckets });
    }
    field.read_choice(&[("client", ())]).map(|()| RateLimitKey::Client { buckets })
}

/// Reads a rate: the count in the field `key`, the period in `per`, and the size of the token bucket in `burst`, which
/// defaults to the count.
fn read_rate(fields: &MapFields<'_>, key: &str) -> Option<Rate> {
    let count = fields.require(key).and_then(|field| field.read_number(1, Rate::MAX_TOKENS));
    let period = fields
        .require("per")
        .and_then(|field| read_duration_within(field, Rate::MIN_PERIOD, Rate::MAX_PERIOD));
    let (count, period) = (count?, period?);
    let bucket_size = read_number_or(fields, "burst", 1, Rate::MAX_BUCKET_SIZE, count)?;
    Some(Rate { count, period, burst: bucket_size })
}

/// The default of `minConcurrency`, low enough for applications with very little capacity.
const DEFAULT_MIN_CONCURRENCY: u32 = 4;
/// The default of `latencyTolerancePercent`: few clients notice 50 % more latency.
const DEFAULT_LATENCY_TOLERANCE: u32 = 50;
/// Maximum value of `latencyTolerancePercent`.
const MAX_LATENCY_TOLERANCE: u32 = 1000;
/// Maximum number of rules per policy.
const MAX_RULES: usize = 64;
/// The default of `maxKeys`: enough for the clients of most services, at about 100 KiB.
const DEFAULT_BUCKETS: u32 = 1000;
