//! Reads `rateLimit.global` of OSM's `UpstreamTrafficSetting`: the rate limit service to which sidecars send descriptors
//! of requests, with Envoy's rate limit service protocol.

use std::time::Duration;

use leno_model::{
    CheckService, CheckServiceAddress, Descriptor, DescriptorEntry, DescriptorValue, FailureMode,
    FieldMatch, FixedResponse, GlobalLimit, PathMatch, RequestMatch, Server, ValueMatch,
};

use super::http_route::read_header_name;
use super::service_policy::read_duration_or;
use crate::field::{Field, MapFields};
use crate::schema_reader::require_exactly_one;

/// Reads the field `global`: the rate limit service, and the descriptors that are sent for all requests. Returns `None`
/// after it has recorded the problems of an invalid field.
pub(super) fn read_global_limit(global: &Field<'_>) -> Option<GlobalLimit> {
    let global_fields = global.read_fields(&["tcp", "http"])?;
    global_fields.reject_unsupported(
        "tcp",
        "is not supported: a rate limit service counts only requests",
        "remove it, and limit connections with `local.tcp`",
    );
    let http_fields = global_fields.require("http")?.read_fields(&[
        "rateLimitService",
        "domain",
        "descriptors",
        "timeout",
        "failOpen",
        "enableXRateLimitHeaders",
        "responseStatusCode",
    ])?;
    let address = http_fields.require("rateLimitService").and_then(read_service_address);
    let (min, max) = (CheckService::MIN_TIMEOUT, CheckService::MAX_TIMEOUT);
    let timeout = read_duration_or(&http_fields, "timeout", min, max, DEFAULT_TIMEOUT);
    let is_fail_open = read_boolean_or(&http_fields, "failOpen", true)?;
    let failure_mode = if is_fail_open { FailureMode::Allow } else { FailureMode::Deny };
    let check_service = CheckService { address: address?, timeout: timeout?, failure_mode };
    let status = match http_fields.find("responseStatusCode") {
        Some(field) => Some(u16::try_from(field.read_number(400, 599)?).ok()?),
        None => None,
    };
    Some(GlobalLimit {
        check_service,
        domain: http_fields.require("domain").and_then(Field::read_text)?.to_owned(),
        descriptors: read_descriptors(&http_fields, &RequestMatch::default())?,
        response: FixedResponse { status, ..FixedResponse::default() },
        rate_limit_headers: read_boolean_or(&http_fields, "enableXRateLimitHeaders", false)?,
    })
}

/// Reads the field `descriptors`, which is sent for requests that match `base_match`. Returns an empty list if the field is
/// absent, and `None` after it has recorded the problems of an invalid field.
pub(super) fn read_descriptors(
    fields: &MapFields<'_>,
    base_match: &RequestMatch,
) -> Option<Vec<Descriptor>> {
    let Some(field) = fields.find("descriptors") else { return Some(Vec::new()) };
    let descriptors = field.read_list(MAX_DESCRIPTORS)?;
    descriptors.iter().map(|descriptor| read_descriptor(descriptor, base_match)).collect()
}

/// Reads one descriptor. It is sent for requests that match `base_match` and the headers of all `headerValueMatch`
/// entries.
fn read_descriptor(descriptor: &Field<'_>, base_match: &RequestMatch) -> Option<Descriptor> {
    let entries =
        descriptor.read_fields(&["entries"])?.require("entries")?.read_list(MAX_ENTRIES)?;
    if entries.is_empty() {
        descriptor.reject("has no entries, so no descriptor is sent", "add one, or remove it");
        return None;
    }
    let mut request_match = base_match.clone();
    let descriptor_entries: Option<Vec<_>> =
        entries.iter().map(|entry| read_entry(entry, &mut request_match)).collect();
    // An empty list means all requests.
    let requests =
        if request_match == RequestMatch::default() { Vec::new() } else { vec![request_match] };
    Some(Descriptor { requests, entries: descriptor_entries?, hits_addend: 1 })
}

