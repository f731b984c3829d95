//! Compiles and evaluates the request matches of rules that deny requests, limit them or require a check of them. The
//! matches cover every interpretation of a request by an application, so that no alternative encoding bypasses a rule.

use std::borrow::Cow;

use leno_model::{FieldMatch, PathMatch, RepeatedHeader, RequestMatch, ValueMatch};
use regex::Regex;

use super::{HeaderMatcher, PathMatcher};
use crate::match_index::IndexedMatch;
use crate::pattern::{
    InvalidPattern, Pattern, compile_case_insensitive, may_end_in_slash, may_exclude_letters,
};
use crate::query::{all_parameters, may_be_named, normalize_rule_parameter, possible_values};
use crate::request::RequestView;
use crate::rule_index::{IndexCondition, IndexedAttribute, common_whole_elements};
use crate::variant::{
    Parameters, PathVariants, any_listed_value, any_value, bare_value, folded_case, host_readings,
    is_equal_folded, normalize_rule_path,
};

/// A compiled [`RequestMatch`] of a rule that denies requests, limits them or requires a check of them. It matches a
/// request if any application may interpret the request as a matching one. An allow rule may miss an alternative
/// encoding, because the request is then denied; a deny rule must not.
///
/// * Paths are compared in the normalized form of the most lenient application: fully decoded,
///   case-insensitive, with backslashes as slashes, without empty elements, element parameters, a trailing
///   slash, and blanks or dots at the end of an element. The last element is compared with and without its
///   extension. A path below a file (`/admin.php/x`) matches rules for the file, and prefix rules for the path without
///   the extension (`/admin`). A path with dot segments matches every rule with a path condition. A path that begins
///   with two slashes is also compared without its first element, which URL parsers read as a host.
/// * Header names are compared without case and separators (`X_Role`). Each value of a repeated header or a list is
///   compared, as well as all values joined, without case, quotes, escapes and parameters.
/// * A host is compared as sent, and in lower case without port and final dot.
/// * Every value of a query parameter is compared without case, also those of a list (`role[]=`).
/// * A method is compared without case, as sent and as overridden by a field (`X-HTTP-Method-Override`, `_method`).
///   `HEAD` matches rules for `GET`.
#[derive(Debug, Clone)]
pub(crate) struct DenialMatcher {
    path: DeniedPath,
    methods: Box<[Box<str>]>,
    headers: Box<[DeniedHeader]>,
    query: Box<[DeniedParameter]>,
}

impl DenialMatcher {
    /// Compiles a match.
    ///
    /// # Errors
    /// [`InvalidPattern`] for the first invalid regular expression.
    pub(crate) fn compile(request: &RequestMatch) -> Result<Self, InvalidPattern> {
        // Invalid patterns cause the same errors as in an allow rule.
        let compiled = super::RequestMatcher::compile(request)?;
        let headers = request.headers.iter().zip(&compiled.headers);
        let query = request.query.iter().zip(&compiled.query);
        Ok(Self {
            path: DeniedPath::compile(&request.path, compiled.path),
            methods: compiled.methods,
            headers: headers.map(|(field, header)| DeniedHeader::compile(field, header)).collect(),
            query: query
                .map(|(field, parameter)| DeniedParameter {
                    name: normalize_rule_parameter(&field.name).into(),
                    value: DeniedValue::compile(&field.value, &parameter.pattern),
                })
                .collect(),
        })
    }

    /// True if an application may interpret the request as a matching one. `path` contains the variants of the
    /// request's path.
    pub(crate) fn may_match(&self, request: &RequestView<'_>, path: &PathVariants) -> bool {
        self.path.may_match(request.path, path)
            && (self.has_only_path() || self.may_match_except_path(request))
    }

    #[inline]
    fn has_only_path(&self) -> bool {
        self.methods.is_empty() && self.headers.is_empty() && self.query.is_empty()
    }

