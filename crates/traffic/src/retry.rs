//! Retries: decides whether a failed attempt may be followed by another attempt, and computes the pause before it.

use std::time::Duration;

use leno_model::{Reason, RetryCondition, RetryRule};

/// The state of a request after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedAttempt {
    /// The part of the request that was sent.
    pub sent: SentPart,
    /// True for an idempotent method, according to [`is_idempotent`].
    pub idempotent: bool,
    /// True if the whole request, including its body, can be sent again.
    pub body_replayable: bool,
    /// True if part of a response was forwarded to the client.
    pub response_started: bool,
    /// The number of earlier attempts; 0 for the first attempt.
    pub earlier_attempts: u8,
    /// The number of other endpoints that may be tried.
    pub other_endpoints: usize,
    /// The time since the request began, including earlier attempts and the pauses between them.
    pub waited: Duration,
}

impl FailedAttempt {
    /// True if the request has waited the maximum time for an unreachable application.
    fn has_waited_maximum(&self, reason: Reason) -> bool {
        let max_wait = if self.other_endpoints == 0 {
            MAX_UNREACHABLE_WAIT_ALONE
        } else {
            MAX_UNREACHABLE_WAIT
        };
        reason == Reason::ConnectFailed && self.waited >= max_wait
    }
}

/// The part of a request that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SentPart {
    /// No byte was sent.
    None,
    /// At least a part of the head was sent.
    HeadOrMore,
}

/// True if the request may be retried.
///
/// A request is retried at most [`MAX_RETRIES`] times, or [`max_unsent_retries`] times if no byte of it was sent. It is never
/// retried after the client received part of a response, or if the sent bytes are no longer available. Otherwise
/// [`Reason::retry`] decides.
#[must_use]
pub fn may_retry(reason: Reason, attempt: &FailedAttempt) -> bool {
    let is_unsent = attempt.sent == SentPart::None;
    let max_retries =
        if is_unsent { max_unsent_retries(attempt.other_endpoints) } else { MAX_RETRIES.into() };
    if usize::from(attempt.earlier_attempts) >= max_retries
        || attempt.response_started
        || attempt.has_waited_maximum(reason)
        || !(is_unsent || attempt.body_replayable)
    {
        return false;
    }
    match reason.retry() {
        RetryCondition::Never => false,
        RetryCondition::IfUnsent => is_unsent || attempt.idempotent,
        RetryCondition::Always => true,
    }
}

/// The failure of an attempt, for retry rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptFailure {
    /// There was no complete response, for this reason.
    Failed(Reason),
    /// The response had this HTTP status, or a gRPC status that maps to it.
    Response(u16),
}

/// True if the request may be retried under a rule. The caller must check the retry budget as well.
///
/// A response is retried if the rule lists its status. A failure before any byte was sent is always retried. A later
/// failure, after which the request may have had an effect, is retried for idempotent methods; for other methods it is
/// retried only if the rule lists the resulting status. A rule whose `attempts` are 0 permits no retries. With any
/// other rule, an unsent request may try as many endpoints as without a rule, even if the rule permits fewer retries.
#[must_use]
pub fn may_retry_by_rule(
    rule: &RetryRule,
    failure: AttemptFailure,
    attempt: &FailedAttempt,
) -> bool {
    let is_unsent = attempt.sent == SentPart::None;
    let max_retries = match rule.attempts {
        0 => 0,
        rule_retries if is_unsent => {
            max_unsent_retries(attempt.other_endpoints).max(rule_retries.into())
        }
        rule_retries => rule_retries.into(),
    };
    if usize::from(attempt.earlier_attempts) >= max_retries
        || attempt.response_started
        || !(is_unsent || attempt.body_replayable)
    {
        return false;
    }
    let lists_status = |status: u16| rule.codes.contains(&status);
    match failure {
        AttemptFailure::Response(status) => lists_status(status),
        // `Reason::retry` never permits a retry after this timeout; a retry rule does.
        AttemptFailure::Failed(Reason::AttemptTimeout) => {
            is_unsent || attempt.idempotent || lists_status(Reason::AttemptTimeout.status())
        }
        // The elapsed time of later attempts includes pauses between attempts, so only the first attempt is limited.
        AttemptFailure::Failed(Reason::ConnectFailed)
            if attempt.earlier_attempts == 0 && attempt.waited >= MAX_UNREACHABLE_WAIT =>
        {
            false
        }
        AttemptFailure::Failed(reason) => match reason.retry() {
            RetryCondition::Never => false,
            RetryCondition::IfUnsent => {
                is_unsent || attempt.idempotent || lists_status(reason.status())
            }
            RetryCondition::Always => true,
        },
    }
}

