//! Compiles and evaluates the tests of header, query parameter, cookie and tag values in tag rules.

use leno_model::{FieldTest, NumberRelation, TextRelation, ValueTest};

use crate::pattern::{InvalidPattern, Pattern, PatternField};
use crate::rule_index::lowercase_text;

/// A compiled [`FieldTest`].
#[derive(Debug, Clone)]
pub(super) struct NamedValueMatcher {
    pub(super) name: Box<str>,
    pub(super) matcher: ValueMatcher,
}

impl NamedValueMatcher {
    pub(super) fn compile_all(
        tests: &[FieldTest],
        field: impl Fn(String) -> PatternField,
    ) -> Result<Box<[Self]>, InvalidPattern> {
        let compiled_tests = tests.iter().map(|test| {
            let name = test.name.as_str().into();
            let matcher = ValueMatcher::compile(&test.test, || field(test.name.clone()))?;
            Ok(Self { name, matcher })
        });
        compiled_tests.collect()
    }
}

/// A compiled [`ValueTest`].
#[derive(Debug, Clone)]
pub(super) enum ValueMatcher {
    /// The value is present.
    Present,
    /// The value is absent.
    Absent,
    /// The test always fails.
    Never,
    /// A comparison with texts. If `ignores_case` is true, the texts are in lower case, and values are converted to
    /// lower case before the comparison.
    Text { relation: CompiledRelation, ignores_case: bool },
    /// A comparison of 64-bit integers.
    Number { relation: NumberRelation, bound: i64 },
}

/// A compiled [`TextRelation`] with the texts that it compares values with.
#[derive(Debug, Clone)]
pub(super) enum CompiledRelation {
    /// The value equals this text.
    Equal(Box<str>),
    /// The value does not equal this text.
    NotEqual(Box<str>),
    /// The value begins with this text.
    Prefix(Box<str>),
    /// The whole value matches this pattern.
    Pattern(Pattern),
    /// The value equals one of these texts.
    In(Box<[Box<str>]>),
}

impl ValueMatcher {
    pub(super) fn compile(
        test: &ValueTest,
        field: impl FnOnce() -> PatternField,
    ) -> Result<Self, InvalidPattern> {
        Ok(match test {
            ValueTest::Present => Self::Present,
            ValueTest::Absent => Self::Absent,
            ValueTest::Never => Self::Never,
            ValueTest::Number { relation, bound } => {
                Self::Number { relation: *relation, bound: *bound }
            }
            ValueTest::Text { relation, texts, ignore_case } => {
                let ignores_case = *ignore_case;
                // As in Sermant, the text of a regular expression is converted as well.
                let normalize = |text: &String| -> Box<str> {
                    if ignores_case { text.to_lowercase().into() } else { text.as_str().into() }
                };
                let Some(first_text) = texts.first().map(normalize) else {
                    return Ok(Self::Never);
                };
                let relation = match relation {
                    TextRelation::Exact => CompiledRelation::Equal(first_text),
                    TextRelation::NotEqual => CompiledRelation::NotEqual(first_text),
                    TextRelation::Prefix => CompiledRelation::Prefix(first_text),
                    TextRelation::In => CompiledRelation::In(texts.iter().map(normalize).collect()),
                    TextRelation::Regex => CompiledRelation::Pattern(
                        Pattern::compile(&first_text)
                            .map_err(|cause| InvalidPattern::new(&first_text, field(), cause))?,
                    ),
                };
                Self::Text { relation, ignores_case }
            }
        })
    }

    /// True if the value, or its absence (`None`), passes the test.
    pub(super) fn accepts(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (Self::Present, value) => value.is_some(),
            (Self::Absent, value) => value.is_none(),
            (Self::Never, _) | (Self::Text { .. } | Self::Number { .. }, None) => false,
            (Self::Text { relation, ignores_case }, Some(value)) => match ignores_case {
                true => relation.accepts(&lowercase_text(value)),
                false => relation.accepts(value),
            },
            (Self::Number { relation, bound }, Some(value)) => {
                value.parse().is_ok_and(|number: i64| match relation {
                    NumberRelation::GreaterThan => number > *bound,
                    NumberRelation::AtLeast => number >= *bound,
                    NumberRelation::LessThan => number < *bound,
                    NumberRelation::AtMost => number <= *bound,
                })
            }
        }
    }

    /// Returns the accepted values, and true if they are in lower case; `None` if the values cannot be listed.
    pub(super) fn exact_values(&self) -> Option<(Vec<&str>, bool)> {
        let Self::Text { relation, ignores_case } = self else {
            return None;
        };
        match relation {
            CompiledRelation::Equal(text) => Some((vec![text], *ignores_case)),
            CompiledRelation::In(texts) => {
                Some((texts.iter().map(|text| &**text).collect(), *ignores_case))
            }
            CompiledRelation::NotEqual(_)
            | CompiledRelation::Prefix(_)
            | CompiledRelation::Pattern(_) => None,
        }
    }
}

impl CompiledRelation {
    fn accepts(&self, value: &str) -> bool {
        match self {
            Self::Equal(text) => value == &**text,
            Self::NotEqual(text) => value != &**text,
            Self::Prefix(text) => value.starts_with(&**text),
            Self::Pattern(pattern) => pattern.matches(value),
            Self::In(texts) => texts.iter().any(|text| value == &**text),
        }
    }
}