    /// True if all conditions other than the path condition may hold. This is a separate function so that matches of
    /// the path alone do not need its stack space.
    #[inline(never)]
    fn may_match_except_path(&self, request: &RequestView<'_>) -> bool {
        let is_listed_method = self.methods.is_empty() || self.includes_method(request.method);
        self.headers.iter().all(|header| header.may_match(request))
            && self.query.iter().all(|parameter| parameter.may_match(request))
            && (is_listed_method || self.is_overridden(request))
    }

    /// True if a method is one of the match's methods.
    fn includes_method(&self, method: &str) -> bool {
        let is_listed = |name: &str| {
            self.methods.iter().any(|listed_method| listed_method.eq_ignore_ascii_case(name))
        };
        // Servers handle HEAD like GET, without sending the content (RFC 9110 §9.3.2).
        is_listed(method) || method.eq_ignore_ascii_case("HEAD") && is_listed("GET")
    }

    /// True if a header or parameter of the request overrides the method with one of the match's methods.
    fn is_overridden(&self, request: &RequestView<'_>) -> bool {
        let overrides_in_header = |name: &&str| {
            let joined = request.fields.find_similar(name);
            joined.is_some_and(|joined| any_value(&joined, |value| self.includes_method(value)))
        };
        let overrides_in_query = |query| {
            let overrides = |name| {
                METHOD_PARAMETERS.iter().any(|parameter_name| may_be_named(name, parameter_name))
            };
            let mut named_parameters =
                all_parameters(query).filter(|parameter| overrides(parameter.0));
            named_parameters.any(|(_, value)| {
                possible_values(value).any(|value| self.includes_method(bare_value(&value)))
            })
        };
        METHOD_HEADERS.iter().any(overrides_in_header)
            || request.query.is_some_and(overrides_in_query)
    }
}

impl IndexedMatch for DenialMatcher {
    /// Returns the normalized texts that a matching request contains. Methods are omitted, because they may be
    /// overridden.
    fn index_conditions(&self) -> Vec<IndexCondition> {
        let path = self.path.index_condition();
        let headers = self.headers.iter().filter_map(DeniedHeader::index_condition);
        let query = self.query.iter().filter_map(DeniedParameter::index_condition);
        path.into_iter().chain(headers).chain(query).collect()
    }
}

/// True if a header or parameter of the request may override its method.
pub(crate) fn may_override_method(request: &RequestView<'_>) -> bool {
    let overrides = |(name, _): (&str, &str)| {
        METHOD_PARAMETERS.iter().any(|parameter_name| may_be_named(name, parameter_name))
    };
    METHOD_HEADERS.iter().any(|name| request.fields.find_similar(name).is_some())
        || request.query.is_some_and(|query| all_parameters(query).any(overrides))
}

/// The path condition of a [`DenialMatcher`].
#[derive(Debug, Clone)]
enum DeniedPath {
    /// Any path.
    Any,
    /// A whole path.
    Text {
        /// The normalized path.
        text: Box<str>,
        /// True if the paths below the path match as well.
        matches_below: bool,
        /// The handling of element parameters of the request's path.
        parameters: Parameters,
    },
    /// A prefix that may end within an element. It is compared in normalized form and as sent, because a prefix that
    /// ends within an escape is not part of any normalized path.
    Prefix {
        normalized: Box<str>,
        sent: Box<str>,
        parameters: Parameters,
    },
    Regex(Box<DeniedRegex>),
}

/// The regular expression of a path condition.
#[derive(Debug, Clone)]
struct DeniedRegex {
    /// The normalized leading elements of all matching paths; empty if there are none.
    leading_elements: Box<str>,
    regex: CaseTolerantRegex,
    /// True if a path with a trailing slash may match.
    may_end_in_slash: bool,
}

