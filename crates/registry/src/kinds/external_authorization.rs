//! Reads `leno.dev/v1alpha1` `ExternalAuthorization`.

use std::time::Duration;

use leno_model::{Authorization, Name, PolicyScope, Unanswered};

use super::access_policy::elements;
use super::decider;
use super::http_route::{header_name, read_match};
use super::service_policy::targets;
use crate::document::Value;
use crate::field::{Field, Fields};

pub(super) fn read(namespace: &Name, spec: &Field<'_>) -> Option<(PolicyScope, Authorization)> {
    let fields = spec.fields(&[
        "targetRefs",
        "service",
        "url",
        "timeout",
        "onFailure",
        "matches",
        "headers",
        "context",
    ])?;
    let scope = targets(&fields, namespace);
    let decider = decider::read(&fields, namespace, (TIMEOUT_DEFAULT, Unanswered::Deny));
    let requests = elements(&fields, "matches", "or leave it out for all requests", read_match);
    let headers = headers(&fields);
    let context = context(&fields);
    let (decider, requests, headers) = (decider?, requests?, headers?);
    Some((scope?, Authorization { decider, requests, headers, context: context? }))
}

/// An empty list tells none.
fn headers(fields: &Fields<'_>) -> Option<Option<Vec<String>>> {
    let Some(field) = fields.find("headers") else { return Some(None) };
    let mut names: Vec<String> = Vec::new();
    for element in field.list(HEADERS_MAX)? {
        let name = header_name(&element, element.text()?)?;
        if names.contains(&name) {
            element.refuse("is listed twice", "remove one of the two");
        }
        names.push(name);
    }
    Some(Some(names))
}

fn context(fields: &Fields<'_>) -> Option<Vec<(String, String)>> {
    let Some(field) = fields.find("context") else { return Some(Vec::new()) };
    let Value::Map(map) = field.value() else {
        field.refuse(format!("is {}, not a map", field.shown()), "write `NAME: TEXT`");
        return None;
    };
    if map.len() > CONTEXT_MAX {
        field.refuse(format!("has {} entries", map.len()), format!("use at most {CONTEXT_MAX}"));
        return None;
    }
    Some(field.texts().into_iter().collect())
}

/// As Envoy waits.
const TIMEOUT_DEFAULT: Duration = Duration::from_millis(200);
/// More than a service decides by.
const HEADERS_MAX: usize = 64;
/// More than tells a service which rule it is asked for.
const CONTEXT_MAX: usize = 32;
