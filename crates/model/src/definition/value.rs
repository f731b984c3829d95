//! Values of manifests that match a schema, and their conversion to the basic types.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Definition, ManifestBuilder, Schema};

/// A value that a reader found at one place of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManifestValue {
    /// The value of a field that is absent and has no default.
    Absent,
    /// A value that does not match the schema. The reader has reported the problem.
    Invalid,
    /// `true` or `false`.
    Boolean(bool),
    /// A whole number.
    Integer(i64),
    /// A duration.
    Duration(Duration),
    /// A text.
    Text(String),
    /// A value of [`Schema::Any`].
    Any,
    /// The index of a word in [`Schema::Choice`].
    Choice(usize),
    /// The elements of a list.
    List(Vec<ManifestValue>),
    /// The values of the members of a [`super::MapSchema`], in its order. The value of an included type is a map.
    Map(Vec<ManifestValue>),
    /// The entries of a map with any keys, in the order of the manifest.
    Entries(Vec<(String, ManifestValue)>),
}

impl ManifestValue {
    /// Returns the text; `None` for another value.
    #[must_use]
    pub fn into_text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the index of a word; `None` for another value.
    #[must_use]
    pub const fn choice_index(&self) -> Option<usize> {
        match self {
            Self::Choice(index) => Some(*index),
            _ => None,
        }
    }

    /// Returns the values of a map's members; `None` for another value.
    #[must_use]
    pub fn into_members(self) -> Option<FieldValues> {
        match self {
            Self::Map(members) => Some(FieldValues(members.into_iter())),
            _ => None,
        }
    }
}

/// The values of the members of a map, in the order of its schema.
#[derive(Debug)]
pub struct FieldValues(std::vec::IntoIter<ManifestValue>);

impl FieldValues {
    /// Returns the value of the next member.
    pub fn next_value(&mut self) -> ManifestValue {
        self.0.next().unwrap_or(ManifestValue::Absent)
    }
}

impl Definition for bool {
    const SCHEMA: Schema = Schema::Boolean;

    fn build(value: ManifestValue, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        match value {
            ManifestValue::Boolean(value) => Some(value),
            _ => None,
        }
    }
}

macro_rules! integer {
    ($($type:ident)*) => {$(
        impl Definition for $type {
            const SCHEMA: Schema =
                Schema::Integer { min: $type::MIN as i64, max: $type::MAX as i64 };

            fn build(value: ManifestValue, _: &mut ManifestBuilder<'_>) -> Option<Self> {
                match value {
                    ManifestValue::Integer(number) => Self::try_from(number).ok(),
                    _ => None,
                }
            }
        }
    )*};
}

integer!(u8 u16 u32 i32);

impl Definition for i64 {
    const SCHEMA: Schema = Schema::Integer { min: Self::MIN, max: Self::MAX };

    fn build(value: ManifestValue, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        match value {
            ManifestValue::Integer(number) => Some(number),
            _ => None,
        }
    }
}

/// A value that the definition of a type does not determine. The reader of the kind reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnyValue;

impl Definition for AnyValue {
    const SCHEMA: Schema = Schema::Any;

    fn build(value: ManifestValue, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        (value == ManifestValue::Any).then_some(Self)
    }
}

/// Any duration; a field restricts it with `#[field(duration(…))]`.
impl Definition for Duration {
    const SCHEMA: Schema = Schema::Duration { min: Self::ZERO, max: Self::MAX };

    fn build(value: ManifestValue, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        match value {
            ManifestValue::Duration(duration) => Some(duration),
            _ => None,
        }
    }
}

/// Any text; a field restricts it with `#[field(text = …)]`.
impl Definition for String {
    const SCHEMA: Schema = Schema::Text(&super::texts::ANY_TEXT);

    fn build(value: ManifestValue, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        value.into_text()
    }
}

/// An absent field is `None`.
impl<T: Definition> Definition for Option<T> {
    const SCHEMA: Schema = T::SCHEMA;

    fn build(value: ManifestValue, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        match value {
            ManifestValue::Absent => Some(None),
            value => T::build(value, builder).map(Some),
        }
    }
}

impl<T: Definition> Definition for Box<T> {
    const SCHEMA: Schema = T::SCHEMA;

    fn build(value: ManifestValue, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        T::build(value, builder).map(Self::new)
    }
}

/// An absent list is empty. A field bounds the list with `#[field(list(…))]`.
impl<T: Definition> Definition for Vec<T> {
    const SCHEMA: Schema =
        Schema::List { element: &T::SCHEMA, min: 0, max: usize::MAX, unique: false };

    fn build(value: ManifestValue, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        let elements = match value {
            ManifestValue::Absent => Vec::new(),
            ManifestValue::List(elements) => elements,
            _ => return None,
        };
        // All elements are built, so that all violations are recorded.
        let built: Vec<Option<T>> = elements
            .into_iter()
            .enumerate()
            .map(|(index, element)| builder.build_element(index, element))
            .collect();
        built.into_iter().collect()
    }
}

/// The entries of a map with any keys, in the order of the manifest. The keys are different.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries<T>(pub Vec<(String, T)>);

/// An absent map is empty.
impl<T: Definition> Definition for Entries<T> {
    const SCHEMA: Schema = Schema::Entries {
        key: &super::texts::ANY_TEXT,
        value: &T::SCHEMA,
        min: 0,
        max: usize::MAX,
    };

    fn build(value: ManifestValue, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        let entries = match value {
            ManifestValue::Absent => Vec::new(),
            ManifestValue::Entries(entries) => entries,
            _ => return None,
        };
        // All values are built, so that all violations are recorded.
        let built: Vec<(String, Option<T>)> = entries
            .into_iter()
            .map(|(key, value)| {
                let built = builder.build_entry(&key, value);
                (key, built)
            })
            .collect();
        let entries: Option<Vec<(String, T)>> =
            built.into_iter().map(|(key, value)| Some((key, value?))).collect();
        entries.map(Self)
    }
}

/// An absent map is empty.
impl<T: Definition> Definition for BTreeMap<String, T> {
    const SCHEMA: Schema = Entries::<T>::SCHEMA;

    fn build(value: ManifestValue, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        Entries::build(value, builder).map(|Entries(entries)| entries.into_iter().collect())
    }
}

/// An absent set is empty. The reader rejects equal elements.
impl<T: Definition + Ord> Definition for BTreeSet<T> {
    const SCHEMA: Schema =
        Schema::List { element: &T::SCHEMA, min: 0, max: usize::MAX, unique: true };

    fn build(value: ManifestValue, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        Vec::build(value, builder).map(Self::from_iter)
    }
}
