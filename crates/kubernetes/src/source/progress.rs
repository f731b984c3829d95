//! Which kinds have still to be listed.

use std::fmt;

/// Which kinds have still to be listed once before anything is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Not listed yet.
    pub(crate) waiting: Vec<&'static str>,
    /// The same, because the server forbids it.
    pub(crate) forbidden: Vec<&'static str>,
}

impl Progress {
    /// Whether every kind has been listed, or is known not to be there.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.waiting.is_empty() && self.forbidden.is_empty()
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.forbidden.as_slice(), self.waiting.as_slice()) {
            ([], []) => f.write_str("every kind of the API server has been listed"),
            ([], waiting) => {
                write!(f, "the API server has not listed {} yet", waiting.join(", "))
            }
            (forbidden, _) => write!(
                f,
                "the API server forbids to list {}, without which nobody knows who may call \
                 whom: allow the control plane's ServiceAccount to list and watch it",
                forbidden.join(", ")
            ),
        }
    }
}
