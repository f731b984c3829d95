//! A certificate request: a public key, and the proof of possession of the private key.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rcgen::{PublicKeyData, SignatureAlgorithm};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_SIG_ECDSA_WITH_SHA256,
};
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AlgorithmIdentifier, SubjectPublicKeyInfo};

/// A public key with verified possession of the private key. The rest of the request is ignored: the authority
/// decides names and purposes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRequest {
    /// An uncompressed P-256 point.
    point: Vec<u8>,
}

impl CertificateRequest {
    /// Parses a PKCS #10 request and verifies its signature.
    ///
    /// # Errors
    /// [`RequestError`] if it is malformed, not for an ECDSA P-256 key, or not signed by it.
    pub fn from_der(der: &[u8]) -> Result<Self, RequestError> {
        if der.len() > REQUEST_BYTES_MAX {
            return Err(RequestError::TooLarge);
        }
        let (rest, request) =
            X509CertificationRequest::from_der(der).map_err(|_| RequestError::Malformed)?;
        if !rest.is_empty() {
            return Err(RequestError::Malformed);
        }
        let facts = &request.certification_request_info;
        if !is_p256(&facts.subject_pki)
            || request.signature_algorithm.algorithm != OID_SIG_ECDSA_WITH_SHA256
        {
            return Err(RequestError::Algorithm);
        }
        if request.signature_value.unused_bits != 0 {
            return Err(RequestError::Malformed);
        }
        let point: &[u8] = &facts.subject_pki.subject_public_key.data;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point)
            .verify(facts.raw, &request.signature_value.data)
            .map_err(|_| RequestError::Signature)?;
        Ok(Self { point: point.to_vec() })
    }
}

impl PublicKeyData for CertificateRequest {
    fn der_bytes(&self) -> &[u8] {
        &self.point
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

/// The reason that a certificate request is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Larger than any valid request.
    #[error("the certificate request is larger than {REQUEST_BYTES_MAX} bytes")]
    TooLarge,
    /// Not a PKCS #10 request in DER.
    #[error("the certificate request is not PKCS #10 in DER")]
    Malformed,
    /// An unsupported type of key or signature.
    #[error("the certificate request must be for an ECDSA P-256 key and signed with SHA-256")]
    Algorithm,
    /// The sender does not possess the private key.
    #[error("the certificate request is not signed by the key that it names")]
    Signature,
}

fn is_p256(key: &SubjectPublicKeyInfo<'_>) -> bool {
    let AlgorithmIdentifier { algorithm, parameters } = &key.algorithm;
    let curve = parameters.as_ref().and_then(|any| any.as_oid().ok());
    *algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY
        && curve == Some(OID_EC_P256)
        && key.subject_public_key.unused_bits == 0
}

/// A P-256 request without attributes takes about 200 bytes.
const REQUEST_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;
    use crate::key::PrivateKey;

    fn request_of(kind: &'static SignatureAlgorithm) -> Vec<u8> {
        let pair = KeyPair::generate_for(kind).unwrap();
        let request = CertificateParams::default().serialize_request(&pair);
        request.unwrap().der().to_vec()
    }

    #[test]
    fn keeps_the_public_key_of_an_honest_request() {
        let key = PrivateKey::generate();
        let request = CertificateRequest::from_der(&key.certificate_request()).unwrap();
        assert_eq!(request.point, key.public_key());
    }

    #[test]
    fn refuses_keys_other_than_p256() {
        for kind in [&rcgen::PKCS_RSA_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519]
        {
            let rejected = CertificateRequest::from_der(&request_of(kind));
            assert_eq!(rejected, Err(RequestError::Algorithm), "{kind:?}");
        }
    }

    #[test]
    fn refuses_a_request_signed_by_another_key() {
        let mine = PrivateKey::generate();
        let theirs = PrivateKey::generate();
        let mut forged = mine.certificate_request();
        let at = forged
            .windows(mine.public_key().len())
            .position(|bytes| bytes == mine.public_key())
            .unwrap();
        forged[at..at + theirs.public_key().len()].copy_from_slice(theirs.public_key());
        assert_eq!(CertificateRequest::from_der(&forged), Err(RequestError::Signature));
    }

    #[test]
    fn no_damage_leads_to_another_key() {
        let key = PrivateKey::generate();
        let honest = key.certificate_request();
        for at in 0..honest.len() {
            assert!(CertificateRequest::from_der(&honest[..at]).is_err());
            for bit in 0..8 {
                let mut changed = honest.clone();
                changed[at] ^= 1 << bit;
                if let Ok(request) = CertificateRequest::from_der(&changed) {
                    assert_eq!(request.point, key.public_key(), "byte {at}, bit {bit}");
                }
            }
        }
    }

    #[test]
    fn refuses_what_follows_or_exceeds_a_request() {
        let honest = PrivateKey::generate().certificate_request();
        let mut longer = honest.clone();
        longer.push(0);
        assert_eq!(CertificateRequest::from_der(&longer), Err(RequestError::Malformed));
        assert_eq!(
            CertificateRequest::from_der(&vec![0x30; REQUEST_BYTES_MAX + 1]),
            Err(RequestError::TooLarge)
        );
    }
}
