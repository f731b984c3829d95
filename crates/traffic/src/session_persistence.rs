//! Session persistence: the cookie and header values that identify endpoints.

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
/// A value is an endpoint number, plus two timestamps if the rule has limits. It reveals no address or name,
/// and is the same from every sidecar and after every restart. It is not secret: a client that knows the
/// workloads behind a rule can forge one, and reaches an endpoint of the rule, as it would with a valid value
/// or after enough requests. Access restrictions require policies, not weights.
#[derive(Debug, Clone)]
pub struct CompiledPersistence {
    rule: SessionPersistence,
    name: Box<str>,
    /// The salt of endpoint numbers: those of another rule are invalid here.
    salt: u64,
    /// The paths of the rule's matches, for cookies, the longest first.
    paths: Box<[Box<str>]>,
}

impl CompiledPersistence {
    /// Compiles the persistence of a rule, if any. `number`: the index of the rule in its route.
    pub(crate) fn from_rule(rule: &RouteRule, number: usize) -> Option<Self> {
        let persistence = rule.actions.persistence.as_ref()?;
        let route = format!("{} {}", rule.kind.as_str(), rule.route);
        let name = match &persistence.name {
            Some(name) => name.clone(),
            None => format!("leno-{:016x}", hash(NAME_SALT, &format!("{route} {number}"))),
        };
        let mut paths: Vec<Box<str>> = match &persistence.path {
            Some(_) => Vec::new(),
            None => rule.matches.iter().map(|it| cookie_path(it).into()).collect(),
        };
        paths.sort_unstable_by_key(|path| std::cmp::Reverse(path.len()));
        Some(Self {
            rule: persistence.clone(),
            salt: hash(RULE_SALT, &format!("{route} {name}")),
            name: name.into(),
            paths: paths.into(),
        })
    }

    /// Returns the header that carries the value, if any.
    pub(crate) fn header_name(&self) -> Option<&str> {
        (self.rule.kind == PersistenceType::Header).then_some(&self.name)
    }

    /// Returns the valid value of a request. `now`: since the Unix epoch.
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
        let value = PersistenceValue::read(&value?)?;
        let age = |since: Option<u64>| {
            let since = Duration::from_millis(since?);
            // Clocks differ slightly; a value from the far future is forged, and would never expire.
            (since <= now + SKEW_MAX).then(|| now.saturating_sub(since))
        };
        let (whole, idle) = (age(value.began), age(value.reported));
        let is_over = self.rule.absolute.is_some_and(|most| whole.is_none_or(|age| age >= most))
            || self.rule.idle.is_some_and(|most| idle.is_none_or(|age| age > most));
        let began = value.began.map_or(now, Duration::from_millis);
        (!is_over).then_some(PresentedValue { number: value.number, began })
    }

    /// Returns the endpoint of a port that a value identifies.
    pub(crate) fn find_endpoint<'a>(
        &self,
        names: &EndpointNames,
        endpoints: &'a [Arc<Endpoint>],
        shown: PresentedValue,
    ) -> Option<&'a Arc<Endpoint>> {
        names.find_endpoint(endpoints, shown.number ^ self.salt)
    }

    /// Returns the response field that identifies the endpoint to the client; `None` if the client already has
    /// it. `since`: the start of the session, if there is one.
    pub(crate) fn response_field(
        &self,
        answered: &EndpointId,
        since: Option<Duration>,
        now: Duration,
        path: &str,
        is_safe: bool,
    ) -> Option<(Cow<'static, str>, String)> {
        let Self { rule, name, .. } = self;
        let began = since.unwrap_or(now);
        let is_limited = rule.absolute.is_some() || rule.idle.is_some();
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let value = PersistenceValue {
            number: number_of(answered) ^ self.salt,
            began: is_limited.then(|| milliseconds(began)),
            reported: is_limited.then(|| milliseconds(now)),
        };
        let max_age = match rule.kind {
            // A client of header persistence does not store the last value.
            PersistenceType::Header => return Some((name.to_string().into(), value.encode())),
            _ if since.is_some() && rule.idle.is_none() => return None,
            PersistenceType::Cookie => None,
            PersistenceType::LastingCookie => rule.absolute,
        };
        let mut text = format!("{name}={}; Path={path}", value.encode());
        if let Some(most) = max_age {
            let left = most.saturating_sub(now.saturating_sub(began));
            let left = left.as_secs() + u64::from(left.subsec_nanos() > 0);
            text.push_str(&format!("; Max-Age={left}"));
        }
        text.push_str("; HttpOnly");
        text.push_str(if is_safe { "; Secure" } else { "" });
        text.push_str("; SameSite=Strict");
        Some((Cow::Borrowed("set-cookie"), text))
    }

    /// Returns the path of a cookie: that of the rule, or the longest path of its matches that contains the
    /// request's.
    pub(crate) fn cookie_path(&self, request: &RequestView<'_>) -> &str {
        if let Some(path) = &self.rule.path {
            return path;
        }
        let leads = |path: &str| {
            let rest = request.path.strip_prefix(path.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.paths.iter().find(|path| leads(path)).map_or("/", |path| path)
    }
}

/// The endpoints of a port by number; built on first use, and only for rules with persistence.
#[derive(Debug, Default)]
pub struct EndpointNames(OnceLock<FxHashMap<u64, usize>>);

impl EndpointNames {
    /// Returns the endpoint with this number; the endpoints of the port never change.
    fn find_endpoint<'a>(
        &self,
        endpoints: &'a [Arc<Endpoint>],
        number: u64,
    ) -> Option<&'a Arc<Endpoint>> {
        let names = self.0.get_or_init(|| {
            let numbered = endpoints.iter().enumerate();
            numbered.map(|(index, endpoint)| (number_of(&endpoint.id), index)).collect()
        });
        endpoints.get(*names.get(&number)?)
    }
}

