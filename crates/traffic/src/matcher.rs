//! Compiles and evaluates the request matches of routes and allow rules. The submodule `denial` contains the matches of
//! deny rules.

mod denial;

use leno_model::{FieldMatch, PathMatch, RepeatedHeader, RequestMatch, ValueMatch};

use crate::match_index::IndexedMatch;
use crate::pattern::{InvalidPattern, Pattern, PatternField};
use crate::query::{decoded_text, find_parameter, form_decoded, similar_parameters};
use crate::request::RequestView;
use crate::rule_index::{IndexCondition, IndexedAttribute, common_whole_elements};

pub(crate) use denial::{DenialMatcher, may_override_method};

/// A compiled [`RequestMatch`]. Matching allocates only for a percent-encoded query parameter that is compared
/// with a regular expression.
///
/// * Regular expressions must match the whole path, without its query.
/// * Prefixes match element by element; a trailing `/` is ignored.
/// * The header names `:authority` and `host` mean the authority of the request, as sent. The values of a repeated
///   header are joined by `", "`.
/// * The first value of a repeated query parameter is compared. Names and values are percent-decoded before the
///   comparison; `+` is a space, and an invalid escape is literal.
/// * For an allow rule, the name of a header or parameter must be unique in the request: no other header or parameter
///   may have a similar name, which an application could read instead. A parameter must not be repeated.
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
    /// [`InvalidPattern`] for the first invalid regular expression.
    pub fn compile(request: &RequestMatch) -> Result<Self, InvalidPattern> {
        Self::compile_for(request, FieldScope::AsSent)
    }

    /// Compiles a match that accepts only the headers and parameters of this scope.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression.
    pub(crate) fn compile_for(
        request: &RequestMatch,
        scope: FieldScope,
    ) -> Result<Self, InvalidPattern> {
        Ok(Self {
            path: PathMatcher::compile(&request.path)?,
            methods: request.methods.iter().map(|method| method.as_str().into()).collect(),
            headers: compile_fields(&request.headers, |field| {
                HeaderMatcher::compile(field, scope)
            })?,
            query: compile_fields(&request.query, |field| QueryMatcher::compile(field, scope))?,
        })
    }

    /// Compiles a match of an allow rule.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression.
    pub(crate) fn compile_allowing(request: &RequestMatch) -> Result<Self, InvalidPattern> {
        Self::compile_for(request, FieldScope::UniqueName)
    }

    /// True if all conditions hold.
    #[must_use]
    #[inline(never)]
    pub fn matches(&self, request: &RequestView<'_>) -> bool {
        self.path.matches(request.path)
            && (self.has_only_path() || self.matches_except_path_outlined(request))
    }

    /// True if the match has no condition other than the path. Inlined, because most matches have no other condition.
    #[inline]
    pub(crate) fn has_only_path(&self) -> bool {
        self.methods.is_empty() && self.headers.is_empty() && self.query.is_empty()
    }

    /// Calls [`Self::matches_except_path`]. This is a separate function so that matches of the path alone do not need
    /// its stack space.
    #[inline(never)]
    fn matches_except_path_outlined(&self, request: &RequestView<'_>) -> bool {
        self.matches_except_path(request)
    }

    /// True if all conditions other than the path condition hold.
    #[inline]
    pub(crate) fn matches_except_path(&self, request: &RequestView<'_>) -> bool {
        let has_fields = !self.headers.is_empty() || !self.query.is_empty();
        self.matches_method(request) && (!has_fields || self.matches_fields(request))
    }

    #[inline]
    fn matches_method(&self, request: &RequestView<'_>) -> bool {
        self.methods.is_empty() || self.methods.iter().any(|method| **method == *request.method)
    }

    #[inline(never)]
    fn matches_fields(&self, request: &RequestView<'_>) -> bool {
        self.headers.iter().all(|header| header.matches(request))
            && self.query.iter().all(|parameter| parameter.matches(request))
    }

    /// Returns the first condition that does not hold; `None` if the request matches.
    #[must_use]
    pub fn first_mismatch(&self, request: &RequestView<'_>) -> Option<Mismatch> {
        if !self.path.matches(request.path) {
            return Some(Mismatch::Path);
        }
        if !self.matches_method(request) {
            return Some(Mismatch::Method);
        }
        if let Some(header) = self.headers.iter().find(|header| !header.matches(request)) {
            let name = header.name.as_deref().unwrap_or(":authority");
            return Some(Mismatch::Header(name.to_owned()));
        }
        let parameter = self.query.iter().find(|parameter| !parameter.matches(request));
        parameter.map(|parameter| Mismatch::Query(parameter.name.to_string()))
    }

    /// True if the path condition holds for this path.
    pub(crate) fn matches_path(&self, path: &str) -> bool {
        self.path.matches(path)
    }

    /// True if the match has a path condition that some paths do not meet.
    #[must_use]
    pub fn constrains_path(&self) -> bool {
        match &self.path {
            PathMatcher::Any => false,
            PathMatcher::Pattern(Pattern::Prefix(literal)) => !literal.is_empty(),
            PathMatcher::Exact(_) | PathMatcher::Prefix(_) | PathMatcher::Pattern(_) => true,
        }
    }
}

