//! Reads the field `global` of a `RateLimit`: the rate limit service to which sidecars send descriptors of requests, with
//! Envoy's rate limit service protocol. The service counts the requests for all sidecars.

use std::time::Duration;

use leno_model::{
    Descriptor, DescriptorEntry, DescriptorValue, FailureMode, FixedResponse, GlobalLimit, Name,
};

use super::access_policy::read_elements;
use super::http_route::{read_header_name, read_match};
use super::request_condition::require_exactly_one_key;
use super::service_policy::read_number_or;
use super::{check_service, response};
use crate::field::Field;

/// Reads the field `global`: the rate limit service, and the descriptors that are sent to it.
pub(super) fn read(field: &Field<'_>, namespace: &Name) -> Option<GlobalLimit> {
    let fields = field.read_fields(&[
        "service",
        "url",
        "timeout",
        "failureMode",
        "domain",
        "descriptors",
        "response",
        "rateLimitHeaders",
    ])?;
    let check_service =
        check_service::read(&fields, namespace, DEFAULT_TIMEOUT, FailureMode::Allow);
    let domain = fields.require("domain").and_then(read_descriptor_text);
    let descriptors = fields.require("descriptors").and_then(|field| {
        let elements = field.read_list(MAX_DESCRIPTORS)?;
        if elements.is_empty() {
            field.reject("is empty", "add a descriptor");
            return None;
        }
        elements.iter().map(read_descriptor).collect::<Option<Vec<_>>>()
    });
    let response = match fields.find("response") {
        Some(field) => response::read(field)?,
        None => FixedResponse::default(),
    };
    let rate_limit_headers = match fields.find("rateLimitHeaders") {
        Some(field) => field.read_boolean()?,
        None => false,
    };
    let (check_service, domain, descriptors) = (check_service?, domain?, descriptors?);
    Some(GlobalLimit { check_service, domain, descriptors, response, rate_limit_headers })
}

/// Reads one of the `descriptors`: the requests for which it is sent, and its entries, at least one.
fn read_descriptor(element: &Field<'_>) -> Option<Descriptor> {
    let fields = element.read_fields(&["matches", "entries", "hitsAddend"])?;
    let requests =
        read_elements(&fields, "matches", "or leave it out for all requests", read_match);
    let entries_field = fields.require("entries")?;
    let elements = entries_field.read_list(MAX_ENTRIES)?;
    if elements.is_empty() {
        entries_field.reject("is empty", "add an entry, such as `{key: client, from: client}`");
        return None;
    }
    let entries: Option<Vec<_>> = elements.iter().map(read_entry).collect();
    let hits_addend = read_number_or(&fields, "hitsAddend", 1, MAX_HITS_ADDEND, 1);
    Some(Descriptor { requests: requests?, entries: entries?, hits_addend: hits_addend? })
}

/// Reads one of the `entries`: its `key`, and the source of its value, which is exactly one of `value` (a text), `header`
/// (a request header) and `from` (a property of the request, such as `path`).
fn read_entry(element: &Field<'_>) -> Option<DescriptorEntry> {
    let fields = element.read_fields(&["key", "value", "header", "from"])?;
    let source_key = require_exactly_one_key(&fields, &["value", "header", "from"])?;
    let field = fields.find(source_key)?;
    let value = match source_key {
        "value" => DescriptorValue::Text(read_descriptor_text(field)?),
        "header" => DescriptorValue::Header(read_header_name(field, field.read_text()?)?),
        _ => field.read_choice(&[
            ("client", DescriptorValue::Client),
            ("path", DescriptorValue::Path),
            ("method", DescriptorValue::Method),
            ("address", DescriptorValue::Address),
        ])?,
    };
    Some(DescriptorEntry { key: fields.require("key").and_then(read_descriptor_text)?, value })
}

/// Reads a text that is sent to the rate limit service.
fn read_descriptor_text(field: &Field<'_>) -> Option<String> {
    let parse_descriptor_text = |text: &str| {
        let is_valid = !text.is_empty() && text.len() <= MAX_DESCRIPTOR_TEXT_BYTES;
        (is_valid && !text.contains(char::is_control)).then(|| text.to_owned())
    };
    field.read_with(
        parse_descriptor_text,
        "a text to send",
        "use 1 to 256 bytes without control characters",
    )
}

/// The default timeout, as in Envoy.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(20);
/// Maximum number of descriptors per request.
const MAX_DESCRIPTORS: usize = 16;
/// Maximum number of entries per descriptor.
const MAX_ENTRIES: usize = 16;
/// Maximum value of `hitsAddend`, the number of hits that a request counts as.
const MAX_HITS_ADDEND: u32 = 1_000_000;
/// Maximum length of a text in a descriptor.
const MAX_DESCRIPTOR_TEXT_BYTES: usize = 256;
