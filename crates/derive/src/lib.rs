//! Derives `leno_model::definition::Definition`: the schema of a type of manifests, and its construction from a value. The
//! derive works within `leno-model` only.
//!
//! * A struct with named fields is a map. The doc comment of a field is its description. A field is required, unless it is
//!   an `Option`, a `Vec` or a `BTreeSet`, or has a default.
//! * An enum of unit variants is a choice of words.
//! * An enum of variants with one value or named fields is a map with exactly one key.
//!
//! A struct takes the attributes `#[definition(cel("expression", "message"))]`, `#[definition(check = function)]`, whose
//! function receives the built value and the builder, and `#[definition(builds = Type)]`: the method `build_type` of the
//! struct turns its fields into that type. An enum with values takes `#[definition(noun = "word")]`, for messages.
//!
//! A field takes `#[field(…)]` with `name = "key"`, `default = "literal"`, `absent = "meaning"`, `required` (of a list),
//! `integer(min, max)`, `duration("min", "max")`, `list(min, max)`, `text = SCHEMA` and `include`: the fields of its type belong
//! to the same map. A variant takes `name`.

mod attributes;
mod choice;
mod one_of;
mod record;

use proc_macro::TokenStream;
use syn::{Data, DeriveInput, Fields, parse_macro_input};

/// Derives `Definition`.
#[proc_macro_derive(Definition, attributes(definition, field))]
pub fn derive_definition(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    let derived = match &input.data {
        Data::Struct(data) => record::derive(&input, &data.fields),
        Data::Enum(data) if data.variants.iter().all(|v| matches!(v.fields, Fields::Unit)) => {
            choice::derive(&input, data)
        }
        Data::Enum(data) => one_of::derive(&input, data),
        Data::Union(data) => {
            Err(syn::Error::new_spanned(data.union_token, "a union has no definition"))
        }
    };
    derived.unwrap_or_else(|error| error.to_compile_error()).into()
}
