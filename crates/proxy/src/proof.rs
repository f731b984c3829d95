//! What a proxy without a certificate shows to get one, and whom it shows that to.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use leno_identity::{FileOrigin, JoinBundle, JoinBundleError, Roots, RootsError, open_regular};
use leno_model::TrustDomain;

use crate::config::{AccountToken, Config, TrustedRoots};

/// A token, and whom it may be shown to. Its text is a secret: this has no `Debug`.
pub(crate) struct Proof {
    pub(crate) token: String,
    pub(crate) trust_domain: TrustDomain,
    pub(crate) roots: Roots,
    /// The file of a token that is good once.
    once: Option<PathBuf>,
}

impl Proof {
    /// Reads what the proxy was given to prove itself: files change while it runs.
    pub(crate) fn read(config: &Config) -> Result<Self, Unproved> {
        if let Some(given) = &config.account_token {
            return of_account(given, config.trust_domain.clone());
        }
        let file = config.token_file.as_ref().ok_or(Unproved::Nothing)?;
        let JoinBundle { token, trust_domain, roots, .. } = JoinBundle::load(file)?;
        Ok(Self { token, trust_domain, roots, once: Some(file.clone()) })
    }

    /// It has been used.
    pub(crate) fn spend(self) {
        if let Some(file) = self.once {
            // Leaving it would only invite questions.
            drop(std::fs::remove_file(file));
        }
    }
}

fn of_account(given: &AccountToken, trust_domain: TrustDomain) -> Result<Proof, Unproved> {
    let token = read(&given.file)?.trim().to_owned();
    if token.is_empty() {
        return Err(Unproved::Empty(given.file.clone()));
    }
    let roots = match &given.roots {
        TrustedRoots::Known(roots) => roots.clone(),
        TrustedRoots::File(file) => {
            let roots = Roots::from_pem(&read(file)?);
            roots.map_err(|cause| Unproved::Roots { file: file.clone(), cause })?
        }
    };
    Ok(Proof { token, trust_domain, roots, once: None })
}

fn read(file: &Path) -> Result<String, Unproved> {
    let text = open_regular(file, FileOrigin::User).and_then(|opened| {
        let mut text = String::new();
        opened.take(FILE_BYTES_MAX).read_to_string(&mut text).map(|_| text)
    });
    text.map_err(|cause| Unproved::File { file: file.to_owned(), cause })
}

/// Room for hundreds of roots.
const FILE_BYTES_MAX: u64 = 1 << 20;

impl Unproved {
    /// Only the operator can change it: a token that is good once does not come by itself.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Nothing | Self::Bundle(_) => true,
            Self::File { .. } | Self::Empty(_) | Self::Roots { .. } => false,
        }
    }
}

/// Why a proxy has nothing to show.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unproved {
    #[error("there is no valid certificate and no token; pass --token-file with a new one")]
    Nothing,
    #[error("the token file cannot be used: {0}")]
    Bundle(#[from] JoinBundleError),
    #[error("{} cannot be read: {cause}", file.display())]
    File { file: PathBuf, cause: io::Error },
    #[error("{} is empty: a service account token is expected there", .0.display())]
    Empty(PathBuf),
    #[error("the roots in {} cannot be used: {cause}", file.display())]
    Roots { file: PathBuf, cause: RootsError },
}
