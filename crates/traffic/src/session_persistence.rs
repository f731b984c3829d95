//! Session persistence: compiled rules, and the cookie and header values that identify endpoints.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leno_model::{
    Endpoint, EndpointId, PathMatch, PersistenceType, RepeatedHeader, RequestMatch, RouteRule,
    SessionPersistence,
};
use rustc_hash::FxHashMap;

use crate::hash::hash;
use crate::matcher::prefix_elements;
use crate::request::RequestView;
use crate::tag::{cookie_value, header_value};

/// A compiled session persistence rule.
///
/// A value consists of an endpoint number, and of two timestamps if the rule has time limits. It reveals no address or
/// name, and is the same in every sidecar and after every restart. It is not secret: a client that knows the workload
/// names can forge a value. The client then reaches an endpoint of the rule, as with any other request, even one whose
/// backend has weight 0. Access must therefore be restricted by policies, not by weights.
#[derive(Debug, Clone)]
pub struct CompiledPersistence {
    rule: SessionPersistence,
    /// The name of the cookie or header.
    name: Box<str>,
    /// The salt of endpoint numbers, which makes the values of other rules invalid for this rule.
    salt: u64,
    /// The cookie paths of the rule's matches, the longest first; empty if the rule sets a path.
    paths: Box<[Box<str>]>,
}

impl CompiledPersistence {
    /// Compiles the persistence of a rule; `None` if the rule has no persistence. `index_in_route` is the index of the
    /// rule in its route.
    pub(crate) fn from_rule(rule: &RouteRule, index_in_route: usize) -> Option<Self> {
        let persistence = rule.actions.persistence.as_ref()?;
        let route = format!("{} {}", rule.kind.as_str(), rule.route);
        let name = match &persistence.name {
            Some(name) => name.clone(),
            None => format!("leno-{:016x}", hash(NAME_SALT, &format!("{route} {index_in_route}"))),
        };
        let mut paths: Vec<Box<str>> = match &persistence.path {
            Some(_) => Vec::new(),
            None => {
                rule.matches.iter().map(|request| cookie_path_of_match(request).into()).collect()
            }
        };
        paths.sort_unstable_by_key(|path| std::cmp::Reverse(path.len()));
        Some(Self {
            rule: persistence.clone(),
            salt: hash(RULE_SALT, &format!("{route} {name}")),
            name: name.into(),
            paths: paths.into(),
        })
    }

    /// Returns the name of the header that carries the value; `None` for a cookie.
    pub(crate) fn header_name(&self) -> Option<&str> {
        (self.rule.kind == PersistenceType::Header).then_some(&self.name)
    }

    /// Returns the value that a request contains; `None` if it is absent, invalid or expired. `now` is the time since
    /// the Unix epoch.
    pub(crate) fn session_value(
        &self,
        request: &RequestView<'_>,
        now: Duration,
    ) -> Option<PresentedValue> {
        let value = match self.rule.kind {
            PersistenceType::Header => header_value(request, &self.name, RepeatedHeader::First),
            PersistenceType::Cookie | PersistenceType::LastingCookie => {
                cookie_value(request, &self.name)
            }
        };
        let value = PersistenceValue::parse(&value?)?;
        let age = |since: Option<u64>| {
            let since = Duration::from_millis(since?);
            // Clocks differ slightly. A time in the far future is forged, and the value would never expire.
            (since <= now + MAX_CLOCK_SKEW).then(|| now.saturating_sub(since))
        };
        let (session_age, idle_time) = (age(value.started_at), age(value.last_sent));
        let is_expired = self
            .rule
            .absolute_timeout
            .is_some_and(|limit| session_age.is_none_or(|age| age >= limit))
            || self.rule.idle_timeout.is_some_and(|limit| idle_time.is_none_or(|age| age > limit));
        let started_at = value.started_at.map_or(now, Duration::from_millis);
        (!is_expired).then_some(PresentedValue { number: value.number, started_at })
    }

    /// Returns the endpoint of a port that a value identifies; `None` if the port has no such endpoint.
    pub(crate) fn find_endpoint<'a>(
        &self,
        endpoint_numbers: &EndpointNumbers,
        endpoints: &'a [Arc<Endpoint>],
        value: PresentedValue,
    ) -> Option<&'a Arc<Endpoint>> {
        endpoint_numbers.find_endpoint(endpoints, value.number ^ self.salt)
    }

    /// Returns the name and value of the response field that identifies the endpoint to the client; `None` if the
    /// client already has it. `session_start` is the start of the session, if there is one.
    pub(crate) fn response_field(
        &self,
        responding_endpoint: &EndpointId,
        session_start: Option<Duration>,
        now: Duration,
        path: &str,
        is_tls: bool,
    ) -> Option<(Cow<'static, str>, String)> {
        let Self { rule, name, .. } = self;
        let started_at = session_start.unwrap_or(now);
        let is_limited = rule.absolute_timeout.is_some() || rule.idle_timeout.is_some();
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let value = PersistenceValue {
            number: endpoint_number(responding_endpoint) ^ self.salt,
            started_at: is_limited.then(|| milliseconds(started_at)),
            last_sent: is_limited.then(|| milliseconds(now)),
        };
        let max_age = match rule.kind {
            // Clients do not store headers as they store cookies, so the header is added to each response.
            PersistenceType::Header => return Some((name.to_string().into(), value.encode())),
            // The client has the cookie, and only an idle timeout requires a new one.
            _ if session_start.is_some() && rule.idle_timeout.is_none() => return None,
            PersistenceType::Cookie => None,
            PersistenceType::LastingCookie => rule.absolute_timeout,
        };
        let mut cookie = format!("{name}={}; Path={path}", value.encode());
        if let Some(max_age_limit) = max_age {
            let remaining = max_age_limit.saturating_sub(now.saturating_sub(started_at));
            let max_age_seconds = remaining.as_secs() + u64::from(remaining.subsec_nanos() > 0);
            cookie.push_str(&format!("; Max-Age={max_age_seconds}"));
        }
        cookie.push_str("; HttpOnly");
        cookie.push_str(if is_tls { "; Secure" } else { "" });
        cookie.push_str("; SameSite=Strict");
        Some((Cow::Borrowed("set-cookie"), cookie))
    }

    /// Returns the path of the cookie: the path that the rule sets, or the longest path of the rule's matches that is a
    /// prefix of the request's path.
    pub(crate) fn cookie_path(&self, request: &RequestView<'_>) -> &str {
        if let Some(path) = &self.rule.path {
            return path;
        }
        let is_prefix = |path: &str| {
            let remainder = request.path.strip_prefix(path.trim_end_matches('/'));
            remainder.is_some_and(|remainder| remainder.is_empty() || remainder.starts_with('/'))
        };
        self.paths.iter().find(|path| is_prefix(path)).map_or("/", |path| path)
    }
}

