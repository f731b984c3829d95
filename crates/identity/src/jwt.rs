//! Verifies JSON web tokens (RFC 7519) of external issuers, as recommended in RFC 8725.
//!
//! Only asymmetric algorithms are accepted: with a symmetric one, an attacker could sign with an issuer's public key. The
//! algorithm in the token must be one that the type of the key, and the `alg` of the key if present, permit.

mod keys;

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leno_model::JwtAlgorithm;
use serde_json::{Map, Value};

pub use keys::{JwkSetError, JwtKeys};

/// The reason that a token is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    /// The text is not a signed token in the compact form.
    #[error("the token is not a signed JSON web token")]
    Malformed,
    /// The token has a critical header extension, or an unsupported algorithm.
    #[error("the token's signature algorithm is not accepted")]
    UnsupportedAlgorithm,
    /// The issuer is unknown.
    #[error("the token's issuer is not accepted")]
    UnknownIssuer,
    /// The issuer's keys have not been fetched yet.
    #[error("the keys of the token's issuer are not available yet")]
    KeysUnavailable,
    /// No key matches the signature.
    #[error("the token's signature is not valid")]
    InvalidSignature,
    /// The token has no expiration time, although one is required.
    #[error("the token has no expiration time (`exp`)")]
    MissingExpiration,
    /// The token has no time of issue, although its age is limited.
    #[error("the token has no issue time (`iat`)")]
    MissingIssueTime,
    /// The token has expired.
    #[error("the token has expired")]
    Expired,
    /// The token is not valid yet.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// The token is for another audience.
    #[error("the token's audience is not accepted")]
    WrongAudience,
}

/// A parsed token, not yet verified.
pub struct UnverifiedJwt<'a> {
    /// The signed part of the token: header and claims, encoded.
    signed: &'a str,
    signature: Vec<u8>,
    header: Map<String, Value>,
    claims: Map<String, Value>,
}

/// The requirements for a token.
#[derive(Debug, Clone, Copy)]
pub struct JwtRequirements<'a> {
    /// The accepted issuer.
    pub issuer: &'a str,
    /// The accepted audiences; all if empty.
    pub aud: &'a [String],
    /// The accepted signature algorithms; every supported one if empty.
    pub algorithms: &'a BTreeSet<JwtAlgorithm>,
    /// The tolerated clock skew.
    pub clock_skew: Duration,
    /// True if tokens without an expiration time are rejected.
    pub requires_expiration: bool,
    /// The maximum age since the token's time of issue (`iat`); unlimited if `None`.
    pub max_age: Option<Duration>,
    /// The current time.
    pub now: SystemTime,
}

impl<'a> UnverifiedJwt<'a> {
    /// Parses a token.
    ///
    /// # Errors
    /// [`JwtError::Malformed`] if it cannot be parsed.
    pub fn read(token: &'a str) -> Result<Self, JwtError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(JwtError::Malformed);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(JwtError::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(JwtError::Malformed)?;
        let decode_object = |segment: &str| {
            let bytes = URL_SAFE_NO_PAD.decode(segment).map_err(|_| JwtError::Malformed)?;
            serde_json::from_slice::<Map<String, Value>>(&bytes).map_err(|_| JwtError::Malformed)
        };
        Ok(Self {
            signed,
            signature: URL_SAFE_NO_PAD.decode(signature).map_err(|_| JwtError::Malformed)?,
            header: decode_object(header)?,
            claims: decode_object(claims)?,
        })
    }

    /// Returns the claimed issuer. It is not verified: use it only to select the keys that might verify the token.
    #[must_use]
    pub fn issuer(&self) -> Option<&str> {
        self.claims.get("iss")?.as_str()
    }

