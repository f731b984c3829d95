//! CORS: preflight responses and response headers for cross-origin requests.

use std::borrow::Cow;

use leno_model::{AllowedWords, Cors, HeaderEdits};

use crate::action::FieldEdits;
use crate::request::RequestView;

/// The effect of a CORS rule on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CrossOrigin {
    /// A preflight request, with the fields of its response. It is not forwarded.
    Preflight(Vec<(&'static str, String)>),
    /// A request that is forwarded, with the edits of its response.
    Actual(FieldEdits),
}

/// Returns the method of the announced request if this is a preflight request (Fetch standard, §3.2.2).
#[must_use]
pub fn preflight_for<'a>(request: &RequestView<'a>) -> Option<Cow<'a, str>> {
    if request.method != "OPTIONS" {
        return None;
    }
    request.fields.first_value("origin")?;
    request.fields.first_value(REQUEST_METHOD_FIELD)
}

/// Applies a CORS rule; `None` if the request is not cross-origin and its response does not depend on the
/// origin. `edits` are the other response edits of the rule.
#[must_use]
pub fn apply_cors(
    cors: &Cors,
    request: &RequestView<'_>,
    edits: &FieldEdits,
) -> Option<CrossOrigin> {
    let mut fields = Vec::new();
    // `vary` is also added without an origin, or with a disallowed one. Otherwise a shared cache would serve
    // such a response to an allowed page (Fetch standard, §3.2.5).
    if !allows_any_origin(cors) {
        fields.push(("vary", "origin".to_owned()));
    }
    let Some(origin) = request.fields.first_value("origin") else {
        return (!fields.is_empty())
            .then(|| CrossOrigin::Actual(combine_edits(edits, &[], fields)));
    };
    let is_preflight = preflight_for(request).is_some();
    let is_allowed = HeaderEdits::is_value(&origin)
        && cors.origins.iter().any(|pattern| pattern.matches_origin(&origin));
    if is_allowed {
        fields.extend(origin_fields(cors, &origin));
    }
    if is_preflight && is_allowed {
        fields.extend(preflight_fields(cors, request));
    }
    // Browsers read this field in responses to actual requests only; the Gateway API requires it in preflight
    // responses too.
    if is_allowed && let Some(exposed) = format_list(&cors.exposed, cors.credentials, None) {
        fields.push(("access-control-expose-headers", exposed));
    }
    if is_preflight {
        return Some(CrossOrigin::Preflight(fields));
    }
    // CORS headers of the application are removed, not merged with those of the rule.
    Some(CrossOrigin::Actual(combine_edits(edits, &RESPONSE_FIELDS, fields)))
}

/// Combines the rule's other edits with these fields. The `replaced` fields of the application are removed.
fn combine_edits(edits: &FieldEdits, replaced: &[&str], fields: Vec<(&str, String)>) -> FieldEdits {
    let mut lines = String::from(&*edits.lines);
    for (name, value) in fields {
        lines.extend([name, ": ", &value, "\r\n"]);
    }
    let replaced = replaced.iter().map(|name| (*name).into());
    FieldEdits {
        remove: edits.remove.iter().cloned().chain(replaced).collect(),
        lines: lines.into(),
    }
}

/// True if the response is the same for all origins.
fn allows_any_origin(cors: &Cors) -> bool {
    !cors.credentials && cors.origins.iter().any(|origin| origin.is_any())
}

/// Returns the fields that allow an origin.
fn origin_fields(cors: &Cors, origin: &str) -> Vec<(&'static str, String)> {
    let allowed_origin = if allows_any_origin(cors) { "*" } else { origin };
    let mut fields = vec![(ALLOW_ORIGIN_FIELD, allowed_origin.to_owned())];
    if cors.credentials {
        fields.push(("access-control-allow-credentials", "true".to_owned()));
    }
    fields
}

/// Returns the fields that describe the allowed requests.
fn preflight_fields(cors: &Cors, request: &RequestView<'_>) -> Vec<(&'static str, String)> {
    let requested = |name: &str| {
        let values = request.fields.joined_values(name);
        values.filter(|value| HeaderEdits::is_value(value)).map(|value| value.into_owned())
    };
    let methods = format_list(&cors.methods, cors.credentials, requested(REQUEST_METHOD_FIELD));
    let headers =
        format_list(&cors.headers, cors.credentials, requested("access-control-request-headers"));
    let methods = methods.map(|methods| ("access-control-allow-methods", methods));
    let headers = headers.map(|headers| ("access-control-allow-headers", headers));
    let max_age = ("access-control-max-age", cors.max_age_seconds.to_string());
    methods.into_iter().chain(headers).chain([max_age]).collect()
}

/// Formats a list for browsers. With credentials `*` is not a wildcard (§3.2.4), so the requested values are
/// returned instead.
fn format_list(
    values: &AllowedWords,
    credentials: bool,
    requested: Option<String>,
) -> Option<String> {
    match values {
        AllowedWords::Any if credentials => requested,
        AllowedWords::Any => Some("*".to_owned()),
        AllowedWords::Only(values) if values.is_empty() => None,
        AllowedWords::Only(values) => Some(values.join(", ")),
    }
}

