//! Defines the error for options that contradict each other or cannot be used, detected before any request.

/// An error in the options or in their combination, with a message for users.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct UsageError(String);

impl UsageError {
    pub(super) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }
}
