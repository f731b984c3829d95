//! P-256 private keys. The process that uses a key generates it and stores it only on its own disk.

use std::fmt;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// A P-256 private key. It cannot be cloned or printed.
pub struct PrivateKey(KeyPair);

impl PrivateKey {
    /// Generates a key.
    ///
    /// # Panics
    /// If the operating system has no randomness: no safe alternative exists.
    #[must_use]
    pub fn generate() -> Self {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
            .expect("the operating system provides random bytes");
        Self(pair)
    }

    /// Returns a certificate request (PKCS #10, DER) that proves possession of the key and contains nothing
    /// else: the authority decides the subject.
    ///
    /// # Panics
    /// Never: an empty request can always be encoded and signed.
    #[must_use]
    pub fn certificate_request(&self) -> Vec<u8> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = DistinguishedName::new();
        let request = parameters
            .serialize_request(&self.0)
            .expect("an empty request can be encoded and signed with a P-256 key");
        request.der().to_vec()
    }

    /// Parses PKCS #8, or SEC 1 (RFC 5915) as written by cert-manager and older OpenSSL versions, which is
    /// converted to PKCS #8.
    pub(crate) fn from_pem(pem: &str) -> Result<Self, rcgen::Error> {
        let parse_error = rcgen::Error::CouldNotParseKeyPair;
        let Ok(read_der) = PrivateKeyDer::from_pem_slice(pem.as_bytes()) else {
            return Err(parse_error);
        };
        let pair = EcdsaKeyPair::from_private_key_der(
            &ECDSA_P256_SHA256_ASN1_SIGNING,
            read_der.secret_der(),
        );
        let Some(pkcs8) = pair.ok().and_then(|pair| pair.to_pkcs8v1().ok()) else {
            return Err(parse_error);
        };
        let pkcs8_der = PrivatePkcs8KeyDer::from(pkcs8.as_ref());
        KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8_der, &PKCS_ECDSA_P256_SHA256).map(Self)
    }

    /// Encodes the key for a file of mode 0600.
    pub(crate) fn to_pem(&self) -> String {
        self.0.serialize_pem()
    }

    /// Encodes the key for the TLS library.
    pub(crate) fn to_der(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.0.serialize_der()).into()
    }

    /// Returns the key pair, with which an authority signs.
    pub(crate) fn into_pair(self) -> KeyPair {
        self.0
    }

    /// Borrows the key pair, for the signature of an authority's root.
    pub(crate) fn key_pair(&self) -> &KeyPair {
        &self.0
    }

    /// Returns the public key: an uncompressed point.
    pub(crate) fn public_key(&self) -> &[u8] {
        self.0.public_key_raw()
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::encoding::{AsDer as _, EcPrivateKeyRfc5915Der};
    use aws_lc_rs::signature::KeyPair as _;

    use super::*;
    use crate::pem::write_pem;

    #[test]
    fn debug_output_omits_the_key() {
        assert_eq!(format!("{:?}", PrivateKey::generate()), "PrivateKey(..)");
    }

    #[test]
    fn a_key_survives_pem_encoding() {
        let key = PrivateKey::generate();
        let decoded = PrivateKey::from_pem(&key.to_pem()).unwrap();
        assert_eq!(decoded.public_key(), key.public_key());
    }

    #[test]
    fn sec1_keys_of_cert_manager_are_read() {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
        let der: EcPrivateKeyRfc5915Der<'_> = pair.private_key().as_der().unwrap();
        let mut text = String::new();
        write_pem(&mut text, "EC PRIVATE KEY", der.as_ref());
        let key = PrivateKey::from_pem(&text).unwrap();
        assert_eq!(key.public_key(), pair.public_key().as_ref());
        assert!(key.to_pem().starts_with("-----BEGIN PRIVATE KEY-----"));
        assert_eq!(PrivateKey::from_pem(&key.to_pem()).unwrap().public_key(), key.public_key());
        assert!(matches!(key.to_der(), PrivateKeyDer::Pkcs8(_)));
    }

    #[test]
    fn keys_of_other_algorithms_are_rejected() {
        for algorithm in
            [&rcgen::PKCS_ED25519, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_RSA_SHA256]
        {
            let other_key = KeyPair::generate_for(algorithm).unwrap();
            assert!(PrivateKey::from_pem(&other_key.serialize_pem()).is_err());
        }
        assert!(PrivateKey::from_pem("").is_err());
    }
}
