//! Verifies the clients of the webhook (API servers) with CA certificates from a file that is reloaded when it
//! changes.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use leno_identity::{FileOrigin, open_regular};
use leno_telemetry::with_causes;
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

/// The CA certificates for the client certificates of API servers.
pub(super) struct ClientAuthorities {
    path: PathBuf,
    /// The last seen content of the file, valid or not.
    content: String,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// The reason that the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientAuthoritiesError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file has no valid certificates.
    #[error("{path}: {problem}; use CA certificates in PEM, without keys")]
    Invalid {
        /// The path of the file.
        path: PathBuf,
        /// The reason that the content is invalid.
        problem: String,
    },
}

impl ClientAuthorities {
    /// Reads the file and creates the verifier.
    ///
    /// # Errors
    /// When the file cannot be read, or has no certificates.
    pub(super) fn open(path: PathBuf) -> Result<Self, ClientAuthoritiesError> {
        let content = read_file(&path)?;
        let verifier = build_verifier(&path, &content)?;
        Ok(Self { path, content, verifier })
    }

    pub(super) fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.verifier)
    }

    /// Reloads the file. Returns true if the certificates have changed; an invalid file changes nothing.
    pub(super) fn reload(&mut self) -> bool {
        let content = match read_file(&self.path) {
            Ok(content) if content == self.content => return false,
            Ok(content) => content,
            Err(error) => {
                tracing::debug!(%error, "cannot reload the CA certificates of webhook clients; the previous ones stay in use");
                return false;
            }
        };
        let verifier_result = build_verifier(&self.path, &content);
        // Invalid content is kept as well, so that its error is reported once.
        self.content = content;
        match verifier_result {
            Ok(verifier) => {
                tracing::info!(path = %self.path.display(), "the webhook verifies clients with new CA certificates");
                self.verifier = verifier;
                true
            }
            Err(error) => {
                tracing::error!(%error, "cannot reload the CA certificates of webhook clients; the previous ones stay in use");
                false
            }
        }
    }
}

/// Returns the content of a file with client CA certificates, if it is valid.
///
/// # Errors
/// When the file cannot be read, or has no certificates.
pub fn read_client_ca(path: &Path) -> Result<String, ClientAuthoritiesError> {
    let content = read_file(path)?;
    build_verifier(path, &content)?;
    Ok(content)
}

fn read_file(path: &Path) -> Result<String, ClientAuthoritiesError> {
    let read_error = |source| ClientAuthoritiesError::Io { path: path.to_owned(), source };
    let file = open_regular(path, FileOrigin::User).map_err(read_error)?;
    let mut content = String::new();
    file.take(MAX_FILE_BYTES).read_to_string(&mut content).map_err(read_error)?;
    Ok(content)
}

fn build_verifier(
    path: &Path,
    content: &str,
) -> Result<Arc<dyn ClientCertVerifier>, ClientAuthoritiesError> {
    let invalid =
        |problem: String| ClientAuthoritiesError::Invalid { path: path.to_owned(), problem };
    if content.contains("PRIVATE KEY-----") {
        return Err(invalid("it contains a private key".to_owned()));
    }
    let mut roots = RootCertStore::empty();
    for der in CertificateDer::pem_slice_iter(content.as_bytes()) {
        let der = der.map_err(|_| invalid("it is not PEM".to_owned()))?;
        roots.add(der).map_err(|error| invalid(with_causes(&error)))?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let build_result = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
    build_result.map_err(|_| invalid("it has no certificate".to_owned()))
}

/// The maximum size of the file: enough for hundreds of certificates.
const MAX_FILE_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    use super::*;

    fn authority_pem() -> String {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[test]
    fn an_error_names_the_unusable_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        let problem = || ClientAuthorities::open(path.clone()).err().unwrap().to_string();
        assert!(problem().contains("cannot read") && problem().contains("ca.pem"), "{}", problem());
        for (text, expected) in [
            ("", "no certificate"),
            ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "private key"),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "ca.pem"),
        ] {
            std::fs::write(&path, text).unwrap();
            assert!(problem().contains(expected), "{}", problem());
        }
        std::fs::write(&path, authority_pem() + &authority_pem()).unwrap();
        assert!(ClientAuthorities::open(path).is_ok());
    }

    #[test]
    fn the_last_valid_certificates_stay_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        std::fs::write(&path, authority_pem()).unwrap();
        let mut authorities = ClientAuthorities::open(path.clone()).unwrap();
        let first = authorities.verifier();
        assert!(!authorities.reload());
        std::fs::remove_file(&path).unwrap();
        assert!(!authorities.reload());
        std::fs::write(&path, "broken").unwrap();
        assert!(!authorities.reload());
        assert!(Arc::ptr_eq(&first, &authorities.verifier()));
        std::fs::write(&path, authority_pem()).unwrap();
        assert!(authorities.reload());
        assert!(!Arc::ptr_eq(&first, &authorities.verifier()));
    }
}