/// Returns the pause before the next retry, after this number of retries. The pause doubles with each retry, up to
/// [`MAX_BACKOFF_FACTOR`] times the rule's backoff, and has up to 50 % of additional jitter. `random` is a uniform
/// random number.
#[must_use]
pub fn retry_pause(rule: &RetryRule, retries: u8, random: u64) -> Duration {
    let factor =
        1_u32.checked_shl(retries.into()).unwrap_or(MAX_BACKOFF_FACTOR).min(MAX_BACKOFF_FACTOR);
    let pause = rule.backoff.saturating_mul(factor);
    // Scales the random number, which is a fraction of 2^64.
    let jitter_ns = (u128::from(random) * (pause / 2).as_nanos()) >> 64;
    pause.saturating_add(Duration::from_nanos(u64::try_from(jitter_ns).unwrap_or(u64::MAX)))
}

/// True if the method is idempotent (RFC 9110 §9.2.2).
#[must_use]
pub fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}

/// The maximum number of retries of a request after some of its bytes were sent. It is one, because a second failure is
/// more likely caused by the service than by the endpoint, and each attempt adds load to the service.
pub const MAX_RETRIES: u8 = 1;

/// Returns the maximum number of retries of an unsent request, given the number of other endpoints. Several endpoints
/// may fail together with their node, and an attempt to connect adds no load to the service.
#[must_use]
pub fn max_unsent_retries(other_endpoints: usize) -> usize {
    other_endpoints.clamp(MAX_RETRIES.into(), MAX_UNSENT_RETRIES)
}

/// The maximum number of retries of an unsent request. Each retry waits up to a second for a connection.
pub const MAX_UNSENT_RETRIES: usize = 4;

/// The elapsed time after which a request to an unreachable application is not retried at another endpoint. A sidecar
/// waits up to ten seconds for a starting application, and a request waits for one application only.
pub const MAX_UNREACHABLE_WAIT: Duration = Duration::from_secs(9);

/// The elapsed time after which a request to an unreachable application is not retried if there is no other endpoint. A
/// retry helps only if the application is restarting or the connection was closed, and both failures are fast.
pub const MAX_UNREACHABLE_WAIT_ALONE: Duration = Duration::from_secs(1);

