//! Parses the public keys of a token issuer from a JWK set (RFC 7517, RFC 7518 §6, RFC 8037), and verifies signatures with
//! them.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519,
    EcdsaVerificationAlgorithm, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384,
    RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use super::JwtError;

/// The verification keys of an issuer.
#[derive(Debug)]
pub struct JwtKeys(Vec<JwtKey>);

/// The reason that a text contains no usable keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JwkSetError {
    /// The text is not a JWK set.
    #[error("is not a JWK set, which is JSON with `keys`")]
    Malformed,
    /// No key of the set can verify a signature.
    #[error(
        "has no RSA key (2048 bits or more), no key of the curves P-256, P-384 and P-521, and no Ed25519 key"
    )]
    NoUsableKey,
}

/// A usable key of a JWK set.
#[derive(Debug)]
struct JwtKey {
    /// The key id (`kid`) by which tokens select the key.
    id: Option<String>,
    /// The only permitted algorithm; any algorithm of the key type if `None`.
    algorithm: Option<String>,
    material: KeyMaterial,
}

/// The public key itself, by key type.
#[derive(Debug)]
enum KeyMaterial {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    Curve { curve: Curve, point: Vec<u8> },
    Ed25519(Vec<u8>),
}

/// An elliptic curve and its signature algorithm (RFC 7518 §3.4).
#[derive(Debug, Clone, Copy)]
struct Curve {
    /// The name of the curve in the member `crv` of a JWK.
    name: &'static str,
    /// The name of the signature algorithm in `alg`, such as `ES256`.
    algorithm: &'static str,
    /// The length of a coordinate in bytes.
    coordinate_bytes: usize,
    verification_algorithm: &'static EcdsaVerificationAlgorithm,
}

/// The supported curves of ECDSA keys.
const CURVES: [Curve; 3] = [
    Curve {
        name: "P-256",
        algorithm: "ES256",
        coordinate_bytes: 32,
        verification_algorithm: &ECDSA_P256_SHA256_FIXED,
    },
    Curve {
        name: "P-384",
        algorithm: "ES384",
        coordinate_bytes: 48,
        verification_algorithm: &ECDSA_P384_SHA384_FIXED,
    },
    Curve {
        name: "P-521",
        algorithm: "ES512",
        coordinate_bytes: 66,
        verification_algorithm: &ECDSA_P521_SHA512_FIXED,
    },
];

/// The RSA algorithms (RFC 7518 §3.3 and §3.5).
const RSA_ALGORITHMS: [(&str, &RsaParameters); 6] = [
    ("RS256", &RSA_PKCS1_2048_8192_SHA256),
    ("RS384", &RSA_PKCS1_2048_8192_SHA384),
    ("RS512", &RSA_PKCS1_2048_8192_SHA512),
    ("PS256", &RSA_PSS_2048_8192_SHA256),
    ("PS384", &RSA_PSS_2048_8192_SHA384),
    ("PS512", &RSA_PSS_2048_8192_SHA512),
];

impl JwtKeys {
    /// Parses a JWK set. Keys of other types, and keys not for signatures, are ignored (RFC 7517 §5).
    ///
    /// # Errors
    /// [`JwkSetError`] if the text is not a JWK set, or has no usable key.
    pub fn parse(text: &str) -> Result<Self, JwkSetError> {
        let jwk_set: Value = serde_json::from_str(text).map_err(|_| JwkSetError::Malformed)?;
        let keys = jwk_set.get("keys").and_then(Value::as_array).ok_or(JwkSetError::Malformed)?;
        let usable_keys: Vec<JwtKey> =
            keys.iter().take(MAX_KEYS_READ).filter_map(parse_key).collect();
        if usable_keys.is_empty() { Err(JwkSetError::NoUsableKey) } else { Ok(Self(usable_keys)) }
    }

    /// Returns the public verification part of a JWK set in canonical order: equivalent sets usually have equal
    /// texts, and private members included by mistake are dropped.
    ///
    /// # Errors
    /// [`JwkSetError`] if the text is not a JWK set, or has no usable key.
    pub fn public_part(text: &str) -> Result<String, JwkSetError> {
        let jwk_set: Value = serde_json::from_str(text).map_err(|_| JwkSetError::Malformed)?;
        let keys = jwk_set.get("keys").and_then(Value::as_array).ok_or(JwkSetError::Malformed)?;
        let usable_keys = keys.iter().take(MAX_KEYS_READ).filter(|jwk| parse_key(jwk).is_some());
        let public_keys = usable_keys.map(|jwk| {
            let members = PUBLIC_MEMBERS.iter().filter_map(|name| Some((*name, jwk.get(name)?)));
            Value::Object(members.map(|(name, value)| (name.to_owned(), value.clone())).collect())
        });
        let mut public_keys: Vec<String> = public_keys.map(|jwk| jwk.to_string()).collect();
        public_keys.sort();
        match public_keys.is_empty() {
            false => Ok(format!("{{\"keys\":[{}]}}", public_keys.join(","))),
            true => Err(JwkSetError::NoUsableKey),
        }
    }

