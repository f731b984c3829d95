//! Settings of request hedging: a second attempt at another endpoint, in parallel to a first attempt that is slow to
//! respond.

use std::time::Duration;

use crate::service_policy::ServicePolicyName;

/// The hedging of requests to a port, and the policy that sets it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortHedging {
    /// The name of the policy.
    pub policy: ServicePolicyName,
    /// The settings of the policy.
    pub rule: HedgeRule,
}

/// The condition for a second attempt at another endpoint while the first attempt has no response.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HedgeRule {
    /// The time to wait for the response headers of the first attempt.
    pub after: Duration,
    /// The HTTP methods of hedged requests; all idempotent methods when empty.
    pub methods: Vec<String>,
}

impl HedgeRule {
    /// The minimum of `after`. A shorter time would hedge requests with an ordinary latency.
    pub const MIN_AFTER: Duration = Duration::from_millis(1);
    /// The maximum of `after`. Most clients time out earlier.
    pub const MAX_AFTER: Duration = Duration::from_secs(60);
    /// The maximum number of methods in a rule. Each is compared with the method of a request.
    pub const MAX_METHODS: usize = 16;

    /// True for a valid method of a rule: 1 to 32 upper-case letters, digits, `-` or `_`, and not `CONNECT`.
    #[must_use]
    pub fn is_valid_method(text: &str) -> bool {
        let is_method_byte = |byte: u8| {
            byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_'
        };
        !text.is_empty()
            && text.len() <= 32
            && text.bytes().all(is_method_byte)
            && text != "CONNECT"
    }
}
