//! Reader of `rateLimit.global` of OSM's `UpstreamTrafficSetting`: queries to Envoy's rate limit service.

use std::time::Duration;

use leno_model::{
    CheckService, CheckServiceAddress, Descriptor, DescriptorEntry, DescriptorValue, FailureMode,
    FieldMatch, FixedResponse, GlobalLimit, PathMatch, RequestMatch, Server, ValueMatch,
};

use super::http_route::read_header_name;
use super::request_condition::require_exactly_one_key;
use super::service_policy::read_duration_or;
use crate::field::{Field, MapFields};

/// Reads `global`: the rate limit service, and the descriptors of every request.
pub(super) fn read(global: &Field<'_>) -> Option<GlobalLimit> {
    let limit_fields = global.read_fields(&["tcp", "http"])?;
    limit_fields.reject_unsupported(
        "tcp",
        "is not supported: a service counts requests here",
        "remove it, and limit connections with `local.tcp`",
    );
    let fields = limit_fields.require("http")?.read_fields(&[
        "rateLimitService",
        "domain",
        "descriptors",
        "timeout",
        "failOpen",
        "enableXRateLimitHeaders",
        "responseStatusCode",
    ])?;
    let address = fields.require("rateLimitService").and_then(read_server);
    let (min, max) = (CheckService::MIN_TIMEOUT, CheckService::MAX_TIMEOUT);
    let timeout = read_duration_or(&fields, "timeout", min, max, DEFAULT_TIMEOUT);
    let is_fail_open = read_boolean_or(&fields, "failOpen", true)?;
    let failure_mode = if is_fail_open { FailureMode::Allow } else { FailureMode::Deny };
    let check_service = CheckService { at: address?, timeout: timeout?, failure_mode };
    let status = match fields.find("responseStatusCode") {
        Some(field) => Some(u16::try_from(field.read_number(400, 599)?).ok()?),
        None => None,
    };
    Some(GlobalLimit {
        check_service,
        domain: fields.require("domain").and_then(Field::read_text)?.to_owned(),
        descriptors: read_descriptors(&fields, &RequestMatch::default())?,
        response: FixedResponse { status, ..FixedResponse::default() },
        rate_limit_headers: read_boolean_or(&fields, "enableXRateLimitHeaders", false)?,
    })
}

/// Reads the field `descriptors` for requests that match `base_match`; empty if the field is absent.
pub(super) fn read_descriptors(
    fields: &MapFields<'_>,
    base_match: &RequestMatch,
) -> Option<Vec<Descriptor>> {
    let Some(field) = fields.find("descriptors") else { return Some(Vec::new()) };
    let elements = field.read_list(MAX_DESCRIPTORS)?;
    elements.iter().map(|element| read_descriptor(element, base_match)).collect()
}

fn read_descriptor(element: &Field<'_>, base_match: &RequestMatch) -> Option<Descriptor> {
    let elements = element.read_fields(&["entries"])?.require("entries")?.read_list(MAX_ENTRIES)?;
    if elements.is_empty() {
        element.reject("has no entries, so no descriptor is sent", "add one, or remove it");
        return None;
    }
    let mut request_match = base_match.clone();
    let entries: Option<Vec<_>> =
        elements.iter().map(|element| read_entry(element, &mut request_match)).collect();
    let requests =
        if request_match == RequestMatch::default() { Vec::new() } else { vec![request_match] };
    Some(Descriptor { requests, entries: entries?, hits_addend: 1 })
}

