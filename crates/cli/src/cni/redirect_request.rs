//! The protocol between the plugin and its node agent: one line of JSON in each direction.

use serde::{Deserialize, Serialize};

/// A request about a starting pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RedirectRequest {
    pub(super) namespace: String,
    pub(super) pod: String,
    /// The UID, if the container runtime reports it: another pod may have the same name.
    pub(super) uid: Option<String>,
}

/// The agent's decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RedirectResponse {
    /// The pod's connections are not redirected.
    Skip,
    /// The pod's connections are redirected to its sidecar, with these options of `leno redirect`.
    Redirect(Vec<String>),
    /// The agent cannot decide, and the pod must not start.
    Rejected(String),
}

/// The maximum length of a line in either direction.
pub(super) const MAX_LINE_BYTES: u64 = 64 * 1024;