/// The valid value of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PresentedValue {
    number: u64,
    /// The start of the session.
    pub(crate) began: Duration,
}

/// The value of a cookie or header: `number`, or `number.began.reported`, in hexadecimal; times are in
/// milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PersistenceValue {
    number: u64,
    /// The time of the first response with this endpoint.
    began: Option<u64>,
    /// The time of the last response with this endpoint.
    reported: Option<u64>,
}

impl PersistenceValue {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let hexadecimal = |part: &str| {
            let is_plain = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_plain.then(|| u64::from_str_radix(part, 16).ok()).flatten()
        };
        let number = parts.next().filter(|part| part.len() == 16).and_then(hexadecimal)?;
        let (began, reported) = match (parts.next(), parts.next()) {
            (None, _) => (None, None),
            (Some(began), reported) => (Some(hexadecimal(began)?), Some(hexadecimal(reported?)?)),
        };
        parts.next().is_none().then_some(Self { number, began, reported })
    }

    fn encode(self) -> String {
        match (self.began, self.reported) {
            (Some(began), Some(reported)) => format!("{:016x}.{began:x}.{reported:x}", self.number),
            _ => format!("{:016x}", self.number),
        }
    }
}

/// Returns the number of an endpoint, equal on every machine and in every version.
fn number_of(endpoint: &EndpointId) -> u64 {
    let EndpointId { service, port, workload } = endpoint;
    hash(ENDPOINT_SALT, &format!("{service} {port} {workload}"))
}

/// Returns the cookie path of a match: its path, up to the first pattern character.
fn cookie_path(request: &RequestMatch) -> &str {
    let path = match &request.path {
        PathMatch::Any => "/",
        PathMatch::Exact(path) => path,
        PathMatch::Prefix(path) => prefix_elements(path),
        PathMatch::Regex(pattern) => literal_elements(pattern),
    };
    match path.split_once(';') {
        // The following text would start another cookie attribute.
        Some((before, _)) => whole_elements(before),
        None if path.is_empty() || !path.bytes().all(|byte| byte.is_ascii_graphic()) => "/",
        None => path,
    }
}

/// Returns the whole elements before the first metacharacter of an expression.
fn literal_elements(pattern: &str) -> &str {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_~".contains(c);
    match pattern.find(|c| !is_plain(c)) {
        Some(at) => whole_elements(pattern.get(..at).unwrap_or_default()),
        None => pattern,
    }
}

/// Drops the last element, which may be partial.
fn whole_elements(path: &str) -> &str {
    match path.rfind('/') {
        Some(at @ 1..) => path.get(..at).unwrap_or("/"),
        _ => "/",
    }
}

/// The maximum clock difference between two sidecars.
const SKEW_MAX: Duration = Duration::from_secs(60);
/// The first bytes of the fraction of pi, which make these numbers useless elsewhere.
const ENDPOINT_SALT: u64 = 0x243f_6a88_85a3_08d3;
const RULE_SALT: u64 = 0x1319_8a2e_0370_7344;
const NAME_SALT: u64 = 0xa409_3822_299f_31d0;

#[cfg(test)]
mod tests;
