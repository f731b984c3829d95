//! Reads the `leno.dev/v1alpha1` `ExternalAuthorization` kind: an authorization service that sidecars call for requests,
//! with Envoy's protocol.

use std::time::Duration;

use leno_model::{Authorization, BodyExcerpt, FailureMode, LongBodyAction, Name, PolicyScope};

use super::access_policy::read_elements;
use super::check_service;
use super::http_route::{read_header_name, read_match};
use super::service_policy::read_targets;
use crate::document::NodeValue;
use crate::field::{Field, MapFields};

/// Reads the `spec` of an `ExternalAuthorization`.
pub(super) fn read(namespace: &Name, spec: &Field<'_>) -> Option<(PolicyScope, Authorization)> {
    let fields = spec.read_fields(&[
        "targetRefs",
        "service",
        "url",
        "timeout",
        "failureMode",
        "matches",
        "headers",
        "contextExtensions",
        "body",
    ])?;
    let scope = read_targets(&fields, namespace);
    let check_service = check_service::read(&fields, namespace, DEFAULT_TIMEOUT, FailureMode::Deny);
    let requests =
        read_elements(&fields, "matches", "or leave it out for all requests", read_match);
    let headers = read_headers(&fields);
    let context_extensions = read_context_extensions(&fields);
    let body = match fields.find("body") {
        Some(field) => read_sent_body(field).map(Some),
        None => Some(None),
    };
    let (check_service, requests, headers) = (check_service?, requests?, headers?);
    Some((
        scope?,
        Authorization {
            check_service,
            requests,
            headers,
            context_extensions: context_extensions?,
            body: body?,
        },
    ))
}

/// Reads the names of the headers that check requests contain; `Some(None)` if the field is absent.
fn read_headers(fields: &MapFields<'_>) -> Option<Option<Vec<String>>> {
    let Some(field) = fields.find("headers") else { return Some(None) };
    let mut names: Vec<String> = Vec::new();
    for element in field.read_list(MAX_HEADERS)? {
        let name = read_header_name(&element, element.read_text()?)?;
        if names.contains(&name) {
            element.reject("is listed twice", "remove one of the two");
        }
        names.push(name);
    }
    Some(Some(names))
}

/// Reads `contextExtensions`, texts that every check request contains; empty if the field is absent.
fn read_context_extensions(fields: &MapFields<'_>) -> Option<Vec<(String, String)>> {
    let Some(field) = fields.find("contextExtensions") else { return Some(Vec::new()) };
    let NodeValue::Map(map) = field.value() else {
        field.reject(format!("is {}, not a map", field.quoted_value()), "write `NAME: TEXT`");
        return None;
    };
    if map.len() > MAX_CONTEXT_EXTENSIONS {
        field.reject(
            format!("has {} entries", map.len()),
            format!("use at most {MAX_CONTEXT_EXTENSIONS}"),
        );
        return None;
    }
    Some(field.read_text_map().into_iter().collect())
}

/// Reads `body`: the maximum size and the form of the request body that a check request contains.
fn read_sent_body(field: &Field<'_>) -> Option<BodyExcerpt> {
    let fields = field.read_fields(&["maxRequestBytes", "allowPartialMessage", "packAsBytes"])?;
    let read_optional_boolean = |name| fields.find(name).map_or(Some(false), Field::read_boolean);
    let max_bytes = match fields.find("maxRequestBytes") {
        Some(field) => field.read_number(1, BodyExcerpt::MAX_BYTES),
        None => Some(BodyExcerpt::DEFAULT_MAX_BYTES),
    };
    let (allow_partial_message, pack_as_bytes) =
        (read_optional_boolean("allowPartialMessage"), read_optional_boolean("packAsBytes"));
    let long_body =
        if allow_partial_message? { LongBodyAction::SendPrefix } else { LongBodyAction::Reject };
    Some(BodyExcerpt { max_bytes: max_bytes?, long_body, pack_as_bytes: pack_as_bytes? })
}

/// The default timeout, as in Envoy.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum number of headers sent to a check service.
const MAX_HEADERS: usize = 64;
/// Maximum number of context extensions per policy.
const MAX_CONTEXT_EXTENSIONS: usize = 32;
