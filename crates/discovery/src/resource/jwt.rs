//! Converts JWT validation policies to and from the wire: issuers, keys, token locations and claims.

use std::collections::BTreeSet;
use std::time::Duration;

use leno_model::{
    ClaimHeader, IssuerKeys, JwtAlgorithm, JwtIssuer, JwtLocation, JwtValidation, TokenRequirement,
};

use super::field::{InvalidField, convert_each, to_nanoseconds};
use super::request;
use super::request_check::parse_header_name;
use crate::proto;

pub(super) fn to_wire(rule: &JwtValidation) -> proto::JwtValidation {
    use proto::jwt_validation::Required as Wire;
    let required = match &rule.required {
        TokenRequirement::Never => Wire::Never(proto::Nothing {}),
        TokenRequirement::Always => Wire::Always(proto::Nothing {}),
        TokenRequirement::Matching(requests) => Wire::Of(proto::RequestMatches {
            matches: requests.iter().map(request::to_wire).collect(),
        }),
    };
    let issuers = rule.issuers.iter().map(issuer_to_wire).collect();
    proto::JwtValidation { issuers, required: Some(required) }
}

pub(super) fn from_wire(wire: proto::JwtValidation) -> Result<JwtValidation, InvalidField> {
    use proto::jwt_validation::Required as Wire;
    let issuers = convert_each("issuers", wire.issuers, issuer_from_wire)?;
    if issuers.is_empty() {
        return Err(InvalidField::new("issuers", "is empty"));
    }
    let required = match wire.required {
        None => {
            return Err(InvalidField::new("required", "is missing, or unknown to this version"));
        }
        Some(Wire::Never(proto::Nothing {})) => TokenRequirement::Never,
        Some(Wire::Always(proto::Nothing {})) => TokenRequirement::Always,
        Some(Wire::Of(requests)) if requests.matches.is_empty() => {
            return Err(InvalidField::new("of.matches", "is empty"));
        }
        Some(Wire::Of(requests)) => TokenRequirement::Matching(convert_each(
            "of.matches",
            requests.matches,
            request::from_wire,
        )?),
    };
    Ok(JwtValidation { issuers, required })
}

fn issuer_to_wire(issuer: &JwtIssuer) -> proto::JwtIssuer {
    use proto::jwt_location::Place as Wire;
    let location_to_wire = |location: &JwtLocation| match location {
        JwtLocation::Header { name, prefix } => {
            let place = Some(Wire::Header(name.clone()));
            proto::JwtLocation { place, prefix: prefix.clone() }
        }
        JwtLocation::Query(name) => {
            let place = Some(Wire::Query(name.clone()));
            proto::JwtLocation { place, prefix: String::new() }
        }
    };
    let claim_header_to_wire = |claim_header: &ClaimHeader| proto::ClaimHeader {
        claim: claim_header.claim.clone(),
        header: claim_header.header.clone(),
    };
    proto::JwtIssuer {
        issuer: issuer.issuer.clone(),
        aud: issuer.aud.clone(),
        algorithms: issuer.algorithms.iter().map(|name| name.as_str().to_owned()).collect(),
        keys: match &issuer.keys {
            IssuerKeys::Inline(keys) => keys.to_string(),
            // An empty set verifies no token, in older sidecars too.
            IssuerKeys::Source(_) | IssuerKeys::Pending => String::new(),
        },
        places: issuer.locations.iter().map(location_to_wire).collect(),
        clock_skew_nanoseconds: to_nanoseconds(issuer.clock_skew),
        claim_to_headers: issuer.claim_to_headers.iter().map(claim_header_to_wire).collect(),
        forward_original_token: issuer.forward_original_token,
        accepts_without_expiration: !issuer.requires_expiration,
        max_age_nanoseconds: issuer.max_age.map_or(0, to_nanoseconds),
    }
}

/// Parses an issuer with at least one token location. Empty keys mean that the keys are not known yet.
fn issuer_from_wire(wire: proto::JwtIssuer) -> Result<JwtIssuer, InvalidField> {
    use proto::jwt_location::Place as Wire;
    let locations = convert_each("places", wire.places, |wire| match wire.place {
        None => Err(InvalidField::new("place", "is missing, or unknown to this version")),
        Some(Wire::Header(name)) => {
            Ok(JwtLocation::Header { name: parse_header_name(name)?, prefix: wire.prefix })
        }
        Some(Wire::Query(_)) if !wire.prefix.is_empty() => {
            Err(InvalidField::new("prefix", "is allowed for headers only"))
        }
        Some(Wire::Query(name)) => Ok(JwtLocation::Query(name)),
    })?;
    if locations.is_empty() {
        return Err(InvalidField::new("places", "is empty"));
    }
    let clock_skew = Duration::from_nanos(wire.clock_skew_nanoseconds);
    if clock_skew > JwtIssuer::MAX_CLOCK_SKEW {
        return Err(InvalidField::new(
            "clock_skew_nanoseconds",
            format!("{clock_skew:?} is too long"),
        ));
    }
    // A later version may know more algorithms. Without them, the accepted ones are fewer, and never all.
    let algorithms: BTreeSet<JwtAlgorithm> =
        wire.algorithms.iter().filter_map(|name| JwtAlgorithm::from_name(name)).collect();
    if algorithms.is_empty() && !wire.algorithms.is_empty() {
        return Err(InvalidField::new("algorithms", "are all unknown to this version"));
    }
    let max_age = Duration::from_nanos(wire.max_age_nanoseconds);
    Ok(JwtIssuer {
        issuer: wire.issuer,
        aud: wire.aud,
        algorithms,
        keys: match wire.keys.is_empty() {
            true => IssuerKeys::Pending,
            false => IssuerKeys::Inline(wire.keys.into()),
        },
        locations,
        clock_skew,
        claim_to_headers: convert_each("claim_to_headers", wire.claim_to_headers, |wire| {
            Ok(ClaimHeader { claim: wire.claim, header: parse_header_name(wire.header)? })
        })?,
        forward_original_token: wire.forward_original_token,
        requires_expiration: !wire.accepts_without_expiration,
        max_age: (!max_age.is_zero()).then_some(max_age),
    })
}
