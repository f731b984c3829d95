//! Definitions of the types of manifests: one definition yields the reader, the schema and the reference page of a rule
//! kind.
//!
//! A type derives [`Definition`]. The doc comments of its fields are the descriptions that users read, and the attributes
//! of its fields are the bounds and defaults. The reader of manifests parses a [`ManifestValue`] that matches the type's
//! [`Schema`], and [`Definition::build`] creates the type from it. Thus a value that exists is valid.

mod builder;
mod reference;
mod schema;
mod texts;
mod value;

pub use builder::{ManifestBuilder, PathStep, Violation};
pub use leno_derive::Definition;
pub use reference::{FieldReference, field_references, format_duration, reference_table};
pub use schema::{
    FieldDefault, FieldSchema, MapRule, MapSchema, Member, Remedy, Schema, TextForm, TextProblem,
    TextSchema, duration,
};
pub use texts::{HEADER_NAME, LABEL, NAME, REGEX, normalize_header_name};
pub use value::{AnyValue, Entries, FieldValues, ManifestValue};

/// A type of manifests.
pub trait Definition: Sized {
    /// The values that manifests may contain.
    const SCHEMA: Schema;

    /// Builds the type from a value. Rules that the schema cannot express record their violations in `builder`.
    ///
    /// `None` if the value or a part of it is [`ManifestValue::Invalid`], or if there is a violation.
    fn build(value: ManifestValue, builder: &mut ManifestBuilder<'_>) -> Option<Self>;
}
