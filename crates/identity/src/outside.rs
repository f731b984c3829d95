//! Trust roots and TLS client configurations for connections to servers outside the mesh, such as JWKS servers and
//! telemetry collectors.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::regular_file::{FileOrigin, open_regular, read_bounded};

/// The trust roots that verify servers outside the mesh; at least one.
#[derive(Debug, Clone)]
pub struct ExternalServerRoots(Arc<RootCertStore>);

/// A failure to load trust roots.
#[derive(Debug, thiserror::Error)]
pub enum ExternalServerRootsError {
    /// The file cannot be read.
    #[error("{}: {cause}", path.display())]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The error of reading or parsing it.
        cause: std::io::Error,
    },
    /// The file is not PEM.
    #[error("{}: {cause}", path.display())]
    InvalidPem {
        /// The path of the file.
        path: PathBuf,
        /// The error of reading or parsing it.
        cause: rustls::pki_types::pem::Error,
    },
    /// The file contains an invalid certificate.
    #[error("{}: {cause}", path.display())]
    InvalidCertificate {
        /// The path of the file.
        path: PathBuf,
        /// The error of reading or parsing it.
        cause: rustls::Error,
    },
    /// The file contains no certificate.
    #[error("{} has no certificate", .0.display())]
    NoCertificate(PathBuf),
    /// The system has no readable roots.
    #[error("the system has no CA certificates: specify a file of CA certificates")]
    NoSystemRoots,
}

impl ExternalServerRoots {
    /// Reads a PEM file; without a file, the roots of the operating system.
    ///
    /// # Errors
    /// [`ExternalServerRootsError`] if the file cannot be read, it contains an invalid certificate, or there is no root.
    pub fn read(file: Option<&Path>) -> Result<Self, ExternalServerRootsError> {
        let mut roots = RootCertStore::empty();
        let Some(file) = file else {
            // Unreadable roots of the system are skipped; the other roots are used.
            let system_roots = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(system_roots.certs);
            return match roots.is_empty() {
                false => Ok(Self(Arc::new(roots))),
                true => Err(ExternalServerRootsError::NoSystemRoots),
            };
        };
        let file_path = || file.to_owned();
        let text = open_regular(file, FileOrigin::User)
            .and_then(|file| read_bounded(file, MAX_FILE_BYTES))
            .map_err(|cause| ExternalServerRootsError::Unreadable { path: file_path(), cause })?;
        for certificate in CertificateDer::pem_slice_iter(&text) {
            let certificate = certificate.map_err(|cause| {
                ExternalServerRootsError::InvalidPem { path: file_path(), cause }
            })?;
            roots.add(certificate).map_err(|cause| {
                ExternalServerRootsError::InvalidCertificate { path: file_path(), cause }
            })?;
        }
        match roots.is_empty() {
            false => Ok(Self(Arc::new(roots))),
            true => Err(ExternalServerRootsError::NoCertificate(file_path())),
        }
    }

    /// Builds the configuration of clients that connect to these servers with `protocol`.
    ///
    /// # Errors
    /// [`rustls::Error`] if this build supports no TLS version.
    pub fn client_config(&self, protocol: &[u8]) -> Result<ClientConfig, rustls::Error> {
        // All cipher suites are offered, because external servers may support only some of them.
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = config.with_root_certificates(Arc::clone(&self.0)).with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }
}

/// Maximum size of a file in bytes: many times the size of a system's roots.
const MAX_FILE_BYTES: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_roots_needs_at_least_one_valid_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let read = |content: &str| {
            let file = directory.path().join("roots.pem");
            std::fs::write(&file, content).unwrap();
            ExternalServerRoots::read(Some(&file)).map_err(|error| error.to_string())
        };
        let key = rcgen::KeyPair::generate().unwrap();
        let root = rcgen::CertificateParams::default().self_signed(&key).unwrap().pem();
        assert!(read(&format!("# root\n{root}")).is_ok());
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (content, problem) in [
            ("", "has no certificate"),
            (&key.serialize_pem(), "has no certificate"),
            (&format!("{root}{broken}"), "invalid peer certificate"),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n", "roots.pem: "),
        ] {
            let error = read(content).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
        let absent = directory.path().join("absent.pem");
        assert!(
            ExternalServerRoots::read(Some(&absent))
                .unwrap_err()
                .to_string()
                .contains("absent.pem")
        );
    }
}
