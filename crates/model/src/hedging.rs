//! Request hedging: a second attempt in parallel when the first is slow to respond.

use std::time::Duration;

use crate::service_policy::ServicePolicyName;

/// The hedging of requests to a port, and the policy that sets it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortHedging {
    /// The policy.
    pub policy: ServicePolicyName,
    /// Its setting.
    pub rule: HedgeRule,
}

/// The condition for a second attempt at another endpoint while the first has not responded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HedgeRule {
    /// The time to wait for the response headers of the first attempt.
    pub after: Duration,
    /// The hedged methods; the idempotent ones when empty.
    pub methods: Vec<String>,
}

impl HedgeRule {
    /// The minimum delay; a shorter one cannot tell slow responses from usual ones.
    pub const AFTER_MIN: Duration = Duration::from_millis(1);
    /// The maximum delay; clients have given up by then.
    pub const AFTER_MAX: Duration = Duration::from_secs(60);
    /// The maximum number of methods in a rule.
    pub const METHODS_MAX: usize = 16;

    /// True for a valid method of a rule: a token in upper case other than `CONNECT`.
    #[must_use]
    pub fn is_method(text: &str) -> bool {
        let token = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        !text.is_empty() && text.len() <= 32 && text.bytes().all(token) && text != "CONNECT"
    }
}
