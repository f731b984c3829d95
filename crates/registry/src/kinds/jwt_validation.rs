//! Reads the `leno.dev/v1alpha1` `JwtValidation` kind.

use std::time::Duration;

use leno_model::{
    ClaimHeader, HeaderEdits, JwtIssuer, JwtLocation, JwtValidation, Name, PolicyScope,
    TokenRequirement,
};

use super::access_policy::read_elements;
use super::http_route::{read_header_name, read_match};
use super::issuer_keys;
use super::request_condition::require_exactly_one_key;
use super::service_policy::{read_duration_or, read_targets};
use crate::field::{Field, MapFields};

/// Reads the `spec` of a `JwtValidation`.
pub(super) fn read(namespace: &Name, spec: &Field<'_>) -> Option<(PolicyScope, JwtValidation)> {
    let fields = spec.read_fields(&["targetRefs", "issuers", "required", "requiredFor"])?;
    let scope = read_targets(&fields, namespace);
    let required = read_required(&fields);
    let field = fields.require("issuers")?;
    let mut issuers: Vec<JwtIssuer> = Vec::new();
    let elements = field.read_list(MAX_ISSUERS)?;
    if elements.is_empty() {
        field.reject("names no issuer", "add an issuer");
        return None;
    }
    for element in &elements {
        let Some(issuer) = read_issuer(element) else { continue };
        if issuers.iter().any(|existing| existing.issuer == issuer.issuer) {
            element.reject("is listed twice", "remove one of the two");
        }
        issuers.push(issuer);
    }
    Some((scope?, JwtValidation { issuers, required: required? }))
}

/// Reads `required`, or `requiredFor` with request matches. Without both fields, no request requires a token.
fn read_required(fields: &MapFields<'_>) -> Option<TokenRequirement> {
    let requests = read_elements(
        fields,
        "requiredFor",
        "or omit it if no request requires a token",
        read_match,
    )?;
    let is_required = match fields.find("required") {
        Some(field) => field.read_boolean()?,
        None => false,
    };
    match (is_required, requests.is_empty()) {
        (true, true) => Some(TokenRequirement::Always),
        (false, true) => Some(TokenRequirement::Never),
        (false, false) => Some(TokenRequirement::Matching(requests)),
        (true, false) => {
            let problem = "has both `required` and `requiredFor`";
            fields.map_field().reject(problem, "keep one of them");
            None
        }
    }
}

/// Reads one of the `issuers`: the accepted tokens, their location in requests, and the claims that become headers.
fn read_issuer(element: &Field<'_>) -> Option<JwtIssuer> {
    let fields = element.read_fields(&[
        "issuer",
        "audiences",
        "jwks",
        "from",
        "clockSkew",
        "requireExpiration",
        "maxAge",
        "claimToHeaders",
        "forwardOriginalToken",
    ])?;
    let issuer = fields.require("issuer").and_then(read_compared_text);
    let aud = read_elements(&fields, "audiences", "or leave it out for any", read_compared_text);
    let keys = fields.require("jwks").and_then(issuer_keys::read);
    let locations = match fields.find("from") {
        None => {
            let (name, prefix) = ("authorization".to_owned(), "Bearer ".to_owned());
            Some(vec![JwtLocation::Header { name, prefix }])
        }
        Some(_) => read_elements(
            &fields,
            "from",
            "or leave it out for `authorization`",
            read_token_location,
        ),
    };
    let clock_skew = read_duration_or(
        &fields,
        "clockSkew",
        Duration::ZERO,
        JwtIssuer::MAX_CLOCK_SKEW,
        DEFAULT_CLOCK_SKEW,
    );
    let requires_expiration = match fields.find("requireExpiration") {
        Some(field) => field.read_boolean()?,
        None => true,
    };
    let max_age = read_max_age(&fields)?;
    let claim_to_headers =
        read_elements(&fields, "claimToHeaders", "or leave it out", read_claim_header)?;
    let is_repeated = |(index, header): (usize, &ClaimHeader)| {
        claim_to_headers.iter().take(index).any(|previous| previous.header == header.header)
    };
    if let (Some(field), true) =
        (fields.find("claimToHeaders"), claim_to_headers.iter().enumerate().any(is_repeated))
    {
        field.reject("has two claims in one header", "use another header for one of them");
    }
    let forward_original_token = match fields.find("forwardOriginalToken") {
        Some(field) => field.read_boolean()?,
        None => false,
    };
    Some(JwtIssuer {
        issuer: issuer?,
        aud: aud?,
        keys: keys?,
        locations: locations?,
        clock_skew: clock_skew?,
        requires_expiration,
        max_age,
        claim_to_headers,
        forward_original_token,
    })
}

/// Reads `maxAge`; `Some(None)` if it is absent.
fn read_max_age(fields: &MapFields<'_>) -> Option<Option<Duration>> {
    let (min, max) = (JwtIssuer::MAX_AGE_MIN, JwtIssuer::MAX_AGE_MAX);
    match fields.find("maxAge") {
        Some(_) => read_duration_or(fields, "maxAge", min, max, max).map(Some),
        None => Some(None),
    }
}

/// Reads the location of a token: `header` with an optional `prefix`, or `query`.
fn read_token_location(element: &Field<'_>) -> Option<JwtLocation> {
    let fields = element.read_fields(&["header", "prefix", "query"])?;
    if require_exactly_one_key(&fields, &["header", "query"])? == "query" {
        if let Some(prefix) = fields.find("prefix") {
            prefix.reject("requires `header`", "remove it");
        }
        return fields.find("query").and_then(read_compared_text).map(JwtLocation::Query);
    }
    let field = fields.find("header")?;
    let name = read_header_name(field, field.read_text()?)?;
    let prefix = match fields.find("prefix") {
        Some(field) => field.read_text()?.to_owned(),
        None => String::new(),
    };
    Some(JwtLocation::Header { name, prefix })
}

/// Reads a claim and the request header to which the sidecar copies the claim.
fn read_claim_header(element: &Field<'_>) -> Option<ClaimHeader> {
    let fields = element.read_fields(&["claim", "header"])?;
    let claim = fields.require("claim").and_then(read_compared_text);
    let field = fields.require("header")?;
    let header = read_header_name(field, field.read_text()?)?;
    if !HeaderEdits::is_valid_name(&header) || !HeaderEdits::may_edit(&header) {
        let problem = format!("{} is a header of the protocol", field.quoted_value());
        field.reject(problem, "use another header, such as `x-user`");
        return None;
    }
    Some(ClaimHeader { claim: claim?, header })
}

/// Reads a text that is compared with a part of tokens, such as an issuer, an audience or a claim.
pub(super) fn read_compared_text(field: &Field<'_>) -> Option<String> {
    let parse_compared_text = |text: &str| {
        let is_valid = !text.is_empty() && text.len() <= MAX_COMPARED_TEXT_BYTES;
        (is_valid && !text.contains(char::is_control)).then(|| text.to_owned())
    };
    field.read_with(
        parse_compared_text,
        "a text to compare",
        "use 1 to 512 bytes without control characters",
    )
}

/// Maximum number of issuers per policy.
const MAX_ISSUERS: usize = 16;
/// The default clock skew, as in Envoy.
const DEFAULT_CLOCK_SKEW: Duration = Duration::from_secs(60);
/// Maximum length of an issuer, audience or claim.
const MAX_COMPARED_TEXT_BYTES: usize = 512;
