//! Loads trust roots and builds TLS client configurations for connections to servers outside the mesh, such as JWKS
//! servers and telemetry collectors.

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
        /// The error of opening or reading the file, which includes a file of more than 16 MiB.
        cause: std::io::Error,
    },
    /// The file is not PEM.
    #[error("{}: {cause}", path.display())]
    InvalidPem {
        /// The path of the file.
        path: PathBuf,
        /// The error of the PEM parser.
        cause: rustls::pki_types::pem::Error,
    },
    /// The file contains an invalid certificate.
    #[error("{}: {cause}", path.display())]
    InvalidCertificate {
        /// The path of the file.
        path: PathBuf,
        /// The error of parsing the certificate as a trust root.
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
    /// Reads the roots in a PEM file; with `None`, the roots of the operating system.
    ///
    /// # Errors
    /// [`ExternalServerRootsError`] if the file cannot be read, it contains an invalid certificate, or there is no root.
    pub fn read(path: Option<&Path>) -> Result<Self, ExternalServerRootsError> {
        let mut roots = RootCertStore::empty();
        let Some(path) = path else {
            // Certificates of the system that cannot be read or parsed are skipped.
            let system_roots = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(system_roots.certs);
            return match roots.is_empty() {
                false => Ok(Self(Arc::new(roots))),
                true => Err(ExternalServerRootsError::NoSystemRoots),
            };
        };
        let owned_path = || path.to_owned();
        let pem = open_regular(path, FileOrigin::User)
            .and_then(|file| read_bounded(file, MAX_FILE_BYTES))
            .map_err(|cause| ExternalServerRootsError::Unreadable { path: owned_path(), cause })?;
        for certificate_result in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate_result.map_err(|cause| {
                ExternalServerRootsError::InvalidPem { path: owned_path(), cause }
            })?;
            roots.add(certificate).map_err(|cause| {
                ExternalServerRootsError::InvalidCertificate { path: owned_path(), cause }
            })?;
        }
        match roots.is_empty() {
            false => Ok(Self(Arc::new(roots))),
            true => Err(ExternalServerRootsError::NoCertificate(owned_path())),
        }
    }

    /// Builds the TLS configuration of clients that verify servers with these roots and offer `alpn_protocol` as the only
    /// ALPN protocol.
    ///
    /// # Errors
    /// [`rustls::Error`] if this build supports no TLS version.
    pub fn client_config(&self, alpn_protocol: &[u8]) -> Result<ClientConfig, rustls::Error> {
        // All cipher suites are offered, because external servers may support only some of them.
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = builder.with_root_certificates(Arc::clone(&self.0)).with_no_client_auth();
        config.alpn_protocols = vec![alpn_protocol.to_vec()];
        Ok(config)
    }
}

/// Maximum size of a file in bytes. The roots of an operating system have about 256 KiB.
const MAX_FILE_BYTES: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_roots_needs_at_least_one_valid_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let read_roots = |content: &str| {
            let path = directory.path().join("roots.pem");
            std::fs::write(&path, content).unwrap();
            ExternalServerRoots::read(Some(&path)).map_err(|error| error.to_string())
        };
        let key = rcgen::KeyPair::generate().unwrap();
        let root = rcgen::CertificateParams::default().self_signed(&key).unwrap().pem();
        assert!(read_roots(&format!("# root\n{root}")).is_ok());
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (content, problem) in [
            ("", "has no certificate"),
            (&key.serialize_pem(), "has no certificate"),
            (&format!("{root}{broken}"), "invalid peer certificate"),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n", "roots.pem: "),
        ] {
            let error = read_roots(content).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
        let missing_path = directory.path().join("absent.pem");
        assert!(
            ExternalServerRoots::read(Some(&missing_path))
                .unwrap_err()
                .to_string()
                .contains("absent.pem")
        );
    }
}
