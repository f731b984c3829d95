//! Which kinds have still to be listed.

use std::fmt;

/// Which kinds have still to be listed once before anything is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    waiting: Vec<&'static str>,
}

impl Progress {
    pub(crate) fn of(waiting: impl IntoIterator<Item = &'static str>) -> Self {
        Self { waiting: waiting.into_iter().collect() }
    }

    /// Whether every kind has been listed, or is known not to be there.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The kinds that have not been listed yet.
    #[must_use]
    pub fn waiting(&self) -> &[&'static str] {
        &self.waiting
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.waiting.as_slice() {
            [] => f.write_str("every kind of the API server has been listed"),
            waiting => write!(f, "the API server has not listed {} yet", waiting.join(", ")),
        }
    }
}
