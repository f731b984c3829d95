//! Reads and writes the token file, with which a new proxy finds and verifies the control plane, and joins the mesh.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use leno_model::{InvalidName, TrustDomain};

use crate::disk::{self, FileAccess};
use crate::roots::{Roots, RootsError};

/// The contents of the file `--token-file`. Anyone with the bundle can join as the workload for which the token was issued.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinBundle {
    /// The one-time token.
    pub token: String,
    /// The addresses of the control planes known at issue; any of them can be used.
    pub control_addresses: Vec<SocketAddr>,
    /// The trust domain, which determines the control plane's identity.
    pub trust_domain: TrustDomain,
    /// The roots to verify the control plane before the token is sent.
    pub roots: Roots,
}

impl JoinBundle {
    /// Renders the bundle as text: a few fields, then the roots in PEM.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = format!("{MAGIC}\n# Secret, and good for one use.\n");
        text.push_str(&format!("{TOKEN_FIELD}: {}\n", self.token));
        for control_address in &self.control_addresses {
            text.push_str(&format!("{CONTROL_ADDRESS_FIELD}: {control_address}\n"));
        }
        text.push_str(&format!("{TRUST_DOMAIN_FIELD}: {}\n", self.trust_domain));
        text.push_str(&self.roots.to_pem());
        text
    }

    /// Parses the output of [`JoinBundle::render`].
    ///
    /// # Errors
    /// [`JoinBundleError`] with the invalid line, or with the field that is missing.
    pub fn parse(text: &str) -> Result<Self, JoinBundleError> {
        if text.len() > MAX_BUNDLE_BYTES {
            return Err(JoinBundleError::TooLarge);
        }
        let certificates_start = text.find("-----BEGIN").unwrap_or(text.len());
        let (fields_text, certificates_pem) = text.split_at(certificates_start);
        let mut lines = fields_text.lines().enumerate();
        if lines.next().map(|(_, line)| line.trim_end()) != Some(MAGIC) {
            return Err(JoinBundleError::WrongFirstLine);
        }
        let mut fields = JoinBundleFields::default();
        for (index, line) in lines {
            fields.read_line(line.trim(), index + 1)?;
        }
        let missing_field = |field| JoinBundleError::MissingField { field };
        Ok(Self {
            token: fields.token.ok_or(missing_field(TOKEN_FIELD))?,
            control_addresses: fields.control_addresses,
            trust_domain: fields.trust_domain.ok_or(missing_field(TRUST_DOMAIN_FIELD))?,
            roots: Roots::from_pem(certificates_pem)?,
        })
    }

    /// Writes the bundle to a file of mode 0600.
    ///
    /// # Errors
    /// An I/O error if the file cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        disk::replace(path, self.render().as_bytes(), FileAccess::Owner)
    }

    /// Reads a bundle from a file that only its owner may read.
    ///
    /// # Errors
    /// [`JoinBundleError`] if the file does not exist, others may read it, or it is not a bundle.
    pub fn load(path: &Path) -> Result<Self, JoinBundleError> {
        let text = disk::read_user_file(path, FileAccess::Owner)?.ok_or_else(|| {
            let cause = io::Error::new(io::ErrorKind::NotFound, "there is no such file");
            disk::file_error("read", path, cause)
        })?;
        Self::parse(&text)
    }
}

/// Omits the token.
impl fmt::Debug for JoinBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinBundle")
            .field("control", &self.control_addresses)
            .field("trust_domain", &self.trust_domain)
            .field("roots", &self.roots)
            .finish_non_exhaustive()
    }
}

/// The reason that a text is not a token file.
#[derive(Debug, thiserror::Error)]
pub enum JoinBundleError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is larger than any bundle.
    #[error("the token file is larger than {MAX_BUNDLE_BYTES} bytes")]
    TooLarge,
    /// The first line is not that of a token file.
    #[error("this is not a token file: its first line must be `{MAGIC}`")]
    WrongFirstLine,
    /// A line is not a field, or repeats a field.
    #[error(
        "line {line} of the token file: expected `{TOKEN_FIELD}` or `{TRUST_DOMAIN_FIELD}`, each once, or \
         `{CONTROL_ADDRESS_FIELD}`, at most {MAX_CONTROL_ADDRESSES} times, then a colon and a value"
    )]
    InvalidLine {
        /// The line, counted from 1.
        line: usize,
    },
    /// An address of the control plane is invalid.
    #[error("line {line} of the token file: `{CONTROL_ADDRESS_FIELD}` must be an address and port")]
    InvalidControlAddress {
        /// The line, counted from 1.
        line: usize,
        /// The parser's error.
        #[source]
        cause: std::net::AddrParseError,
    },
    /// The trust domain is invalid.
    #[error("line {line} of the token file: `{TRUST_DOMAIN_FIELD}` must be a DNS name")]
    InvalidTrustDomain {
        /// The line, counted from 1.
        line: usize,
        /// The parser's error.
        #[source]
        cause: InvalidName,
    },
    /// A required field is missing.
    #[error("the token file has no `{field}`: make a new one")]
    MissingField {
        /// The name of the missing field.
        field: &'static str,
    },
    /// The certificates at the end are invalid.
    #[error("the roots in the token file cannot be used")]
    Roots(#[from] RootsError),
}

