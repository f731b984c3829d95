//! Cross-origin requests: what a browser is told about a page of another origin.

use leno_model::{AnyOf, Cors, HeaderEdits};

use crate::action::FieldEdits;
use crate::request::RequestView;

/// What a cross-origin request gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CrossOrigin {
    /// It is the question whether a request may be made, and these fields are the answer. Nothing
    /// goes on.
    Preflight(Vec<(&'static str, String)>),
    /// It goes on, and its answer is edited so.
    Actual(FieldEdits),
}

/// The method of the request that a browser asks about, if this is its question (the Fetch standard,
/// §3.2.2).
#[must_use]
pub fn preflight_for<'a>(request: &RequestView<'a>) -> Option<std::borrow::Cow<'a, str>> {
    if request.method != "OPTIONS" {
        return None;
    }
    request.fields.first("origin")?;
    request.fields.first(REQUEST_METHOD)
}

/// What a request gets; `None` when no page of another origin makes it and the answer does not depend
/// on who does. `edits` are what the rule does to answers beside.
#[must_use]
pub fn judge(cors: &Cors, request: &RequestView<'_>, edits: &FieldEdits) -> Option<CrossOrigin> {
    let mut fields = Vec::new();
    // Also where there is no origin, or one that may not: a cache that kept such an answer for all
    // would give it to a page that may (the Fetch standard, §3.2.5).
    if !is_for_everybody(cors) {
        fields.push(("vary", "origin".to_owned()));
    }
    let Some(origin) = request.fields.first("origin") else {
        return (!fields.is_empty()).then(|| CrossOrigin::Actual(beside(edits, &[], fields)));
    };
    let preflight = preflight_for(request).is_some();
    let allowed = HeaderEdits::is_value(&origin) && cors.origins.iter().any(|it| it.fits(&origin));
    if allowed {
        fields.extend(about_origin(cors, &origin));
    }
    if preflight && allowed {
        fields.extend(about_request(cors, request));
    }
    // Browsers look for it at answers to requests alone; the Gateway API wants it said at once.
    if allowed && let Some(exposed) = list(&cors.exposed, cors.credentials, None) {
        fields.push(("access-control-expose-headers", exposed));
    }
    if preflight {
        return Some(CrossOrigin::Preflight(fields));
    }
    // What the application says about origins is not mixed with what the rule says.
    Some(CrossOrigin::Actual(beside(edits, &ANSWERS, fields)))
}

/// What the rule does to answers beside, and these fields, in place of `own`.
fn beside(edits: &FieldEdits, own: &[&str], fields: Vec<(&str, String)>) -> FieldEdits {
    let mut lines = String::from(&*edits.lines);
    for (name, value) in fields {
        lines.extend([name, ": ", &value, "\r\n"]);
    }
    let own = own.iter().map(|name| (*name).into());
    FieldEdits { remove: edits.remove.iter().cloned().chain(own).collect(), lines: lines.into() }
}

/// Whether all origins hear the same.
fn is_for_everybody(cors: &Cors) -> bool {
    !cors.credentials && cors.origins.iter().any(|origin| origin.is_any())
}

/// That a page of this origin may.
fn about_origin(cors: &Cors, origin: &str) -> Vec<(&'static str, String)> {
    let told = if is_for_everybody(cors) { "*" } else { origin };
    let mut fields = vec![(ALLOW_ORIGIN, told.to_owned())];
    if cors.credentials {
        fields.push(("access-control-allow-credentials", "true".to_owned()));
    }
    fields
}

/// What such a page may ask.
fn about_request(cors: &Cors, request: &RequestView<'_>) -> Vec<(&'static str, String)> {
    let asked = |name: &str| {
        let found = request.fields.find(name);
        found.filter(|value| HeaderEdits::is_value(value)).map(|value| value.into_owned())
    };
    let methods = list(&cors.methods, cors.credentials, asked(REQUEST_METHOD));
    let headers = list(&cors.headers, cors.credentials, asked("access-control-request-headers"));
    let methods = methods.map(|methods| ("access-control-allow-methods", methods));
    let headers = headers.map(|headers| ("access-control-allow-headers", headers));
    let max_age = ("access-control-max-age", cors.max_age_seconds.to_string());
    methods.into_iter().chain(headers).chain([max_age]).collect()
}

