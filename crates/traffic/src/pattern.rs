//! Patterns: anchored regular expressions of bounded size, with fast paths for literals and prefixes. All rules with
//! regular expressions use them.

use leno_model::ObjectKey;
use regex::{Regex, RegexBuilder};
use regex_syntax::hir::{Class, Hir, HirKind};

/// A compiled pattern. Literals and prefixes need no regular expression.
#[derive(Debug, Clone)]
pub(crate) enum Pattern {
    /// Exactly this value.
    Literal(Box<str>),
    /// A prefix followed by any text: the regular expression `literal.*`.
    Prefix(Box<str>),
    /// The literal prefix of all matches, and an anchored regular expression. The prefix rejects most values without
    /// an evaluation of the expression.
    Regex(Box<str>, Regex),
}

impl Pattern {
    /// Compiles a regular expression that must match the whole value.
    pub(crate) fn compile(pattern: &str) -> Result<Self, regex::Error> {
        let (literal, has_wildcard_end) = match pattern.strip_suffix(".*") {
            Some(literal) => (literal, true),
            None => (pattern, false),
        };
        if !literal.contains(METACHARACTERS) {
            return Ok(match has_wildcard_end {
                true => Self::Prefix(literal.into()),
                false => Self::Literal(literal.into()),
            });
        }
        // The pattern is first compiled without the anchoring group, in which invalid patterns such as `a)|(b` would
        // be valid.
        build_regex(pattern)?;
        let regex = build_regex(&format!("^(?:{pattern})$"))?;
        Ok(Self::Regex(literal_prefix(pattern).unwrap_or_default(), regex))
    }

    /// True if the whole value matches.
    pub(crate) fn matches(&self, value: &str) -> bool {
        match self {
            Self::Literal(literal) => value == &**literal,
            // `.` matches any character except a line feed.
            Self::Prefix(literal) => {
                value.strip_prefix(&**literal).is_some_and(|remainder| !remainder.contains('\n'))
            }
            Self::Regex(prefix, regex) => value.starts_with(&**prefix) && regex.is_match(value),
        }
    }
}

/// Returns the literal prefix of all matches of a pattern; `None` if there is none.
fn literal_prefix(pattern: &str) -> Option<Box<str>> {
    let parsed = regex_syntax::parse(pattern).ok()?;
    let first_part = match parsed.kind() {
        HirKind::Concat(parts) => parts.first()?,
        _ => &parsed,
    };
    match first_part.kind() {
        HirKind::Literal(literal) => std::str::from_utf8(&literal.0).ok().map(Box::from),
        _ => None,
    }
}

/// Compiles a case-insensitive, anchored regular expression. If its size exceeds the limit, the smaller case-sensitive
/// expression is returned.
pub(crate) fn compile_case_insensitive(pattern: &str) -> Result<Regex, regex::Error> {
    let anchored = format!("^(?:{pattern})$");
    let mut builder = RegexBuilder::new(&anchored);
    let builder = builder.case_insensitive(true).dfa_size_limit(MAX_REGEX_CACHE_BYTES);
    builder.size_limit(MAX_CASE_INSENSITIVE_BYTES).build().or_else(|_| build_regex(&anchored))
}

/// True if a pattern may exclude letters, as `[^a]` does. Its case-insensitive form then matches fewer texts: it
/// excludes `A` as well.
pub(crate) fn may_exclude_letters(pattern: &str) -> bool {
    // Negated classes and properties; subtraction, intersection and symmetric difference of classes; disabled flags.
    ["[^", ":^", "!=", "--", "&&", "~~", r"\P", "(?-"].iter().any(|part| pattern.contains(part))
}

/// True if a text with a trailing slash may match a pattern.
pub(crate) fn may_end_in_slash(pattern: &str) -> bool {
    regex_syntax::parse(pattern).map_or(true, |parsed| may_match_end_in_slash(&parsed))
}