/// Reads a descriptor entry of one of the four types, and adds the headers of a `headerValueMatch` to `request_match`.
fn read_entry(entry: &Field<'_>, request_match: &mut RequestMatch) -> Option<DescriptorEntry> {
    let entry_types = ["genericKey", "remoteAddress", "requestHeader", "headerValueMatch"];
    let entry_fields = entry.read_fields(&entry_types)?;
    let entry_type = require_exactly_one(&entry_fields, &entry_types, "type")?;
    let type_field = entry_fields.find(entry_type)?;
    let (default_key, value, type_fields) = match entry_type {
        "genericKey" => {
            let fields = type_field.read_fields(&["value", "key"])?;
            ("generic_key", DescriptorValue::Text(read_required_text(&fields, "value")?), fields)
        }
        "remoteAddress" => {
            ("remote_address", DescriptorValue::Address, type_field.read_fields(&[])?)
        }
        "requestHeader" => {
            let fields = type_field.read_fields(&["name", "key"])?;
            fields.require("key")?;
            let name = fields.require("name")?;
            ("", DescriptorValue::Header(read_header_name(name, name.read_text()?)?), fields)
        }
        _ => {
            let fields = type_field.read_fields(&["value", "headers", "key", "expectMatch"])?;
            if !read_boolean_or(&fields, "expectMatch", true)? {
                type_field.reject(
                    "describes requests without the headers, which is not supported",
                    "remove `expectMatch`, and list headers that the requests have",
                );
                return None;
            }
            for header in fields.require("headers")?.read_list(MAX_ENTRIES)? {
                request_match.headers.push(read_header_match(&header)?);
            }
            ("header_match", DescriptorValue::Text(read_required_text(&fields, "value")?), fields)
        }
    };
    let key = match type_fields.find("key") {
        Some(field) => field.read_text()?.to_owned(),
        None => default_key.to_owned(),
    };
    Some(DescriptorEntry { key, value })
}

/// Reads one of the `headers` of a `headerValueMatch`. `ValueMatch` has no prefixes, suffixes, substrings and presence,
/// so they become regular expressions for the whole value.
fn read_header_match(header: &Field<'_>) -> Option<FieldMatch> {
    const MATCH_KEYS: [&str; 6] = ["exact", "prefix", "suffix", "regex", "contains", "present"];
    let fields = header
        .read_fields(&["name", "exact", "prefix", "suffix", "regex", "contains", "present"])?;
    let name_field = fields.require("name")?;
    let name = read_header_name(name_field, name_field.read_text()?)?;
    let match_key = require_exactly_one(&fields, &MATCH_KEYS, "match")?;
    let match_field = fields.find(match_key)?;
    let read_escaped_text = || match_field.read_text().map(regex::escape);
    let value = match match_key {
        "exact" => ValueMatch::Exact(match_field.read_text()?.to_owned()),
        "regex" => ValueMatch::Regex(match_field.read_regex()?),
        "prefix" => ValueMatch::Regex(format!("{}.*", read_escaped_text()?)),
        "suffix" => ValueMatch::Regex(format!(".*{}", read_escaped_text()?)),
        "contains" => ValueMatch::Regex(format!(".*{}.*", read_escaped_text()?)),
        _ => {
            if !match_field.read_boolean()? {
                match_field.reject("is false, which is not supported", "remove the header");
                return None;
            }
            ValueMatch::Regex(".*".to_owned())
        }
    };
    Some(FieldMatch { name, value })
}

/// Reads the field `rateLimitService`: the address of a server outside the mesh, which is called in plaintext as in OSM.
fn read_service_address(field: &Field<'_>) -> Option<CheckServiceAddress> {
    let fields = field.read_fields(&["host", "port"])?;
    // Both fields are read before a problem ends the read, so that the problems of both are reported.
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

/// Reads a text that must be present.
fn read_required_text(fields: &MapFields<'_>, key: &str) -> Option<String> {
    fields.require(key)?.read_text().map(str::to_owned)
}

/// Reads a boolean; `default` if the field is absent.
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

/// The default timeout of the `UpstreamTrafficSetting` schema.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(20);
/// Maximum number of descriptors per request, as in a `RateLimit`.
const MAX_DESCRIPTORS: usize = 16;
/// Maximum number of entries per descriptor.
const MAX_ENTRIES: usize = 16;
