//! Properties of JSON web tokens and JWK sets for any bytes.

use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};

use leno_identity::{JwtKeys, JwtRequirements, UnverifiedJwt, claim_values};

/// Checks an input whose last line is a token and whose other lines are a JWK set.
///
/// The public part of the set must contain no private member. A token that the issuer's keys verify must have been
/// signed by the issuer.
pub(crate) fn check_input(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (set, token) = text.rsplit_once('\n').unwrap_or(("", &text));
    check_set(set);
    if let Ok(keys) = JwtKeys::parse(set) {
        keys_verify(token, &keys);
    }
    let issuer = JwtKeys::parse(ISSUER_KEYS).expect("the issuer's keys");
    if keys_verify(token, &issuer) {
        let signed = token.rsplit_once('.').expect("a verified token has a signature").0;
        assert!(SIGNED_TEXTS.contains(&signed), "the issuer never signed {signed}");
    }
}

/// True if the issuer signed the token of this input.
pub(crate) fn is_verified(text: &str) -> bool {
    let token = text.rsplit_once('\n').map_or(text, |(_, token)| token);
    keys_verify(token, &JwtKeys::parse(ISSUER_KEYS).expect("the issuer's keys"))
}

fn check_set(set: &str) {
    let public_set = JwtKeys::public_part(set);
    assert_eq!(public_set.is_ok(), JwtKeys::parse(set).is_ok());
    let Ok(public_set) = public_set else { return };
    assert_eq!(JwtKeys::public_part(&public_set).as_ref(), Ok(&public_set));
    let value: serde_json::Value = serde_json::from_str(&public_set).expect("a JWK set is JSON");
    for key in value["keys"].as_array().expect("a JWK set has keys") {
        for private in ["d", "p", "q", "dp", "dq", "qi", "oth", "k"] {
            assert!(key.get(private).is_none(), "{key}");
        }
    }
}

/// True if the keys verify the token.
fn keys_verify(token: &str, keys: &JwtKeys) -> bool {
    let Ok(unverified) = UnverifiedJwt::read(token) else { return false };
    let issuer = unverified.issuer().map(str::to_owned);
    let requirements = JwtRequirements {
        issuer: "https://issuer",
        aud: &[],
        algorithms: &BTreeSet::new(),
        clock_skew: Duration::from_secs(10),
        max_age: None,
        requires_expiration: false,
        now: UNIX_EPOCH + Duration::from_secs(1_000_000),
    };
    let Ok(claims) = unverified.verify(keys, requirements) else { return false };
    assert_eq!(issuer.as_deref(), Some("https://issuer"));
    for name in claims.keys().map(String::as_str).chain(["realm_access.roles"]) {
        assert!(claim_values(&claims, name).len() <= token.len());
    }
    true
}

/// The issuer's public keys; their private parts were discarded.
const ISSUER_KEYS: &str = include_str!("jwt.keys.json");
/// All texts that were signed with the issuer's keys.
const SIGNED_TEXTS: &[&str] =
    &[include_str!("jwt.ec.signed"), include_str!("jwt.ed.signed"), include_str!("jwt.rsa.signed")];
