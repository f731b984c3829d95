//! Parses the certificates of gateway listeners from Secrets of type `kubernetes.io/tls`.

use k8s_openapi::api::core::v1::Secret;
use leno_model::GatewayCertificate;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// Parses the certificate and key of a Secret.
///
/// # Errors
/// The reason that the certificate or its key cannot be used.
pub(super) fn parse_certificate(secret: &Secret) -> Result<GatewayCertificate, String> {
    let chain = secret_text(secret, "tls.crt")?;
    let key = secret_text(secret, "tls.key")?;
    let parsed_chain: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
    let certificates =
        parsed_chain.map_err(|_| "its tls.crt is not PEM with certificates".to_owned())?;
    if certificates.is_empty() {
        return Err("its tls.crt has no certificate".to_owned());
    }
    let private_key = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|_| "its tls.key is not PEM with a private key".to_owned())?;
    CertifiedKey::from_der(certificates, private_key, &aws_lc_rs::default_provider())
        .map_err(|error| format!("its certificate and key do not match: {error}"))?;
    Ok(GatewayCertificate { chain, key })
}

/// Returns an entry of a Secret as text, or the reason that it cannot be used.
fn secret_text(secret: &Secret, entry_key: &str) -> Result<String, String> {
    let entry = secret.data.as_ref().and_then(|data| data.get(entry_key));
    let bytes = entry.ok_or_else(|| format!("it has no {entry_key}"))?;
    if bytes.0.len() > MAX_ENTRY_BYTES {
        return Err(format!("its {entry_key} has more than {MAX_ENTRY_BYTES} bytes"));
    }
    String::from_utf8(bytes.0.clone()).map_err(|_| format!("its {entry_key} is not text"))
}

/// The maximum size of an entry of the Secret. Every configuration snapshot of the gateway contains it.
const MAX_ENTRY_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn tls_secret(parts: &[(&str, &str)]) -> Secret {
        let data = parts
            .iter()
            .map(|(key, text)| ((*key).to_owned(), ByteString(text.as_bytes().to_vec())));
        Secret { data: Some(data.collect()), ..Secret::default() }
    }

    fn generate_pair() -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let parameters = rcgen::CertificateParams::new(["a.b".to_owned()]).unwrap();
        (parameters.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn a_certificate_needs_a_chain_and_the_matching_key() {
        let ((chain, key), (_, other_key)) = (generate_pair(), generate_pair());
        let parse_certificate = |chain: &str, key: &str| {
            parse_certificate(&tls_secret(&[("tls.crt", chain), ("tls.key", key)]))
        };
        let valid = parse_certificate(&chain, &key).unwrap();
        assert_eq!((valid.chain, valid.key), (chain.clone(), key.clone()));
        for (chain, key, reason) in [
            (chain.as_str(), other_key.as_str(), "do not match"),
            ("Hello world", "Hello world", "no certificate"),
            (chain.as_str(), "Hello world", "not PEM with a private key"),
            (key.as_str(), key.as_str(), "no certificate"),
        ] {
            let rejection = parse_certificate(chain, key).unwrap_err();
            assert!(rejection.contains(reason), "{rejection}");
        }
        assert!(
            super::parse_certificate(&tls_secret(&[("tls.crt", &chain)]))
                .unwrap_err()
                .contains("no tls.key")
        );
    }
}
