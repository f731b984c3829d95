//! Defines the interface for token reviews: the verification of tokens from another issuer, such as Kubernetes.

use std::fmt;
use std::pin::Pin;
use std::time::SystemTime;

use leno_model::{ServiceAccount, Uid, WorkloadName};

/// Verifies tokens of another issuer. Tokens are secrets: an implementation must neither keep nor log
/// them.
pub trait Reviewer: fmt::Debug + Send + Sync + 'static {
    /// Returns the subject that the unverified text of a token names; `None` if the text names no subject.
    ///
    /// # Errors
    /// Returns [`ReviewError::Rejected`] if no review could accept the token.
    fn claimed_subject(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<Option<TokenSubject>, ReviewError> {
        let _ = (token, now);
        Ok(None)
    }

    /// Verifies a token and returns its subject. Cancel-safe.
    fn review_token<'a>(&'a self, token: &'a str) -> ReviewFuture<'a>;
}

/// The future of a token review.
pub type ReviewFuture<'a> =
    Pin<Box<dyn Future<Output = Result<TokenSubject, ReviewError>> + Send + 'a>>;

/// The subject of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSubject {
    /// The pod that the token was issued to, as a workload.
    pub workload: WorkloadName,
    /// The account that the pod runs under.
    pub account: ServiceAccount,
    /// The UID of the pod, if known.
    pub uid: Option<Uid>,
}

/// The reason why a token is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// The token is invalid. The client receives the reason.
    #[error("{0}")]
    Rejected(String),
    /// The token was rejected a moment ago, for this reason; it is not reviewed again.
    #[error("{0}")]
    Repeated(String),
    /// The review is unavailable now.
    #[error("the review of the token failed: {0}")]
    Unavailable(String),
}
