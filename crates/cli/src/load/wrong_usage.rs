//! What was asked for cannot be done, and nothing was tried.

/// What was asked for cannot be done.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct WrongUsage(String);

impl WrongUsage {
    pub(super) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }
}