impl IndexedMatch for RequestMatcher {
    /// Returns the exact texts that a matching request contains.
    fn index_conditions(&self) -> Vec<IndexCondition> {
        let path = self.path.index_condition();
        let headers = self.headers.iter().filter_map(HeaderMatcher::index_condition);
        let query = self.query.iter().filter_map(QueryMatcher::index_condition);
        let methods =
            (!self.methods.is_empty()).then(|| (IndexedAttribute::Method, self.methods.to_vec()));
        path.into_iter().chain(headers).chain(query).chain(methods).collect()
    }
}

/// The headers and parameters that a match accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldScope {
    /// All headers and parameters, as sent.
    AsSent,
    /// Headers and parameters with a unique name: the request has no other one that an application may read under this
    /// name.
    UniqueName,
    /// Headers and parameters with a unique name and, for a pattern, a single value instead of a list.
    SingleValue,
}

impl FieldScope {
    /// True if a value is accepted for a pattern.
    fn accepts_value(self, value: &str, pattern: &Pattern) -> bool {
        self != Self::SingleValue
            || matches!(pattern, Pattern::Literal(_))
            || !value.contains([',', ';'])
    }
}

/// The condition of a match that a request does not meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch {
    /// The path.
    Path,
    /// The method.
    Method,
    /// The header of this name has another value, or is absent.
    Header(String),
    /// The query parameter of this name has another value, or is absent.
    Query(String),
}

/// Returns a path prefix without its trailing `/`, which is ignored in comparisons.
pub(crate) fn prefix_elements(prefix: &str) -> &str {
    prefix.strip_suffix('/').unwrap_or(prefix)
}

/// The compiled path condition of a match.
#[derive(Debug, Clone)]
pub(crate) enum PathMatcher {
    /// Any path.
    Any,
    /// Exactly this path.
    Exact(Box<str>),
    /// A prefix of whole path elements; never empty, and without a trailing `/`.
    Prefix(Box<str>),
    /// A pattern that the whole path must match.
    Pattern(Pattern),
}

impl PathMatcher {
    pub(crate) fn compile(path: &PathMatch) -> Result<Self, InvalidPattern> {
        Ok(match path {
            PathMatch::Any => Self::Any,
            PathMatch::Exact(path) => Self::Exact(path.as_str().into()),
            PathMatch::Prefix(prefix) => match prefix_elements(prefix) {
                "" => Self::Any,
                elements => Self::Prefix(elements.into()),
            },
            PathMatch::Regex(pattern) => Pattern::compile(pattern)
                .map(Self::Pattern)
                .map_err(|cause| InvalidPattern::new(pattern, PatternField::Path, cause))?,
        })
    }

    /// Returns the condition by which an index can find the match: the path, or its leading elements. `None` if there
    /// is no such condition.
    pub(crate) fn index_condition(&self) -> Option<IndexCondition> {
        Some(match self {
            Self::Any => return None,
            Self::Exact(path) | Self::Pattern(Pattern::Literal(path)) => {
                (IndexedAttribute::Path, vec![path.clone()])
            }
            Self::Prefix(prefix) => (IndexedAttribute::PathPrefix, vec![prefix.clone()]),
            Self::Pattern(Pattern::Prefix(text) | Pattern::Regex(text, _)) => {
                (IndexedAttribute::PathPrefix, vec![common_whole_elements(text)?.into()])
            }
        })
    }