impl DeniedPath {
    fn compile(path: &PathMatch, compiled: PathMatcher) -> Self {
        let text_condition = |text: &str, matches_below: Option<bool>| {
            let parameters = parameter_handling(text);
            let is_file = || is_file(&normalize_rule_path(text, Parameters::Dropped));
            let matches_below = matches_below.unwrap_or_else(is_file);
            Self::Text {
                text: normalize_rule_path(text, parameters).into(),
                matches_below,
                parameters,
            }
        };
        match (compiled, path) {
            (PathMatcher::Any, _) => Self::Any,
            (PathMatcher::Exact(exact) | PathMatcher::Pattern(Pattern::Literal(exact)), _) => {
                text_condition(&exact, None)
            }
            (PathMatcher::Prefix(prefix), _) => text_condition(&prefix, Some(true)).unless_root(),
            (PathMatcher::Pattern(Pattern::Prefix(prefix)), _) => match &*prefix {
                "" => Self::Any,
                element_prefix if element_prefix.ends_with('/') => {
                    text_condition(element_prefix, Some(true)).unless_root()
                }
                partial_prefix => {
                    let parameters = parameter_handling(partial_prefix);
                    let normalized = normalize_rule_path(partial_prefix, parameters).into();
                    Self::Prefix { normalized, sent: prefix, parameters }
                }
            },
            (PathMatcher::Pattern(Pattern::Regex(prefix, regex)), PathMatch::Regex(pattern)) => {
                Self::Regex(Box::new(DeniedRegex {
                    leading_elements: normalized_elements(&prefix).unwrap_or_default(),
                    regex: CaseTolerantRegex::compile(pattern, &regex),
                    may_end_in_slash: may_end_in_slash(pattern),
                }))
            }
            // Only path regexes become regular expressions.
            (PathMatcher::Pattern(Pattern::Regex(..)), _) => Self::Any,
        }
    }

    /// Returns `Any` for the root, which is a prefix of every path, and otherwise the unchanged condition.
    fn unless_root(self) -> Self {
        match self {
            Self::Text { text, .. } if *text == *"/" => Self::Any,
            path => path,
        }
    }

    #[inline]
    fn may_match(&self, sent: &str, path: &PathVariants) -> bool {
        match self {
            Self::Any => true,
            _ if path.is_ambiguous() => self.may_match_ambiguous(sent, path),
            _ => self.may_match_reading(sent, path),
        }
    }

    /// True if a reading of an ambiguous path matches. This is a separate function so that usual paths do not need its
    /// stack space.
    #[inline(never)]
    fn may_match_ambiguous(&self, sent: &str, path: &PathVariants) -> bool {
        let mut readings = path.alternative_readings();
        path.is_any_path()
            || self.may_match_reading(sent, path)
            || readings.any(|(reading, variants)| self.may_match_reading(reading, variants))
    }

    /// True if one reading of a path matches, in one of its variants.
    #[inline]
    fn may_match_reading(&self, sent: &str, path: &PathVariants) -> bool {
        let form_for = |parameters| match parameters {
            Parameters::Dropped => path.normalized_path(sent),
            Parameters::Kept => path.path_with_parameters(sent),
        };
        match self {
            Self::Any => true,
            Self::Text { text, matches_below, parameters } => form_for(*parameters)
                .strip_prefix(&**text)
                .is_some_and(|remainder| match *matches_below {
                    true => remainder.is_empty() || is_below(remainder, text),
                    false => remainder.is_empty() || is_format(remainder, text),
                }),
            Self::Prefix { normalized, sent: sent_prefix, parameters } => {
                form_for(*parameters).starts_with(&**normalized)
                    || path.is_unusual() && sent.starts_with(&**sent_prefix)
            }
            Self::Regex(regex) => regex.may_match(sent, path),
        }
    }

    fn index_condition(&self) -> Option<IndexCondition> {
        let (attribute, text) = match self {
            Self::Any => return None,
            Self::Text { text, matches_below, .. } => {
                let attribute = if *matches_below {
                    IndexedAttribute::PathPrefix
                } else {
                    IndexedAttribute::Path
                };
                (attribute, normalize_rule_path(text, Parameters::Dropped).into())
            }
            Self::Prefix { sent, .. } => (IndexedAttribute::PathPrefix, normalized_elements(sent)?),
            Self::Regex(regex) if regex.leading_elements.is_empty() => return None,
            Self::Regex(regex) => (IndexedAttribute::PathPrefix, regex.leading_elements.clone()),
        };
        (attribute == IndexedAttribute::Path || *text != *"/").then(|| (attribute, vec![text]))
    }
}