/// True if a text that matches this subexpression may end in a slash, or if this is unknown.
fn may_match_end_in_slash(subexpression: &Hir) -> bool {
    match subexpression.kind() {
        HirKind::Literal(literal) => literal.0.last() == Some(&b'/'),
        HirKind::Class(Class::Unicode(class)) => {
            class.iter().any(|range| (range.start()..=range.end()).contains(&'/'))
        }
        HirKind::Capture(capture) => may_match_end_in_slash(&capture.sub),
        HirKind::Repetition(repetition) => {
            repetition.min == 0 || may_match_end_in_slash(&repetition.sub)
        }
        HirKind::Alternation(parts) => parts.iter().any(may_match_end_in_slash),
        HirKind::Concat(parts) => parts.last().is_none_or(may_match_end_in_slash),
        // Unknown: an empty match ends in the preceding subexpression, which is not checked, and neither are classes of
        // bytes.
        HirKind::Class(Class::Bytes(_)) | HirKind::Empty | HirKind::Look(_) => true,
    }
}

/// Checks a regular expression with the limits that apply in a rule. Configuration readers call it to report the
/// position of an error.
///
/// # Errors
/// [`InvalidPattern`] if the expression is invalid, or too large when compiled.
pub fn check_pattern(pattern: &str) -> Result<(), InvalidPattern> {
    match Pattern::compile(pattern) {
        Ok(_) => Ok(()),
        Err(cause) => Err(InvalidPattern::new(pattern, PatternField::Unknown, cause)),
    }
}

/// An invalid regular expression of a rule.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "{}the regular expression `{pattern}`{field} cannot be used: write it in RE2 syntax, without \
     look-around or back-references, and without large counted repetitions", object_prefix(.object)
)]
pub struct InvalidPattern {
    /// The expression, truncated to 200 characters.
    pub pattern: String,
    /// The attribute that the expression applies to.
    pub field: PatternField,
    /// The object that contains the expression, if known.
    pub object: Option<Box<ObjectKey>>,
    /// The error of the compilation.
    #[source]
    cause: regex::Error,
}

impl InvalidPattern {
    pub(crate) fn new(pattern: &str, field: PatternField, cause: regex::Error) -> Self {
        Self {
            pattern: pattern.chars().take(MAX_ERROR_PATTERN_CHARACTERS).collect(),
            field,
            object: None,
            cause,
        }
    }

    pub(crate) fn with_object(mut self, object: ObjectKey) -> Self {
        self.object = Some(Box::new(object));
        self
    }
}

/// The attribute that a pattern applies to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatternField {
    /// An unknown attribute: the pattern was checked by itself.
    Unknown,
    /// The path.
    Path,
    /// A header.
    Header(String),
    /// A query parameter.
    Query(String),
    /// A cookie.
    Cookie(String),
    /// A tag of the caller.
    CallerTag(String),
}

impl std::fmt::Display for PatternField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown => Ok(()),
            Self::Path => f.write_str(" for the path"),
            Self::Header(name) => write!(f, " for the header `{name}`"),
            Self::Query(name) => write!(f, " for the query parameter `{name}`"),
            Self::Cookie(name) => write!(f, " for the cookie `{name}`"),
            Self::CallerTag(name) => write!(f, " for the tag `{name}` of the caller"),
        }
    }
}

/// Returns the prefix of the error message that names the object; empty if the object is unknown.
fn object_prefix(object: &Option<Box<ObjectKey>>) -> String {
    object.as_ref().map(|key| format!("{key}: ")).unwrap_or_default()
}

/// Compiles a regular expression within the size limits.
fn build_regex(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern)
        .size_limit(MAX_REGEX_BYTES)
        .dfa_size_limit(MAX_REGEX_CACHE_BYTES)
        .build()
}

/// The characters with a special meaning: a pattern without them matches only its own text.
const METACHARACTERS: &[char] =
    &['\\', '.', '+', '*', '?', '(', ')', '|', '[', ']', '{', '}', '^', '$'];

