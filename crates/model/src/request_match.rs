//! Matches of requests by path, method, headers and query parameters, as in rules of an `HTTPRoute`.

use std::fmt;

use crate::definition::{
    Definition, HEADER_NAME, ManifestBuilder, ManifestValue, REGEX, Schema, TextProblem,
    TextSchema, normalize_header_name,
};
use crate::literal_path::{DECODED_PATH, LITERAL_PATH};

/// The conditions on a request, all of which must hold. The default matches every request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RequestMatch {
    /// The condition on the path, without the query.
    pub path: PathMatch,
    /// The methods, one of which the request must have; any method when empty.
    pub methods: Vec<String>,
    /// The conditions on headers, all of which must hold. Names are in lower case; `:authority` is the host.
    pub headers: Vec<FieldMatch>,
    /// The conditions on query parameters, all of which must hold. Names are case-sensitive.
    pub query: Vec<FieldMatch>,
}

/// Formats the conditions, such as `path prefix /a, method GET`.
impl fmt::Display for RequestMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match &self.path {
            PathMatch::Any => None,
            PathMatch::Exact(path) => Some(format!("path {path}")),
            PathMatch::Prefix(path) => Some(format!("path prefix {path}")),
            PathMatch::Regex(path) => Some(format!("path regex {path}")),
        };
        let methods = (!self.methods.is_empty()).then(|| self.methods.join(" or "));
        let to_text = |kind: &'static str| move |field: &FieldMatch| field.to_text(kind);
        let conditions: Vec<String> = path
            .into_iter()
            .chain(methods.map(|methods| format!("method {methods}")))
            .chain(self.headers.iter().map(to_text("header")))
            .chain(self.query.iter().map(to_text("query")))
            .collect();
        match conditions.is_empty() {
            true => f.write_str("every request"),
            false => f.write_str(&conditions.join(", ")),
        }
    }
}

impl FieldMatch {
    /// Formats the condition. `kind` is the word for its field, such as `header`.
    fn to_text(&self, kind: &str) -> String {
        match &self.value {
            ValueMatch::Exact(value) => format!("{kind} {} = {value}", self.name),
            ValueMatch::Regex(value) => format!("{kind} {} matches {value}", self.name),
        }
    }
}

/// The fields of a match.
#[derive(Definition)]
#[definition(builds = RequestMatch)]
struct RequestMatchFields {
    /// Condition on the path, without the query.
    #[field(absent = "any path")]
    path: Option<PathMatch>,
    /// Method of the request.
    #[field(absent = "any method")]
    method: Option<Method>,
    /// Conditions on headers, all of which must hold.
    #[field(include)]
    headers: HeaderMatches,
    /// Conditions on query parameters, all of which must hold.
    #[field(list(0, MAX_FIELD_MATCHES), check = check_parameters)]
    query_params: Vec<FieldMatch>,
}

impl RequestMatchFields {
    fn build_type(self, _: &mut ManifestBuilder<'_>) -> RequestMatch {
        RequestMatch {
            path: self.path.unwrap_or_default(),
            methods: self.method.map(|Method(method)| method.to_owned()).into_iter().collect(),
            headers: self.headers.0,
            query: self.query_params,
        }
    }
}

/// Rejects a second match for the same parameter.
fn check_parameters(
    matches: Vec<FieldMatch>,
    builder: &mut ManifestBuilder<'_>,
) -> Option<Vec<FieldMatch>> {
    check_different_names("queryParams", matches, |query| query, builder)
}

/// The matches of a field `headers`, each for another name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderMatches(pub Vec<FieldMatch>);

/// The field `headers`.
#[derive(Definition)]
#[definition(builds = HeaderMatches)]
struct HeaderMatchesFields {
    /// Conditions on headers, all of which must hold.
    #[field(list(0, MAX_FIELD_MATCHES))]
    headers: Vec<HeaderMatch>,
}

impl HeaderMatchesFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<HeaderMatches> {
        let headers = check_different_headers(self.headers, builder)?;
        Some(HeaderMatches(headers.into_iter().map(FieldMatch::from).collect()))
    }
}

/// Rejects a second match for the same header.
pub(crate) fn check_different_headers(
    headers: Vec<HeaderMatch>,
    builder: &mut ManifestBuilder<'_>,
) -> Option<Vec<HeaderMatch>> {
    check_different_names("headers", headers, |HeaderMatch(header)| header, builder)
}

/// Rejects a second match for the same name: only the first match would apply.
fn check_different_names<T>(
    list: &'static str,
    matches: Vec<T>,
    match_of: impl Fn(&T) -> &FieldMatch,
    builder: &mut ManifestBuilder<'_>,
) -> Option<Vec<T>> {
    let problem = "has the name of another entry, of which only the first would apply";
    let name_of = |element: &T| match_of(element).name.clone();
    builder
        .check_unique(list, &matches, name_of, problem, "remove one of the two")
        .then_some(matches)
}

/// A method that an `HTTPRoute` can name.
struct Method(&'static str);

impl Definition for Method {
    const SCHEMA: Schema = Schema::Choice(METHODS);

    fn build(value: ManifestValue, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        METHODS.get(value.choice_index()?).copied().map(Self)
    }
}

/// A condition on a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum PathMatch {
    /// Any path.
    #[default]
    Any,
    /// Exactly this path.
    Exact(String),
    /// A prefix of whole path elements: `/a` matches `/a` and `/a/b`, not `/ab`.
    Prefix(String),
    /// A regular expression that the whole path must match.
    Regex(String),
}

/// A condition on a header or query parameter.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Definition)]
pub struct FieldMatch {
    /// Name of the parameter.
    #[field(text = PARAMETER_NAME)]
    pub name: String,
    /// Condition on the value.
    #[field(include)]
    pub value: ValueMatch,
}