impl DeniedRegex {
    #[inline(never)]
    fn may_match(&self, sent: &str, path: &PathVariants) -> bool {
        let normalized = path.normalized_path(sent);
        let is_boundary = |remainder: &str| matches!(remainder.as_bytes(), [] | [b'/' | b'.', ..]);
        if !self.leading_elements.is_empty()
            && !normalized.strip_prefix(&*self.leading_elements).is_some_and(is_boundary)
        {
            return false;
        }
        let with_slash =
            |text: &str| self.may_end_in_slash && self.regex.is_match(&format!("{text}/"));
        let is_match = |text: &str| self.regex.is_match(text) || with_slash(text);
        is_match(normalized) || path.matches_other_form(sent, is_match)
    }
}

/// A regular expression that is compared case-insensitively, and also case-sensitively if that may match more texts.
#[derive(Debug, Clone)]
struct CaseTolerantRegex {
    /// The case-insensitive form.
    case_insensitive: Regex,
    /// The case-sensitive form, if it may match texts that the other form does not.
    case_sensitive: Option<Regex>,
}

impl CaseTolerantRegex {
    /// Compiles the case-insensitive form of a pattern. `case_sensitive_regex` is the compiled pattern itself.
    fn compile(pattern: &str, case_sensitive_regex: &Regex) -> Self {
        // An error is impossible: `compile_case_insensitive` falls back to the case-sensitive form, which compiled.
        let case_insensitive =
            compile_case_insensitive(pattern).unwrap_or_else(|_| case_sensitive_regex.clone());
        let case_sensitive = may_exclude_letters(pattern).then(|| case_sensitive_regex.clone());
        Self { case_insensitive, case_sensitive }
    }

    fn is_match(&self, text: &str) -> bool {
        self.case_insensitive.is_match(text)
            || self.case_sensitive.as_ref().is_some_and(|regex| regex.is_match(text))
    }
}

/// True if the remainder of a path after `path` may be a response format (`.json`), which Rails and older versions of
/// Spring accept.
fn is_format(remainder: &str, path: &str) -> bool {
    matches!(remainder.as_bytes(), [b'.', format @ ..] if !format.contains(&b'/')) && path != "/"
}

/// True if the remainder of a path after `path` may be below it. Apache's MultiViews and PHP without extensions also
/// serve `/admin/users` at `/admin.php/users`.
fn is_below(remainder: &str, path: &str) -> bool {
    match remainder.as_bytes() {
        [b'/', ..] => true,
        [b'.', ..] => path != "/",
        _ => false,
    }
}

/// True if the path is that of a file. Servers pass requests for paths below a script to the script.
fn is_file(normalized: &str) -> bool {
    normalized.rsplit('/').next().is_some_and(|name| name.contains('.'))
}

/// Returns the handling of element parameters in comparisons with a rule's path: kept if this path has parameters.
fn parameter_handling(rule_path: &str) -> Parameters {
    if rule_path.contains(';') { Parameters::Kept } else { Parameters::Dropped }
}

/// Returns the normalized whole elements that all texts with this prefix begin with; `None` if there are none.
fn normalized_elements(prefix: &str) -> Option<Box<str>> {
    let elements = normalize_rule_path(common_whole_elements(prefix)?, Parameters::Dropped);
    (elements != "/").then(|| elements.into())
}

/// The condition of a [`DenialMatcher`] on a header.
#[derive(Debug, Clone)]
struct DeniedHeader {
    /// The name in lower case; `None` for the authority.
    name: Option<Box<str>>,
    value: DeniedValue,
}