/// The indices of a port's endpoints by endpoint number. Built on first use, because only rules with persistence need
/// it.
#[derive(Debug, Default)]
pub struct EndpointNumbers(OnceLock<FxHashMap<u64, usize>>);

impl EndpointNumbers {
    /// Returns the endpoint with this number; `None` if there is none. All calls must pass the same endpoints.
    fn find_endpoint<'a>(
        &self,
        endpoints: &'a [Arc<Endpoint>],
        number: u64,
    ) -> Option<&'a Arc<Endpoint>> {
        let endpoint_numbers = self.0.get_or_init(|| {
            let indexed_endpoints = endpoints.iter().enumerate();
            indexed_endpoints
                .map(|(index, endpoint)| (endpoint_number(&endpoint.id), index))
                .collect()
        });
        endpoints.get(*endpoint_numbers.get(&number)?)
    }
}

/// A valid value that a request contains.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PresentedValue {
    /// The salted number of the endpoint.
    number: u64,
    /// The start of the session, since the Unix epoch.
    pub(crate) started_at: Duration,
}

/// The value of a cookie or header: `number`, or `number.started_at.last_sent`, in hexadecimal. The times are in
/// milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PersistenceValue {
    /// The salted number of the endpoint.
    number: u64,
    /// The time of the first response with this endpoint.
    started_at: Option<u64>,
    /// The time of the last response with this endpoint.
    last_sent: Option<u64>,
}

impl PersistenceValue {
    /// Parses a value; `None` if the text has another form.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split('.');
        let parse_hexadecimal = |field: &str| {
            let is_valid = !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_valid.then(|| u64::from_str_radix(field, 16).ok()).flatten()
        };
        let number = fields.next().filter(|field| field.len() == 16).and_then(parse_hexadecimal)?;
        let (started_at, last_sent) = match (fields.next(), fields.next()) {
            (None, _) => (None, None),
            (Some(started_at), last_sent) => {
                (Some(parse_hexadecimal(started_at)?), Some(parse_hexadecimal(last_sent?)?))
            }
        };
        fields.next().is_none().then_some(Self { number, started_at, last_sent })
    }

    fn encode(self) -> String {
        match (self.started_at, self.last_sent) {
            (Some(started_at), Some(last_sent)) => {
                format!("{:016x}.{started_at:x}.{last_sent:x}", self.number)
            }
            _ => format!("{:016x}", self.number),
        }
    }
}

/// Returns the number of an endpoint, which is the same on every machine and in every version.
fn endpoint_number(endpoint: &EndpointId) -> u64 {
    let EndpointId { service, port, workload } = endpoint;
    hash(ENDPOINT_SALT, &format!("{service} {port} {workload}"))
}

/// Returns the cookie path of a match: its path, or the literal elements of its path pattern.
fn cookie_path_of_match(request: &RequestMatch) -> &str {
    let path = match &request.path {
        PathMatch::Any => "/",
        PathMatch::Exact(path) => path,
        PathMatch::Prefix(path) => prefix_elements(path),
        PathMatch::Regex(pattern) => literal_elements(pattern),
    };
    match path.split_once(';') {
        // The text after a `;` would start another cookie attribute.
        Some((before, _)) => without_last_element(before),
        None if path.is_empty() || !path.bytes().all(|byte| byte.is_ascii_graphic()) => "/",
        None => path,
    }
}

/// Returns the whole elements before the first metacharacter of an expression.
fn literal_elements(pattern: &str) -> &str {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_~".contains(c);
    match pattern.find(|c| !is_plain(c)) {
        Some(end) => without_last_element(pattern.get(..end).unwrap_or_default()),
        None => pattern,
    }
}

/// Returns a path without its last element, which may be partial.
fn without_last_element(path: &str) -> &str {
    match path.rfind('/') {
        Some(last_slash @ 1..) => path.get(..last_slash).unwrap_or("/"),
        _ => "/",
    }
}

/// The maximum clock difference between two sidecars.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(60);
/// The salt of endpoint numbers. The three salts are the first bytes of the fraction of pi.
const ENDPOINT_SALT: u64 = 0x243f_6a88_85a3_08d3;
/// The salt of rule salts.
const RULE_SALT: u64 = 0x1319_8a2e_0370_7344;
/// The salt of default cookie names.
const NAME_SALT: u64 = 0xa409_3822_299f_31d0;

#[cfg(test)]
mod tests;
