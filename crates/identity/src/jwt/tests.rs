//! Tests of accepted and rejected tokens.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    RSA_PSS_SHA384, RsaEncoding, RsaKeyPair,
};
use serde_json::json;

use super::*;

fn encode_json(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

/// Encodes a token; `sign` returns the signature of its header and claims.
fn sign_token(header: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let signed = format!("{}.{}", encode_json(header), encode_json(claims));
    let signature = URL_SAFE_NO_PAD.encode(sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

fn base64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// An issuer with one key of each type.
struct TestIssuer {
    ec: EcdsaKeyPair,
    ed25519: Ed25519KeyPair,
    rsa: RsaKeyPair,
}

impl TestIssuer {
    fn new() -> Self {
        Self {
            ec: EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap(),
            ed25519: Ed25519KeyPair::generate().unwrap(),
            rsa: RsaKeyPair::generate(KeySize::Rsa2048).unwrap(),
        }
    }

    /// Returns the JWK set of the issuer, with a symmetric key that must be ignored.
    fn key_set(&self) -> Value {
        let point = self.ec.public_key().as_ref();
        let (x, y) = point[1..].split_at(32);
        let ed25519 = self.ed25519.public_key().as_ref();
        let rsa = self.rsa.public_key();
        let (n, e) = (rsa.modulus().big_endian_without_leading_zero(), rsa.exponent());
        json!({"keys": [
            {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"},
            {"kty": "EC", "crv": "P-256", "kid": "ec", "use": "sig", "x": base64(x), "y": base64(y)},
            {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": base64(ed25519)},
            {"kty": "RSA", "kid": "rsa", "n": base64(n),
             "e": base64(e.big_endian_without_leading_zero())},
        ]})
    }

    fn jwt_keys(&self) -> JwtKeys {
        JwtKeys::parse(&self.key_set().to_string()).unwrap()
    }

    fn sign_with_ec(&self, signed: &[u8]) -> Vec<u8> {
        self.ec.sign(&SystemRandom::new(), signed).unwrap().as_ref().to_vec()
    }

    fn sign_with_rsa(&self, encoding: &'static dyn RsaEncoding, signed: &[u8]) -> Vec<u8> {
        let mut signature = vec![0; self.rsa.public_modulus_len()];
        self.rsa.sign(encoding, &SystemRandom::new(), signed, &mut signature).unwrap();
        signature
    }
}

const NOW: u64 = 1_000_000;

fn valid_claims() -> Value {
    json!({"iss": "https://issuer", "aud": ["shop", "other"], "sub": "ann",
           "exp": NOW + 60, "nbf": NOW - 60})
}

fn verify_token(token: &str, keys: &JwtKeys) -> Result<Map<String, Value>, JwtError> {
    verify_with_algorithms(token, keys, &BTreeSet::new())
}

fn verify_with_algorithms(
    token: &str,
    keys: &JwtKeys,
    algorithms: &BTreeSet<JwtAlgorithm>,
) -> Result<Map<String, Value>, JwtError> {
    let aud = ["shop".to_owned()];
    UnverifiedJwt::read(token)?.verify(
        keys,
        JwtRequirements {
            issuer: "https://issuer",
            aud: &aud,
            algorithms,
            clock_skew: Duration::from_secs(10),
            requires_expiration: true,
            max_age: None,
            now: UNIX_EPOCH + Duration::from_secs(NOW),
        },
    )
}

/// Signs a text.
type Sign<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

#[test]
fn each_algorithm_verifies_signatures_of_its_key() {
    let issuer = TestIssuer::new();
    let keys = issuer.jwt_keys();
    let signers: [(&str, &str, Sign<'_>); 5] = [
        ("ES256", "ec", &|signed| issuer.sign_with_ec(signed)),
        ("EdDSA", "ed", &|signed| issuer.ed25519.sign(signed).as_ref().to_vec()),
        ("Ed25519", "ed", &|signed| issuer.ed25519.sign(signed).as_ref().to_vec()),
        ("RS256", "rsa", &|signed| issuer.sign_with_rsa(&RSA_PKCS1_SHA256, signed)),
        ("PS384", "rsa", &|signed| issuer.sign_with_rsa(&RSA_PSS_SHA384, signed)),
    ];
    for (algorithm, id, sign) in signers {
        let with_key_id = sign_token(&json!({"alg": algorithm, "kid": id}), &valid_claims(), sign);
        assert_eq!(verify_token(&with_key_id, &keys).unwrap()["sub"], "ann", "{algorithm}");
        let without_key_id = sign_token(&json!({"alg": algorithm}), &valid_claims(), sign);
        assert!(verify_token(&without_key_id, &keys).is_ok(), "{algorithm}");
        for other_id in ["ec", "ed", "rsa", "secret"].into_iter().filter(|key| *key != id) {
            let header = json!({"alg": algorithm, "kid": other_id});
            let with_other_id = sign_token(&header, &valid_claims(), sign);
            assert_eq!(
                verify_token(&with_other_id, &keys),
                Err(JwtError::InvalidSignature),
                "{algorithm}"
            );
        }
        let (signed_part, signature) = with_key_id.rsplit_once('.').unwrap();
        let tampered = format!("{}.{signature}", signed_part.replacen('.', ".e30", 1));
        assert!(verify_token(&tampered, &keys).is_err());
    }
}

#[test]
fn an_algorithm_that_the_issuer_does_not_use_is_rejected() {
    let issuer = TestIssuer::new();
    let keys = issuer.jwt_keys();
    let token =
        sign_token(&json!({"alg": "ES256"}), &valid_claims(), |signed| issuer.sign_with_ec(signed));
    for (names, is_accepted) in [
        (&[][..], true),
        (&["ES256"], true),
        (&["RS256", "ES256"], true),
        (&["RS256", "ES384"], false),
        (&["EdDSA"], false),
    ] {
        let algorithms: BTreeSet<JwtAlgorithm> =
            names.iter().map(|name| JwtAlgorithm::from_name(name).unwrap()).collect();
        let expected = match is_accepted {
            true => Ok(()),
            false => Err(JwtError::UnsupportedAlgorithm),
        };
        let verified = verify_with_algorithms(&token, &keys, &algorithms).map(drop);
        assert_eq!(verified, expected, "{names:?}");
    }
}

#[test]
fn tokens_with_another_algorithm_are_rejected() {
    let issuer = TestIssuer::new();
    let keys = issuer.jwt_keys();
    for algorithm in ["none", "None", "HS256", "ES256K", "RS1", ""] {
        for id in ["secret", "rsa"] {
            let header = json!({"alg": algorithm, "kid": id});
            let forged = sign_token(&header, &valid_claims(), |_| Vec::new());
            assert_eq!(
                verify_token(&forged, &keys),
                Err(JwtError::UnsupportedAlgorithm),
                "{algorithm}"
            );
        }
    }
    let sign_with_ec = |signed: &[u8]| issuer.sign_with_ec(signed);
    let mismatched =
        sign_token(&json!({"alg": "ES384", "kid": "ec"}), &valid_claims(), sign_with_ec);
    assert_eq!(verify_token(&mismatched, &keys), Err(JwtError::InvalidSignature));
    let critical =
        sign_token(&json!({"alg": "ES256", "crit": ["b64"]}), &valid_claims(), sign_with_ec);
    assert_eq!(verify_token(&critical, &keys), Err(JwtError::UnsupportedAlgorithm));
    // A key for one algorithm does not verify another.
    let mut set = issuer.key_set();
    set["keys"][3]["alg"] = "RS512".into();
    let keys = JwtKeys::parse(&set.to_string()).unwrap();
    let sign_with_rsa = |signed: &[u8]| issuer.sign_with_rsa(&RSA_PKCS1_SHA256, signed);
    let mismatched =
        sign_token(&json!({"alg": "RS256", "kid": "rsa"}), &valid_claims(), sign_with_rsa);
    assert_eq!(verify_token(&mismatched, &keys), Err(JwtError::InvalidSignature));
}

#[test]
fn claims_are_verified() {
    let issuer = TestIssuer::new();
    let keys = issuer.jwt_keys();
    let verify_changed = |change: &dyn Fn(&mut Value)| {
        let mut claims = valid_claims();
        change(&mut claims);
        let header = json!({"alg": "ES256", "kid": "ec"});
        verify_token(&sign_token(&header, &claims, |signed| issuer.sign_with_ec(signed)), &keys)
            .map(drop)
    };
    assert_eq!(verify_changed(&|_| {}), Ok(()));
    assert_eq!(
        verify_changed(&|claims| claims["iss"] = "https://issuer/".into()),
        Err(JwtError::UnknownIssuer)
    );
    assert_eq!(verify_changed(&|claims| claims["exp"] = (NOW - 9).into()), Ok(()));
    assert_eq!(verify_changed(&|claims| claims["exp"] = (NOW - 10).into()), Err(JwtError::Expired));
    assert_eq!(verify_changed(&|claims| claims["nbf"] = (NOW + 10).into()), Ok(()));
    assert_eq!(
        verify_changed(&|claims| claims["nbf"] = (NOW + 11).into()),
        Err(JwtError::NotYetValid)
    );
    assert_eq!(verify_changed(&|claims| claims["iat"] = (NOW + 10).into()), Ok(()));
    assert_eq!(
        verify_changed(&|claims| claims["iat"] = (NOW + 11).into()),
        Err(JwtError::NotYetValid)
    );
    assert_eq!(verify_changed(&|claims| claims["exp"] = "soon".into()), Err(JwtError::Malformed));
    assert_eq!(verify_changed(&|claims| claims["exp"] = Value::Null), Err(JwtError::Malformed));
    assert_eq!(verify_changed(&|claims| claims["iat"] = "x".into()), Err(JwtError::Malformed));
    assert_eq!(
        verify_changed(&|claims| drop(claims.as_object_mut().unwrap().remove("exp"))),
        Err(JwtError::MissingExpiration)
    );
    assert_eq!(verify_changed(&|claims| claims["aud"] = "shop".into()), Ok(()));
    assert_eq!(
        verify_changed(&|claims| claims["aud"] = json!(["x"])),
        Err(JwtError::WrongAudience)
    );
    assert_eq!(verify_changed(&|claims| claims["aud"] = Value::Null), Err(JwtError::WrongAudience));
}

#[test]
fn the_age_of_a_token_is_bounded_by_exp_and_max_age() {
    let issuer = TestIssuer::new();
    let keys = issuer.jwt_keys();
    let age_limit = Some(Duration::from_secs(100));
    for (exp, iat, requires_expiration, max_age, expected) in [
        (None, None, true, None, Err(JwtError::MissingExpiration)),
        (None, None, false, None, Ok(())),
        (None, Some(NOW), true, age_limit, Err(JwtError::MissingExpiration)),
        (None, Some(NOW - 100), false, age_limit, Ok(())),
        (None, Some(NOW - 109), false, age_limit, Ok(())),
        (None, Some(NOW - 110), false, age_limit, Err(JwtError::Expired)),
        (Some(NOW + 60), Some(NOW - 110), true, age_limit, Err(JwtError::Expired)),
        (Some(NOW + 60), None, true, age_limit, Err(JwtError::MissingIssueTime)),
        (Some(NOW - 10), Some(NOW - 20), true, age_limit, Err(JwtError::Expired)),
        (Some(NOW + 60), Some(NOW + 11), true, None, Err(JwtError::NotYetValid)),
    ] {
        let mut claims = json!({"iss": "https://issuer"});
        for (name, value) in [("exp", exp), ("iat", iat)] {
            if let Some(value) = value {
                claims[name] = value.into();
            }
        }
        let token =
            sign_token(&json!({"alg": "ES256"}), &claims, |signed| issuer.sign_with_ec(signed));
        let requirements = JwtRequirements {
            issuer: "https://issuer",
            aud: &[],
            algorithms: &BTreeSet::new(),
            clock_skew: Duration::from_secs(10),
            requires_expiration,
            max_age,
            now: UNIX_EPOCH + Duration::from_secs(NOW),
        };
        let verified = UnverifiedJwt::read(&token).unwrap().verify(&keys, requirements).map(drop);
        assert_eq!(verified, expected, "{exp:?} {iat:?} {requires_expiration} {max_age:?}");
    }
}

#[test]
fn keys_that_are_not_for_verification_are_ignored() {
    let issuer = TestIssuer::new();
    let token =
        sign_token(&json!({"alg": "ES256"}), &valid_claims(), |signed| issuer.sign_with_ec(signed));
    for (operations, expected) in [
        (json!(["verify"]), Ok(())),
        (json!(["sign", "verify"]), Ok(())),
        (json!(["sign"]), Err(JwtError::InvalidSignature)),
        (json!(["encrypt", "wrapKey"]), Err(JwtError::InvalidSignature)),
        (json!([]), Err(JwtError::InvalidSignature)),
        (json!("verify"), Err(JwtError::InvalidSignature)),
        (Value::Null, Err(JwtError::InvalidSignature)),
    ] {
        let mut set = issuer.key_set();
        set["keys"][1]["key_ops"] = operations.clone();
        let keys = JwtKeys::parse(&set.to_string()).unwrap();
        assert_eq!(verify_token(&token, &keys).map(drop), expected, "{operations}");
    }
}

#[test]
fn invalid_tokens_and_key_sets_are_rejected() {
    for text in ["", "a", "a.b", "a.b.c", "..", "e30.e30", "W10.e30.", "e30.e30.!"] {
        assert!(UnverifiedJwt::read(text).is_err(), "{text}");
    }
    let too_long = format!("e30.{}.", "a".repeat(MAX_TOKEN_BYTES));
    assert!(UnverifiedJwt::read(&too_long).is_err());
    for (text, error) in [
        ("", JwkSetError::Malformed),
        ("[]", JwkSetError::Malformed),
        (r#"{"keys": {}}"#, JwkSetError::Malformed),
        (r#"{"keys": []}"#, JwkSetError::NoUsableKey),
        (r#"{"keys": [{"kty": "oct", "k": "AAAA"}]}"#, JwkSetError::NoUsableKey),
        (r#"{"keys": [{"kty": "RSA", "n": "AAAA", "e": "AQAB"}]}"#, JwkSetError::NoUsableKey),
        (
            r#"{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}"#,
            JwkSetError::NoUsableKey,
        ),
    ] {
        assert_eq!(JwtKeys::parse(text).map(drop), Err(error), "{text}");
    }
}

#[test]
fn claims_are_found_by_name_and_by_path() {
    let claims = json!({"groups": ["a", 1, true, null], "realm": {"roles": ["x"]}, "a.b": "c"});
    let Value::Object(claims) = claims else { unreachable!() };
    assert_eq!(claim_values(&claims, "groups"), ["a", "1", "true"]);
    assert_eq!(claim_values(&claims, "realm.roles"), ["x"]);
    assert_eq!(claim_values(&claims, "a.b"), ["c"]);
    assert!(claim_values(&claims, "realm").is_empty() && claim_values(&claims, "x.y").is_empty());
}

#[test]
fn the_public_part_of_a_key_set_verifies_the_same_tokens() {
    let issuer = TestIssuer::new();
    let mut set = issuer.key_set();
    let keys = set["keys"].as_array_mut().unwrap();
    keys[1]["d"] = json!("c2VjcmV0");
    keys[3]["x5c"] = json!(["AAAA"]);
    let public_set = JwtKeys::public_part(&set.to_string()).unwrap();
    assert!(!public_set.contains("c2VjcmV0") && !public_set.contains("AAAA"), "{public_set}");
    let token = sign_token(&json!({"alg": "ES256", "kid": "ec"}), &valid_claims(), |signed| {
        issuer.sign_with_ec(signed)
    });
    verify_token(&token, &JwtKeys::parse(&public_set).unwrap()).unwrap();

    set["keys"].as_array_mut().unwrap().reverse();
    assert_eq!(JwtKeys::public_part(&set.to_string()), Ok(public_set), "the order says nothing");
    for (text, error) in [
        ("", JwkSetError::Malformed),
        ("{}", JwkSetError::Malformed),
        (r#"{"keys": [{"kty": "oct"}]}"#, JwkSetError::NoUsableKey),
    ] {
        assert_eq!(JwtKeys::public_part(text), Err(error), "{text}");
    }
}
