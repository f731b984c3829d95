//! The token with which a proxy without a certificate joins, and the trust roots of the servers that may
//! receive it.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use leno_identity::{FileOrigin, JoinBundle, JoinBundleError, Roots, RootsError, open_regular};
use leno_model::TrustDomain;

use crate::config::{AccountToken, Config, TrustedRoots};

/// A token, and the trust roots for its receivers. The token is a secret: this type has no `Debug`.
pub(crate) struct JoinCredential {
    pub(crate) token: String,
    pub(crate) trust_domain: TrustDomain,
    pub(crate) roots: Roots,
    /// The file of a one-time token.
    once: Option<PathBuf>,
}

impl JoinCredential {
    /// Reads the configured token: files change while the proxy runs.
    pub(crate) fn read(config: &Config) -> Result<Self, JoinCredentialError> {
        if let Some(given) = &config.account_token {
            return of_account(given, config.trust_domain.clone());
        }
        let file = config.token_file.as_ref().ok_or(JoinCredentialError::Missing)?;
        let JoinBundle { token, trust_domain, roots, .. } = JoinBundle::load(file)?;
        Ok(Self { token, trust_domain, roots, once: Some(file.clone()) })
    }

    /// Removes a one-time token after its use.
    pub(crate) fn remove_token(self) {
        if let Some(file) = self.once {
            // A used token that remains would only confuse operators.
            drop(std::fs::remove_file(file));
        }
    }
}

fn of_account(
    given: &AccountToken,
    trust_domain: TrustDomain,
) -> Result<JoinCredential, JoinCredentialError> {
    let token = read(&given.file)?.trim().to_owned();
    if token.is_empty() {
        return Err(JoinCredentialError::Empty(given.file.clone()));
    }
    let roots = match &given.roots {
        TrustedRoots::Known(roots) => roots.clone(),
        TrustedRoots::File(file) => {
            let roots = Roots::from_pem(&read(file)?);
            roots.map_err(|cause| JoinCredentialError::Roots { file: file.clone(), cause })?
        }
    };
    Ok(JoinCredential { token, trust_domain, roots, once: None })
}

fn read(file: &Path) -> Result<String, JoinCredentialError> {
    let text = open_regular(file, FileOrigin::User).and_then(|opened| {
        let mut text = String::new();
        opened.take(FILE_BYTES_MAX).read_to_string(&mut text).map(|_| text)
    });
    text.map_err(|cause| JoinCredentialError::File { file: file.to_owned(), cause })
}

/// Room for hundreds of roots.
const FILE_BYTES_MAX: u64 = 1 << 20;

impl JoinCredentialError {
    /// True if only the operator can resolve it: a one-time token does not appear by itself.
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