/// The maximum pause as a multiple of the rule's backoff, without jitter.
pub const MAX_BACKOFF_FACTOR: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: FailedAttempt = FailedAttempt {
        sent: SentPart::None,
        idempotent: false,
        body_replayable: false,
        response_started: false,
        earlier_attempts: 0,
        other_endpoints: 0,
        waited: Duration::ZERO,
    };

    #[test]
    fn an_unsent_request_is_retried_once() {
        for reason in Reason::ALL {
            let expected = reason.retry() != RetryCondition::Never;
            assert_eq!(may_retry(*reason, &FIRST), expected, "{reason:?}");
            let second = FailedAttempt { earlier_attempts: 1, ..FIRST };
            assert!(!may_retry(*reason, &second), "{reason:?}");
        }
    }

    #[test]
    fn an_unsent_request_tries_one_endpoint_after_another() {
        for (alternatives, retries) in [(0, 1), (1, 1), (2, 2), (3, 3), (9, 4)] {
            for number in 0..6 {
                let unsent = FailedAttempt {
                    earlier_attempts: number,
                    other_endpoints: alternatives,
                    ..FIRST
                };
                let expected = usize::from(number) < retries;
                assert_eq!(
                    may_retry(Reason::ConnectTimeout, &unsent),
                    expected,
                    "{number} of {alternatives}"
                );
                assert!(!may_retry(Reason::Denied, &unsent));
                let sent =
                    FailedAttempt { sent: SentPart::HeadOrMore, body_replayable: true, ..unsent };
                assert_eq!(
                    may_retry(Reason::ConnectFailed, &sent),
                    number == 0,
                    "{number} of {alternatives}"
                );
                let failed = AttemptFailure::Failed(Reason::ConnectFailed);
                assert_eq!(may_retry_by_rule(&retry_rule(&[], 1), failed, &unsent), expected);
                assert!(!may_retry_by_rule(&retry_rule(&[], 0), failed, &unsent));
            }
        }
    }

    #[test]
    fn a_sent_request_is_retried_only_if_that_is_safe() {
        for (reason, idempotent, body_replayable, expected) in [
            (Reason::UpstreamReset, true, true, true),
            (Reason::UpstreamReset, false, true, false),
            (Reason::UpstreamReset, true, false, false),
            // Rejected before processing: it need not be idempotent, only complete.
            (Reason::UpstreamRefused, false, true, true),
            (Reason::UpstreamRefused, true, false, false),
            (Reason::WrongIdentity, true, true, false),
            (Reason::RequestTimeout, true, true, false),
        ] {
            let attempt =
                FailedAttempt { sent: SentPart::HeadOrMore, idempotent, body_replayable, ..FIRST };
            assert_eq!(may_retry(reason, &attempt), expected, "{reason:?} {attempt:?}");
            let started = FailedAttempt { response_started: true, ..attempt };
            assert!(!may_retry(reason, &started), "{reason:?}");
        }
    }

    fn retry_rule(codes: &[u16], attempts: u8) -> RetryRule {
        RetryRule { codes: codes.to_vec(), attempts, backoff: Duration::from_millis(100) }
    }

    #[test]
    fn a_rule_selects_the_responses_and_failures_that_are_retried() {
        let sent = FailedAttempt { sent: SentPart::HeadOrMore, body_replayable: true, ..FIRST };
        let safe = FailedAttempt { idempotent: true, ..sent };
        let unreplayable = FailedAttempt { body_replayable: false, ..safe };
        let failed_with = AttemptFailure::Failed;
        for (failure, attempt, codes, expected) in [
            (AttemptFailure::Response(503), sent, &[503][..], true),
            (AttemptFailure::Response(502), sent, &[503], false),
            (AttemptFailure::Response(503), unreplayable, &[503], false),
            (failed_with(Reason::ConnectFailed), sent, &[], true),
            (failed_with(Reason::UpstreamReset), safe, &[], true),
            (failed_with(Reason::UpstreamReset), sent, &[503], false),
            (failed_with(Reason::UpstreamReset), sent, &[502], true),
            (failed_with(Reason::UpstreamReset), unreplayable, &[502], false),
            (failed_with(Reason::AttemptTimeout), safe, &[], true),
            (failed_with(Reason::AttemptTimeout), sent, &[], false),
            (failed_with(Reason::AttemptTimeout), sent, &[504], true),
            (failed_with(Reason::Denied), safe, &[403], false),
            (failed_with(Reason::RequestTimeout), safe, &[504], false),
        ] {
            let case = format!("{failure:?} {attempt:?} {codes:?}");
            assert_eq!(
                may_retry_by_rule(&retry_rule(codes, 2), failure, &attempt),
                expected,
                "{case}"
            );
            let third = FailedAttempt { earlier_attempts: 2, ..attempt };
            assert!(!may_retry_by_rule(&retry_rule(codes, 2), failure, &third), "{case}");
            assert!(!may_retry_by_rule(&retry_rule(codes, 0), failure, &attempt), "{case}");
            let started = FailedAttempt { response_started: true, ..attempt };
            assert!(!may_retry_by_rule(&retry_rule(codes, 2), failure, &started), "{case}");
        }
    }

    #[test]
    fn a_request_waits_for_only_one_application_that_does_not_listen() {
        use Reason::{ConnectFailed, ConnectTimeout, UpstreamRefused};
        for (reason, alternatives, waited_ms, expected) in [
            (ConnectFailed, 0, 999, true),
            (ConnectFailed, 0, 1_000, false),
            // The sidecar was not reached: the time was spent on connections.
            (ConnectTimeout, 0, 60_000, true),
            (ConnectFailed, 1, 8_999, true),
            (ConnectFailed, 1, 9_000, false),
            // Rejected, after any time: another connection or endpoint accepts it.
            (UpstreamRefused, 0, 60_000, true),
        ] {
            let waited = Duration::from_millis(waited_ms);
            for (sent, body_replayable) in [(SentPart::None, false), (SentPart::HeadOrMore, true)] {
                let attempt = FailedAttempt {
                    sent,
                    body_replayable,
                    other_endpoints: alternatives,
                    waited,
                    ..FIRST
                };
                assert_eq!(may_retry(reason, &attempt), expected, "{reason:?} {attempt:?}");
            }
        }
        for (reason, number, waited_ms, expected) in [
            (ConnectFailed, 0, 8_999, true),
            (ConnectFailed, 0, 9_000, false),
            (ConnectFailed, 1, 60_000, true),
            (ConnectTimeout, 0, 60_000, true),
        ] {
            let attempt = FailedAttempt {
                earlier_attempts: number,
                waited: Duration::from_millis(waited_ms),
                ..FIRST
            };
            let is_retried =
                may_retry_by_rule(&retry_rule(&[503], 3), AttemptFailure::Failed(reason), &attempt);
            assert_eq!(is_retried, expected, "{reason:?} {attempt:?}");
        }
    }

    #[test]
    fn pauses_grow_up_to_a_maximum_and_have_jitter() {
        for (number, minimum_ms) in [(0, 100), (1, 200), (3, 800), (4, 1_000), (200, 1_000)] {
            let minimum = Duration::from_millis(minimum_ms);
            assert_eq!(retry_pause(&retry_rule(&[], 1), number, 0), minimum, "{number}");
            let maximum = retry_pause(&retry_rule(&[], 1), number, u64::MAX);
            assert!(maximum > minimum && maximum <= minimum * 3 / 2, "{number} {maximum:?}");
        }
    }

    #[test]
    fn methods_of_rfc_9110_are_idempotent() {
        for method in ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"] {
            assert!(is_idempotent(method), "{method}");
        }
        for method in ["POST", "PATCH", "CONNECT", "get", ""] {
            assert!(!is_idempotent(method), "{method}");
        }
    }
}
