//! Schemas: the values that a field of a manifest may have, with bounds, defaults and descriptions.

use std::borrow::Cow;
use std::time::Duration;

/// The values that a manifest may contain at one place.
#[derive(Debug, Clone, Copy)]
pub enum Schema {
    /// `true` or `false`.
    Boolean,
    /// A whole number from `min` to `max`.
    Integer {
        /// The smallest number.
        min: i64,
        /// The largest number.
        max: i64,
    },
    /// A percentage above 0, up to 100, with at most four decimals, such as `12.5`. Its value is a whole number of parts per
    /// million.
    Percentage,
    /// A duration from `min` to `max`, such as `1h30m`, `5s` or `100ms`.
    Duration {
        /// The shortest duration.
        min: Duration,
        /// The longest duration.
        max: Duration,
    },
    /// A text.
    Text(&'static TextSchema),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list.
    List {
        /// The schema of each element.
        element: &'static Schema,
        /// The minimum number of elements in a list that is present: 0 or 1.
        min: usize,
        /// The maximum number of elements.
        max: usize,
        /// True if equal elements are rejected.
        unique: bool,
    },
    /// A map with fixed keys.
    Map(&'static MapSchema),
    /// A map with any keys.
    Entries {
        /// The schema of each key.
        key: &'static TextSchema,
        /// The schema of each value.
        value: &'static Schema,
        /// The minimum number of entries in a map that is present: 0 or 1.
        min: usize,
        /// The maximum number of entries.
        max: usize,
    },
    /// A value that the reader of the kind reads.
    Any,
    /// A scalar of one schema, or a map or list of another one.
    Either {
        /// The schema of scalars.
        scalar: &'static Schema,
        /// The schema of maps and lists.
        collection: &'static Schema,
    },
}

/// The valid texts of a field.
#[derive(Debug)]
pub struct TextSchema {
    /// The maximum length in bytes.
    pub max_bytes: usize,
    /// The form of the text in manifests and messages.
    pub form: TextForm,
    /// A regular expression for the schemas of Kubernetes and editors, if a simple one expresses most of the rule. It matches
    /// every valid text.
    pub pattern: Option<&'static str>,
    /// Returns the problem of an invalid text, apart from its length.
    pub check: fn(&str) -> Result<(), TextProblem>,
}

/// The form of a text in manifests and messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextForm {
    /// A text. A number in its place is rejected, because its author may expect the meaning of a number.
    Plain,
    /// A text, or a number or boolean as written, such as an argument of a command.
    Literal,
    /// A URL. Messages hide a password in it.
    Url,
    /// A regular expression. The reader compiles it.
    Regex,
}

/// The problem of an invalid text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextProblem {
    /// A predicate about the text, such as `is not a method`.
    pub problem: Cow<'static, str>,
    /// The remedy.
    pub remedy: Remedy,
}

/// The remedy for an invalid text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// An imperative, such as `use one such as GET`.
    Hint(Cow<'static, str>),
    /// The text that its author probably means.
    Replacement(String),
}

/// The keys of a map.
#[derive(Debug)]
pub struct MapSchema {
    /// The members, in the order of the reference page.
    pub members: &'static [Member],
    /// Rules about several fields.
    pub rules: &'static [MapRule],
    /// A field and its value, for the proposal of a map in place of a scalar: `/a` becomes `{type: PathPrefix, value: /a}`.
    pub example: Option<(&'static str, &'static str)>,
    /// Returns the problem of some texts in place of the map, such as a text that belongs in one of its fields.
    pub text_problem: Option<fn(&str) -> Option<TextProblem>>,
}

/// A member of a map.
#[derive(Debug)]
pub enum Member {
    /// One key.
    Field(FieldSchema),
    /// The keys of another type, which belong to the same map.
    Included(&'static MapSchema),
}

/// One key of a map.
#[derive(Debug)]
pub struct FieldSchema {
    /// The key.
    pub name: &'static str,
    /// The meaning, for schemas and reference pages: sentences.
    pub description: &'static str,
    /// The valid values.
    pub schema: Schema,
    /// The value of an absent field.
    pub default: FieldDefault,
}

/// The value of an absent field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldDefault {
    /// An absent field is rejected.
    Required,
    /// This value, as written in manifests.
    Literal(&'static str),
    /// The absence has a meaning of its own, which this text describes; empty if the field's description does.
    Absent(&'static str),
}

/// A rule about several fields of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapRule {
    /// Exactly one of these fields is present. The reader and the schema of Kubernetes enforce it.
    ExactlyOne {
        /// The fields.
        fields: &'static [&'static str],
        /// The noun for these fields in messages: "has no probe".
        noun: &'static str,
    },
    /// A rule that [`super::Definition::build`] enforces; the schema of Kubernetes enforces the same in CEL (Common Expression
    /// Language).
    Cel {
        /// An expression that is true for valid maps; `self` is the map.
        expression: &'static str,
        /// The message for invalid maps.
        message: &'static str,
    },
}

