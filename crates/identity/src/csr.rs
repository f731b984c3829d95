//! Parses and verifies certificate signing requests (CSR, PKCS #10): a public key, and the proof that the sender possesses
//! the private key.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rcgen::{PublicKeyData, SignatureAlgorithm};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_SIG_ECDSA_WITH_SHA256,
};
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AlgorithmIdentifier, SubjectPublicKeyInfo};

/// A verified certificate signing request. Only its public key is used; the authority decides names and purposes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRequest {
    /// The public key as an uncompressed P-256 point.
    public_key_point: Vec<u8>,
}

impl CertificateRequest {
    /// Parses a PKCS #10 request and verifies its signature.
    ///
    /// # Errors
    /// [`CertificateRequestError`] if it is malformed, not for an ECDSA P-256 key, or not signed by it.
    pub fn from_der(der: &[u8]) -> Result<Self, CertificateRequestError> {
        if der.len() > MAX_REQUEST_BYTES {
            return Err(CertificateRequestError::TooLarge);
        }
        let (trailing_bytes, request) = X509CertificationRequest::from_der(der)
            .map_err(|_| CertificateRequestError::Malformed)?;
        if !trailing_bytes.is_empty() {
            return Err(CertificateRequestError::Malformed);
        }
        let request_info = &request.certification_request_info;
        if !is_p256(&request_info.subject_pki)
            || request.signature_algorithm.algorithm != OID_SIG_ECDSA_WITH_SHA256
        {
            return Err(CertificateRequestError::UnsupportedAlgorithm);
        }
        if request.signature_value.unused_bits != 0 {
            return Err(CertificateRequestError::Malformed);
        }
        let public_key_point: &[u8] = &request_info.subject_pki.subject_public_key.data;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, public_key_point)
            .verify(request_info.raw, &request.signature_value.data)
            .map_err(|_| CertificateRequestError::InvalidSignature)?;
        Ok(Self { public_key_point: public_key_point.to_vec() })
    }
}

impl PublicKeyData for CertificateRequest {
    fn der_bytes(&self) -> &[u8] {
        &self.public_key_point
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

/// The reason that a certificate request is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CertificateRequestError {
    /// The request is larger than any valid request.
    #[error("the certificate request is larger than {MAX_REQUEST_BYTES} bytes")]
    TooLarge,
    /// The bytes are not a PKCS #10 request in DER.
    #[error("the certificate request is not PKCS #10 in DER")]
    Malformed,
    /// The type of the key or of the signature is not supported.
    #[error("the certificate request must be for an ECDSA P-256 key and signed with SHA-256")]
    UnsupportedAlgorithm,
    /// The sender does not possess the private key.
    #[error("the certificate request is not signed by the key that it names")]
    InvalidSignature,
}

/// True for an ECDSA key on the curve P-256.
fn is_p256(key: &SubjectPublicKeyInfo<'_>) -> bool {
    let AlgorithmIdentifier { algorithm, parameters } = &key.algorithm;
    let curve = parameters.as_ref().and_then(|any| any.as_oid().ok());
    *algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY
        && curve == Some(OID_EC_P256)
        && key.subject_public_key.unused_bits == 0
}

/// Maximum size of a request. A request for a P-256 key without attributes has about 200 bytes.
const MAX_REQUEST_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;
    use crate::key::PrivateKey;

    fn request_for_algorithm(algorithm: &'static SignatureAlgorithm) -> Vec<u8> {
        let pair = KeyPair::generate_for(algorithm).unwrap();
        let request = CertificateParams::default().serialize_request(&pair);
        request.unwrap().der().to_vec()
    }

    #[test]
    fn a_valid_request_yields_its_public_key() {
        let key = PrivateKey::generate();
        let request = CertificateRequest::from_der(&key.certificate_request()).unwrap();
        assert_eq!(request.public_key_point, key.public_key());
    }

    #[test]
    fn keys_other_than_p256_are_rejected() {
        for algorithm in
            [&rcgen::PKCS_RSA_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519]
        {
            let rejected = CertificateRequest::from_der(&request_for_algorithm(algorithm));
            assert_eq!(
                rejected,
                Err(CertificateRequestError::UnsupportedAlgorithm),
                "{algorithm:?}"
            );
        }
    }

    #[test]
    fn a_request_signed_by_another_key_is_rejected() {
        let key = PrivateKey::generate();
        let other_key = PrivateKey::generate();
        let mut forged = key.certificate_request();
        let key_start = forged
            .windows(key.public_key().len())
            .position(|bytes| bytes == key.public_key())
            .unwrap();
        forged[key_start..key_start + other_key.public_key().len()]
            .copy_from_slice(other_key.public_key());
        assert_eq!(
            CertificateRequest::from_der(&forged),
            Err(CertificateRequestError::InvalidSignature)
        );
    }

    #[test]
    fn a_damaged_request_never_yields_another_key() {
        let key = PrivateKey::generate();
        let valid = key.certificate_request();
        for index in 0..valid.len() {
            assert!(CertificateRequest::from_der(&valid[..index]).is_err());
            for bit in 0..8 {
                let mut changed = valid.clone();
                changed[index] ^= 1 << bit;
                if let Ok(request) = CertificateRequest::from_der(&changed) {
                    assert_eq!(
                        request.public_key_point,
                        key.public_key(),
                        "byte {index}, bit {bit}"
                    );
                }
            }
        }
    }

    #[test]
    fn trailing_bytes_and_large_requests_are_rejected() {
        let valid = PrivateKey::generate().certificate_request();
        let mut longer = valid.clone();
        longer.push(0);
        assert_eq!(CertificateRequest::from_der(&longer), Err(CertificateRequestError::Malformed));
        assert_eq!(
            CertificateRequest::from_der(&vec![0x30; MAX_REQUEST_BYTES + 1]),
            Err(CertificateRequestError::TooLarge)
        );
    }
}
