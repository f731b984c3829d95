//! Whose a token is that we did not make: asked of somebody who knows, such as Kubernetes.

use std::fmt;
use std::pin::Pin;
use std::time::SystemTime;

use leno_model::{ServiceAccount, Uid, WorkloadName};

/// Who knows whose a token is that was not made here. What is shown to it is a secret: it may
/// neither keep nor log it.
pub trait Reviewer: fmt::Debug + Send + Sync + 'static {
    /// The holder that a token names, read from its text alone: nothing of it is proved. `None` where its text
    /// tells nothing.
    ///
    /// # Errors
    /// [`ReviewError::Refused`] when no review could find it good.
    fn claimed(&self, token: &str, now: SystemTime) -> Result<Option<Holder>, ReviewError> {
        let _ = (token, now);
        Ok(None)
    }

    /// Finds out whose a token is. May be dropped while it waits.
    fn review<'a>(&'a self, token: &'a str) -> Review<'a>;
}

/// What finds out whose a token is, while it does.
pub type Review<'a> = Pin<Box<dyn Future<Output = Result<Holder, ReviewError>> + Send + 'a>>;

/// The holder of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The pod that the token was made for, in the terms of the mesh.
    pub workload: WorkloadName,
    /// What it runs under.
    pub account: ServiceAccount,
    /// The UID of the pod, where that is known.
    pub uid: Option<Uid>,
}

/// Why nobody is known to hold a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// It proves nothing here. The reason is told to whoever showed it.
    #[error("{0}")]
    Refused(String),
    /// The same as a moment ago: it was not looked at again.
    #[error("{0}")]
    Repeated(String),
    /// It cannot be found out now.
    #[error("whose a token is cannot be found out: {0}")]
    Unavailable(String),
}