    /// Verifies a signature with the keys that have this id or no id, and with all keys if the token has no id.
    ///
    /// # Errors
    /// [`JwtError::UnsupportedAlgorithm`] if the algorithm is not supported; [`JwtError::InvalidSignature`] if no key
    /// verifies it.
    pub(super) fn verify_signature(
        &self,
        algorithm: &str,
        key_id: Option<&str>,
        signed: &[u8],
        signature: &[u8],
    ) -> Result<(), JwtError> {
        let is_supported = RSA_ALGORITHMS.iter().any(|(name, _)| *name == algorithm)
            || CURVES.iter().any(|curve| curve.algorithm == algorithm)
            || EDDSA_NAMES.contains(&algorithm);
        if !is_supported {
            return Err(JwtError::UnsupportedAlgorithm);
        }
        let may_have_id =
            |key: &&JwtKey| key_id.is_none() || key.id.is_none() || key.id.as_deref() == key_id;
        let permits_algorithm =
            |key: &&JwtKey| key.algorithm.as_deref().is_none_or(|expected| expected == algorithm);
        let mut keys = self.0.iter().filter(may_have_id).filter(permits_algorithm);
        match keys.any(|key| key.material.is_valid_signature(algorithm, signed, signature)) {
            true => Ok(()),
            false => Err(JwtError::InvalidSignature),
        }
    }
}

impl KeyMaterial {
    /// True if the signature of `signed` was made with this key and the algorithm.
    fn is_valid_signature(&self, algorithm: &str, signed: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Rsa { modulus: n, exponent: e } => {
                let parameters = RSA_ALGORITHMS.iter().find(|(name, _)| *name == algorithm);
                parameters.is_some_and(|(_, parameters)| {
                    let key = RsaPublicKeyComponents { n, e };
                    key.verify(parameters, signed, signature).is_ok()
                })
            }
            Self::Curve { curve, point } => {
                curve.algorithm == algorithm
                    && UnparsedPublicKey::new(curve.verification_algorithm, point)
                        .verify(signed, signature)
                        .is_ok()
            }
            Self::Ed25519(key) => {
                EDDSA_NAMES.contains(&algorithm)
                    && UnparsedPublicKey::new(&ED25519, key).verify(signed, signature).is_ok()
            }
        }
    }
}

/// Parses a key of a JWK set; `None` if its type is not supported or it is not for verification.
fn parse_key(jwk: &Value) -> Option<JwtKey> {
    let text_member = |name: &str| jwk.get(name).and_then(Value::as_str);
    if text_member("use").is_some_and(|key_use| key_use != "sig") {
        return None;
    }
    // `key_ops` (RFC 7517 §4.3) must include verification if it is present.
    let is_verify_operation = |operation: &Value| operation.as_str() == Some("verify");
    let allows_verification = |operations: &Value| {
        operations.as_array().is_some_and(|list| list.iter().any(is_verify_operation))
    };
    if !jwk.get("key_ops").is_none_or(allows_verification) {
        return None;
    }
    let bytes_member = |name: &str| URL_SAFE_NO_PAD.decode(text_member(name)?).ok();
    let material = match text_member("kty")? {
        "RSA" => {
            let (modulus, exponent) = (bytes_member("n")?, bytes_member("e")?);
            (modulus.len() >= MIN_RSA_BYTES).then_some(KeyMaterial::Rsa { modulus, exponent })?
        }
        "EC" => {
            let curve = *CURVES.iter().find(|curve| Some(curve.name) == text_member("crv"))?;
            let (x, y) = (bytes_member("x")?, bytes_member("y")?);
            if x.len() != curve.coordinate_bytes || y.len() != curve.coordinate_bytes {
                return None;
            }
            KeyMaterial::Curve { curve, point: [&[UNCOMPRESSED_POINT][..], &x, &y].concat() }
        }
        "OKP" if text_member("crv") == Some("Ed25519") => KeyMaterial::Ed25519(bytes_member("x")?),
        _ => return None,
    };
    let algorithm = text_member("alg").map(str::to_owned);
    Some(JwtKey { id: text_member("kid").map(str::to_owned), algorithm, material })
}

/// The members of a JWK that are public and supported.
const PUBLIC_MEMBERS: [&str; 9] = ["kty", "use", "alg", "kid", "crv", "n", "e", "x", "y"];
/// The two names of the Ed25519 signature algorithm (RFC 8037 §3.1, RFC 9864).
const EDDSA_NAMES: [&str; 2] = ["EdDSA", "Ed25519"];
/// The first byte of an uncompressed point (SEC 1 §2.3.3).
const UNCOMPRESSED_POINT: u8 = 4;
/// Minimum length of an RSA modulus: 2048 bits (RFC 7518 §3.3).
const MIN_RSA_BYTES: usize = 256;
/// Maximum number of keys read from a set; issuers publish fewer. Further keys are ignored.
const MAX_KEYS_READ: usize = 64;