/// The fields read so far.
#[derive(Default)]
struct JoinBundleFields {
    token: Option<String>,
    control_addresses: Vec<SocketAddr>,
    trust_domain: Option<TrustDomain>,
}

impl JoinBundleFields {
    /// Reads one line; `line` is its number, counted from 1.
    fn read_line(&mut self, text: &str, line: usize) -> Result<(), JoinBundleError> {
        if text.is_empty() || text.starts_with('#') {
            return Ok(());
        }
        let invalid_line = JoinBundleError::InvalidLine { line };
        let Some((field, value)) = text.split_once(':') else {
            return Err(invalid_line);
        };
        let value = value.trim();
        match field {
            TOKEN_FIELD if self.token.is_none() && !value.is_empty() => {
                self.token = Some(value.to_owned());
            }
            CONTROL_ADDRESS_FIELD if self.control_addresses.len() < MAX_CONTROL_ADDRESSES => {
                let parsed = value.parse();
                let control_address = parsed
                    .map_err(|cause| JoinBundleError::InvalidControlAddress { line, cause })?;
                self.control_addresses.push(control_address);
            }
            TRUST_DOMAIN_FIELD if self.trust_domain.is_none() => {
                let trust_domain = TrustDomain::new(value)
                    .map_err(|cause| JoinBundleError::InvalidTrustDomain { line, cause })?;
                self.trust_domain = Some(trust_domain);
            }
            _ => return Err(invalid_line),
        }
        Ok(())
    }
}

/// The first line of a token file: the format and its version.
const MAGIC: &str = "leno join token v1";
/// The field of the one-time token.
const TOKEN_FIELD: &str = "token";
/// The field of one control plane address; it may be repeated.
const CONTROL_ADDRESS_FIELD: &str = "control";
/// The field of the trust domain.
const TRUST_DOMAIN_FIELD: &str = "trust-domain";

/// Maximum number of control plane addresses in a bundle; a proxy needs one that is reachable.
const MAX_CONTROL_ADDRESSES: usize = 16;

/// Maximum size of a token file: sixteen roots and a few lines.
const MAX_BUNDLE_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestAuthority;

    fn join_bundle(control: &[&str]) -> JoinBundle {
        JoinBundle {
            token: "leno-join-00".to_owned(),
            control_addresses: control.iter().map(|text| text.parse().unwrap()).collect(),
            trust_domain: TrustDomain::new("cluster.local").unwrap(),
            roots: TestAuthority::new("cluster.local").authority.roots(),
        }
    }

    #[test]
    fn a_rendered_bundle_parses_to_itself() {
        for control in
            [&[][..], &["127.0.0.1:15012"], &["[::1]:15012", "192.0.2.1:1", "192.0.2.2:1"]]
        {
            let bundle = join_bundle(control);
            assert_eq!(JoinBundle::parse(&bundle.render()).unwrap(), bundle);
            let windows = bundle.render().replace('\n', "\r\n");
            assert_eq!(JoinBundle::parse(&windows).unwrap(), bundle);
        }
    }

    #[test]
    fn a_saved_bundle_is_private_and_its_token_is_never_printed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let bundle = join_bundle(&[]);
        bundle.save(&path).unwrap();
        assert_eq!(JoinBundle::load(&path).unwrap(), bundle);
        assert!(disk::read(&path, FileAccess::Owner).is_ok());
        assert!(!format!("{bundle:?}").contains("leno-join-00"));
        let missing = JoinBundle::load(&directory.path().join("none")).unwrap_err();
        assert!(missing.to_string().contains("none"), "{missing}");
    }

    #[test]
    fn errors_name_the_line_or_field() {
        let valid = join_bundle(&["127.0.0.1:15012"]).render();
        for (from, to, expected) in [
            (MAGIC, "something else", "first line"),
            ("token: leno", "tokn: leno", "line 3"),
            ("token: leno-join-00", "token:", "line 3"),
            ("token: leno-join-00", "", "no `token`"),
            ("control: 127.0.0.1:15012", "control: here", "line 4"),
            ("control: 127.0.0.1:15012", "token: again", "line 4"),
            ("trust-domain: cluster.local", "trust-domain: A_B", "line 5"),
            ("trust-domain: cluster.local", "", "no `trust-domain`"),
            ("-----BEGIN", "-----BEGONE", "line 6"),
            ("BEGIN CERTIFICATE", "BEGIN OTHER", "roots"),
            ("-----BEGIN CERTIFICATE-----\nMII", "-----BEGIN CERTIFICATE-----\n***", "roots"),
        ] {
            let invalid = valid.replacen(from, to, 1);
            assert_ne!(invalid, valid, "{from}");
            let error = JoinBundle::parse(&invalid).unwrap_err().to_string();
            assert!(error.contains(expected), "{from} -> {to}: {error}");
        }
        let large = "a".repeat(MAX_BUNDLE_BYTES + 1);
        assert!(matches!(JoinBundle::parse(&large), Err(JoinBundleError::TooLarge)));
    }
}