impl MapRule {
    /// Returns the fields of which exactly one is present, if that is the rule.
    #[must_use]
    pub const fn alternatives(&self) -> Option<&'static [&'static str]> {
        match self {
            Self::ExactlyOne { fields, .. } => Some(*fields),
            Self::Cel { .. } => None,
        }
    }
}

impl TextProblem {
    /// Returns a problem with a hint.
    #[must_use]
    pub fn new(problem: impl Into<Cow<'static, str>>, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { problem: problem.into(), remedy: Remedy::Hint(hint.into()) }
    }
}

impl TextSchema {
    /// Returns the schema of texts of at most this length, which pass a check.
    #[must_use]
    pub const fn new(max_bytes: usize, check: fn(&str) -> Result<(), TextProblem>) -> Self {
        Self { max_bytes, form: TextForm::Plain, pattern: None, check }
    }

    /// Returns the schema of all texts of at most this length.
    #[must_use]
    pub const fn bounded(max_bytes: usize) -> Self {
        Self::new(max_bytes, |_| Ok(()))
    }

    /// Validates a text by the check, and then by its length.
    ///
    /// # Errors
    /// The problem of an invalid text.
    pub fn validate(&self, text: &str) -> Result<(), TextProblem> {
        (self.check)(text)?;
        match text.len() <= self.max_bytes {
            true => Ok(()),
            false => {
                let hint = format!("use at most {} bytes", self.max_bytes);
                Err(TextProblem::new("is too long", hint))
            }
        }
    }

    /// Sets the regular expression for the schemas of Kubernetes and editors.
    #[must_use]
    pub const fn with_pattern(self, pattern: &'static str) -> Self {
        Self { pattern: Some(pattern), ..self }
    }

    /// Sets the form.
    #[must_use]
    pub const fn with_form(self, form: TextForm) -> Self {
        Self { form, ..self }
    }
}

impl Schema {
    /// Returns the schema of a map, for the fields that another type includes.
    ///
    /// # Panics
    /// While the compiler evaluates the constant, if the schema is no map.
    #[must_use]
    pub const fn map_schema(self) -> &'static MapSchema {
        match self {
            Self::Map(schema) => schema,
            _ => unreachable!(),
        }
    }
}

impl MapSchema {
    /// Returns all fields of the map, including those of included types, in the order of the reference page.
    #[must_use]
    pub fn all_fields(&self) -> Vec<&'static FieldSchema> {
        let fields_of = |member: &'static Member| match member {
            Member::Field(field) => vec![field],
            Member::Included(included) => included.all_fields(),
        };
        self.members.iter().flat_map(fields_of).collect()
    }

    /// Returns all rules of the map, including those of included types.
    #[must_use]
    pub fn all_rules(&self) -> Vec<&'static MapRule> {
        let included_rules = self.members.iter().flat_map(|member| match member {
            Member::Field(_) => Vec::new(),
            Member::Included(included) => included.all_rules(),
        });
        self.rules.iter().chain(included_rules).collect()
    }
}

/// Returns the duration that a number and a unit (`ms`, `s`, `m`, `h`) denote, for the bounds of fields.
///
/// # Panics
/// While the compiler evaluates the constant, if the text has another form.
#[must_use]
pub const fn duration(text: &str) -> Duration {
    let bytes = text.as_bytes();
    let mut number: u64 = 0;
    let mut index = 0;
    while index < bytes.len() && bytes[index].is_ascii_digit() {
        number = number * 10 + (bytes[index] - b'0') as u64;
        index += 1;
    }
    assert!(index > 0, "a duration begins with a number");
    let milliseconds = match bytes.split_at(index).1 {
        b"ms" => number,
        b"s" => number * 1_000,
        b"m" => number * 60_000,
        b"h" => number * 3_600_000,
        _ => unreachable!(),
    };
    Duration::from_millis(milliseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_a_maximum_length() {
        let schema = TextSchema::bounded(2);
        assert_eq!(schema.validate("ab"), Ok(()));
        assert_eq!(
            schema.validate("abc"),
            Err(TextProblem::new("is too long", "use at most 2 bytes"))
        );
    }

    #[test]
    fn bounds_of_durations_have_units() {
        for (text, milliseconds) in
            [("1ms", 1), ("500ms", 500), ("5s", 5_000), ("2m", 120_000), ("24h", 86_400_000)]
        {
            assert_eq!(duration(text), Duration::from_millis(milliseconds), "{text}");
        }
    }
}
