//! Request matching for deny rules, for every meaning that an application may give to a request.

use std::borrow::Cow;

use leno_model::{FieldMatch, PathMatch, RepeatedHeader, RequestMatch, ValueMatch};
use regex::Regex;

use super::{HeaderMatcher, PathMatcher};
use crate::match_index::IndexedMatch;
use crate::pattern::{InvalidPattern, Pattern, may_end_in_slash, may_exclude, regardless_of_case};
use crate::query::{all_parameters, folded_rule_name, may_be_named, may_be_values};
use crate::request::RequestView;
use crate::rule_index::{IndexCondition, IndexedAttribute, whole_elements};
use crate::variant::{
    Parameters, PathVariants, any_listed_value, any_value, bare_value, folded_case, folded_rule,
    host_readings, is_equal_folded,
};

/// A compiled [`RequestMatch`] of a rule that denies, limits or requires. It matches a request that any
/// application may interpret as a matching one. An allow rule may miss an alternative encoding; a deny rule
/// must not.
///
/// * Paths are compared in the normalized form of the most lenient application: fully decoded,
///   case-insensitive, with backslashes as slashes, without empty elements, element parameters, a trailing
///   slash, and blanks or dots at the end of an element. The last element is compared with and without its
///   extension. Below a file (`/admin.php/x`) rules for the file match, as do prefix rules for the path
///   without the extension (`/admin`). A path with dot segments matches every rule about paths. Alternative
///   readings are compared as well: a path that begins with two slashes also counts without its first element,
///   which URL parsers read as a host.
/// * Header names are compared without case and separators (`X_Role`). Of a repeated header or a list, each
///   value counts, and all of them joined, without case, quotes, escapes and parameters.
/// * A host counts as sent, and in lower case without port and final dot.
/// * Every value of a query parameter counts, also in a list (`role[]=`), without case.
/// * A method counts without case, and as overridden by a field (`X-HTTP-Method-Override`, `_method`). `HEAD`
///   counts as `GET`.
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
        // Errors are those of an allow rule.
        let plain = super::RequestMatcher::compile(request)?;
        let headers = request.headers.iter().zip(&plain.headers);
        let query = request.query.iter().zip(&plain.query);
        Ok(Self {
            path: DeniedPath::compile(&request.path, plain.path),
            methods: plain.methods,
            headers: headers.map(|(field, plain)| DeniedHeader::compile(field, plain)).collect(),
            query: query
                .map(|(field, plain)| DeniedParameter {
                    name: folded_rule_name(&field.name).into(),
                    value: DeniedValue::compile(&field.value, &plain.value),
                })
                .collect(),
        })
    }

    /// True if an application may interpret the request as a matching one.
    pub(crate) fn may_mean(&self, request: &RequestView<'_>, path: &PathVariants) -> bool {
        self.path.may_be(request.path, path)
            && (self.is_about_path() || self.may_mean_rest(request))
    }

    #[inline]
    fn is_about_path(&self) -> bool {
        self.methods.is_empty() && self.headers.is_empty() && self.query.is_empty()
    }

    #[inline(never)]
    fn may_mean_rest(&self, request: &RequestView<'_>) -> bool {
        let is_method = self.methods.is_empty() || self.includes_method(request.method);
        self.headers.iter().all(|header| header.may_mean(request))
            && self.query.iter().all(|parameter| parameter.may_mean(request))
            && (is_method || self.is_overridden(request))
    }

    fn includes_method(&self, method: &str) -> bool {
        let named = |it: &str| self.methods.iter().any(|known| known.eq_ignore_ascii_case(it));
        // Servers handle it like GET, without sending the content (RFC 9110 §9.3.2).
        named(method) || method.eq_ignore_ascii_case("HEAD") && named("GET")
    }

    /// True if a field of the request overrides its method with one of these.
    fn is_overridden(&self, request: &RequestView<'_>) -> bool {
        let in_header = |name: &&str| {
            let joined = request.fields.find_similar(name);
            joined.is_some_and(|joined| any_value(&joined, |value| self.includes_method(value)))
        };
        let in_query = |query| {
            let overrides = |name| METHOD_PARAMETERS.iter().any(|it| may_be_named(name, it));
            let mut named = all_parameters(query).filter(|it| overrides(it.0));
            named.any(|(_, value)| {
                may_be_values(value).any(|value| self.includes_method(bare_value(&value)))
            })
        };
        METHOD_HEADERS.iter().any(in_header) || request.query.is_some_and(in_query)
    }
}

