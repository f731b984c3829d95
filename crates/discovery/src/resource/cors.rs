//! Converts CORS policies to and from the wire. They are a part of rule actions.

use leno_model::{AllowedNames, Cors, HeaderEdits, OriginPattern};

use super::field::{InvalidField, convert_each};
use crate::proto;

pub(super) fn to_wire(cors: &Cors) -> proto::Cors {
    proto::Cors {
        origins: cors.origins.iter().map(ToString::to_string).collect(),
        credentials: cors.allows_credentials,
        methods: Some(allowed_names_to_wire(&cors.methods)),
        headers: Some(allowed_names_to_wire(&cors.headers)),
        exposed: Some(allowed_names_to_wire(&cors.exposed_headers)),
        max_age_seconds: cors.max_age_seconds,
    }
}

/// Parses a policy with at least one origin.
pub(super) fn from_wire(wire: proto::Cors) -> Result<Cors, InvalidField> {
    let parse_origin =
        |text: String| OriginPattern::new(&text).map_err(|error| InvalidField::new("", error));
    let origins = convert_each("origins", wire.origins, parse_origin)?;
    if origins.is_empty() {
        return Err(InvalidField::new("origins", "is empty"));
    }
    Ok(Cors {
        origins,
        allows_credentials: wire.credentials,
        methods: allowed_names_from_wire("methods", wire.methods)?,
        headers: allowed_names_from_wire("headers", wire.headers)?,
        exposed_headers: allowed_names_from_wire("exposed", wire.exposed)?,
        max_age_seconds: wire.max_age_seconds,
    })
}

fn allowed_names_to_wire(allowed_names: &AllowedNames) -> proto::AnyOf {
    match allowed_names {
        AllowedNames::Any => proto::AnyOf { any: true, words: Vec::new() },
        AllowedNames::Only(names) => proto::AnyOf { any: false, words: names.clone() },
    }
}

/// Parses methods or header names. They are copied into headers, so names that could break a message are
/// rejected.
fn allowed_names_from_wire(
    field: &str,
    wire: Option<proto::AnyOf>,
) -> Result<AllowedNames, InvalidField> {
    let proto::AnyOf { any, words: names } = wire.unwrap_or_default();
    let is_valid = |name: &String| HeaderEdits::is_valid_name(&name.to_ascii_lowercase());
    match any {
        true if names.is_empty() => Ok(AllowedNames::Any),
        true => Err(InvalidField::new(field, "has values in addition to `any`")),
        false if names.iter().all(is_valid) => Ok(AllowedNames::Only(names)),
        false => Err(InvalidField::new(field, "has an invalid method or header name")),
    }
}
