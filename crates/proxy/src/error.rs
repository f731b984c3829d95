//! Describes failures of requests and connections on the data path, and maps errors of their streams to reasons.

use std::sync::Arc;

use leno_model::{FixedResponse, Reason};
use leno_telemetry::GrpcStatus;
use leno_traffic::fault::InjectedResponse;
use leno_traffic::{ConcurrencyExceeded, Denial, PolicyDecision, RateLimitExceeded};
use leno_wire::http1::Malformed;
use leno_wire::link::ResetCode;

use crate::http::grpc;
use crate::http::message::ReadError;
use crate::link::StreamError;

/// The failure of a request or connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) reason: Reason,
    /// The policy that caused the failure; `None` if no policy did.
    pub(crate) policy: Option<PolicyDecision>,
    /// The response that a policy sets; `None` for the default response of the reason.
    pub(crate) response: Option<Arc<FixedResponse>>,
    /// The value of `Retry-After`, in seconds; `None` omits the header.
    pub(crate) retry_after: Option<u64>,
    /// The gRPC status that a policy sets; `None` for the default status of the reason.
    pub(crate) grpc: Option<GrpcStatus>,
    /// The HTTP/2 error code with which the upstream reset its stream.
    pub(crate) reset: Option<ResetCode>,
}

impl Failure {
    /// Returns the status of the response; 0 if there is no response.
    pub(crate) fn status(&self) -> u16 {
        let policy_status = self.response.as_ref().and_then(|response| response.status);
        policy_status.unwrap_or(self.reason.status())
    }

    /// Returns the status of the response to a gRPC call: that of the policy, otherwise that of the upstream's reset,
    /// otherwise that of the reason.
    pub(crate) fn grpc_status(&self) -> GrpcStatus {
        let reset_status = || self.reset.and_then(grpc::status_of_reset);
        self.grpc.or_else(reset_status).unwrap_or_else(|| grpc::status_for(self.reason))
    }

    /// Creates the failure for an injected fault. Without a gRPC status, the fault has the status that gRPC clients
    /// derive from its HTTP status.
    pub(crate) fn from_fault(policy: PolicyDecision, injected: InjectedResponse) -> Self {
        let InjectedResponse { response, grpc_status } = injected;
        let status_from_http = response.status.map(GrpcStatus::from_http_status);
        let grpc = grpc_status.map(GrpcStatus::from_code).or(status_from_http);
        let (policy, response) = (Some(policy), Some(response));
        Self { policy, response, grpc, ..Self::from(Reason::FaultInjected) }
    }
}

impl From<Reason> for Failure {
    fn from(reason: Reason) -> Self {
        Self { reason, policy: None, response: None, retry_after: None, grpc: None, reset: None }
    }
}

impl From<Denial> for Failure {
    fn from(denial: Denial) -> Self {
        Self { policy: denial.policy, ..Self::from(denial.reason) }
    }
}

impl From<RateLimitExceeded<'_>> for Failure {
    fn from(exceeded: RateLimitExceeded<'_>) -> Self {
        let retry_after = Some(exceeded.retry_after());
        let RateLimitExceeded { policy, rule, response, match_slot, .. } = exceeded;
        let policy = Some(PolicyDecision::from_service_policy(policy, rule, match_slot));
        Self { policy, response, retry_after, ..Self::from(Reason::RateLimited) }
    }
}

impl From<ConcurrencyExceeded<'_>> for Failure {
    fn from(
        ConcurrencyExceeded { policy, rule, response, match_slot }: ConcurrencyExceeded<'_>,
    ) -> Self {
        let policy = Some(PolicyDecision::from_service_policy(policy, rule, match_slot));
        Self { policy, response, ..Self::from(Reason::Overloaded) }
    }
}

/// Returns the reason for a read error in the client's request.
pub(crate) fn downstream_reason(error: &ReadError) -> Reason {
    match error {
        ReadError::Io(_)
        | ReadError::Ended
        | ReadError::Reset(_)
        | ReadError::Malformed(Malformed::BodyTruncated) => Reason::DownstreamClosed,
        ReadError::Stalled => Reason::BodyStalled,
        ReadError::Malformed(Malformed::HeadTooLarge | Malformed::TooManyFields) => {
            Reason::HeadTooLarge
        }
        ReadError::Malformed(_)
        | ReadError::LengthMismatch
        | ReadError::Protocol
        | ReadError::SpeaksHttp2 => Reason::BadRequest,
    }
}

/// Returns the reason for a read error in the upstream's response.
pub(crate) fn upstream_reason(error: &ReadError) -> Reason {
    match error {
        ReadError::Io(_)
        | ReadError::Ended
        | ReadError::Reset(_)
        | ReadError::Malformed(Malformed::BodyTruncated) => Reason::UpstreamReset,
        ReadError::Stalled => Reason::UpstreamStalled,
        ReadError::SpeaksHttp2 => Reason::ProtocolMismatch,
        ReadError::Malformed(_) | ReadError::LengthMismatch | ReadError::Protocol => {
            Reason::UpstreamMalformed
        }
    }
}

/// Returns the reason for a failure of a stream to an endpoint.
pub(crate) fn stream_error_reason(error: StreamError) -> Reason {
    match error {
        StreamError::Refused => Reason::UpstreamRefused,
        StreamError::Unreachable => Reason::ConnectFailed,
        StreamError::Denied => Reason::Denied,
        StreamError::Broken | StreamError::Http2(_) => Reason::UpstreamReset,
    }
}
