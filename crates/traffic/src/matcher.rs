//! Request matches, compiled: whether a request looks as a rule demands.

mod denial;
mod spelling;

use std::borrow::Cow;

use leno_model::{FieldMatch, PathMatch, RequestMatch, ValueMatch};

use crate::pattern::{BadPattern, Pattern, PatternField};
use crate::request::RequestView;

pub(crate) use spelling::{PathKind, Spelling};

/// A [`RequestMatch`], compiled. Matching allocates nothing, but for a query parameter that is
/// percent-encoded and compared with a regular expression.
///
/// * Regular expressions match in full, on the path without its query.
/// * A prefix matches element by element; its trailing `/` means nothing.
/// * The header names `:authority` and `host` stand for the request's authority, as it was sent.
///   A repeated header is compared as one value joined by `", "`.
/// * Of a repeated query parameter the first value counts. Names and values are percent-decoded
///   before they are compared; `+` is a plus sign, and an invalid escape stands for itself.
#[derive(Debug, Clone)]
pub struct RequestMatcher {
    path: PathMatcher,
    methods: Box<[Box<str>]>,
    headers: Box<[HeaderMatcher]>,
    query: Box<[QueryMatcher]>,
}

impl RequestMatcher {
    /// Compiles a match.
    ///
    /// # Errors
    /// [`BadPattern`] for the first regular expression that cannot be used.
    pub fn compile(request: &RequestMatch) -> Result<Self, BadPattern> {
        Ok(Self {
            path: PathMatcher::compile(&request.path)?,
            methods: request.methods.iter().map(|m| m.as_str().into()).collect(),
            headers: collect(&request.headers, HeaderMatcher::compile)?,
            query: collect(&request.query, QueryMatcher::compile)?,
        })
    }

    /// Whether all parts hold.
    #[must_use]
    #[inline]
    pub fn matches(&self, request: &RequestView<'_>) -> bool {
        self.path.matches(request.path) && self.matches_beside_path(request)
    }

    /// Whether all parts but the path hold.
    #[inline]
    pub(crate) fn matches_beside_path(&self, request: &RequestView<'_>) -> bool {
        // Most matches are about the path alone: they cost no call.
        let is_about_path =
            self.methods.is_empty() && self.headers.is_empty() && self.query.is_empty();
        is_about_path || self.matches_rest(request)
    }

    fn matches_rest(&self, request: &RequestView<'_>) -> bool {
        (self.methods.is_empty() || self.methods.iter().any(|m| **m == *request.method))
            && self.headers.iter().all(|header| header.matches(request))
            && self.query.iter().all(|parameter| parameter.matches(request))
    }

    /// The first part that does not hold; `None` when the request matches.
    #[must_use]
    pub fn mismatch(&self, request: &RequestView<'_>) -> Option<Mismatch> {
        if !self.path.matches(request.path) {
            return Some(Mismatch::Path);
        }
        if !self.methods.is_empty() && !self.methods.iter().any(|m| **m == *request.method) {
            return Some(Mismatch::Method);
        }
        if let Some(header) = self.headers.iter().find(|header| !header.matches(request)) {
            let name = header.name.as_deref().unwrap_or(":authority");
            return Some(Mismatch::Header(name.to_owned()));
        }
        let parameter = self.query.iter().find(|parameter| !parameter.matches(request));
        parameter.map(|parameter| Mismatch::Query(parameter.name.to_string()))
    }

    /// Whether some paths do not match.
    #[must_use]
    pub fn constrains_path(&self) -> bool {
        match &self.path {
            PathMatcher::Any => false,
            PathMatcher::Pattern(Pattern::Beginning(literal)) => !literal.is_empty(),
            PathMatcher::Exact(_) | PathMatcher::Prefix(_) | PathMatcher::Pattern(_) => true,
        }
    }
}

/// The part of a match that does not hold for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch {
    /// The path.
    Path,
    /// The method.
    Method,
    /// The header of this name, or its absence.
    Header(String),
    /// The query parameter of this name, or its absence.
    Query(String),
}

/// The prefix as it is compared: without a trailing `/`, which means nothing.
pub(crate) fn prefix_elements(prefix: &str) -> &str {
    prefix.strip_suffix('/').unwrap_or(prefix)
}

#[derive(Debug, Clone)]
pub(crate) enum PathMatcher {
    Any,
    Exact(Box<str>),
    /// Never empty, and without a trailing `/`.
    Prefix(Box<str>),
    Pattern(Pattern),
}

