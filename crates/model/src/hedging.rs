//! Hedging: a second attempt beside the first, when that is slow to answer.

use std::time::Duration;

use crate::service_policy::ServicePolicyName;

/// When requests to a port are hedged, and who said so.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hedging {
    /// The policy.
    pub policy: ServicePolicyName,
    /// What it says.
    pub rule: HedgeRule,
}

/// When a request is sent to a second endpoint, while the first has not answered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HedgeRule {
    /// How long the first attempt may take until the head of its answer is there.
    pub after: Duration,
    /// Requests with these methods; when empty, those with methods that are idempotent.
    pub methods: Vec<String>,
}

impl HedgeRule {
    /// The shortest time that makes a difference between slow and usual.
    pub const AFTER_MIN: Duration = Duration::from_millis(1);
    /// Who waits for longer has given up.
    pub const AFTER_MAX: Duration = Duration::from_secs(60);
    /// The most methods that a rule names.
    pub const METHODS_MAX: usize = 16;

    /// Whether a text can be a method that is sent twice: a token in upper case, and not the one that
    /// opens a tunnel.
    #[must_use]
    pub fn is_method(text: &str) -> bool {
        let token = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        !text.is_empty() && text.len() <= 32 && text.bytes().all(token) && text != "CONNECT"
    }
}