    /// True if the condition holds for a path, which has no query.
    pub(crate) fn matches(&self, path: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => **exact == *path,
            Self::Prefix(prefix) => path
                .strip_prefix(&**prefix)
                .is_some_and(|remainder| remainder.is_empty() || remainder.starts_with('/')),
            Self::Pattern(pattern) => pattern.matches(path),
        }
    }
}

/// A compiled condition on a header.
#[derive(Debug, Clone)]
struct HeaderMatcher {
    /// The name in lower case; `None` for the authority (`:authority` or `host`).
    name: Option<Box<str>>,
    /// The pattern that the value must match.
    pattern: Pattern,
    scope: FieldScope,
}

impl HeaderMatcher {
    fn compile(field: &FieldMatch, scope: FieldScope) -> Result<Self, InvalidPattern> {
        let name = field.name.to_ascii_lowercase();
        let pattern = compile_value(&field.value, || PatternField::Header(name.clone()))?;
        let name = match name.as_str() {
            ":authority" | "host" => None,
            name => Some(name.into()),
        };
        Ok(Self { name, pattern, scope })
    }

    fn index_condition(&self) -> Option<IndexCondition> {
        let Pattern::Literal(text) = &self.pattern else { return None };
        let name = self.name.clone().unwrap_or_else(|| ":authority".into());
        let attribute = IndexedAttribute::Header {
            name,
            repeated: RepeatedHeader::Joined,
            ignores_case: false,
        };
        Some((attribute, vec![text.clone()]))
    }

    fn matches(&self, request: &RequestView<'_>) -> bool {
        match &self.name {
            None => self.pattern.matches(request.authority),
            Some(name) if self.scope == FieldScope::AsSent => {
                request.fields.joined_values(name).is_some_and(|value| self.pattern.matches(&value))
            }
            Some(name) => request.fields.find_unique(name).is_some_and(|value| {
                self.pattern.matches(&value) && self.scope.accepts_value(&value, &self.pattern)
            }),
        }
    }
}

/// A compiled condition on a query parameter.
#[derive(Debug, Clone)]
struct QueryMatcher {
    name: Box<str>,
    /// The pattern that the value must match.
    pattern: Pattern,
    scope: FieldScope,
}

impl QueryMatcher {
    fn compile(field: &FieldMatch, scope: FieldScope) -> Result<Self, InvalidPattern> {
        Ok(Self {
            scope,
            name: field.name.as_str().into(),
            pattern: compile_value(&field.value, || PatternField::Query(field.name.clone()))?,
        })
    }

    fn index_condition(&self) -> Option<IndexCondition> {
        let Pattern::Literal(text) = &self.pattern else { return None };
        Some((IndexedAttribute::Query(self.name.clone()), vec![text.clone()]))
    }

    fn matches(&self, request: &RequestView<'_>) -> bool {
        let Some(value) = request.query.and_then(|query| find_parameter(query, &self.name)) else {
            return false;
        };
        let is_value_match = match &self.pattern {
            Pattern::Literal(literal) => form_decoded(value).eq(literal.bytes()),
            pattern => decoded_text(value).is_some_and(|text| {
                pattern.matches(&text) && self.scope.accepts_value(&text, pattern)
            }),
        };
        is_value_match && (self.scope == FieldScope::AsSent || self.is_unique_parameter(request))
    }

    /// True if the request has exactly one parameter that applications may read under this name.
    fn is_unique_parameter(&self, request: &RequestView<'_>) -> bool {
        similar_parameters(request.query.unwrap_or_default(), &self.name).count() == 1
    }
}

/// Compiles each condition with `compile`; returns the first error.
fn compile_fields<T>(
    fields: &[FieldMatch],
    compile: impl Fn(&FieldMatch) -> Result<T, InvalidPattern>,
) -> Result<Box<[T]>, InvalidPattern> {
    fields.iter().map(compile).collect()
}

/// Compiles the condition on a value; `field` is called for errors only.
fn compile_value(
    value: &ValueMatch,
    field: impl FnOnce() -> PatternField,
) -> Result<Pattern, InvalidPattern> {
    match value {
        ValueMatch::Exact(text) => Ok(Pattern::Literal(text.as_str().into())),
        ValueMatch::Regex(pattern) => {
            Pattern::compile(pattern).map_err(|cause| InvalidPattern::new(pattern, field(), cause))
        }
    }
}

#[cfg(test)]
mod tests;
