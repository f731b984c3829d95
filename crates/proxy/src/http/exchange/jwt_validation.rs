//! Verifies the JWTs of requests, and forwards their claims to the application.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use leno_identity::{JwtError, JwtRequirements, UnverifiedJwt, claim_values};
use leno_model::{FixedResponse, Header, HeaderEdits, IssuerKeys, JwtIssuer, JwtLocation, Reason};
use leno_telemetry::GrpcStatus;
use leno_traffic::request_checks::CompiledJwtValidation;
use leno_traffic::{HeaderLookup, RequestView, is_similar_name, similar_parameters};
use serde_json::{Map, Value};

use super::Exchange;
use crate::error::Failure;
use crate::http::request::Request;
use crate::worker::Worker;

/// The verified claims of a request's tokens.
#[derive(Default)]
pub(super) struct TokenClaims {
    /// The claims of each verification. One token may be at several locations, or be subject to several policies.
    claims: Vec<Map<String, Value>>,
    /// The only token of the request; `None` before a token was found.
    token: Option<String>,
    /// The headers set for the application from claims, and the removal of client headers with these names.
    pub(super) edits: HeaderEdits,
}

/// A request with the claims of its token, and with the headers that the application will receive.
pub(super) struct AuthenticatedRequest<'a> {
    pub(super) request: &'a Request<'a>,
    pub(super) token_claims: &'a TokenClaims,
}

impl HeaderLookup for AuthenticatedRequest<'_> {
    fn joined_values(&self, name: &str) -> Option<Cow<'_, str>> {
        self.replaced_value(name).unwrap_or_else(|| self.request.joined_values(name))
    }

    fn find_similar(&self, name: &str) -> Option<Cow<'_, str>> {
        let replaced =
            self.find_replaced(|replaced| is_similar_name(replaced.as_bytes(), name.as_bytes()));
        replaced.unwrap_or_else(|| self.request.find_similar(name))
    }

    fn first_value(&self, name: &str) -> Option<Cow<'_, str>> {
        self.replaced_value(name).unwrap_or_else(|| self.request.first_value(name))
    }

    fn claim_values(&self, name: &str) -> Vec<String> {
        self.token_claims.claims.iter().flat_map(|claims| claim_values(claims, name)).collect()
    }
}

impl AuthenticatedRequest<'_> {
    /// Returns the new value of a header that token claims replace: `Some(None)` if the header is removed,
    /// `None` if it is unchanged.
    fn replaced_value(&self, name: &str) -> Option<Option<Cow<'_, str>>> {
        self.find_replaced(|replaced| replaced == name)
    }

    /// Returns the new value of the first replaced header that `is_named` accepts.
    fn find_replaced(&self, is_named: impl Fn(&str) -> bool) -> Option<Option<Cow<'_, str>>> {
        let HeaderEdits { set, remove, .. } = &self.token_claims.edits;
        if let Some(header) = set.iter().find(|header| is_named(&header.name)) {
            return Some(Some(Cow::Borrowed(&header.value)));
        }
        remove.iter().any(|removed| is_named(removed)).then_some(None)
    }
}

impl Exchange<'_, '_> {
    /// Verifies the tokens required by policies.
    pub(super) fn verify_tokens(
        &self,
        validations: &[CompiledJwtValidation],
        view: &RequestView<'_>,
    ) -> Result<TokenClaims, Failure> {
        let mut token_claims = TokenClaims::default();
        for validation in validations {
            let old_count = token_claims.claims.len();
            // Headers with these names are set by this sidecar only.
            let forwarded_claims =
                validation.rule.issuers.iter().flat_map(|issuer| &issuer.claim_to_headers);
            for claim_header in forwarded_claims {
                add_removal(&mut token_claims.edits, &claim_header.header);
            }
            verify_all_tokens(&self.session.worker, validation, view, &mut token_claims)
                .map_err(|error| token_rejection(validation, Some(error)))?;
            if token_claims.claims.len() == old_count && validation.is_required(view) {
                return Err(token_rejection(validation, None));
            }
        }
        self.request.remove_similar(&mut token_claims.edits);
        Ok(token_claims)
    }
}

/// Verifies every token in the request, and adds its claims to `token_claims`.
fn verify_all_tokens(
    worker: &Worker,
    validation: &CompiledJwtValidation,
    view: &RequestView<'_>,
    token_claims: &mut TokenClaims,
) -> Result<(), JwtError> {
    let mut locations: Vec<&JwtLocation> = Vec::new();
    for location in validation.rule.issuers.iter().flat_map(|issuer| &issuer.locations) {
        if locations.contains(&location) {
            continue;
        }
        locations.push(location);
        let Some(token) = find_token(location, view)? else { continue };
        // Only one token is accepted. Two tokens could each contribute half of the claims that a rule requires.
        match &token_claims.token {
            Some(other_token) if *other_token != *token => return Err(JwtError::Malformed),
            Some(_) => {}
            None => token_claims.token = Some(token.clone().into_owned()),
        }
        let jwt = UnverifiedJwt::read(&token)?;
        let mut issuers =
            validation.rule.issuers.iter().filter(|issuer| issuer.locations.contains(location));
        let issuer = issuers
            .find(|issuer| jwt.issuer() == Some(&issuer.issuer))
            .ok_or(JwtError::UnknownIssuer)?;
        let IssuerKeys::Inline(key_set) = &issuer.keys else {
            return Err(JwtError::KeysUnavailable);
        };
        let jwt_keys = worker.jwt_keys(key_set).ok_or(JwtError::InvalidSignature)?;
        let requirements = JwtRequirements {
            issuer: &issuer.issuer,
            aud: &issuer.aud,
            algorithms: &issuer.algorithms,
            clock_skew: issuer.clock_skew,
            requires_expiration: issuer.requires_expiration,
            max_age: issuer.max_age,
            now: SystemTime::now(),
        };
        let claims = jwt.verify(&jwt_keys, requirements)?;
        forward_claims(issuer, location, &claims, &mut token_claims.edits);
        token_claims.claims.push(claims);
    }
    Ok(())
}