/// The maximum size in bytes of one compiled expression. Practical patterns are much smaller.
const MAX_REGEX_BYTES: usize = 1024 * 1024;

/// The maximum size in bytes of the case-insensitive form, which is larger because letters become sets. It suffices for
/// every pattern within [`MAX_REGEX_BYTES`].
const MAX_CASE_INSENSITIVE_BYTES: usize = 8 * MAX_REGEX_BYTES;

/// The maximum size in bytes of the match cache of one expression in one thread.
const MAX_REGEX_CACHE_BYTES: usize = 256 * 1024;

/// The maximum number of characters of a pattern in an error.
const MAX_ERROR_PATTERN_CHARACTERS: usize = 200;

#[cfg(test)]
mod tests {
    use std::error::Error;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pattern_matches_the_whole_value() {
        for (pattern, value, expected) in [
            ("/buy", "/buy", true),
            ("/buy", "/xbuyer", false),
            ("/buy", "/buy/1", false),
            ("/buy.*", "/buyer", true),
            ("/buy.*", "/sell", false),
            (".*", "", true),
            (".*", "/x", true),
            ("", "", true),
            ("", "/", false),
            ("/items/[0-9]+", "/items/12", true),
            ("/items/[0-9]+", "/items/12/x", false),
            ("/a|/b", "/a", true),
            ("/a|/b", "/bc", false),
            ("(?i)/a", "/A", true),
            (r"/a\.*", "/a..", true),
            (r"/a\.*", "/axx", false),
            ("/buy.*", "/buy\nx", false),
        ] {
            let compiled = Pattern::compile(pattern).unwrap();
            assert_eq!(compiled.matches(value), expected, "{pattern:?} {value:?}");
        }
    }

    #[test]
    fn invalid_or_too_large_patterns_are_rejected() {
        for pattern in
            ["(", "a)|(b", "[z-a]", "(?=a)", r"(a)\1", r"\w{1000}", "((a{100}){100}){100}"]
        {
            let error = check_pattern(pattern).unwrap_err();
            assert!(error.to_string().contains(pattern), "{error}");
            assert!(error.source().is_some());
        }
        assert!(check_pattern("/items/[0-9]+").is_ok());
    }

    #[test]
    fn an_error_truncates_a_long_pattern() {
        let error = check_pattern(&"(".repeat(10_000)).unwrap_err();
        assert_eq!(error.pattern.len(), MAX_ERROR_PATTERN_CHARACTERS);
    }

    proptest! {
        #[test]
        fn values_without_the_literal_prefix_never_match(
            pieces in prop::collection::vec(
                prop::sample::select(vec![
                    "/a", "b", "a?", "b*", "ab+", "(a|/)", "|", "(?i)", "(?i:ab)", "[ab]", r"\.", ".",
                    "^", "$", "a{0}", "b{0,2}", "(?x) a #", "()", "(?m)",
                ]),
                0..6,
            ),
            values in prop::collection::vec("[aAbB/.\n]{0,5}", 1..20),
        ) {
            let pattern = pieces.concat();
            if let Ok(compiled) = Pattern::compile(&pattern) {
                let regex = build_regex(&format!("^(?:{pattern})$")).unwrap();
                for value in values {
                    prop_assert_eq!(compiled.matches(&value), regex.is_match(&value), "{}", value);
                }
            }
        }

        #[test]
        fn literal_forms_agree_with_the_regular_expression(
            literal in "[a-b/ -]{0,3}",
            has_wildcard_end in any::<bool>(),
            value in "[a-b/\n -]{0,5}",
        ) {
            let pattern = format!("{literal}{}", if has_wildcard_end { ".*" } else { "" });
            let compiled = Pattern::compile(&pattern).unwrap();
            prop_assert!(!matches!(compiled, Pattern::Regex(..)));
            let regex = build_regex(&format!("^(?:{pattern})$")).unwrap();
            prop_assert_eq!(compiled.matches(&value), regex.is_match(&value));
        }
    }
}
