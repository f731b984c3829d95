//! Derives `leno_model::definition::Definition`: the schema of a type of manifests, and its construction from a value. The
//! derive works within `leno-model` only.
//!
//! * A struct with named fields is a map. The doc comment of a field is its description. A field is required, unless it is
//!   an `Option`, a list or a map with any keys, or has a default.
//! * An enum of unit variants is a choice of words, which are the names of the variants.
//! * An enum of variants with one value or named fields is a map with exactly one key. A struct with more keys includes it.
//!
//! A struct takes these attributes:
//!
//! * `#[definition(cel("expression", "message"))]`: a rule in CEL for the schema of Kubernetes.
//! * `#[definition(check = function)]`: the function receives the built value and the builder.
//! * `#[definition(example("field", "value"))]` completes the proposal of a map in place of a scalar.
//! * `#[definition(text_problem = function)]`: the function returns the problem of some texts in place of the map.
//! * `#[definition(builds = Type)]`: the method `build_type` of the struct turns its fields into that type.
//!
//! A check or `build_type` that rejects nothing returns the type itself, and any other one an `Option` of it. An enum with
//! values takes `#[definition(noun = "word")]`, for messages, and `builds`.
//!
//! A field takes `#[field(…)]` with `name = "key"`, `default = "literal"`, `absent = "meaning"`, `required` (of a list),
//! `integer(min, max)`, `duration("min", "max")` or `duration(MIN, MAX)` with constants, `percentage`, `text = SCHEMA`,
//! `list(min, max)`, `entries(min, max)` with `key = SCHEMA` of a `BTreeMap` or `Entries` of values or lists, and
//! `include`: the fields of its type belong to the same map. `check = function` checks a field even if another one is
//! invalid: the function receives the built field and the builder of the enclosing map. A variant takes `name` and the
//! attributes of its value. Each other attribute is a compile error, because it would have no effect.

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
