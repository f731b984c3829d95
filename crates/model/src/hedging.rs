//! Settings of request hedging: a second attempt at another endpoint, in parallel to a first attempt that is slow to
//! respond.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::definition::{
    Definition, ManifestBuilder, ManifestValue, Schema, TextProblem, TextSchema,
};
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
#[derive(Debug, Clone, PartialEq, Eq, Hash, Definition)]
pub struct HedgeRule {
    /// Time to wait for the response headers of the first attempt. A good choice is the latency of the 95th percentile:
    /// then at most one request in 20 is sent twice.
    // A shorter time would hedge requests with an ordinary latency, and most clients time out before the longest one.
    #[field(duration("1ms", "60s"))]
    pub after: Duration,
    /// Hedged methods. By adding a method that is not idempotent, such as POST for gRPC calls, you declare that the request
    /// may be executed twice.
    #[field(list(1, 16), absent = "GET, HEAD, OPTIONS, TRACE, PUT and DELETE")]
    pub methods: BTreeSet<HedgeMethod>,
}

/// A method that can be sent twice: 1 to 32 upper-case letters, digits, `-` or `_`, and not `CONNECT`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HedgeMethod(String);

impl HedgeMethod {
    /// Validates a method; `None` if it cannot be sent twice.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_method_byte = |byte: u8| {
            byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_'
        };
        let has_valid_length = (1..=MAX_METHOD_BYTES).contains(&text.len());
        let is_method = has_valid_length && text.bytes().all(is_method_byte);
        (is_method && text != "CONNECT").then(|| Self(text.to_owned()))
    }

    /// Returns the method as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Definition for HedgeMethod {
    const SCHEMA: Schema = Schema::Text(&METHOD);

    fn build(value: ManifestValue, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        Self::new(&value.into_text()?)
    }
}

/// Rules look a method up by its text.
impl Borrow<str> for HedgeMethod {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// A method that can be sent twice.
const METHOD: TextSchema = TextSchema::new(MAX_METHOD_BYTES, |text| {
    let problem = "is not a method that can be sent twice";
    HedgeMethod::new(text)
        .map(drop)
        .ok_or_else(|| TextProblem::new(problem, "use one such as GET or POST"))
})
.with_pattern("^[A-Z0-9_-]+$");
/// Maximum length of a method; the longest registered one has 17 bytes.
const MAX_METHOD_BYTES: usize = 32;
