//! Reads the field `sessionPersistence` of a rule of a Gateway API `HTTPRoute` or `GRPCRoute`.

use std::time::Duration;

use leno_model::{PersistenceType, RouteRule, SessionPersistence};

use crate::duration::read_duration;
use crate::field::{Field, MapFields};

/// Reads the session persistence of a rule; `None` if the field is absent or invalid. Its name and cookie settings are in
/// `cookie` or `header` since Gateway API 1.7, and in `sessionName` and `cookieConfig` before.
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
        Some(field) => field.read_choice(&[("Cookie", false), ("Header", true)])?,
        None => false,
    };
    reject_other_type(&fields, is_header);
    let read_settings = |key: &str, known_fields: &[&'static str]| {
        fields.find(key).and_then(|settings| settings.read_fields(known_fields))
    };
    let cookie = read_settings("cookie", &["name", "path", "lifetimeType"]);
    let header = read_settings("header", &["name"]);
    let cookie_config = read_settings("cookieConfig", &["lifetimeType"]);
    let persistence_type = match is_header {
        true => PersistenceType::Header,
        false => cookie
            .as_ref()
            .or(cookie_config.as_ref())
            .map_or(PersistenceType::Cookie, read_lifetime),
    };
    if let Some(header) = &header {
        header.require("name")?;
    }
    let read_timeout = |key: &str| fields.find(key).and_then(read_nonzero_duration);
    let (absolute_timeout, idle_timeout) =
        (read_timeout("absoluteTimeout"), read_timeout("idleTimeout"));
    if persistence_type == PersistenceType::LastingCookie
        && fields.find("absoluteTimeout").is_none()
    {
        field.reject("has a permanent cookie without a lifetime", "add `absoluteTimeout`");
    }
    if rule.find("backendRefs").is_none() {
        field.warn("has no effect: the rule has no backend", "remove it, or add a backend");
    }
    let settings = if is_header { &header } else { &cookie };
    let name_field = settings.as_ref().and_then(|fields| fields.find("name"));
    if let (Some(_), Some(session_name)) = (name_field, fields.find("sessionName")) {
        session_name.reject("repeats the session name", "remove it");
    }
    let name = match name_field.or(fields.find("sessionName")) {
        Some(field) => Some(read_name(field, persistence_type)?),
        None => None,
    };
    let path = match cookie {
        Some(cookie) => Some(cookie.find("path").map_or(Some("/".to_owned()), read_cookie_path)?),
        None => None,
    };
    Some(SessionPersistence { name, kind: persistence_type, absolute_timeout, idle_timeout, path })
}

/// Rejects cookie settings for a session in a header, and header settings for a session in a cookie.
fn reject_other_type(fields: &MapFields<'_>, is_header: bool) {
    let (other_keys, problem): (&[&str], _) = match is_header {
        true => (&["cookie", "cookieConfig"], "is for cookies, but `type` is `Header`"),
        false => (&["header"], "is for headers, but `type` is `Cookie`"),
    };
    for field in other_keys.iter().filter_map(|key| fields.find(key)) {
        field.reject(problem, "remove one of the two");
    }
    if fields.find("cookie").is_some()
        && let Some(cookie_config) = fields.find("cookieConfig")
    {
        cookie_config.reject("is also defined by `cookie`", "remove it");
    }
}

/// Rejects a session name that two rules of a route share, because they would overwrite each other's sessions.
pub(super) fn reject_shared_names(fields: &MapFields<'_>, rules: &[RouteRule]) {
    let session_name = |rule: &RouteRule| {
        let persistence = rule.actions.persistence.as_ref()?;
        Some((persistence.kind == PersistenceType::Header, persistence.name.clone()?))
    };
    let session_names: Vec<_> = rules.iter().filter_map(session_name).collect();
    let is_shared =
        |(index, name)| session_names.iter().skip(index + 1).any(|other_name| other_name == name);
    if let Some((_, (_, name))) = session_names.iter().enumerate().find(|entry| is_shared(*entry))
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

/// Reads `lifetimeType` as the persistence type: a session cookie, or a lasting one.
fn read_lifetime(cookie: &MapFields<'_>) -> PersistenceType {
    let lifetime_types =
        &[("Session", PersistenceType::Cookie), ("Permanent", PersistenceType::LastingCookie)];
    let lifetime = cookie.find("lifetimeType").and_then(|field| field.read_choice(lifetime_types));
    lifetime.unwrap_or(PersistenceType::Cookie)
}

/// Reads the `path` attribute of the session cookie.
fn read_cookie_path(field: &Field<'_>) -> Option<String> {
    let path = field.read_text()?;
    if SessionPersistence::is_valid_path(path) {
        return Some(path.to_owned());
    }
    let problem = format!("{} is not the path of a cookie", field.quoted_value());
    field.reject(problem, "use `/` and up to 1023 visible characters but `;`");
    None
}

/// Reads the name of the cookie or of the header that contains the session.
fn read_name(field: &Field<'_>, persistence_type: PersistenceType) -> Option<String> {
    let text = field.read_text()?;
    let name = match persistence_type {
        PersistenceType::Header => text.to_ascii_lowercase(),
        PersistenceType::Cookie | PersistenceType::LastingCookie => text.to_owned(),
    };
    if SessionPersistence::is_valid_name(&name, persistence_type) {
        return Some(name);
    }
    let problem = match persistence_type {
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

/// Reads a timeout above zero.
fn read_nonzero_duration(field: &Field<'_>) -> Option<Duration> {
    let duration = read_duration(field)?;
    if duration.is_zero() {
        field.reject("is zero", "use a duration such as \"1h\", or remove it");
        return None;
    }
    Some(duration)
}
