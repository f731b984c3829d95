//! Defines the protocol between the CNI plugin and its node agent: one line of JSON in each direction.

use serde::{Deserialize, Serialize};

/// The plugin's request for the redirection of a starting pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RedirectRequest {
    pub(super) namespace: String,
    pub(super) pod: String,
    /// The pod's UID; `None` if the container runtime does not report it. An earlier pod may have had the same
    /// name.
    pub(super) uid: Option<String>,
}

/// The node agent's response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RedirectResponse {
    /// The pod's connections are not redirected.
    Skip,
    /// The pod's connections are redirected to its sidecar, with these options of `leno redirect`.
    Redirect(Vec<String>),
    /// The agent cannot decide, for the reason in the text, and the pod must not start.
    Rejected(String),
}

/// The maximum length of a line in either direction, in bytes.
pub(super) const MAX_LINE_BYTES: u64 = 64 * 1024;
