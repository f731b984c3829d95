//! Describes the progress of the first listing of all watched kinds, which readiness reports.

use std::fmt;

/// The kinds that have to be listed before the first update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListProgress {
    /// Kinds that are not listed yet.
    pub(crate) unlisted: Vec<&'static str>,
    /// Kinds that are not listed because the server forbids it.
    pub(crate) forbidden: Vec<&'static str>,
}

impl ListProgress {
    /// Returns true if no kind is missing: every required kind has been listed, or is known to be absent.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.unlisted.is_empty() && self.forbidden.is_empty()
    }
}

impl fmt::Display for ListProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.forbidden.as_slice(), self.unlisted.as_slice()) {
            ([], []) => f.write_str("every kind of the API server has been listed"),
            ([], unlisted) => {
                write!(f, "the API server has not listed {} yet", unlisted.join(", "))
            }
            (forbidden, _) => write!(
                f,
                "the API server denies listing {}, which is required for authorization: allow the \
                 control plane's ServiceAccount to list and watch it",
                forbidden.join(", ")
            ),
        }
    }
}