impl IndexedMatch for DenialMatcher {
    /// Returns normalized texts of a matching request. Methods are omitted: a request may have several.
    fn demands(&self) -> Vec<IndexCondition> {
        let path = self.path.demand();
        let headers = self.headers.iter().filter_map(DeniedHeader::demand);
        let query = self.query.iter().filter_map(DeniedParameter::demand);
        path.into_iter().chain(headers).chain(query).collect()
    }
}

/// True if a header or parameter of the request may override its method.
pub(crate) fn may_override_method(request: &RequestView<'_>) -> bool {
    let overrides =
        |(name, _): (&str, &str)| METHOD_PARAMETERS.iter().any(|it| may_be_named(name, it));
    METHOD_HEADERS.iter().any(|name| request.fields.find_similar(name).is_some())
        || request.query.is_some_and(|query| all_parameters(query).any(overrides))
}

#[derive(Debug, Clone)]
enum DeniedPath {
    Any,
    /// Normalized.
    Text {
        text: Box<str>,
        below: bool,
        parameters: Parameters,
    },
    /// This prefix, normalized; a partial escape is part of no normalized text.
    Prefix {
        folded: Box<str>,
        sent: Box<str>,
        parameters: Parameters,
    },
    Regex(Box<DeniedRegex>),
}

#[derive(Debug, Clone)]
struct DeniedRegex {
    /// The normalized leading elements of all matching paths; empty if there are none.
    elements: Box<str>,
    regex: AnyCase,
    may_end_in_slash: bool,
}

impl DeniedPath {
    fn compile(path: &PathMatch, plain: PathMatcher) -> Self {
        let text = |text: &str, below: Option<bool>| {
            let parameters = parameters_of(text);
            let is_file = || is_file(&folded_rule(text, Parameters::Dropped));
            let below = below.unwrap_or_else(is_file);
            Self::Text { text: folded_rule(text, parameters).into(), below, parameters }
        };
        match (plain, path) {
            (PathMatcher::Any, _) => Self::Any,
            (PathMatcher::Exact(exact) | PathMatcher::Pattern(Pattern::Literal(exact)), _) => {
                text(&exact, None)
            }
            (PathMatcher::Prefix(prefix), _) => text(&prefix, Some(true)).unless_root(),
            (PathMatcher::Pattern(Pattern::Prefix(beginning)), _) => match &*beginning {
                "" => Self::Any,
                whole if whole.ends_with('/') => text(whole, Some(true)).unless_root(),
                part => {
                    let parameters = parameters_of(part);
                    let folded = folded_rule(part, parameters).into();
                    Self::Prefix { folded, sent: beginning, parameters }
                }
            },
            (PathMatcher::Pattern(Pattern::Regex(beginning, plain)), PathMatch::Regex(pattern)) => {
                Self::Regex(Box::new(DeniedRegex {
                    elements: folded_elements(&beginning).unwrap_or_default(),
                    regex: AnyCase::compile(pattern, &plain),
                    may_end_in_slash: may_end_in_slash(pattern),
                }))
            }
            // Only path regexes become regular expressions.
            (PathMatcher::Pattern(Pattern::Regex(..)), _) => Self::Any,
        }
    }

    /// A prefix of the root is every path.
    fn unless_root(self) -> Self {
        match self {
            Self::Text { text, .. } if *text == *"/" => Self::Any,
            path => path,
        }
    }

