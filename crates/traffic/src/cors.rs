//! CORS: the responses to preflight requests, and the response headers for cross-origin requests, by the CORS policy of
//! a route rule.

use std::borrow::Cow;

use leno_model::{AllowedNames, Cors, HeaderEdits};

use crate::action::FieldEdits;
use crate::request::RequestView;

/// The effect of a CORS policy on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CrossOrigin {
    /// The request is a preflight request, which is not forwarded. Contains the fields of its response.
    Preflight(Vec<(&'static str, String)>),
    /// The request is forwarded. Contains the edits of its response.
    Actual(FieldEdits),
}

/// Returns the method of the actual request if this is a preflight request (Fetch standard, §3.2.2); `None` for other
/// requests.
#[must_use]
pub fn preflight_for<'a>(request: &RequestView<'a>) -> Option<Cow<'a, str>> {
    if request.method != "OPTIONS" {
        return None;
    }
    // A request without an origin is not a CORS request.
    request.fields.first_value("origin")?;
    request.fields.first_value(REQUEST_METHOD_FIELD)
}

/// Applies a CORS policy. `edits` are the other response edits of the route rule. Returns `None` if the request is not
/// cross-origin and its response does not depend on the origin.
#[must_use]
pub fn apply_cors(
    cors: &Cors,
    request: &RequestView<'_>,
    edits: &FieldEdits,
) -> Option<CrossOrigin> {
    let mut fields = Vec::new();
    // `vary` is also added to responses without an origin or with a disallowed origin. Otherwise a shared cache would
    // serve these responses to allowed pages (Fetch standard, §3.2.5).
    if !allows_any_origin(cors) {
        fields.push(("vary", "origin".to_owned()));
    }
    let Some(origin) = request.fields.first_value("origin") else {
        return (!fields.is_empty())
            .then(|| CrossOrigin::Actual(combine_edits(edits, &[], fields)));
    };
    let is_preflight = preflight_for(request).is_some();
    let is_allowed = HeaderEdits::is_valid_value(&origin)
        && cors.origins.iter().any(|pattern| pattern.matches_origin(&origin));
    if is_allowed {
        fields.extend(origin_fields(cors, &origin));
    }
    if is_preflight && is_allowed {
        fields.extend(preflight_fields(cors, request));
    }
    // Browsers read this field in responses to actual requests only; the Gateway API requires it in preflight
    // responses too.
    if is_allowed
        && let Some(exposed_names) =
            format_names(&cors.exposed_headers, cors.allows_credentials, None)
    {
        fields.push(("access-control-expose-headers", exposed_names));
    }
    if is_preflight {
        return Some(CrossOrigin::Preflight(fields));
    }
    // The CORS headers of the application are removed, not merged with those of the policy.
    Some(CrossOrigin::Actual(combine_edits(edits, &RESPONSE_FIELDS, fields)))
}

/// Combines the rule's other edits with edits that append these fields and remove the `replaced_names` fields.
fn combine_edits(
    edits: &FieldEdits,
    replaced_names: &[&str],
    fields: Vec<(&str, String)>,
) -> FieldEdits {
    let mut lines = String::from(&*edits.lines);
    for (name, value) in fields {
        lines.extend([name, ": ", &value, "\r\n"]);
    }
    let replaced_names = replaced_names.iter().map(|name| (*name).into());
    FieldEdits {
        remove: edits.remove.iter().cloned().chain(replaced_names).collect(),
        lines: lines.into(),
    }
}

/// True if the response is the same for all origins.
fn allows_any_origin(cors: &Cors) -> bool {
    !cors.allows_credentials && cors.origins.iter().any(|origin| origin.is_any())
}

/// Returns the fields that allow an origin.
fn origin_fields(cors: &Cors, origin: &str) -> Vec<(&'static str, String)> {
    let allowed_origin = if allows_any_origin(cors) { "*" } else { origin };
    let mut fields = vec![(ALLOW_ORIGIN_FIELD, allowed_origin.to_owned())];
    if cors.allows_credentials {
        fields.push(("access-control-allow-credentials", "true".to_owned()));
    }
    fields
}

/// Returns the fields that describe the allowed requests.
fn preflight_fields(cors: &Cors, request: &RequestView<'_>) -> Vec<(&'static str, String)> {
    let requested_names = |name: &str| {
        let values = request.fields.joined_values(name);
        values.filter(|value| HeaderEdits::is_valid_value(value)).map(|value| value.into_owned())
    };
    let methods =
        format_names(&cors.methods, cors.allows_credentials, requested_names(REQUEST_METHOD_FIELD));
    let headers = format_names(
        &cors.headers,
        cors.allows_credentials,
        requested_names("access-control-request-headers"),
    );
    let methods_field = methods.map(|methods| ("access-control-allow-methods", methods));
    let headers_field = headers.map(|headers| ("access-control-allow-headers", headers));
    let max_age_field = ("access-control-max-age", cors.max_age_seconds.to_string());
    methods_field.into_iter().chain(headers_field).chain([max_age_field]).collect()
}

/// Formats a list of names for browsers; `None` if the list is empty. For requests with credentials, `*` is not a
/// wildcard (Fetch standard, §3.2.4), so the requested names are returned instead.
fn format_names(
    names: &AllowedNames,
    allows_credentials: bool,
    requested_names: Option<String>,
) -> Option<String> {
    match names {
        AllowedNames::Any if allows_credentials => requested_names,
        AllowedNames::Any => Some("*".to_owned()),
        AllowedNames::Only(names) if names.is_empty() => None,
        AllowedNames::Only(names) => Some(names.join(", ")),
    }
}

/// The response field with the allowed origin.
const ALLOW_ORIGIN_FIELD: &str = "access-control-allow-origin";
/// The field of preflight requests with the method of the actual request.
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
            true => AllowedNames::Any,
            false => AllowedNames::Only(words.iter().map(|word| (*word).to_owned()).collect()),
        };
        Cors {
            origins: origins.iter().map(|origin| OriginPattern::new(origin).unwrap()).collect(),
            allows_credentials: credentials,
            methods: words(&["PUT", "DELETE"]),
            headers: words(&["x-a", "x-b"]),
            exposed_headers: words(&["x-c"]),
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
