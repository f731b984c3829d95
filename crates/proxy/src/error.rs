//! A failure on the data path: its reason, and the policy that decided if one did.

use std::sync::Arc;

use leno_model::{FixedAnswer, Reason};
use leno_traffic::{Denial, Exceeded, Ruling};
use leno_wire::http1::Malformed;

use crate::http::message::ReadError;
use crate::link::Lost;

/// Why a request or connection goes no further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) reason: Reason,
    pub(crate) policy: Option<Ruling>,
    /// What is answered, when a policy says something else than the reason does.
    pub(crate) answer: Option<Arc<FixedAnswer>>,
    /// How long the client is told to wait, in seconds.
    pub(crate) retry_after: Option<u64>,
}

impl Failure {
    /// The status that is answered; 0 when nothing is.
    pub(crate) fn status(&self) -> u16 {
        let own = self.answer.as_ref().and_then(|answer| answer.status);
        own.unwrap_or(self.reason.status())
    }
}

impl From<Reason> for Failure {
    fn from(reason: Reason) -> Self {
        Self { reason, policy: None, answer: None, retry_after: None }
    }
}

impl From<Denial> for Failure {
    fn from(denial: Denial) -> Self {
        Self { policy: denial.policy, ..Self::from(denial.reason) }
    }
}

impl From<Exceeded<'_>> for Failure {
    fn from(exceeded: Exceeded<'_>) -> Self {
        let Exceeded { policy, rule, answer, wait } = exceeded;
        // RFC 9110 §10.2.3 has whole seconds; less than the wait would be in vain.
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let policy = Some(Ruling::service_policy(policy, rule));
        let retry_after = Some(seconds.max(1));
        Self { reason: Reason::RateLimited, policy, answer, retry_after }
    }
}

/// What a broken read means when it was the client's request.
pub(crate) fn downstream_reason(error: &ReadError) -> Reason {
    match error {
        ReadError::Io(_) | ReadError::Ended | ReadError::Malformed(Malformed::BodyTruncated) => {
            Reason::DownstreamClosed
        }
        ReadError::Stalled => Reason::BodyStalled,
        ReadError::Malformed(Malformed::HeadTooLarge | Malformed::TooManyFields) => {
            Reason::HeadTooLarge
        }
        ReadError::Malformed(_) | ReadError::LengthMismatch => Reason::BadRequest,
    }
}

/// What a broken read means when it was the upstream's response.
pub(crate) fn upstream_reason(error: &ReadError) -> Reason {
    match error {
        ReadError::Io(_) | ReadError::Ended | ReadError::Malformed(Malformed::BodyTruncated) => {
            Reason::UpstreamReset
        }
        ReadError::Stalled => Reason::UpstreamStalled,
        ReadError::Malformed(_) | ReadError::LengthMismatch => Reason::UpstreamMalformed,
    }
}

/// What a stream that ended before its time means to the client's side.
pub(crate) fn lost_reason(lost: Lost) -> Reason {
    match lost {
        Lost::Refused => Reason::UpstreamRefused,
        Lost::Unreachable => Reason::ConnectFailed,
        Lost::Denied => Reason::Denied,
        Lost::Broken => Reason::UpstreamReset,
    }
}