/// Reads one of the four descriptor entry types and adds its conditions to `request_match`.
fn read_entry(element: &Field<'_>, request_match: &mut RequestMatch) -> Option<DescriptorEntry> {
    let keys = ["genericKey", "remoteAddress", "requestHeader", "headerValueMatch"];
    let element_fields = element.read_fields(&keys)?;
    let type_key = require_exactly_one_key(&element_fields, &keys)?;
    let field = element_fields.find(type_key)?;
    let (default_key, value, fields) = match type_key {
        "genericKey" => {
            let fields = field.read_fields(&["value", "key"])?;
            ("generic_key", DescriptorValue::Text(read_required_text(&fields, "value")?), fields)
        }
        "remoteAddress" => ("remote_address", DescriptorValue::Address, field.read_fields(&[])?),
        "requestHeader" => {
            let fields = field.read_fields(&["name", "key"])?;
            fields.require("key")?;
            let name = fields.require("name")?;
            ("", DescriptorValue::Header(read_header_name(name, name.read_text()?)?), fields)
        }
        _ => {
            let fields = field.read_fields(&["value", "headers", "key", "expectMatch"])?;
            if !read_boolean_or(&fields, "expectMatch", true)? {
                field.reject(
                    "describes requests that do not match, which is not supported",
                    "remove `expectMatch`, and describe those that match",
                );
                return None;
            }
            for header in fields.require("headers")?.read_list(MAX_ENTRIES)? {
                request_match.headers.push(read_header_match(&header)?);
            }
            ("header_match", DescriptorValue::Text(read_required_text(&fields, "value")?), fields)
        }
    };
    let key = match fields.find("key") {
        Some(field) => field.read_text()?.to_owned(),
        None => default_key.to_owned(),
    };
    Some(DescriptorEntry { key, value })
}

fn read_header_match(element: &Field<'_>) -> Option<FieldMatch> {
    const MATCH_KEYS: [&str; 6] = ["exact", "prefix", "suffix", "regex", "contains", "present"];
    let fields = element
        .read_fields(&["name", "exact", "prefix", "suffix", "regex", "contains", "present"])?;
    let name = fields.require("name")?;
    let name = read_header_name(name, name.read_text()?)?;
    let match_key = require_exactly_one_key(&fields, &MATCH_KEYS)?;
    let field = fields.find(match_key)?;
    let read_escaped_text = || field.read_text().map(regex::escape);
    let value = match match_key {
        "exact" => ValueMatch::Exact(field.read_text()?.to_owned()),
        "regex" => ValueMatch::Regex(field.read_regex()?),
        "prefix" => ValueMatch::Regex(format!("{}.*", read_escaped_text()?)),
        "suffix" => ValueMatch::Regex(format!(".*{}", read_escaped_text()?)),
        "contains" => ValueMatch::Regex(format!(".*{}.*", read_escaped_text()?)),
        _ => {
            if !field.read_boolean()? {
                field.reject("is false, which is not supported", "remove the header");
                return None;
            }
            ValueMatch::Regex(".*".to_owned())
        }
    };
    Some(FieldMatch { name, value })
}

fn read_server(field: &Field<'_>) -> Option<CheckServiceAddress> {
    let fields = field.read_fields(&["host", "port"])?;
    let host = fields.require("host");
    let port = fields.require("port").and_then(Field::read_port);
    let (host, port) = (host?, port?);
    match Server::parse(&format!("http://{}:{port}", host.read_text()?)) {
        Ok(server) => Some(CheckServiceAddress::External(server)),
        Err(error) => {
            let problem = format!("{} is not a valid host: {error}", host.quoted_value());
            host.reject(problem, "use a host name or an address");
            None
        }
    }
}

fn read_required_text(fields: &MapFields<'_>, key: &str) -> Option<String> {
    fields.require(key)?.read_text().map(str::to_owned)
}

fn read_boolean_or(fields: &MapFields<'_>, key: &str, default: bool) -> Option<bool> {
    match fields.find(key) {
        Some(field) => field.read_boolean(),
        None => Some(default),
    }
}

/// Returns the match for requests with a path that matches this pattern.
pub(super) fn path_pattern_match(pattern: String) -> RequestMatch {
    RequestMatch { path: PathMatch::Regex(pattern), ..RequestMatch::default() }
}

/// The schema's default timeout.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(20);
/// Maximum number of descriptors per request, as in a `RateLimit`.
const MAX_DESCRIPTORS: usize = 16;
/// Maximum number of entries per descriptor.
const MAX_ENTRIES: usize = 16;