/// A list as browsers read it. With credentials `*` is a word like any other (§3.2.4): what was asked
/// for is said instead.
fn list(words: &AnyOf, credentials: bool, asked: Option<String>) -> Option<String> {
    match words {
        AnyOf::Any if credentials => asked,
        AnyOf::Any => Some("*".to_owned()),
        AnyOf::Only(words) if words.is_empty() => None,
        AnyOf::Only(words) => Some(words.join(", ")),
    }
}

const ALLOW_ORIGIN: &str = "access-control-allow-origin";
const REQUEST_METHOD: &str = "access-control-request-method";
/// The fields of answers that say what pages of other origins may.
const ANSWERS: [&str; 6] = [
    ALLOW_ORIGIN,
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

    fn cors(origins: &[&str], credentials: bool, any: bool) -> Cors {
        let words = |words: &[&str]| match any {
            true => AnyOf::Any,
            false => AnyOf::Only(words.iter().map(|word| (*word).to_owned()).collect()),
        };
        Cors {
            origins: origins.iter().map(|it| OriginPattern::new(it).unwrap()).collect(),
            credentials,
            methods: words(&["PUT", "DELETE"]),
            headers: words(&["x-a", "x-b"]),
            exposed: words(&["x-c"]),
            max_age_seconds: 5,
        }
    }

    fn ask(cors: &Cors, method: &str, fields: &[(&str, &str)]) -> Option<CrossOrigin> {
        let fields: Vec<(String, String)> =
            fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let request =
            RequestView { method, path: "/", query: None, authority: "a", fields: &fields };
        judge(cors, &request, &FieldEdits::default())
    }

    fn told(answer: Option<CrossOrigin>) -> String {
        match answer {
            None => "same origin".to_owned(),
            Some(CrossOrigin::Preflight(fields)) => {
                let lines = fields.iter().map(|(name, value)| format!("{name}: {value}"));
                lines.collect::<Vec<_>>().join("; ").replace("access-control-", "")
            }
            Some(CrossOrigin::Actual(edits)) => {
                // Of an answer that is for no page nothing is taken away.
                assert!([0, ANSWERS.len()].contains(&edits.remove.len()));
                let lines = edits.lines.trim_end().replace("\r\n", "; ");
                format!("goes on; {lines}").replace("access-control-", "")
            }
        }
    }

    #[test]
    fn browsers_are_told_what_the_rule_says() {
        let page = ("origin", "https://a.example");
        let question = [
            page,
            ("access-control-request-method", "PUT"),
            ("access-control-request-headers", "x-a"),
        ];
        let only = cors(&["https://a.example"], false, false);
        let any = cors(&["*"], false, true);
        let trusted = cors(&["*"], true, true);
        for (cors, method, fields, expected) in [
            // A cache must not give this answer to a page, nor one for a page to another.
            (&only, "GET", &[][..], "goes on; vary: origin"),
            (&any, "GET", &[], "same origin"),
            (&trusted, "GET", &[], "goes on; vary: origin"),
            (
                &only,
                "GET",
                &[page],
                "goes on; vary: origin; allow-origin: https://a.example; expose-headers: x-c",
            ),
            (&only, "GET", &[("origin", "https://b.example")], "goes on; vary: origin"),
            (&only, "GET", &[("origin", "null")], "goes on; vary: origin"),
            // A question that is none goes on: the application may have an answer.
            (
                &only,
                "OPTIONS",
                &[page],
                "goes on; vary: origin; allow-origin: https://a.example; expose-headers: x-c",
            ),
            (
                &only,
                "OPTIONS",
                &question,
                "vary: origin; allow-origin: https://a.example; allow-methods: PUT, DELETE; allow-headers: x-a, x-b; max-age: 5; expose-headers: x-c",
            ),
            (&only, "OPTIONS", &[("origin", "https://b.example"), question[1]], "vary: origin"),
            (&any, "GET", &[page], "goes on; allow-origin: *; expose-headers: *"),
            (
                &any,
                "OPTIONS",
                &question,
                "allow-origin: *; allow-methods: *; allow-headers: *; max-age: 5; expose-headers: *",
            ),
            (
                &trusted,
                "GET",
                &[page],
                "goes on; vary: origin; allow-origin: https://a.example; allow-credentials: true",
            ),
            (
                &trusted,
                "OPTIONS",
                &question,
                "vary: origin; allow-origin: https://a.example; allow-credentials: true; allow-methods: PUT; allow-headers: x-a; max-age: 5",
            ),
        ] {
            assert_eq!(told(ask(cors, method, fields)), expected, "{method} {fields:?}");
        }
    }
}
