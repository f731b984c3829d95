//! Matching for rules that deny: whatever the request may mean to the application counts.

use std::borrow::Cow;

use leno_model::{FieldMatch, PathMatch, Repeated, RequestMatch, ValueMatch};
use regex::Regex;

use super::{HeaderMatcher, PathMatcher};
use crate::lookup::{Demand, Key, whole_elements};
use crate::many::Demanding;
use crate::pattern::{BadPattern, Pattern, may_end_in_slash, may_exclude, regardless_of_case};
use crate::query::{all_parameters, folded_rule_name, may_be_named, may_be_values};
use crate::request::RequestView;
use crate::spelling::{
    Parameters, Spelling, any_listed_value, any_value, bare_value, folded_case, folded_rule, hosts,
    is_equal_folded,
};

/// A [`RequestMatch`] of a rule that denies, limits or demands, compiled. It fits a request that an application may take
/// for one that fits. A rule that allows can afford to be missed by an odd spelling; one that denies cannot.
///
/// * A path counts as the most forgiving application reads it: decoded until no escape is left, without regard to case,
///   with backslashes as slashes, without empty elements, parameters of elements, a last slash, and blanks or dots at the
///   end of an element. A last element counts with and without what follows a dot in it. Below a file
///   (`/admin.php/x`) a rule about the file counts, and one about all below the path without the dot (`/admin`). A path
///   that climbs fits every rule about paths. Other paths that applications may read in one count as well: one that begins with
///   two slashes counts without its first element, which parsers of URLs take for a host.
/// * The name of a header counts without regard to case and separators (`X_Role`). Of a repeated header, or a list in one,
///   each value counts, and all of them joined, without regard to case, quotes, escapes and parameters.
/// * A host counts as it was sent, and in lower case without port and final dot.
/// * Every value of a parameter of the query counts, also in a list (`role[]=`), without regard to case.
/// * A method counts without regard to case, and as the client asks for it in a field that overrides it
///   (`X-HTTP-Method-Override`, `_method`). `HEAD` counts as `GET`.
#[derive(Debug, Clone)]
pub(crate) struct DenialMatcher {
    path: MeantPath,
    methods: Box<[Box<str>]>,
    headers: Box<[MeantHeader]>,
    query: Box<[MeantParameter]>,
}

impl DenialMatcher {
    /// Compiles a match.
    ///
    /// # Errors
    /// [`BadPattern`] for the first regular expression that cannot be used.
    pub(crate) fn compile(request: &RequestMatch) -> Result<Self, BadPattern> {
        // Errors are those of a rule that allows.
        let plain = super::RequestMatcher::compile(request)?;
        let headers = request.headers.iter().zip(&plain.headers);
        let query = request.query.iter().zip(&plain.query);
        Ok(Self {
            path: MeantPath::compile(&request.path, plain.path),
            methods: plain.methods,
            headers: headers.map(|(field, plain)| MeantHeader::compile(field, plain)).collect(),
            query: query
                .map(|(field, plain)| MeantParameter {
                    name: folded_rule_name(&field.name).into(),
                    value: MeantValue::compile(&field.value, &plain.value),
                })
                .collect(),
        })
    }

    /// True when an application may take the request for one that fits.
    pub(crate) fn may_mean(&self, request: &RequestView<'_>, path: &Spelling) -> bool {
        self.path.may_be(request.path, path)
            && (self.is_about_path() || self.may_mean_rest(request))
    }

    #[inline]
    fn is_about_path(&self) -> bool {
        self.methods.is_empty() && self.headers.is_empty() && self.query.is_empty()
    }

    #[inline(never)]
    fn may_mean_rest(&self, request: &RequestView<'_>) -> bool {
        let is_method = self.methods.is_empty() || self.names(request.method);
        self.headers.iter().all(|header| header.may_mean(request))
            && self.query.iter().all(|parameter| parameter.may_mean(request))
            && (is_method || self.is_overridden(request))
    }

    fn names(&self, method: &str) -> bool {
        let named = |it: &str| self.methods.iter().any(|known| known.eq_ignore_ascii_case(it));
        // Servers answer it as they answer GET, and leave the body out (RFC 9110 §9.3.2).
        named(method) || method.eq_ignore_ascii_case("HEAD") && named("GET")
    }

    /// True when a field of the request overrides its method by one of these.
    fn is_overridden(&self, request: &RequestView<'_>) -> bool {
        let in_header = |name: &&str| {
            let joined = request.fields.find_similar(name);
            joined.is_some_and(|joined| any_value(&joined, |value| self.names(value)))
        };
        let in_query = |query| {
            let overrides = |name| METHOD_PARAMETERS.iter().any(|it| may_be_named(name, it));
            let mut named = all_parameters(query).filter(|it| overrides(it.0));
            named.any(|(_, value)| may_be_values(value).any(|value| self.names(bare_value(&value))))
        };
        METHOD_HEADERS.iter().any(in_header) || request.query.is_some_and(in_query)
    }
}