    /// Verifies the token and returns its claims.
    ///
    /// # Errors
    /// [`JwtError`] for the first requirement that the token does not meet.
    pub fn verify(
        self,
        keys: &JwtKeys,
        requirements: JwtRequirements<'_>,
    ) -> Result<Map<String, Value>, JwtError> {
        // RFC 7515 §4.1.11: a token with unknown critical headers is invalid.
        if self.header.contains_key("crit") {
            return Err(JwtError::UnsupportedAlgorithm);
        }
        let algorithm =
            self.header.get("alg").and_then(Value::as_str).ok_or(JwtError::Malformed)?;
        let is_accepted = |accepted: &JwtAlgorithm| accepted.as_str() == algorithm;
        if !requirements.algorithms.is_empty() && !requirements.algorithms.iter().any(is_accepted) {
            return Err(JwtError::UnsupportedAlgorithm);
        }
        let key_id = self.header.get("kid").and_then(Value::as_str);
        keys.verify_signature(algorithm, key_id, self.signed.as_bytes(), &self.signature)?;
        if self.issuer() != Some(requirements.issuer) {
            return Err(JwtError::UnknownIssuer);
        }
        self.check_times(requirements)?;
        if !requirements.aud.is_empty() && !self.has_accepted_aud(requirements.aud) {
            return Err(JwtError::WrongAudience);
        }
        Ok(self.claims)
    }

    /// Checks `exp`, `nbf` and `iat` (RFC 7519 §4.1.4 to §4.1.6), and the age of the token.
    fn check_times(&self, requirements: JwtRequirements<'_>) -> Result<(), JwtError> {
        let now = requirements.now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let clock_skew = requirements.clock_skew.as_secs_f64();
        let read_numeric_date = |name: &str| match self.claims.get(name) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or(JwtError::Malformed),
        };
        let (expiration, issue_time) = (read_numeric_date("exp")?, read_numeric_date("iat")?);
        if expiration.is_none() && requirements.requires_expiration {
            return Err(JwtError::MissingExpiration);
        }
        let age_limit = match (requirements.max_age, issue_time) {
            (None, _) => None,
            (Some(_), None) => return Err(JwtError::MissingIssueTime),
            (Some(age), Some(issue_time)) => Some(issue_time + age.as_secs_f64()),
        };
        if [expiration, age_limit]
            .into_iter()
            .flatten()
            .any(|expires_at| now >= expires_at + clock_skew)
        {
            return Err(JwtError::Expired);
        }
        if [read_numeric_date("nbf")?, issue_time]
            .into_iter()
            .flatten()
            .any(|valid_from| now < valid_from - clock_skew)
        {
            return Err(JwtError::NotYetValid);
        }
        Ok(())
    }

    /// True if the claim `aud`, a text or a list of texts, contains one of these audiences.
    fn has_accepted_aud(&self, accepted_auds: &[String]) -> bool {
        let is_accepted = |value: &Value| {
            value.as_str().is_some_and(|aud| accepted_auds.iter().any(|accepted| accepted == aud))
        };
        match self.claims.get("aud") {
            Some(Value::Array(values)) => values.iter().any(is_accepted),
            Some(value) => is_accepted(value),
            None => false,
        }
    }
}

/// Returns the values of a claim as texts: its value, or each element of a list. Numbers and booleans are in JSON
/// form; nested lists and objects are omitted. A claim that contains dots in its own name takes precedence; otherwise a dot
/// separates the name of an object from the name of its member: `realm_access.roles`.
#[must_use]
pub fn claim_values(claims: &Map<String, Value>, name: &str) -> Vec<String> {
    let claim = claims.get(name).or_else(|| {
        let (outer_name, inner_path) = name.split_once('.')?;
        let outer_value = claims.get(outer_name)?;
        inner_path.split('.').try_fold(outer_value, |value, name| value.get(name))
    });
    let scalar_text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    match claim {
        Some(Value::Array(values)) => values.iter().filter_map(scalar_text).collect(),
        Some(value) => scalar_text(value).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Maximum size of a token in bytes. Larger tokens do not fit into request headers.
const MAX_TOKEN_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests;