    #[inline]
    fn may_be(&self, sent: &str, path: &PathVariants) -> bool {
        match self {
            Self::Any => true,
            _ if path.is_ambiguous() => self.may_be_ambiguous(sent, path),
            _ => self.may_match(sent, path),
        }
    }

    /// True if an alternative reading of the path matches. Separate, so that the usual path needs no stack
    /// space for it.
    #[inline(never)]
    fn may_be_ambiguous(&self, sent: &str, path: &PathVariants) -> bool {
        let mut others = path.other_readings();
        path.is_any_path()
            || self.may_match(sent, path)
            || others.any(|(other, variant)| self.may_match(other, variant))
    }

    #[inline]
    fn may_match(&self, sent: &str, path: &PathVariants) -> bool {
        let read = |parameters| match parameters {
            Parameters::Dropped => path.normalized_path(sent),
            Parameters::Kept => path.with_parameters(sent),
        };
        match self {
            Self::Any => true,
            Self::Text { text, below, parameters } => {
                read(*parameters).strip_prefix(&**text).is_some_and(|rest| match *below {
                    true => rest.is_empty() || is_below(rest, text),
                    false => rest.is_empty() || is_format(rest, text),
                })
            }
            Self::Prefix { folded, sent: text, parameters } => {
                read(*parameters).starts_with(&**folded)
                    || path.is_odd() && sent.starts_with(&**text)
            }
            Self::Regex(regex) => regex.may_fit(sent, path),
        }
    }

    fn demand(&self) -> Option<IndexCondition> {
        let (key, text) = match self {
            Self::Any => return None,
            Self::Text { text, below, .. } => {
                let key =
                    if *below { IndexedAttribute::PathPrefix } else { IndexedAttribute::Path };
                (key, folded_rule(text, Parameters::Dropped).into())
            }
            Self::Prefix { sent, .. } => (IndexedAttribute::PathPrefix, folded_elements(sent)?),
            Self::Regex(regex) if regex.elements.is_empty() => return None,
            Self::Regex(regex) => (IndexedAttribute::PathPrefix, regex.elements.clone()),
        };
        (key == IndexedAttribute::Path || *text != *"/").then(|| (key, vec![text]))
    }
}

impl DeniedRegex {
    #[inline(never)]
    fn may_fit(&self, sent: &str, path: &PathVariants) -> bool {
        let folded = path.normalized_path(sent);
        let begins = |rest: &str| matches!(rest.as_bytes(), [] | [b'/' | b'.', ..]);
        if !self.elements.is_empty() && !folded.strip_prefix(&*self.elements).is_some_and(begins) {
            return false;
        }
        let with_slash =
            |text: &str| self.may_end_in_slash && self.regex.is_match(&format!("{text}/"));
        let fits = |text: &str| self.regex.is_match(text) || with_slash(text);
        fits(folded) || path.any_other(sent, fits)
    }
}

/// A regular expression that matches with or without case.
#[derive(Debug, Clone)]
struct AnyCase {
    folded: Regex,
    /// The case-sensitive form, if it may match other texts.
    plain: Option<Regex>,
}

impl AnyCase {
    fn compile(pattern: &str, plain: &Regex) -> Self {
        let folded = regardless_of_case(pattern).unwrap_or_else(|_| plain.clone());
        Self { folded, plain: may_exclude(pattern).then(|| plain.clone()) }
    }

    fn is_match(&self, text: &str) -> bool {
        self.folded.is_match(text) || self.plain.as_ref().is_some_and(|it| it.is_match(text))
    }
}

/// True if the rest of a path may be a response format: Rails reads it so, and older versions of Spring.
fn is_format(rest: &str, path: &str) -> bool {
    matches!(rest.as_bytes(), [b'.', format @ ..] if !format.contains(&b'/')) && path != "/"
}

/// True if the rest of a path may be below it: Apache's MultiViews and PHP without extensions also serve
/// `/admin/users` at `/admin.php/users`.
fn is_below(rest: &str, path: &str) -> bool {
    match rest.as_bytes() {
        [b'/', ..] => true,
        [b'.', ..] => path != "/",
        _ => false,
    }
}

