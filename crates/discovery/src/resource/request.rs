//! Converts request matches, which rules of all kinds share, to and from the wire.

use leno_model::{FieldMatch, PathMatch, RequestMatch, ValueMatch};

use super::field::{InvalidField, convert_each};
use crate::proto;

pub(super) fn to_wire(request: &RequestMatch) -> proto::RequestMatch {
    proto::RequestMatch {
        path: Some(path_to_wire(&request.path)),
        methods: request.methods.clone(),
        headers: request.headers.iter().map(field_to_wire).collect(),
        query: request.query.iter().map(field_to_wire).collect(),
    }
}

/// Parses a match. Methods must not be empty, and header names must be lower case.
pub(super) fn from_wire(wire: proto::RequestMatch) -> Result<RequestMatch, InvalidField> {
    if wire.methods.iter().any(String::is_empty) {
        return Err(InvalidField::new("methods", "has an empty method"));
    }
    let headers = convert_each("headers", wire.headers, field_from_wire)?;
    if let Some(header) =
        headers.iter().find(|header| header.name.bytes().any(|byte| byte.is_ascii_uppercase()))
    {
        let reason = format!("the header name `{}` is not lower case", header.name);
        return Err(InvalidField::new("headers", reason));
    }
    Ok(RequestMatch {
        path: path_from_wire(wire.path)?,
        methods: wire.methods,
        headers,
        query: convert_each("query", wire.query, field_from_wire)?,
    })
}

fn path_to_wire(path: &PathMatch) -> proto::request_match::Path {
    use proto::request_match::Path;
    match path {
        PathMatch::Any => Path::PathAny(proto::Nothing {}),
        PathMatch::Exact(text) => Path::PathExact(text.clone()),
        PathMatch::Prefix(text) => Path::PathPrefix(text.clone()),
        PathMatch::Regex(text) => Path::PathRegex(text.clone()),
    }
}

fn path_from_wire(path: Option<proto::request_match::Path>) -> Result<PathMatch, InvalidField> {
    use proto::request_match::Path;
    match path {
        None => Err(InvalidField::new("path", "is missing, or unknown to this version")),
        Some(Path::PathAny(proto::Nothing {})) => Ok(PathMatch::Any),
        Some(Path::PathExact(text)) => Ok(PathMatch::Exact(text)),
        Some(Path::PathPrefix(text)) => Ok(PathMatch::Prefix(text)),
        Some(Path::PathRegex(text)) => Ok(PathMatch::Regex(text)),
    }
}

fn field_to_wire(field: &FieldMatch) -> proto::FieldMatch {
    let value = match &field.value {
        ValueMatch::Exact(text) => proto::field_match::Value::Exact(text.clone()),
        ValueMatch::Regex(text) => proto::field_match::Value::Regex(text.clone()),
    };
    proto::FieldMatch { name: field.name.clone(), value: Some(value) }
}

fn field_from_wire(wire: proto::FieldMatch) -> Result<FieldMatch, InvalidField> {
    if wire.name.is_empty() {
        return Err(InvalidField::new("name", "is empty"));
    }
    let value = match wire.value {
        None => {
            return Err(InvalidField::new("value", "is missing, or unknown to this version"));
        }
        Some(proto::field_match::Value::Exact(text)) => ValueMatch::Exact(text),
        Some(proto::field_match::Value::Regex(text)) => ValueMatch::Regex(text),
    };
    Ok(FieldMatch { name: wire.name, value })
}
