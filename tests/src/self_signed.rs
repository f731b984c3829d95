//! A certificate that a server has made for itself, as files of PEM.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A key, and a certificate for it that its own key has signed.
pub struct SelfSigned {
    /// The key.
    pub key: PathBuf,
    /// The certificate, which is whom to trust too.
    pub certificate: PathBuf,
}

impl SelfSigned {
    /// Makes both for a name, in a folder.
    ///
    /// # Panics
    /// When openssl is not installed, or there is no place for them.
    #[must_use]
    pub fn make(folder: &Path, name: &str) -> Self {
        let file = |end: &str| folder.join(format!("{name}-{end}.pem"));
        let made = Self { key: file("key"), certificate: file("certificate") };
        let mut openssl = Command::new("openssl");
        openssl.args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes".split(' '));
        openssl.args(["-subj", &format!("/CN={name}")]);
        openssl.args(["-addext", &format!("subjectAltName=DNS:{name}"), "-keyout"]);
        openssl.arg(&made.key).arg("-out").arg(&made.certificate);
        let output = openssl.output().expect("openssl is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        made
    }
}
