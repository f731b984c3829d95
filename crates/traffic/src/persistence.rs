//! Persistence: the values that clients show, what they mean, and how they are told.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leno_model::{
    Carries, Endpoint, EndpointId, PathMatch, Persistence, Repeated, RequestMatch, RouteRule,
};
use rustc_hash::FxHashMap;

use crate::hash::hash;
use crate::matcher::prefix_elements;
use crate::request::RequestView;
use crate::tag::{cookie, header};

/// What a rule says about persistence, compiled.
///
/// A value is the number of an endpoint, and two times where the rule has limits. It tells no address
/// and no name, and is the same from every sidecar and after every restart. It is no secret: who
/// knows the workloads behind a rule can make one, and gets an endpoint among those that the rule
/// leads to, as an honest value gives it and mostly asking often too. Who must not reach it is for
/// policies to say, and not for weights.
#[derive(Debug, Clone)]
pub struct CompiledPersistence {
    rule: Persistence,
    name: Box<str>,
    /// What the numbers of endpoints are mixed with: those of another rule mean nothing here.
    salt: u64,
    /// The paths of matches that cookies are for, the longest first.
    paths: Box<[Box<str>]>,
}

impl CompiledPersistence {
    /// What a rule says, if it does. `number`: its place among the rules of its route.
    pub(crate) fn of(rule: &RouteRule, number: usize) -> Option<Self> {
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

    /// The header that carries the value, if one does.
    pub(crate) fn header(&self) -> Option<&str> {
        (self.rule.carrier == Carries::Header).then_some(&self.name)
    }

    /// What a request shows that still counts. `now`: since the beginning of 1970.
    pub(crate) fn shown(&self, request: &RequestView<'_>, now: Duration) -> Option<Shown> {
        let value = match self.rule.carrier {
            Carries::Header => header(request, &self.name, Repeated::First),
            Carries::Cookie | Carries::LastingCookie => cookie(request, &self.name),
        };
        let value = Value::read(&value?)?;
        let age = |since: Option<u64>| {
            let since = Duration::from_millis(since?);
            // Clocks differ a little; what is of tomorrow is no honest value, and would never end.
            (since <= now + SKEW_MAX).then(|| now.saturating_sub(since))
        };
        let (whole, idle) = (age(value.began), age(value.told));
        let is_over = self.rule.absolute.is_some_and(|most| whole.is_none_or(|age| age >= most))
            || self.rule.idle.is_some_and(|most| idle.is_none_or(|age| age > most));
        let began = value.began.map_or(now, Duration::from_millis);
        (!is_over).then_some(Shown { number: value.number, began })
    }

    /// The endpoint of a port that a value names.
    pub(crate) fn find<'a>(
        &self,
        (names, endpoints): (&EndpointNames, &'a [Arc<Endpoint>]),
        shown: Shown,
    ) -> Option<&'a Arc<Endpoint>> {
        names.find(endpoints, shown.number ^ self.salt)
    }

