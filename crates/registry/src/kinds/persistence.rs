//! Reads `sessionPersistence` of a rule of the Gateway API.

use std::time::Duration;

use leno_model::{Carries, Persistence, RouteRule};

use super::http_route::read_duration;
use crate::field::{Field, Fields};

/// What a rule says about it, if it does.
pub(super) fn read(rule: &Fields<'_>) -> Option<Persistence> {
    let field = rule.find("sessionPersistence")?;
    let fields =
        field.fields(&["sessionName", "type", "absoluteTimeout", "idleTimeout", "cookieConfig"])?;
    let is_header = match fields.find("type") {
        Some(kind) => kind.word(&[("Cookie", false), ("Header", true)])?,
        None => false,
    };
    let time = |key: &str| fields.find(key).and_then(read_time);
    let (absolute, idle) = (time("absoluteTimeout"), time("idleTimeout"));
    let carrier = match (is_header, read_lifetime(&fields)) {
        (true, _) => Carries::Header,
        (false, lifetime) => lifetime,
    };
    if is_header && let Some(config) = fields.find("cookieConfig") {
        config.refuse("is about a cookie, and `type` says `Header`", "remove one of the two");
    }
    if carrier == Carries::LastingCookie && fields.find("absoluteTimeout").is_none() {
        field.refuse(
            "has a permanent cookie and does not say for how long",
            "add `absoluteTimeout`",
        );
    }
    if rule.find("backendRefs").is_none() {
        field.warn("has no effect: the rule leads to no backend", "remove it, or add a backend");
    }
    let name = match fields.find("sessionName") {
        Some(name) => Some(read_name(name, carrier)?),
        None => None,
    };
    Some(Persistence { name, carrier, absolute, idle })
}

/// Two rules of a route that share a name would end each other's sessions.
pub(super) fn refuse_shared(fields: &Fields<'_>, rules: &[RouteRule]) {
    let names = |rule: &RouteRule| {
        let persistence = rule.actions.persistence.as_ref()?;
        Some((persistence.carrier == Carries::Header, persistence.name.clone()?))
    };
    let named: Vec<_> = rules.iter().filter_map(names).collect();
    let is_shared = |(index, one)| named.iter().skip(index + 1).any(|other| other == one);
    if let Some((_, (_, name))) = named.iter().enumerate().find(|it| is_shared(*it))
        && let Some(field) = fields.find("rules")
    {
        field.refuse(
            format!("have two rules with the `sessionName` {name:?}, which would end each other's sessions"),
            "give each rule a name of its own, or none",
        );
    }
}

fn read_lifetime(fields: &Fields<'_>) -> Carries {
    let config = fields.find("cookieConfig").and_then(|field| field.fields(&["lifetimeType"]));
    let lifetime = config.and_then(|config| {
        let words = &[("Session", Carries::Cookie), ("Permanent", Carries::LastingCookie)];
        config.find("lifetimeType")?.word(words)
    });
    lifetime.unwrap_or(Carries::Cookie)
}

fn read_name(field: &Field<'_>, carrier: Carries) -> Option<String> {
    let text = field.text()?;
    let name = match carrier {
        Carries::Header => text.to_ascii_lowercase(),
        Carries::Cookie | Carries::LastingCookie => text.to_owned(),
    };
    if Persistence::is_name(&name, carrier) {
        return Some(name);
    }
    let problem = match carrier {
        Carries::Header => format!("{} is no header that can carry a session", field.shown()),
        Carries::Cookie | Carries::LastingCookie => {
            format!("{} is not the name of a cookie", field.shown())
        }
    };
    field.refuse(problem, "use up to 128 letters, digits, `-` and `_`, such as \"cart-session\"");
    None
}

fn read_time(field: &Field<'_>) -> Option<Duration> {
    let time = read_duration(field)?;
    if time.is_zero() {
        field.refuse("is no time at all", "use a duration such as \"1h\", or remove it");
        return None;
    }
    Some(time)
}
