//! Reader of `sessionPersistence` of a Gateway API rule.

use std::time::Duration;

use leno_model::{PersistenceType, RouteRule, SessionPersistence};

use super::http_route::read_duration;
use crate::field::{Field, MapFields};

/// Reads the session persistence of a rule, if any: `cookie` and `header` as of API version 1.7, or the earlier
/// `sessionName`, `idleTimeout` and `cookieConfig`.
pub(super) fn read(rule: &MapFields<'_>) -> Option<SessionPersistence> {
    let field = rule.find("sessionPersistence")?;
    let fields = field.read_fields(&[
        "type",
        "absoluteTimeout",
        "cookie",
        "header",
        "sessionName",
        "idleTimeout",
        "cookieConfig",
    ])?;
    let is_header = match fields.find("type") {
        Some(kind) => kind.read_choice(&[("Cookie", false), ("Header", true)])?,
        None => false,
    };
    refuse_other_carrier(&fields, is_header);
    let config =
        |key: &str, known: &[&'static str]| fields.find(key).and_then(|it| it.read_fields(known));
    let cookie = config("cookie", &["name", "path", "lifetimeType"]);
    let header = config("header", &["name"]);
    let before = config("cookieConfig", &["lifetimeType"]);
    let carrier = match is_header {
        true => PersistenceType::Header,
        false => cookie.as_ref().or(before.as_ref()).map_or(PersistenceType::Cookie, read_lifetime),
    };
    if let Some(header) = &header {
        header.require("name")?;
    }
    let time = |key: &str| fields.find(key).and_then(read_time);
    let (absolute, idle) = (time("absoluteTimeout"), time("idleTimeout"));
    if carrier == PersistenceType::LastingCookie && fields.find("absoluteTimeout").is_none() {
        field.reject("has a permanent cookie without a lifetime", "add `absoluteTimeout`");
    }
    if rule.find("backendRefs").is_none() {
        field.warn("has no effect: the rule has no backend", "remove it, or add a backend");
    }
    let of_carrier = if is_header { &header } else { &cookie };
    let name = of_carrier.as_ref().and_then(|it| it.find("name"));
    if let (Some(_), Some(before)) = (name, fields.find("sessionName")) {
        before.reject("repeats the session name", "remove it");
    }
    let name = match name.or(fields.find("sessionName")) {
        Some(name) => Some(read_name(name, carrier)?),
        None => None,
    };
    let path = match cookie {
        Some(cookie) => Some(cookie.find("path").map_or(Some("/".to_owned()), read_cookie_path)?),
        None => None,
    };
    Some(SessionPersistence { name, kind: carrier, absolute, idle, path })
}

/// Rejects cookie settings if a header carries the session, and vice versa.
fn refuse_other_carrier(fields: &MapFields<'_>, is_header: bool) {
    let (others, problem): (&[&str], _) = match is_header {
        true => (&["cookie", "cookieConfig"], "is for cookies, but `type` is `Header`"),
        false => (&["header"], "is for headers, but `type` is `Cookie`"),
    };
    for field in others.iter().filter_map(|key| fields.find(key)) {
        field.reject(problem, "remove one of the two");
    }
    if fields.find("cookie").is_some()
        && let Some(before) = fields.find("cookieConfig")
    {
        before.reject("is also defined by `cookie`", "remove it");
    }
}

/// Rejects a session name shared by two rules of a route: they would overwrite each other's sessions.
pub(super) fn refuse_shared(fields: &MapFields<'_>, rules: &[RouteRule]) {
    let names = |rule: &RouteRule| {
        let persistence = rule.actions.persistence.as_ref()?;
        Some((persistence.kind == PersistenceType::Header, persistence.name.clone()?))
    };
    let named: Vec<_> = rules.iter().filter_map(names).collect();
    let is_shared = |(index, one)| named.iter().skip(index + 1).any(|other| other == one);
    if let Some((_, (_, name))) = named.iter().enumerate().find(|it| is_shared(*it))
        && let Some(field) = fields.find("rules")
    {
        field.reject(
            format!(
                "have two rules with a session {name:?}, which would overwrite each other's \
                 sessions"
            ),
            "give each rule a unique name, or none",
        );
    }
}

fn read_lifetime(cookie: &MapFields<'_>) -> PersistenceType {
    let words =
        &[("Session", PersistenceType::Cookie), ("Permanent", PersistenceType::LastingCookie)];
    let lifetime = cookie.find("lifetimeType").and_then(|field| field.read_choice(words));
    lifetime.unwrap_or(PersistenceType::Cookie)
}

fn read_cookie_path(field: &Field<'_>) -> Option<String> {
    let path = field.read_text()?;
    if SessionPersistence::is_path(path) {
        return Some(path.to_owned());
    }
    let problem = format!("{} is not the path of a cookie", field.quoted_value());
    field.reject(problem, "use `/` and up to 1023 visible characters but `;`");
    None
}

fn read_name(field: &Field<'_>, carrier: PersistenceType) -> Option<String> {
    let text = field.read_text()?;
    let name = match carrier {
        PersistenceType::Header => text.to_ascii_lowercase(),
        PersistenceType::Cookie | PersistenceType::LastingCookie => text.to_owned(),
    };
    if SessionPersistence::is_name(&name, carrier) {
        return Some(name);
    }
    let problem = match carrier {
        PersistenceType::Header => {
            format!("{} is not a header that can carry a session", field.quoted_value())
        }
        PersistenceType::Cookie | PersistenceType::LastingCookie => {
            format!("{} is not the name of a cookie", field.quoted_value())
        }
    };
    field.reject(problem, "use up to 256 letters, digits, `-` and `_`, such as \"cart-session\"");
    None
}

fn read_time(field: &Field<'_>) -> Option<Duration> {
    let time = read_duration(field)?;
    if time.is_zero() {
        field.reject("is zero", "use a duration such as \"1h\", or remove it");
        return None;
    }
    Some(time)
}