/// A condition on a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ValueMatch {
    /// Exactly this value.
    Exact(String),
    /// A regular expression that the whole value must match.
    Regex(String),
}

/// The fields of a path match.
#[derive(Definition)]
#[definition(builds = PathMatch, example("type", "PathPrefix"))]
struct PathMatchFields {
    /// Type of the match: the whole path, a prefix of whole path elements, or a regular expression for the whole path.
    #[field(name = "type", default = "PathPrefix")]
    match_type: PathMatchType,
    /// Path, prefix or regular expression. A trailing slash of a prefix has no effect.
    #[field(text = PATH_OR_REGEX, absent = "`/`")]
    value: Option<String>,
}

/// The type of a path match.
#[derive(Clone, Copy, Definition)]
enum PathMatchType {
    Exact,
    PathPrefix,
    RegularExpression,
}

impl PathMatchFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<PathMatch> {
        self.build_with(&LITERAL_PATH, builder)
    }

    /// Builds the match, if an exact path or a prefix passes the check of `literal_schema`.
    fn build_with(
        self,
        literal_schema: &TextSchema,
        builder: &mut ManifestBuilder<'_>,
    ) -> Option<PathMatch> {
        let (schema, value) = match (self.match_type, self.value) {
            (PathMatchType::Exact, None) => return Some(PathMatch::Exact("/".to_owned())),
            (PathMatchType::PathPrefix, None) => return Some(PathMatch::Any),
            (PathMatchType::RegularExpression, None) => {
                builder.reject_field("value", "is missing", "add `value`");
                return None;
            }
            (PathMatchType::RegularExpression, Some(value)) => (&REGEX, value),
            (_, Some(value)) => (literal_schema, value),
        };
        let is_valid = builder.check_text("value", &value, schema);
        is_valid.then(|| match self.match_type {
            PathMatchType::Exact => PathMatch::Exact(value),
            PathMatchType::PathPrefix => PathMatch::from_prefix(value),
            PathMatchType::RegularExpression => PathMatch::Regex(value),
        })
    }
}

impl PathMatch {
    /// Returns the match of a literal prefix: a trailing slash has no effect, and `/` matches every path.
    #[must_use]
    pub fn from_prefix(mut path: String) -> Self {
        if path.ends_with('/') {
            path.pop();
        }
        match path.is_empty() {
            true => Self::Any,
            false => Self::Prefix(path),
        }
    }
}

/// A path match of a deny rule, which matches every encoding of a path and is written with the decoded path.
#[derive(Debug)]
pub struct DecodedPathMatch(pub PathMatch);

impl Definition for DecodedPathMatch {
    const SCHEMA: Schema = PathMatchFields::SCHEMA;

    fn build(value: ManifestValue, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        let fields = PathMatchFields::build(value, builder)?;
        fields.build_with(&DECODED_PATH, builder).map(Self)
    }
}

impl From<DecodedPathMatch> for PathMatch {
    fn from(DecodedPathMatch(path): DecodedPathMatch) -> Self {
        path
    }
}

/// A match of a header. Names of headers are case-insensitive.
#[derive(Debug)]
pub(crate) struct HeaderMatch(FieldMatch);

impl From<HeaderMatch> for FieldMatch {
    fn from(HeaderMatch(header): HeaderMatch) -> Self {
        header
    }
}

/// The fields of a match of a header.
#[derive(Definition)]
#[definition(builds = HeaderMatch)]
struct HeaderMatchFields {
    /// Name of the header, in any case; `host` is the host of the request.
    #[field(text = HEADER_NAME)]
    name: String,
    /// Condition on the value.
    #[field(include)]
    value: ValueMatch,
}

impl HeaderMatchFields {
    fn build_type(self, _: &mut ManifestBuilder<'_>) -> HeaderMatch {
        let name = normalize_header_name(&self.name);
        HeaderMatch(FieldMatch { name, value: self.value })
    }
}

/// The fields of a match of a value.
#[derive(Definition)]
#[definition(builds = ValueMatch)]
struct ValueMatchFields {
    /// Type of the match: the whole value, or a regular expression for it.
    #[field(name = "type", default = "Exact")]
    match_type: ValueMatchType,
    /// Value or regular expression.
    #[field(text = VALUE)]
    value: String,
}

/// The type of a match of a value.
#[derive(Clone, Copy, Definition)]
enum ValueMatchType {
    Exact,
    RegularExpression,
}

impl ValueMatchFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<ValueMatch> {
        match self.match_type {
            ValueMatchType::Exact => Some(ValueMatch::Exact(self.value)),
            ValueMatchType::RegularExpression => builder
                .check_text("value", &self.value, &REGEX)
                .then_some(ValueMatch::Regex(self.value)),
        }
    }
}

/// A path or a regular expression; the type of the match determines the check.
const PATH_OR_REGEX: TextSchema = TextSchema::bounded(4096);
/// The name of a query parameter.
pub(crate) const PARAMETER_NAME: TextSchema =
    TextSchema::new(256, |text| match (1..=256).contains(&text.len()) {
        true => Ok(()),
        false => Err(TextProblem::new("is not the name of a parameter", "use 1 to 256 bytes")),
    });
/// The value of a header or parameter, or a regular expression for it.
const VALUE: TextSchema = TextSchema::bounded(4096);
/// Maximum number of headers or query parameters per match, as in the schema of `HTTPRoute`.
pub(crate) const MAX_FIELD_MATCHES: usize = 16;
/// The methods, as in the schema of `HTTPRoute`.
const METHODS: &[&str] =
    &["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
