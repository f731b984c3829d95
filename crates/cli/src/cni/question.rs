//! What the plugin asks the agent of its node, over a socket: one line of JSON each way.

use serde::{Deserialize, Serialize};

/// About a pod that is being started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Question {
    pub(super) namespace: String,
    pub(super) pod: String,
    /// Its UID, where the container runtime tells it: another pod of the same name is another one.
    pub(super) uid: Option<String>,
}

/// What to do with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// Its connections are left as they are.
    Leave,
    /// They are led to its sidecar, with these options of `leno intercept`.
    Intercept(Vec<String>),
    /// The agent does not know, and the pod must not start.
    Refused(String),
}

/// The longest line of either.
pub(super) const LINE_BYTES_MAX: u64 = 64 * 1024;
