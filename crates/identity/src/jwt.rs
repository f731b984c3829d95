//! JSON web tokens of others (RFC 7519), verified as RFC 8725 advises.
//!
//! Only asymmetric algorithms are known, so that no public key is taken for a secret, and `none` is
//! not among them. Which one verifies a token is for its key to say as much as for the token.

mod keys;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

pub use keys::{BadKeys, JwtKeys};

/// Why a token is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadJwt {
    /// It is no signed token in the compact form.
    #[error("the token is not a signed JSON web token")]
    Malformed,
    /// It needs something that is not understood, or an algorithm that is not accepted.
    #[error("the token is signed in a way that is not accepted")]
    Algorithm,
    /// Nobody who is known issued it.
    #[error("the token's issuer is not accepted")]
    Issuer,
    /// Nobody has read the keys of its issuer yet.
    #[error("the keys of the token's issuer are not there yet")]
    Keys,
    /// No key fits its signature.
    #[error("the token's signature is not valid")]
    Signature,
    /// It does not say when it expires.
    #[error("the token has no time of expiration (`exp`)")]
    Endless,
    /// It does not say when it was issued, and its age is bounded.
    #[error("the token has no time of issue (`iat`)")]
    Ageless,
    /// Its time is over.
    #[error("the token has expired")]
    Expired,
    /// Its time has not come.
    #[error("the token is not valid yet")]
    Early,
    /// It is for somebody else.
    #[error("the token's audience is not accepted")]
    Audience,
}

/// A token that nothing is believed of yet.
pub struct UnverifiedJwt<'a> {
    /// What is signed.
    signed: &'a str,
    signature: Vec<u8>,
    header: Map<String, Value>,
    claims: Map<String, Value>,
}

/// What a token must say.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// Who issued it.
    pub issuer: &'a str,
    /// Whom it is for, any of these; anybody when empty.
    pub audiences: &'a [String],
    /// How far clocks may be apart.
    pub leeway: Duration,
    /// Tokens without a time of expiration are rejected.
    pub requires_expiration: bool,
    /// The greatest age, counted from its issue; any when absent.
    pub max_age: Option<Duration>,
    /// The time.
    pub now: SystemTime,
}

impl<'a> UnverifiedJwt<'a> {
    /// Takes a token apart.
    ///
    /// # Errors
    /// [`BadJwt::Malformed`] for what is none.
    pub fn read(token: &'a str) -> Result<Self, BadJwt> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(BadJwt::Malformed);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(BadJwt::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(BadJwt::Malformed)?;
        let object = |part: &str| {
            let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| BadJwt::Malformed)?;
            serde_json::from_slice::<Map<String, Value>>(&bytes).map_err(|_| BadJwt::Malformed)
        };
        Ok(Self {
            signed,
            signature: URL_SAFE_NO_PAD.decode(signature).map_err(|_| BadJwt::Malformed)?,
            header: object(header)?,
            claims: object(claims)?,
        })
    }

    /// Who it says issued it: to be asked whose keys might verify it, and for nothing else.
    #[must_use]
    pub fn issuer(&self) -> Option<&str> {
        self.claims.get("iss")?.as_str()
    }

    /// Its claims, when all of it holds.
    ///
    /// # Errors
    /// What does not hold first.
    pub fn verify(
        self,
        keys: &JwtKeys,
        expected: Expected<'_>,
    ) -> Result<Map<String, Value>, BadJwt> {
        // RFC 7515 §4.1.11: what must be understood and is not makes it invalid.
        if self.header.contains_key("crit") {
            return Err(BadJwt::Algorithm);
        }
        let algorithm = self.header.get("alg").and_then(Value::as_str).ok_or(BadJwt::Malformed)?;
        let id = self.header.get("kid").and_then(Value::as_str);
        keys.verify((algorithm, id), self.signed.as_bytes(), &self.signature)?;
        if self.issuer() != Some(expected.issuer) {
            return Err(BadJwt::Issuer);
        }
        self.check_time(expected)?;
        if !expected.audiences.is_empty() && !self.is_for(expected.audiences) {
            return Err(BadJwt::Audience);
        }
        Ok(self.claims)
    }

    /// RFC 7519 §4.1.4 to §4.1.6.
    fn check_time(&self, expected: Expected<'_>) -> Result<(), BadJwt> {
        let now = expected.now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let leeway = expected.leeway.as_secs_f64();
        let date = |name: &str| match self.claims.get(name) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or(BadJwt::Malformed),
        };
        let (end, issued) = (date("exp")?, date("iat")?);
        if end.is_none() && expected.requires_expiration {
            return Err(BadJwt::Endless);
        }
        let oldest = match (expected.max_age, issued) {
            (None, _) => None,
            (Some(_), None) => return Err(BadJwt::Ageless),
            (Some(age), Some(issued)) => Some(issued + age.as_secs_f64()),
        };
        if [end, oldest].into_iter().flatten().any(|end| now >= end + leeway) {
            return Err(BadJwt::Expired);
        }
        if [date("nbf")?, issued].into_iter().flatten().any(|begin| now < begin - leeway) {
            return Err(BadJwt::Early);
        }
        Ok(())
    }

    fn is_for(&self, audiences: &[String]) -> bool {
        let is_one = |value: &Value| {
            value.as_str().is_some_and(|text| audiences.iter().any(|known| known == text))
        };
        match self.claims.get("aud") {
            Some(Value::Array(several)) => several.iter().any(is_one),
            Some(one) => is_one(one),
            None => false,
        }
    }
}

/// The texts that a claim stands for: itself, or each element of a list; numbers and truth values as
/// JSON writes them. A name with dots leads into objects.
#[must_use]
pub fn texts_of(claims: &Map<String, Value>, name: &str) -> Vec<String> {
    let found = claims.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        rest.split('.').try_fold(claims.get(first)?, |value, part| value.get(part))
    });
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    match found {
        Some(Value::Array(several)) => several.iter().filter_map(text).collect(),
        Some(one) => text(one).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Larger ones do not fit into heads beside others.
const TOKEN_BYTES_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests;
