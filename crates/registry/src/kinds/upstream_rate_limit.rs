//! Reads `rateLimit` and `httpRoutes` of an `UpstreamTrafficSetting`.

use std::time::Duration;

use leno_model::{Each, FixedAnswer, PathMatch, Rate, RateLimits, RateRule, RequestMatch};

use super::answer::headers;
use crate::field::{Field, Fields};

/// What `burst` means: the two lines of the family differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Burst {
    /// A bucket holds so many more (OSM).
    Added,
    /// A bucket holds so many, if it is given (FSM).
    Instead,
}

impl Burst {
    pub(super) fn of(version: &str) -> Self {
        match version.starts_with("policy.flomesh.io/") {
            true => Self::Instead,
            false => Self::Added,
        }
    }

    fn size(self, count: u32, burst: u32) -> u32 {
        match (self, burst) {
            (Self::Added, burst) => count.saturating_add(burst),
            (Self::Instead, 0) => count,
            (Self::Instead, burst) => burst,
        }
    }
}

/// The limits of the fields of a `spec`: those of paths before that of all requests, which they
/// replace.
pub(super) fn read(spec: &Fields<'_>, burst: Burst) -> Option<RateLimits> {
    let mut limits = RateLimits::default();
    for (index, route) in route_list(spec)?.iter().enumerate() {
        let fields = route.fields(&["path", "rateLimit"])?;
        let field = fields.require("path")?;
        let path = field.regex();
        let is_said = |rule: &RateRule| {
            rule.requests.iter().any(|request| match &request.path {
                PathMatch::Regex(said) => path.as_ref() == Some(said),
                _ => false,
            })
        };
        if limits.rules.iter().any(is_said) {
            field.refuse("has a limit already, in a route before", "remove one of the two");
            continue;
        }
        let Some(field) = fields.find("rateLimit") else {
            route.refuse("limits nothing", "add `rateLimit`, or remove the route");
            continue;
        };
        let local = local(field)?;
        let request = RequestMatch { path: PathMatch::Regex(path?), ..RequestMatch::default() };
        let rule = read_requests(&local, (format!("httpRoutes[{index}]"), burst))?;
        limits.rules.push(RateRule { requests: vec![request], is_last: true, ..rule });
    }
    let Some(field) = spec.find("rateLimit") else { return Some(limits) };
    let local = local(field)?;
    let fields = local.fields(&["tcp", "http"])?;
    if let Some(tcp) = fields.find("tcp") {
        let fields = tcp.fields(&["connections", "unit", "burst"])?;
        limits.connections = Some(read_rate(&fields, "connections", burst)?);
    }
    if let Some(http) = fields.find("http") {
        limits.rules.push(read_requests(http, ("rateLimit.local.http".to_owned(), burst))?);
    }
    if fields.find("tcp").is_none() && fields.find("http").is_none() {
        local.refuse("limits nothing", "add `http` or `tcp`");
    }
    Some(limits)
}

fn route_list<'a>(spec: &Fields<'a>) -> Option<Vec<Field<'a>>> {
    match spec.find("httpRoutes") {
        Some(field) => field.list(ROUTES_MAX),
        None => Some(Vec::new()),
    }
}

/// What every sidecar counts for itself. What a service counts for all is said in a `RateLimit`.
fn local<'a>(field: &Field<'a>) -> Option<Field<'a>> {
    let fields = field.fields(&["local", "global"])?;
    fields.unsupported(
        "global",
        "is not supported here",
        "remove it, and write a RateLimit with `global` for the same service",
    );
    fields.require("local").cloned()
}

fn read_requests(field: &Field<'_>, (name, burst): (String, Burst)) -> Option<RateRule> {
    let fields = field.fields(&[
        "requests",
        "unit",
        "burst",
        "responseStatusCode",
        "responseHeadersToAdd",
    ])?;
    let status = match fields.find("responseStatusCode") {
        Some(field) => match field.number(0, 599)? {
            // The schema's default as it is written out.
            0 => None,
            status if (400..=599).contains(&status) => u16::try_from(status).ok(),
            _ => {
                field.refuse(format!("{} is no error", field.shown()), "use 400 to 599");
                return None;
            }
        },
        None => None,
    };
    let headers = headers(&fields, "responseHeadersToAdd");
    Some(RateRule {
        name,
        requests: Vec::new(),
        peers: Vec::new(),
        each: Each::Nothing,
        rate: read_rate(&fields, "requests", burst)?,
        is_last: false,
        answer: FixedAnswer { status, body: None, headers },
    })
}

fn read_rate(fields: &Fields<'_>, key: &str, burst: Burst) -> Option<Rate> {
    let count = fields.require(key).and_then(|field| field.number(1, Rate::COUNT_MAX));
    let time = fields.require("unit").and_then(|field| field.word(UNITS));
    let more = match fields.find("burst") {
        Some(field) => field.number(0, Rate::COUNT_MAX)?,
        None => 0,
    };
    let count = count?;
    Some(Rate { count, time: time?, size: burst.size(count, more) })
}

const UNITS: &[(&str, Duration)] = &[
    ("second", Duration::from_secs(1)),
    ("minute", Duration::from_secs(60)),
    ("hour", Duration::from_secs(3600)),
];
/// The most paths with limits of their own.
const ROUTES_MAX: usize = 64;
