//! Usage errors that are detected before any request.

/// The options cannot be fulfilled.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct UsageError(String);

impl UsageError {
    pub(super) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }
}
