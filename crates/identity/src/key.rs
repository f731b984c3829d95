//! A private key: made where it is used, written to its owner's disk, shown to nobody.

use std::fmt;

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// A P-256 private key. It cannot be cloned or printed.
pub struct PrivateKey(KeyPair);

impl PrivateKey {
    /// Makes a new key.
    ///
    /// # Panics
    /// When the operating system has no randomness to give, which leaves nothing safe to do.
    #[must_use]
    pub fn generate() -> Self {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
            .expect("the operating system gives randomness");
        Self(pair)
    }

    /// A certificate request (PKCS #10, DER) that proves possession of the key and says no more:
    /// the authority decides whose certificate it becomes.
    ///
    /// # Panics
    /// Never: an empty request can always be encoded and signed.
    #[must_use]
    pub fn request(&self) -> Vec<u8> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = DistinguishedName::new();
        let request = parameters
            .serialize_request(&self.0)
            .expect("an empty request can be encoded and signed with a P-256 key");
        request.der().to_vec()
    }

    pub(crate) fn from_pem(text: &str) -> Result<Self, rcgen::Error> {
        KeyPair::from_pkcs8_pem_and_sign_algo(text, &PKCS_ECDSA_P256_SHA256).map(Self)
    }

    /// Only for a file of mode 0600.
    pub(crate) fn to_pem(&self) -> String {
        self.0.serialize_pem()
    }

    /// Only for the TLS library.
    pub(crate) fn to_der(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.0.serialize_der()).into()
    }

    /// Only for the authority's own signatures.
    pub(crate) fn into_pair(self) -> KeyPair {
        self.0
    }

    /// Only for the authority's own root.
    pub(crate) fn pair(&self) -> &KeyPair {
        &self.0
    }

    /// The public half: an uncompressed point.
    pub(crate) fn public(&self) -> &[u8] {
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
    use super::*;

    #[test]
    fn never_prints_itself() {
        assert_eq!(format!("{:?}", PrivateKey::generate()), "PrivateKey(..)");
    }

    #[test]
    fn reads_back_from_its_own_text() {
        let key = PrivateKey::generate();
        let again = PrivateKey::from_pem(&key.to_pem()).unwrap();
        assert_eq!(again.public(), key.public());
    }

    #[test]
    fn refuses_keys_of_other_kinds() {
        let other = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        assert!(PrivateKey::from_pem(&other.serialize_pem()).is_err());
        assert!(PrivateKey::from_pem("").is_err());
    }
}
