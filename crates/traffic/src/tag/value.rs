//! Compiled value tests.

use leno_model::{FieldTest, NumberRelation, TextRelation, ValueTest};

use crate::pattern::{InvalidPattern, Pattern, PatternField};
use crate::rule_index::folded_text;

/// A compiled [`FieldTest`].
#[derive(Debug, Clone)]
pub(super) struct NamedValueMatcher {
    pub(super) name: Box<str>,
    pub(super) test: ValueMatcher,
}

impl NamedValueMatcher {
    pub(super) fn compile_all(
        tests: &[FieldTest],
        field: impl Fn(String) -> PatternField,
    ) -> Result<Box<[Self]>, InvalidPattern> {
        let compiled = tests.iter().map(|test| {
            let name = test.name.as_str().into();
            Ok(Self { name, test: ValueMatcher::compile(&test.test, || field(test.name.clone()))? })
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
    /// If `folded`, values are lowercased before comparison.
    Text {
        relation: Relation,
        folded: bool,
    },
    Number {
        relation: NumberRelation,
        bound: i64,
    },
}

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
                let folded = *ignore_case;
                let fold = |text: &String| -> Box<str> {
                    if folded { text.to_lowercase().into() } else { text.as_str().into() }
                };
                let Some(first) = texts.first().map(fold) else {
                    return Ok(Self::Never);
                };
                let relation = match relation {
                    TextRelation::Exact => Relation::Equal(first),
                    TextRelation::Not => Relation::Differs(first),
                    TextRelation::Prefix => Relation::Prefix(first),
                    TextRelation::In => Relation::In(texts.iter().map(fold).collect()),
                    TextRelation::Regex => Relation::Pattern(
                        Pattern::compile(&first)
                            .map_err(|cause| InvalidPattern::new(&first, field(), cause))?,
                    ),
                };
                Self::Text { relation, folded }
            }
        })
    }

    /// True if a value passes.
    pub(super) fn accepts(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (Self::Present, value) => value.is_some(),
            (Self::Absent, value) => value.is_none(),
            (Self::Never, _) | (Self::Text { .. } | Self::Number { .. }, None) => false,
            (Self::Text { relation, folded }, Some(value)) => match folded {
                true => relation.holds_for(&folded_text(value)),
                false => relation.holds_for(value),
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

    /// Returns the accepted values if they can be listed, and true if they are in lower case.
    pub(super) fn exact_values(&self) -> Option<(Vec<&str>, bool)> {
        let Self::Text { relation, folded } = self else {
            return None;
        };
        match relation {
            Relation::Equal(text) => Some((vec![text], *folded)),
            Relation::In(texts) => Some((texts.iter().map(|text| &**text).collect(), *folded)),
            Relation::Differs(_) | Relation::Prefix(_) | Relation::Pattern(_) => None,
        }
    }
}

impl Relation {
    fn holds_for(&self, value: &str) -> bool {
        match self {
            Self::Equal(text) => value == &**text,
            Self::Differs(text) => value != &**text,
            Self::Prefix(text) => value.starts_with(&**text),
            Self::Pattern(pattern) => pattern.matches(value),
            Self::In(texts) => texts.iter().any(|text| value == &**text),
        }
    }
}
