//! Compiled tests of header, query parameter, cookie and tag values, for tag rules.

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
        let compiled = tests.iter().map(|test| {
            let name = test.name.as_str().into();
            let matcher = ValueMatcher::compile(&test.test, || field(test.name.clone()))?;
            Ok(Self { name, matcher })
        });
        compiled.collect()
    }
}

/// A compiled [`ValueTest`].
#[derive(Debug, Clone)]
pub(super) enum ValueMatcher {
    Present,
    Absent,
    Never,
    /// A comparison with texts. If `ignores_case`, the texts are in lower case, and values are lowercased
    /// first.
    Text {
        relation: Relation,
        ignores_case: bool,
    },
    Number {
        relation: NumberRelation,
        bound: i64,
    },
}

/// A compiled [`TextRelation`] with the texts that it compares values with.
#[derive(Debug, Clone)]
pub(super) enum Relation {
    Equal(Box<str>),
    Differs(Box<str>),
    Prefix(Box<str>),
    Pattern(Pattern),
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
                let normalized = |text: &String| -> Box<str> {
                    if ignores_case { text.to_lowercase().into() } else { text.as_str().into() }
                };
                let Some(first) = texts.first().map(normalized) else {
                    return Ok(Self::Never);
                };
                let relation = match relation {
                    TextRelation::Exact => Relation::Equal(first),
                    TextRelation::Not => Relation::Differs(first),
                    TextRelation::Prefix => Relation::Prefix(first),
                    TextRelation::In => Relation::In(texts.iter().map(normalized).collect()),
                    TextRelation::Regex => Relation::Pattern(
                        Pattern::compile(&first)
                            .map_err(|cause| InvalidPattern::new(&first, field(), cause))?,
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
                    NumberRelation::Above => number > *bound,
                    NumberRelation::AtLeast => number >= *bound,
                    NumberRelation::Below => number < *bound,
                    NumberRelation::AtMost => number <= *bound,
                })
            }
        }
    }

    /// Returns the accepted values if they can be listed. The second value is true if they are in lower case.
    pub(super) fn exact_values(&self) -> Option<(Vec<&str>, bool)> {
        let Self::Text { relation, ignores_case } = self else {
            return None;
        };
        match relation {
            Relation::Equal(text) => Some((vec![text], *ignores_case)),
            Relation::In(texts) => {
                Some((texts.iter().map(|text| &**text).collect(), *ignores_case))
            }
            Relation::Differs(_) | Relation::Prefix(_) | Relation::Pattern(_) => None,
        }
    }
}

impl Relation {
    fn accepts(&self, value: &str) -> bool {
        match self {
            Self::Equal(text) => value == &**text,
            Self::Differs(text) => value != &**text,
            Self::Prefix(text) => value.starts_with(&**text),
            Self::Pattern(pattern) => pattern.matches(value),
            Self::In(texts) => texts.iter().any(|text| value == &**text),
        }
    }
}