impl Demanding for DenialMatcher {
    /// Folded texts of a request. Methods are left out: a request may mean several.
    fn demands(&self) -> Vec<Demand> {
        let path = self.path.demand();
        let headers = self.headers.iter().filter_map(MeantHeader::demand);
        let query = self.query.iter().filter_map(MeantParameter::demand);
        path.into_iter().chain(headers).chain(query).collect()
    }
}

#[derive(Debug, Clone)]
enum MeantPath {
    Any,
    /// Folded.
    Text {
        text: Box<str>,
        below: bool,
        parameters: Parameters,
    },
    /// This beginning, folded; a part of an escape is in none that is folded.
    Begins {
        folded: Box<str>,
        sent: Box<str>,
        parameters: Parameters,
    },
    Regex(Box<MeantRegex>),
}

#[derive(Debug, Clone)]
struct MeantRegex {
    /// The elements that all paths begin with that fit it, folded; empty when there are none.
    elements: Box<str>,
    regex: AnyCase,
    may_end_in_slash: bool,
}

impl MeantPath {
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
            (PathMatcher::Pattern(Pattern::Beginning(beginning)), _) => match &*beginning {
                "" => Self::Any,
                whole if whole.ends_with('/') => text(whole, Some(true)).unless_root(),
                part => {
                    let parameters = parameters_of(part);
                    let folded = folded_rule(part, parameters).into();
                    Self::Begins { folded, sent: beginning, parameters }
                }
            },
            (PathMatcher::Pattern(Pattern::Regex(beginning, plain)), PathMatch::Regex(pattern)) => {
                Self::Regex(Box::new(MeantRegex {
                    elements: folded_elements(&beginning).unwrap_or_default(),
                    regex: AnyCase::compile(pattern, &plain),
                    may_end_in_slash: may_end_in_slash(pattern),
                }))
            }
            // Nothing else becomes an expression.
            (PathMatcher::Pattern(Pattern::Regex(..)), _) => Self::Any,
        }
    }

    /// All that is below the root is everything.
    fn unless_root(self) -> Self {
        match self {
            Self::Text { text, .. } if *text == *"/" => Self::Any,
            path => path,
        }
    }

    #[inline]
    fn may_be(&self, sent: &str, path: &Spelling) -> bool {
        match self {
            Self::Any => true,
            _ if path.is_ambiguous() => self.may_be_ambiguous(sent, path),
            _ => self.fits(sent, path),
        }
    }

    /// The same for a path in which applications may read others. Apart, so that the usual path needs no room for it.
    #[inline(never)]
    fn may_be_ambiguous(&self, sent: &str, path: &Spelling) -> bool {
        let mut others = path.others();
        path.climbs()
            || self.fits(sent, path)
            || others.any(|(other, spelling)| self.fits(other, spelling))
    }

    #[inline]
    fn fits(&self, sent: &str, path: &Spelling) -> bool {
        let read = |parameters| match parameters {
            Parameters::Dropped => path.folded(sent),
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
            Self::Begins { folded, sent: text, parameters } => {
                read(*parameters).starts_with(&**folded)
                    || path.is_odd() && sent.starts_with(&**text)
            }
            Self::Regex(regex) => regex.may_fit(sent, path),
        }
    }

    fn demand(&self) -> Option<Demand> {
        let (key, text) = match self {
            Self::Any => return None,
            Self::Text { text, below, .. } => {
                let key = if *below { Key::Beginning } else { Key::Path };
                (key, folded_rule(text, Parameters::Dropped).into())
            }
            Self::Begins { sent, .. } => (Key::Beginning, folded_elements(sent)?),
            Self::Regex(regex) if regex.elements.is_empty() => return None,
            Self::Regex(regex) => (Key::Beginning, regex.elements.clone()),
        };
        (key == Key::Path || *text != *"/").then(|| (key, vec![text]))
    }
}