/// Returns the token at a location of the request. Two headers with equal or similar names are an error: an
/// application may read the one that was not verified.
fn find_token<'a>(
    location: &JwtLocation,
    view: &'a RequestView<'_>,
) -> Result<Option<Cow<'a, str>>, JwtError> {
    match location {
        JwtLocation::Header { name, prefix } => {
            let joined_similar = view.fields.find_similar(name);
            let Some(value) = view.fields.first_value(name) else {
                return if joined_similar.is_none() { Ok(None) } else { Err(JwtError::Malformed) };
            };
            let scheme = prefix.trim_end();
            let token_part = match value.get(..scheme.len()) {
                Some(start) if start.eq_ignore_ascii_case(scheme) => value.get(scheme.len()..),
                Some(_) | None => None,
            };
            // Any white space ends a scheme: applications may split there.
            let is_scheme_end =
                |token_part: &&str| scheme == prefix || token_part.starts_with(char::is_whitespace);
            let token_part = token_part.filter(is_scheme_end);
            // A joined value of another length contains the values of several headers.
            if joined_similar.is_some_and(|joined| joined.len() != value.len()) {
                return Err(JwtError::Malformed);
            }
            Ok(token_part.map(|token| Cow::Owned(token.trim().to_owned())))
        }
        JwtLocation::Query(name) => {
            let mut parameters = similar_parameters(view.query.unwrap_or_default(), name);
            match (parameters.next(), parameters.next()) {
                (None, _) => Ok(None),
                // A variant spelling of the name, or a missing value, is not accepted as a token.
                (Some(parameter), None) => {
                    let token = parameter
                        .strip_prefix(name.as_str())
                        .and_then(|value| value.strip_prefix('='));
                    token.map(|token| Some(Cow::Borrowed(token))).ok_or(JwtError::Malformed)
                }
                (Some(_), Some(_)) => Err(JwtError::Malformed),
            }
        }
    }
}

/// Sets the headers for the application from the claims of a token.
fn forward_claims(
    issuer: &JwtIssuer,
    location: &JwtLocation,
    claims: &Map<String, Value>,
    edits: &mut HeaderEdits,
) {
    if let JwtLocation::Header { name, .. } = location
        && !issuer.forward_original_token
    {
        add_removal(edits, name);
    }
    for claim_header in &issuer.claim_to_headers {
        // A comma inside an element would split it in two.
        let values = claim_values(claims, &claim_header.claim);
        let values: Vec<String> = match values.as_slice() {
            [_] => values,
            _ => values.into_iter().filter(|element| !element.contains(',')).collect(),
        };
        let value = values.join(",");
        if !value.is_empty() && HeaderEdits::is_valid_value(&value) {
            edits.remove.retain(|name| *name != claim_header.header);
            edits.set.retain(|header| header.name != claim_header.header);
            edits.set.push(Header { name: claim_header.header.clone(), value });
        }
    }
}

fn add_removal(edits: &mut HeaderEdits, name: &str) {
    let is_set = edits.set.iter().any(|header| header.name == name);
    if !is_set && !edits.remove.iter().any(|removed| removed == name) {
        edits.remove.push(name.to_owned());
    }
}

/// Returns the failure of a request without a token, or with a token that was not accepted. A client without a
/// token learns the scheme only, and no error code (RFC 6750 §3).
fn token_rejection(validation: &CompiledJwtValidation, error: Option<JwtError>) -> Failure {
    let realm = &validation.policy.name;
    let (reason, value, body) = match error {
        None => (Reason::TokenMissing, format!("Bearer realm=\"{realm}\""), None),
        Some(error) => {
            let error_parameter = "error=\"invalid_token\"";
            let value = format!(
                "Bearer realm=\"{realm}\", {error_parameter}, error_description=\"{error}\""
            );
            (Reason::TokenInvalid, value, Some(format!("leno: {error}\n")))
        }
    };
    let headers = vec![Header { name: "www-authenticate".to_owned(), value }];
    let response = Some(Arc::new(FixedResponse { status: None, body, headers }));
    let grpc = Some(GrpcStatus::from_http_status(reason.status()));
    Failure { policy: Some(validation.policy_decision()), response, grpc, ..reason.into() }
}
