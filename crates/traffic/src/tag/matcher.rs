//! Compiles and evaluates the request and caller matches of tag rules and lanes.

use std::borrow::Cow;

use leno_model::{CallerAttributes, CallerMatch, Quorum, RepeatedHeader, TagMatch};

use super::value::NamedValueMatcher;
use crate::matcher::PathMatcher;
use crate::pattern::{InvalidPattern, PatternField};
use crate::query::{decoded_text, find_parameter};
use crate::request::{RequestView, header_value};

/// A compiled [`TagMatch`] without its stem, which [`RulesForCaller`](super::rules::RulesForCaller) checks.
///
/// As in routes, the header names `:authority` and `host` mean the authority as sent, and the first value of a repeated
/// query parameter is compared after percent-decoding. Cookies are read from the first `Cookie` header.
#[derive(Debug, Clone)]
pub(super) struct TagMatcher {
    pub(super) path: PathMatcher,
    methods: Box<[Box<str>]>,
    pub(super) headers: Box<[NamedValueMatcher]>,
    /// The number of header tests that must pass.
    pub(super) quorum: Quorum,
    /// The tested value of a repeated header.
    pub(super) repeated: RepeatedHeader,
    query: Box<[NamedValueMatcher]>,
    cookies: Box<[NamedValueMatcher]>,
}

impl TagMatcher {
    pub(super) fn compile(matches: &TagMatch) -> Result<Self, InvalidPattern> {
        Ok(Self {
            path: PathMatcher::compile(&matches.path)?,
            methods: matches.methods.iter().map(|method| method.as_str().into()).collect(),
            headers: NamedValueMatcher::compile_all(&matches.headers, PatternField::Header)?,
            quorum: matches.quorum,
            repeated: matches.repeated,
            query: NamedValueMatcher::compile_all(&matches.query, PatternField::Query)?,
            cookies: NamedValueMatcher::compile_all(&matches.cookies, PatternField::Cookie)?,
        })
    }

    /// True if all conditions other than the stem hold.
    pub(super) fn matches(&self, request: &RequestView<'_>) -> bool {
        self.path.matches(request.path)
            && (self.methods.is_empty()
                || self.methods.iter().any(|method| **method == *request.method))
            && self.headers_match(request)
            && (self.query.is_empty() && self.cookies.is_empty()
                || self.query_and_cookies_match(request))
    }

    /// True if all tests of query parameters and cookies pass. This is a separate function so that rules without these
    /// tests do not need its stack space.
    #[inline(never)]
    fn query_and_cookies_match(&self, request: &RequestView<'_>) -> bool {
        let accepts_parameter = |test: &NamedValueMatcher| {
            let encoded_value = request.query.and_then(|query| find_parameter(query, &test.name));
            test.matcher.accepts(encoded_value.and_then(decoded_text).as_deref())
        };
        let accepts_cookie = |test: &NamedValueMatcher| {
            test.matcher.accepts(cookie_value(request, &test.name).as_deref())
        };
        self.query.iter().all(accepts_parameter) && self.cookies.iter().all(accepts_cookie)
    }

    /// True if enough tests of headers pass.
    fn headers_match(&self, request: &RequestView<'_>) -> bool {
        let accepts_header = |header: &NamedValueMatcher| {
            header.matcher.accepts(header_value(request, &header.name, self.repeated).as_deref())
        };
        meets_quorum(self.quorum, &self.headers, accepts_header)
    }
}

/// True if enough tests pass.
fn meets_quorum(
    quorum: Quorum,
    tests: &[NamedValueMatcher],
    passes: impl Fn(&NamedValueMatcher) -> bool,
) -> bool {
    match quorum {
        Quorum::All => tests.iter().all(passes),
        Quorum::Any => tests.is_empty() || tests.iter().any(passes),
    }
}

/// Returns the value of a cookie in the first `Cookie` header, as sent; `None` if the cookie is absent.
pub(crate) fn cookie_value<'a>(request: &RequestView<'a>, name: &str) -> Option<Cow<'a, str>> {
    let value_range = |text: &str| -> Option<std::ops::Range<usize>> {
        let mut next_start = 0;
        text.split(';').find_map(|pair| {
            let pair_start = next_start;
            next_start += pair.len() + 1;
            let (cookie_name, value) = pair.split_once('=')?;
            let start = pair_start + cookie_name.len() + 1;
            (cookie_name.trim_ascii() == name)
                .then_some(start..start + value.trim_ascii_end().len())
        })
    };
    match request.fields.first_value("cookie")? {
        Cow::Borrowed(text) => text.get(value_range(text)?).map(Cow::Borrowed),
        Cow::Owned(text) => text.get(value_range(&text)?).map(|value| Cow::Owned(value.to_owned())),
    }
}

/// True if a rule applies to requests of this caller.
///
/// # Errors
/// [`InvalidPattern`] for the first invalid regular expression.
pub(super) fn applies_to_caller(
    caller_match: &CallerMatch,
    caller: &CallerAttributes,
) -> Result<bool, InvalidPattern> {
    if caller_match.service.as_ref().is_some_and(|service| !caller.services.contains(service)) {
        return Ok(false);
    }
    let tests = NamedValueMatcher::compile_all(&caller_match.tags, PatternField::CallerTag)?;
    let accepts_tag = |tag: &NamedValueMatcher| {
        tag.matcher.accepts(caller.tags.get(&*tag.name).map(String::as_str))
    };
    Ok(meets_quorum(caller_match.quorum, &tests, accepts_tag))
}
