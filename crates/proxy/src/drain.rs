//! How everything ends: serving, then draining, then gone.

/// Where a proxy is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Taking connections and requests.
    Serving,
    /// No new connections; requests under way finish.
    Draining,
}