impl DeniedHeader {
    fn compile(field: &FieldMatch, compiled: &HeaderMatcher) -> Self {
        let value = DeniedValue::compile(&field.value, &compiled.pattern);
        Self { name: compiled.name.clone(), value }
    }

    fn may_match(&self, request: &RequestView<'_>) -> bool {
        let Some(name) = &self.name else {
            return host_readings(request.authority).any(|host| self.value.may_match_value(&host));
        };
        let may_match =
            |joined: Cow<'_, str>| any_value(&joined, |value| self.value.may_match_value(value));
        // The joined values of all similar names contain each single value. Conditions on several values are also
        // compared with the header of exactly this name.
        let is_single = matches!(self.value, DeniedValue::Text(_));
        request.fields.find_similar(name).is_some_and(may_match)
            || !is_single && request.fields.joined_values(name).is_some_and(may_match)
    }

    fn index_condition(&self) -> Option<IndexCondition> {
        let DeniedValue::Text(text) = &self.value else { return None };
        let name = self.name.clone().unwrap_or_else(|| ":authority".into());
        let attribute =
            IndexedAttribute::Header { name, repeated: RepeatedHeader::Joined, ignores_case: true };
        Some((attribute, vec![text.clone()]))
    }
}

/// The condition of a [`DenialMatcher`] on a query parameter.
#[derive(Debug, Clone)]
struct DeniedParameter {
    /// The normalized name.
    name: Box<str>,
    value: DeniedValue,
}

impl DeniedParameter {
    fn may_match(&self, request: &RequestView<'_>) -> bool {
        let Some(query) = request.query else { return false };
        let mut named_parameters =
            all_parameters(query).filter(|(name, _)| may_be_named(name, &self.name));
        named_parameters.any(|(_, value)| {
            possible_values(value)
                .any(|value| any_listed_value(&value, |value| self.value.may_match_value(value)))
        })
    }

    fn index_condition(&self) -> Option<IndexCondition> {
        let DeniedValue::Text(text) = &self.value else { return None };
        Some((IndexedAttribute::Query(self.name.clone()), vec![text.clone()]))
    }
}

/// The condition of a [`DenialMatcher`] on a value.
#[derive(Debug, Clone)]
enum DeniedValue {
    /// A single normalized value, without a comma.
    Text(Box<str>),
    /// Several normalized values, separated by commas, which may be part of a longer list.
    List(Box<str>),
    /// A normalized prefix.
    Prefix(Box<str>),
    Regex(CaseTolerantRegex),
}

impl DeniedValue {
    fn compile(value: &ValueMatch, compiled: &Pattern) -> Self {
        match (compiled, value) {
            (Pattern::Literal(text), _) => {
                let text = folded_case(bare_value(text));
                if text.contains(',') {
                    Self::List(without_blanks(&text))
                } else {
                    Self::Text(text.into())
                }
            }
            (Pattern::Prefix(text), _) => Self::Prefix(folded_case(text).into()),
            (Pattern::Regex(_, regex), ValueMatch::Regex(pattern) | ValueMatch::Exact(pattern)) => {
                Self::Regex(CaseTolerantRegex::compile(pattern, regex))
            }
        }
    }

    fn may_match_value(&self, value: &str) -> bool {
        match self {
            Self::Text(text) => is_equal_folded(value, text),
            Self::List(text) => without_blanks(&folded_case(value)).contains(&**text),
            Self::Prefix(text) => folded_case(value).starts_with(&**text),
            Self::Regex(regex) => regex.is_match(value),
        }
    }
}

/// Returns a list without blanks after commas.
fn without_blanks(values: &str) -> Box<str> {
    values.split(',').map(str::trim).collect::<Vec<_>>().join(",").into()
}

/// The headers that override the method of a request in common frameworks, such as Rails and Express.
const METHOD_HEADERS: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];
/// The query parameters that override the method of a request in common frameworks. Rails and Symfony use `_method`.
const METHOD_PARAMETERS: [&str; 2] = ["_method", "x-http-method-override"];

#[cfg(test)]
mod tests;
