//! Schemas: the values that a field of a manifest may have, with bounds, defaults and descriptions.

use std::time::Duration;

/// The values that a manifest may contain at one place.
#[derive(Debug, Clone, Copy)]
pub enum Schema {
    /// `true` or `false`.
    Boolean,
    /// A whole number from `min` to `max`.
    Integer {
        /// The smallest number.
        min: u32,
        /// The largest number.
        max: u32,
    },
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
}

/// The valid texts of a field.
#[derive(Debug)]
pub struct TextSchema {
    /// The maximum length in bytes, which `check` enforces as well.
    pub max_bytes: usize,
    /// A regular expression for the schemas of Kubernetes and editors, if a simple one expresses most of the rule. It matches
    /// every valid text.
    pub pattern: Option<&'static str>,
    /// Returns the problem of an invalid text.
    pub check: fn(&str) -> Result<(), TextProblem>,
}

/// The problem of an invalid text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextProblem {
    /// A predicate about the text, such as `is not a method`.
    pub problem: &'static str,
    /// The remedy.
    pub remedy: Remedy,
}

/// The remedy for an invalid text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// An imperative, such as `use one such as GET`.
    Hint(&'static str),
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

impl TextProblem {
    /// Returns a problem with a hint.
    #[must_use]
    pub const fn new(problem: &'static str, hint: &'static str) -> Self {
        Self { problem, remedy: Remedy::Hint(hint) }
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

/// The schema of a text without a rule. Fields have a narrower one, because their length must be bounded.
pub(super) const ANY_TEXT: TextSchema =
    TextSchema { max_bytes: usize::MAX, pattern: None, check: |_| Ok(()) };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_durations_have_units() {
        for (text, milliseconds) in
            [("1ms", 1), ("500ms", 500), ("5s", 5_000), ("2m", 120_000), ("24h", 86_400_000)]
        {
            assert_eq!(duration(text), Duration::from_millis(milliseconds), "{text}");
        }
    }
}
