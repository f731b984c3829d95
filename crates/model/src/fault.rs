//! Fault injection: delays of requests, and responses that the client's sidecar sends instead of forwarding.

use std::time::Duration;

use crate::access_policy::PeerMatch;
use crate::action::Header;
use crate::definition::{Definition, ManifestBuilder};
use crate::fixed_response::{BODY, FixedResponse, MAX_HEADERS, check_headers};
use crate::identity::ServiceAccount;
use crate::outlier_detection::GrpcFailure;
use crate::request_match::RequestMatch;
use crate::rule_conditions::{RuleConditions, check_rule_names};
use crate::service_policy::ServicePolicyName;

/// The faults of requests to a port, and the policy that sets them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortFaults {
    /// The name of the policy.
    pub policy: ServicePolicyName,
    /// The rules in document order; the first match decides.
    pub rules: Vec<FaultRule>,
}

/// The rules of a `FaultInjection`, in document order: at least one, each with another name.
#[derive(Debug, Clone, PartialEq, Eq, Definition)]
pub struct FaultRules {
    /// Fault rules. The first rule that matches a request applies, and later rules are ignored.
    #[field(list(1, MAX_RULES), required, check = FaultRule::with_different_names)]
    rules: Vec<FaultRule>,
}

impl FaultRules {
    /// Returns the rules.
    #[must_use]
    pub fn into_rules(self) -> Vec<FaultRule> {
        self.rules
    }
}

/// A fault rule. At least one of `delay` and `abort` is set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FaultRule {
    /// The name of the rule, or its index in the document, such as `rules[0]`.
    pub name: String,
    /// The requests that the rule matches; one matching entry is enough. All requests when empty.
    pub requests: Vec<RequestMatch>,
    /// The callers that the rule matches; one matching entry is enough. All callers when empty.
    pub peers: Vec<PeerMatch>,
    /// The delay of requests, if any.
    pub delay: Option<FaultDelay>,
    /// The response that aborts requests, if any; aborted requests are not forwarded.
    pub abort: Option<FaultAbort>,
}

impl FaultRule {
    /// True if the rule matches this caller.
    #[must_use]
    pub fn matches_caller(&self, caller: &ServiceAccount) -> bool {
        self.peers.is_empty() || self.peers.iter().any(|peer| peer.matches_account(caller))
    }

    fn with_different_names(
        rules: Vec<Self>,
        builder: &mut ManifestBuilder<'_>,
    ) -> Option<Vec<Self>> {
        check_rule_names(rules, |rule| &rule.name, builder)
    }
}

/// The fields of a fault rule.
#[derive(Definition)]
#[definition(
    builds = FaultRule,
    cel("has(self.delay) || has(self.abort)", "injects no fault: set delay or abort")
)]
struct FaultRuleFields {
    /// The name and the conditions.
    #[field(include)]
    conditions: RuleConditions,
    /// Delay of requests. If the rule also aborts a request, the delay comes first.
    #[field(absent = "no delay")]
    delay: Option<FaultDelay>,
    /// Response of the client's sidecar, which does not forward the request.
    #[field(absent = "no response")]
    abort: Option<FaultAbort>,
}

impl FaultRuleFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<FaultRule> {
        if self.delay.is_none() && self.abort.is_none() {
            builder.reject("injects no fault", "add `delay` or `abort`");
            return None;
        }
        let RuleConditions { name, requests, peers } = self.conditions;
        Some(FaultRule { name, requests, peers, delay: self.delay, abort: self.abort })
    }
}

/// A delay of a share of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Definition)]
#[definition(example("fixedDelay", "100ms"))]
pub struct FaultDelay {
    /// Time before anything of the request is sent.
    #[field(name = "fixedDelay", duration("1ms", FaultDelay::MAX_DELAY))]
    pub duration: Duration,
    /// Percentage of requests that are delayed, with at most four decimals.
    // The value is in millionths.
    #[field(name = "percent", percentage, default = "100")]
    pub share_ppm: u32,
}

impl FaultDelay {
    /// The maximum delay: a delayed request holds its connection.
    pub const MAX_DELAY: Duration = Duration::from_secs(600);
}

/// A response from the client's own sidecar to a share of requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FaultAbort {
    /// The share of requests that are aborted, in millionths.
    pub share_ppm: u32,
    /// The response to the aborted request.
    pub response: FixedResponse,
    /// The gRPC status of the response to a gRPC request, 1 to 16; derived from the HTTP status when absent.
    pub grpc: Option<u8>,
}

/// The fields of an abort.
#[derive(Definition)]
#[definition(
    builds = FaultAbort,
    cel(
        "has(self.httpStatus) || has(self.grpcStatus)",
        "has no status: set httpStatus or grpcStatus"
    )
)]
struct FaultAbortFields {
    /// Status of the response. 204, 205 and 304 are rejected, because such a response has no body.
    #[field(integer(200, 599), absent = "503")]
    http_status: Option<u16>,
    /// gRPC status of the response to a gRPC call, by name.
    #[field(absent = "the status that gRPC clients derive from httpStatus")]
    grpc_status: Option<GrpcFailure>,
    /// Body of the response.
    #[field(text = BODY, absent = "a sentence about the reason")]
    body: Option<String>,
    /// Additional headers of the response, each name once.
    #[field(list(0, MAX_HEADERS), check = check_headers)]
    headers: Vec<Header>,
    /// Percentage of requests that are aborted, with at most four decimals. The random draw is independent of the delay's.
    #[field(percentage, default = "100")]
    percent: u32,
}

impl FaultAbortFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<FaultAbort> {
        let has_status = self.http_status.is_some() || self.grpc_status.is_some();
        if !has_status {
            builder.reject("has no status", "add `httpStatus`, `grpcStatus` or both");
        }
        let has_body = self.http_status.is_none_or(FixedResponse::is_valid_status);
        if !has_body {
            let hint = "use a status that permits a body, such as 503";
            builder.reject_field("httpStatus", "has no body", hint);
        }
        (has_status && has_body).then_some(FaultAbort {
            share_ppm: self.percent,
            response: FixedResponse {
                status: self.http_status,
                body: self.body,
                headers: self.headers,
            },
            grpc: self.grpc_status.map(GrpcFailure::number),
        })
    }
}

impl FaultAbort {
    /// True if the fault applies to every request.
    #[must_use]
    pub const fn applies_to_all(&self) -> bool {
        self.share_ppm >= 1_000_000
    }
}

/// Maximum number of rules per policy.
const MAX_RULES: usize = 64;
