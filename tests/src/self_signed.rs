//! A self-signed server certificate, as PEM files.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A key, and its self-signed certificate.
pub struct SelfSigned {
    /// The file of the private key.
    pub key: PathBuf,
    /// The file of the certificate, which is also the trust root.
    pub certificate: PathBuf,
}

impl SelfSigned {
    /// Creates a key and a certificate for a name, in a folder.
    ///
    /// # Panics
    /// If openssl is not installed, or the files cannot be written.
    #[must_use]
    pub fn generate_files(folder: &Path, name: &str) -> Self {
        let pem_path = |suffix: &str| folder.join(format!("{name}-{suffix}.pem"));
        let files = Self { key: pem_path("key"), certificate: pem_path("certificate") };
        let mut openssl = Command::new("openssl");
        openssl.args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes".split(' '));
        openssl.args(["-subj", &format!("/CN={name}")]);
        openssl.args(["-addext", &format!("subjectAltName=DNS:{name}"), "-keyout"]);
        openssl.arg(&files.key).arg("-out").arg(&files.certificate);
        let output = openssl.output().expect("openssl is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        files
    }
}
