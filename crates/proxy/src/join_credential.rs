//! Reads the credential with which a proxy without a certificate joins the mesh: its token, and the trust roots of the
//! control planes that may receive the token.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use leno_identity::{FileOrigin, JoinBundle, JoinBundleError, Roots, RootsError, open_regular};
use leno_model::TrustDomain;

use crate::config::{AccountToken, Config, TrustedRoots};

/// A join token, and the trust roots of the control planes that may receive it. The token is a secret: this
/// type has no `Debug`.
pub(crate) struct JoinCredential {
    pub(crate) token: String,
    pub(crate) trust_domain: TrustDomain,
    pub(crate) roots: Roots,
    /// The path of a one-time token, which is removed after its use; `None` for other tokens.
    one_time_file: Option<PathBuf>,
}

impl JoinCredential {
    /// Reads the configured token. It is read at each join, since files change while the proxy runs.
    ///
    /// # Errors
    /// [`JoinCredentialError`], if there is no usable token.
    pub(crate) fn read(config: &Config) -> Result<Self, JoinCredentialError> {
        if let Some(account_token) = &config.account_token {
            return read_account_token(account_token, config.trust_domain.clone());
        }
        let file = config.token_file.as_ref().ok_or(JoinCredentialError::Missing)?;
        let JoinBundle { token, trust_domain, roots, .. } = JoinBundle::load(file)?;
        Ok(Self { token, trust_domain, roots, one_time_file: Some(file.clone()) })
    }

    /// Removes a one-time token after its use.
    pub(crate) fn remove_token(self) {
        if let Some(file) = self.one_time_file {
            // The control plane accepts a token once, so a failure to remove it has no consequence.
            drop(std::fs::remove_file(file));
        }
    }
}

/// Reads the token of a service account, which the platform renews.
fn read_account_token(
    account_token: &AccountToken,
    trust_domain: TrustDomain,
) -> Result<JoinCredential, JoinCredentialError> {
    let token = read_file(&account_token.file)?.trim().to_owned();
    if token.is_empty() {
        return Err(JoinCredentialError::Empty(account_token.file.clone()));
    }
    let roots = match &account_token.roots {
        TrustedRoots::Known(roots) => roots.clone(),
        TrustedRoots::File(file) => {
            let roots = Roots::from_pem(&read_file(file)?);
            roots.map_err(|cause| JoinCredentialError::Roots { file: file.clone(), cause })?
        }
    };
    Ok(JoinCredential { token, trust_domain, roots, one_time_file: None })
}

/// Reads a text file of at most [`MAX_FILE_BYTES`].
fn read_file(file: &Path) -> Result<String, JoinCredentialError> {
    let read_result = open_regular(file, FileOrigin::User).and_then(|opened| {
        let mut text = String::new();
        opened.take(MAX_FILE_BYTES).read_to_string(&mut text).map(|_| text)
    });
    read_result.map_err(|cause| JoinCredentialError::File { file: file.to_owned(), cause })
}

/// The maximum size of a file: room for hundreds of roots.
const MAX_FILE_BYTES: u64 = 1 << 20;

impl JoinCredentialError {
    /// True if only an operator can resolve the error: a one-time token is not renewed by the platform.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Missing | Self::Bundle(_) => true,
            Self::File { .. } | Self::Empty(_) | Self::Roots { .. } => false,
        }
    }
}

/// The reason why a proxy has no token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinCredentialError {
    #[error("there is no valid certificate and no token; pass --token-file with a new one")]
    Missing,
    #[error("cannot use the token file: {0}")]
    Bundle(#[from] JoinBundleError),
    #[error("{} cannot be read: {cause}", file.display())]
    File { file: PathBuf, cause: io::Error },
    #[error("{} is empty: expected a service account token", .0.display())]
    Empty(PathBuf),
    #[error("cannot use the roots in {}: {cause}", file.display())]
    Roots { file: PathBuf, cause: RootsError },
}
