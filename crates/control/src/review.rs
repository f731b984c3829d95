//! Whose a token is that we did not make: asked of somebody who knows, such as Kubernetes.

use std::fmt;
use std::pin::Pin;

use leno_model::{ServiceAccount, WorkloadName};

/// Who knows whose a token is that was not made here. What is shown to it is a secret: it may
/// neither keep nor log it.
pub trait Reviewer: fmt::Debug + Send + Sync + 'static {
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
}

/// Why nobody is known to hold a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// It proves nothing here. The reason is told to whoever showed it.
    #[error("{0}")]
    Refused(String),
    /// It cannot be found out now.
    #[error("whose a token is cannot be found out: {0}")]
    Unavailable(String),
}