impl MeantRegex {
    #[inline(never)]
    fn may_fit(&self, sent: &str, path: &Spelling) -> bool {
        let folded = path.folded(sent);
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

/// A regular expression that fits with regard to case or without.
#[derive(Debug, Clone)]
struct AnyCase {
    folded: Regex,
    /// The same with regard to case, where that may fit something else.
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

/// True for the rest of a path that may be the format of the answer: Rails takes it so, and Spring did.
fn is_format(rest: &str, path: &str) -> bool {
    matches!(rest.as_bytes(), [b'.', format @ ..] if !format.contains(&b'/')) && path != "/"
}

/// True for the rest of a path that may be below a path: Apache's MultiViews and PHP without extensions serve
/// `/admin/users` at `/admin.php/users`, too.
fn is_below(rest: &str, path: &str) -> bool {
    match rest.as_bytes() {
        [b'/', ..] => true,
        [b'.', ..] => path != "/",
        _ => false,
    }
}

/// True for the path of a file: servers pass everything below a script to the script.
fn is_file(folded: &str) -> bool {
    folded.rsplit('/').next().is_some_and(|name| name.contains('.'))
}

fn parameters_of(rule: &str) -> Parameters {
    if rule.contains(';') { Parameters::Kept } else { Parameters::Dropped }
}

/// The whole elements that everything begins with that begins with a text, folded.
fn folded_elements(beginning: &str) -> Option<Box<str>> {
    let elements = folded_rule(whole_elements(beginning)?, Parameters::Dropped);
    (elements != "/").then(|| elements.into())
}

#[derive(Debug, Clone)]
struct MeantHeader {
    /// `None` is the authority.
    name: Option<Box<str>>,
    value: MeantValue,
}

impl MeantHeader {
    fn compile(field: &FieldMatch, plain: &HeaderMatcher) -> Self {
        let value = MeantValue::compile(&field.value, &plain.value);
        Self { name: plain.name.clone(), value }
    }

    fn may_mean(&self, request: &RequestView<'_>) -> bool {
        let Some(name) = &self.name else {
            return hosts(request.authority).any(|host| self.value.may_be(&host));
        };
        let fits = |joined: Cow<'_, str>| any_value(&joined, |value| self.value.may_be(value));
        // One value is found in any list; others are compared with what has exactly this name, too.
        let is_one = matches!(self.value, MeantValue::Text(_));
        request.fields.find_similar(name).is_some_and(fits)
            || !is_one && request.fields.find(name).is_some_and(fits)
    }

    fn demand(&self) -> Option<Demand> {
        let MeantValue::Text(text) = &self.value else { return None };
        let name = self.name.clone().unwrap_or_else(|| ":authority".into());
        let key = Key::Header { name, repeated: Repeated::Joined, folded: true };
        Some((key, vec![text.clone()]))
    }
}

#[derive(Debug, Clone)]
struct MeantParameter {
    /// Folded.
    name: Box<str>,
    value: MeantValue,
}

impl MeantParameter {
    fn may_mean(&self, request: &RequestView<'_>) -> bool {
        let Some(query) = request.query else { return false };
        let mut named = all_parameters(query).filter(|(name, _)| may_be_named(name, &self.name));
        named.any(|(_, value)| {
            may_be_values(value).any(|value| any_listed_value(&value, |it| self.value.may_be(it)))
        })
    }

    fn demand(&self) -> Option<Demand> {
        let MeantValue::Text(text) = &self.value else { return None };
        Some((Key::Query(self.name.clone()), vec![text.clone()]))
    }
}

#[derive(Debug, Clone)]
enum MeantValue {
    /// Folded, without a comma.
    Text(Box<str>),
    /// Several values with commas between, folded: they may stand in a longer list.
    List(Box<str>),
    /// This beginning, folded.
    Begins(Box<str>),
    Regex(AnyCase),
}

impl MeantValue {
    fn compile(value: &ValueMatch, plain: &Pattern) -> Self {
        match (plain, value) {
            (Pattern::Literal(text), _) => {
                let text = folded_case(bare_value(text));
                if text.contains(',') { Self::List(listed(&text)) } else { Self::Text(text.into()) }
            }
            (Pattern::Beginning(text), _) => Self::Begins(folded_case(text).into()),
            (Pattern::Regex(_, plain), ValueMatch::Regex(pattern) | ValueMatch::Exact(pattern)) => {
                Self::Regex(AnyCase::compile(pattern, plain))
            }
        }
    }

    fn may_be(&self, value: &str) -> bool {
        match self {
            Self::Text(text) => is_equal_folded(value, text),
            Self::List(text) => listed(&folded_case(value)).contains(&**text),
            Self::Begins(text) => folded_case(value).starts_with(&**text),
            Self::Regex(regex) => regex.is_match(value),
        }
    }
}

/// A list without blanks after commas.
fn listed(values: &str) -> Box<str> {
    values.split(',').map(str::trim).collect::<Vec<_>>().join(",").into()
}

/// Headers that override the method of a request in common frameworks.
const METHOD_HEADERS: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];
const METHOD_PARAMETERS: [&str; 2] = ["_method", "x-http-method-override"];

#[cfg(test)]
mod tests;