    /// The field of an answer that tells a client the endpoint that answered; none when it knows.
    /// `since`: when it was first told of it, if it keeps to it.
    pub(crate) fn field(
        &self,
        answered: &EndpointId,
        since: Option<Duration>,
        (now, path, is_safe): (Duration, &str, bool),
    ) -> Option<(Cow<'static, str>, String)> {
        let Self { rule, name, .. } = self;
        let began = since.unwrap_or(now);
        let is_limited = rule.absolute.is_some() || rule.idle.is_some();
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let value = Value {
            number: number_of(answered) ^ self.salt,
            began: is_limited.then(|| milliseconds(began)),
            told: is_limited.then(|| milliseconds(now)),
        };
        let max_age = match rule.carrier {
            // A client of headers has nothing that remembers the last one.
            Carries::Header => return Some((name.to_string().into(), value.written())),
            _ if since.is_some() && rule.idle.is_none() => return None,
            Carries::Cookie => None,
            Carries::LastingCookie => rule.absolute,
        };
        let mut text = format!("{name}={}; Path={path}", value.written());
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

    /// The path that a cookie is for: the one that the rule names, or the longest of its matches that leads to
    /// the request's.
    pub(crate) fn path(&self, request: &RequestView<'_>) -> &str {
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

/// Which endpoints of a port numbers mean; looked up by nobody where no rule knows persistence, and
/// made when it is first.
#[derive(Debug, Default)]
pub struct EndpointNames(OnceLock<FxHashMap<u64, usize>>);

impl EndpointNames {
    /// The endpoint of the port, which has always these, with this number.
    fn find<'a>(&self, endpoints: &'a [Arc<Endpoint>], number: u64) -> Option<&'a Arc<Endpoint>> {
        let names = self.0.get_or_init(|| {
            let numbered = endpoints.iter().enumerate();
            numbered.map(|(index, endpoint)| (number_of(&endpoint.id), index)).collect()
        });
        endpoints.get(*names.get(&number)?)
    }
}

/// What a request shows that counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown {
    number: u64,
    /// When its client was first told of the endpoint.
    pub(crate) began: Duration,
}

/// What a client carries: `number`, or `number.began.told`, all hexadecimal, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Value {
    number: u64,
    /// When an answer told the endpoint first.
    began: Option<u64>,
    /// When one did last.
    told: Option<u64>,
}

impl Value {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let hexadecimal = |part: &str| {
            let is_plain = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_plain.then(|| u64::from_str_radix(part, 16).ok()).flatten()
        };
        let number = parts.next().filter(|part| part.len() == 16).and_then(hexadecimal)?;
        let (began, told) = match (parts.next(), parts.next()) {
            (None, _) => (None, None),
            (Some(began), told) => (Some(hexadecimal(began)?), Some(hexadecimal(told?)?)),
        };
        parts.next().is_none().then_some(Self { number, began, told })
    }

    fn written(self) -> String {
        match (self.began, self.told) {
            (Some(began), Some(told)) => format!("{:016x}.{began:x}.{told:x}", self.number),
            _ => format!("{:016x}", self.number),
        }
    }
}

/// A number for an endpoint, on every machine and in every version.
fn number_of(endpoint: &EndpointId) -> u64 {
    let EndpointId { service, port, workload } = endpoint;
    hash(ENDPOINT_SALT, &format!("{service} {port} {workload}"))
}

/// The path that a cookie of a match is for: what the match names, as far as it is no pattern.
fn cookie_path(request: &RequestMatch) -> &str {
    let path = match &request.path {
        PathMatch::Any => "/",
        PathMatch::Exact(path) => path,
        PathMatch::Prefix(path) => prefix_elements(path),
        PathMatch::Regex(pattern) => literal_elements(pattern),
    };
    match path.split_once(';') {
        // What follows would be another attribute of the cookie.
        Some((before, _)) => whole_elements(before),
        None if path.is_empty() || !path.bytes().all(|byte| byte.is_ascii_graphic()) => "/",
        None => path,
    }
}

/// The whole elements before anything that means something in an expression.
fn literal_elements(pattern: &str) -> &str {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_~".contains(c);
    match pattern.find(|c| !is_plain(c)) {
        Some(at) => whole_elements(pattern.get(..at).unwrap_or_default()),
        None => pattern,
    }
}

/// Without the last element, which may not be whole.
fn whole_elements(path: &str) -> &str {
    match path.rfind('/') {
        Some(at @ 1..) => path.get(..at).unwrap_or("/"),
        _ => "/",
    }
}

/// How far the clocks of two sidecars may differ.
const SKEW_MAX: Duration = Duration::from_secs(60);
/// The first bytes of the fraction of pi, so that these numbers are of no other use.
const ENDPOINT_SALT: u64 = 0x243f_6a88_85a3_08d3;
const RULE_SALT: u64 = 0x1319_8a2e_0370_7344;
const NAME_SALT: u64 = 0xa409_3822_299f_31d0;

#[cfg(test)]
mod tests;