/// True if the path is that of a file: servers pass paths below a script to the script.
fn is_file(folded: &str) -> bool {
    folded.rsplit('/').next().is_some_and(|name| name.contains('.'))
}

fn parameters_of(rule: &str) -> Parameters {
    if rule.contains(';') { Parameters::Kept } else { Parameters::Dropped }
}

/// Returns the whole leading elements of all texts with this prefix, normalized.
fn folded_elements(beginning: &str) -> Option<Box<str>> {
    let elements = folded_rule(whole_elements(beginning)?, Parameters::Dropped);
    (elements != "/").then(|| elements.into())
}

#[derive(Debug, Clone)]
struct DeniedHeader {
    /// `None` is the authority.
    name: Option<Box<str>>,
    value: DeniedValue,
}

impl DeniedHeader {
    fn compile(field: &FieldMatch, plain: &HeaderMatcher) -> Self {
        let value = DeniedValue::compile(&field.value, &plain.value);
        Self { name: plain.name.clone(), value }
    }

    fn may_mean(&self, request: &RequestView<'_>) -> bool {
        let Some(name) = &self.name else {
            return host_readings(request.authority).any(|host| self.value.may_be(&host));
        };
        let fits = |joined: Cow<'_, str>| any_value(&joined, |value| self.value.may_be(value));
        // Single values are found in any list; others are compared with the header of exactly this name as
        // well.
        let is_one = matches!(self.value, DeniedValue::Text(_));
        request.fields.find_similar(name).is_some_and(fits)
            || !is_one && request.fields.joined_values(name).is_some_and(fits)
    }

    fn demand(&self) -> Option<IndexCondition> {
        let DeniedValue::Text(text) = &self.value else { return None };
        let name = self.name.clone().unwrap_or_else(|| ":authority".into());
        let key = IndexedAttribute::Header { name, repeated: RepeatedHeader::Joined, folded: true };
        Some((key, vec![text.clone()]))
    }
}

#[derive(Debug, Clone)]
struct DeniedParameter {
    /// Normalized.
    name: Box<str>,
    value: DeniedValue,
}

impl DeniedParameter {
    fn may_mean(&self, request: &RequestView<'_>) -> bool {
        let Some(query) = request.query else { return false };
        let mut named = all_parameters(query).filter(|(name, _)| may_be_named(name, &self.name));
        named.any(|(_, value)| {
            may_be_values(value).any(|value| any_listed_value(&value, |it| self.value.may_be(it)))
        })
    }

    fn demand(&self) -> Option<IndexCondition> {
        let DeniedValue::Text(text) = &self.value else { return None };
        Some((IndexedAttribute::Query(self.name.clone()), vec![text.clone()]))
    }
}

#[derive(Debug, Clone)]
enum DeniedValue {
    /// Normalized, without a comma.
    Text(Box<str>),
    /// Several values separated by commas, normalized: they may be part of a longer list.
    List(Box<str>),
    /// This prefix, normalized.
    Prefix(Box<str>),
    Regex(AnyCase),
}

impl DeniedValue {
    fn compile(value: &ValueMatch, plain: &Pattern) -> Self {
        match (plain, value) {
            (Pattern::Literal(text), _) => {
                let text = folded_case(bare_value(text));
                if text.contains(',') {
                    Self::List(without_blanks(&text))
                } else {
                    Self::Text(text.into())
                }
            }
            (Pattern::Prefix(text), _) => Self::Prefix(folded_case(text).into()),
            (Pattern::Regex(_, plain), ValueMatch::Regex(pattern) | ValueMatch::Exact(pattern)) => {
                Self::Regex(AnyCase::compile(pattern, plain))
            }
        }
    }

    fn may_be(&self, value: &str) -> bool {
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

/// Headers that override the method of a request in common frameworks.
const METHOD_HEADERS: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];
const METHOD_PARAMETERS: [&str; 2] = ["_method", "x-http-method-override"];

#[cfg(test)]
mod tests;
