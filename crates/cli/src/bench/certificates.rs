//! Issues PEM certificates from a Leno authority, for contenders that cannot request certificates themselves.

use std::path::Path;
use std::time::SystemTime;

use anyhow::Context as _;
use leno_identity::{
    Authority, CertificateRequest, CertificateSubject, Credential, LEAF_LIFETIME, PrivateKey,
};
use leno_model::{SpiffeId, TrustDomain, WorkloadName};

/// Writes `NAME.key`, `NAME.crt`, `NAME.pem` (both combined) for each name, and `roots.pem`.
///
/// # Errors
/// If the directory cannot be written.
pub(super) fn issue_certificates(dir: &Path, names: &[&str]) -> anyhow::Result<()> {
    let trust_domain = TrustDomain::new(TRUST_DOMAIN).context("the trust domain")?;
    let now = SystemTime::now();
    let authority = Authority::open_or_create(&dir.join("authority"), &trust_domain, now)?;
    std::fs::write(dir.join("roots.pem"), authority.roots().to_pem())
        .with_context(|| format!("cannot write to {}", dir.display()))?;
    for name in names {
        let id: SpiffeId = spiffe_id(name).parse().context("an identity")?;
        let workload: WorkloadName = format!("bench/{name}-1").parse().context("a workload")?;
        let key = PrivateKey::generate();
        let request = CertificateRequest::from_der(&key.certificate_request())?;
        let subject = CertificateSubject { id: &id, workload: Some(&workload), instance: None };
        let certificate_bundle = authority.sign(&request, subject, LEAF_LIFETIME, now)?;
        let state_directory = dir.join(name);
        Credential::new(key, certificate_bundle)?
            .save(&state_directory)
            .context("cannot save a credential")?;
        split_credential(&state_directory.join("credential.pem"), dir, name)
            .with_context(|| format!("the credential of {name}"))?;
    }
    Ok(())
}

/// Returns the identity in the certificate of this name.
pub(super) fn spiffe_id(name: &str) -> String {
    format!("spiffe://{TRUST_DOMAIN}/ns/bench/sa/{name}")
}

/// Splits a credential into key and certificate: some programs read separate files.
fn split_credential(credential: &Path, dir: &Path, name: &str) -> anyhow::Result<()> {
    let credential_pem = std::fs::read_to_string(credential)?;
    let certificate_start =
        credential_pem.find("-----BEGIN CERTIFICATE-----").context("it has no certificate")?;
    let (key_pem, certificate_pem) = credential_pem.split_at(certificate_start);
    for (extension, file_pem) in
        [("key", key_pem), ("crt", certificate_pem), ("pem", credential_pem.as_str())]
    {
        std::fs::write(dir.join(format!("{name}.{extension}")), file_pem)?;
    }
    Ok(())
}

const TRUST_DOMAIN: &str = "cluster.local";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_gets_its_files() {
        let scratch = tempfile::tempdir().unwrap();
        issue_certificates(scratch.path(), &["client", "server"]).unwrap();
        for (file, prefix) in [
            ("client.key", "-----BEGIN PRIVATE KEY-----"),
            ("server.crt", "-----BEGIN CERTIFICATE-----"),
            ("server.pem", "-----BEGIN PRIVATE KEY-----"),
            ("roots.pem", "-----BEGIN CERTIFICATE-----"),
        ] {
            let text = std::fs::read_to_string(scratch.path().join(file)).unwrap();
            assert!(text.starts_with(prefix), "{file}: {text}");
        }
    }
}