impl PathMatcher {
    pub(crate) fn compile(path: &PathMatch) -> Result<Self, BadPattern> {
        Ok(match path {
            PathMatch::Any => Self::Any,
            PathMatch::Exact(path) => Self::Exact(path.as_str().into()),
            PathMatch::Prefix(prefix) => match prefix_elements(prefix) {
                "" => Self::Any,
                elements => Self::Prefix(elements.into()),
            },
            PathMatch::Regex(pattern) => Pattern::compile(pattern)
                .map(Self::Pattern)
                .map_err(|cause| BadPattern::new(pattern, PatternField::Path, cause))?,
        })
    }

    pub(crate) fn matches(&self, path: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => **exact == *path,
            Self::Prefix(prefix) => path
                .strip_prefix(&**prefix)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            Self::Pattern(pattern) => pattern.matches(path),
        }
    }
}

#[derive(Debug, Clone)]
struct HeaderMatcher {
    /// `None` is the authority.
    name: Option<Box<str>>,
    value: Pattern,
}

impl HeaderMatcher {
    fn compile(field: &FieldMatch) -> Result<Self, BadPattern> {
        let name = field.name.to_ascii_lowercase();
        let value = compile_value(&field.value, || PatternField::Header(name.clone()))?;
        let name = match name.as_str() {
            ":authority" | "host" => None,
            name => Some(name.into()),
        };
        Ok(Self { name, value })
    }

    fn matches(&self, request: &RequestView<'_>) -> bool {
        match &self.name {
            None => self.value.matches(request.authority),
            Some(name) => request.fields.find(name).is_some_and(|value| self.value.matches(&value)),
        }
    }
}

#[derive(Debug, Clone)]
struct QueryMatcher {
    name: Box<str>,
    value: Pattern,
}

impl QueryMatcher {
    fn compile(field: &FieldMatch) -> Result<Self, BadPattern> {
        Ok(Self {
            name: field.name.as_str().into(),
            value: compile_value(&field.value, || PatternField::Query(field.name.clone()))?,
        })
    }

    fn matches(&self, request: &RequestView<'_>) -> bool {
        let Some(value) = request.query.and_then(|q| parameter(q, &self.name)) else {
            return false;
        };
        match &self.value {
            Pattern::Literal(literal) => percent_decoded(value).eq(literal.bytes()),
            pattern => decoded_text(value).is_some_and(|text| pattern.matches(&text)),
        }
    }
}

fn collect<T>(
    fields: &[FieldMatch],
    compile: impl Fn(&FieldMatch) -> Result<T, BadPattern>,
) -> Result<Box<[T]>, BadPattern> {
    fields.iter().map(compile).collect()
}

fn compile_value(
    value: &ValueMatch,
    field: impl FnOnce() -> PatternField,
) -> Result<Pattern, BadPattern> {
    match value {
        ValueMatch::Exact(text) => Ok(Pattern::Literal(text.as_str().into())),
        ValueMatch::Regex(pattern) => {
            Pattern::compile(pattern).map_err(|cause| BadPattern::new(pattern, field(), cause))
        }
    }
}

/// The first value of a query parameter, still encoded; empty for a parameter without `=`.
pub(crate) fn parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    query.split('&').find_map(|pair| {
        let (encoded, value) = pair.split_once('=').unwrap_or((pair, ""));
        percent_decoded(encoded).eq(name.bytes()).then_some(value)
    })
}

/// The text that the escapes stand for; `None` when it is not UTF-8, and then nothing matches.
pub(crate) fn decoded_text(encoded: &str) -> Option<Cow<'_, str>> {
    if !encoded.contains('%') {
        return Some(Cow::Borrowed(encoded));
    }
    String::from_utf8(percent_decoded(encoded).collect()).ok().map(Cow::Owned)
}

/// RFC 3986, section 2.1: `%` and two hexadecimal digits are one byte.
pub fn percent_decoded(encoded: &str) -> impl Iterator<Item = u8> + '_ {
    let mut rest = encoded.as_bytes();
    std::iter::from_fn(move || match *rest {
        [b'%', high, low, ref after @ ..] if hex(high).is_some() && hex(low).is_some() => {
            rest = after;
            Some(hex(high)? << 4 | hex(low)?)
        }
        [byte, ref after @ ..] => {
            rest = after;
            Some(byte)
        }
        [] => None,
    })
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|d| u8::try_from(d).ok())
}

#[cfg(test)]
mod tests;