const ALLOW_ORIGIN_FIELD: &str = "access-control-allow-origin";
const REQUEST_METHOD_FIELD: &str = "access-control-request-method";
/// The CORS response fields.
const RESPONSE_FIELDS: [&str; 6] = [
    ALLOW_ORIGIN_FIELD,
    "access-control-allow-credentials",
    "access-control-allow-methods",
    "access-control-allow-headers",
    "access-control-expose-headers",
    "access-control-max-age",
];

#[cfg(test)]
mod tests {
    use leno_model::OriginPattern;

    use super::*;

    fn cors_rule(origins: &[&str], credentials: bool, any: bool) -> Cors {
        let words = |words: &[&str]| match any {
            true => AllowedWords::Any,
            false => AllowedWords::Only(words.iter().map(|word| (*word).to_owned()).collect()),
        };
        Cors {
            origins: origins.iter().map(|origin| OriginPattern::new(origin).unwrap()).collect(),
            credentials,
            methods: words(&["PUT", "DELETE"]),
            headers: words(&["x-a", "x-b"]),
            exposed: words(&["x-c"]),
            max_age_seconds: 5,
        }
    }

    fn apply_rule(cors: &Cors, method: &str, fields: &[(&str, &str)]) -> Option<CrossOrigin> {
        let fields: Vec<(String, String)> =
            fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let request =
            RequestView { method, path: "/", query: None, authority: "a", fields: &fields };
        apply_cors(cors, &request, &FieldEdits::default())
    }

    fn describe_response(effect: Option<CrossOrigin>) -> String {
        match effect {
            None => "same origin".to_owned(),
            Some(CrossOrigin::Preflight(fields)) => {
                let lines = fields.iter().map(|(name, value)| format!("{name}: {value}"));
                lines.collect::<Vec<_>>().join("; ").replace("access-control-", "")
            }
            Some(CrossOrigin::Actual(edits)) => {
                // Responses to requests without an origin keep the application's CORS fields.
                assert!([0, RESPONSE_FIELDS.len()].contains(&edits.remove.len()));
                let lines = edits.lines.trim_end().replace("\r\n", "; ");
                format!("forwarded; {lines}").replace("access-control-", "")
            }
        }
    }

    #[test]
    fn responses_contain_the_fields_of_the_rule() {
        let page = ("origin", "https://a.example");
        let preflight = [
            page,
            ("access-control-request-method", "PUT"),
            ("access-control-request-headers", "x-a"),
        ];
        let listed = cors_rule(&["https://a.example"], false, false);
        let wildcard = cors_rule(&["*"], false, true);
        let with_credentials = cors_rule(&["*"], true, true);
        for (cors, method, fields, expected) in [
            // A cache must serve neither this response to a page, nor a page's response to another client.
            (&listed, "GET", &[][..], "forwarded; vary: origin"),
            (&wildcard, "GET", &[], "same origin"),
            (&with_credentials, "GET", &[], "forwarded; vary: origin"),
            (
                &listed,
                "GET",
                &[page],
                "forwarded; vary: origin; allow-origin: https://a.example; expose-headers: x-c",
            ),
            (&listed, "GET", &[("origin", "https://b.example")], "forwarded; vary: origin"),
            (&listed, "GET", &[("origin", "null")], "forwarded; vary: origin"),
            // An `OPTIONS` request that is not a preflight is forwarded: the application may respond to it.
            (
                &listed,
                "OPTIONS",
                &[page],
                "forwarded; vary: origin; allow-origin: https://a.example; expose-headers: x-c",
            ),
            (
                &listed,
                "OPTIONS",
                &preflight,
                "vary: origin; allow-origin: https://a.example; allow-methods: PUT, DELETE; allow-headers: x-a, x-b; max-age: 5; expose-headers: x-c",
            ),
            (&listed, "OPTIONS", &[("origin", "https://b.example"), preflight[1]], "vary: origin"),
            (&wildcard, "GET", &[page], "forwarded; allow-origin: *; expose-headers: *"),
            (
                &wildcard,
                "OPTIONS",
                &preflight,
                "allow-origin: *; allow-methods: *; allow-headers: *; max-age: 5; expose-headers: *",
            ),
            (
                &with_credentials,
                "GET",
                &[page],
                "forwarded; vary: origin; allow-origin: https://a.example; allow-credentials: true",
            ),
            (
                &with_credentials,
                "OPTIONS",
                &preflight,
                "vary: origin; allow-origin: https://a.example; allow-credentials: true; allow-methods: PUT; allow-headers: x-a; max-age: 5",
            ),
        ] {
            assert_eq!(
                describe_response(apply_rule(cors, method, fields)),
                expected,
                "{method} {fields:?}"
            );
        }
    }
}
