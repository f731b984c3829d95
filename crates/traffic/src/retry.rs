//! Retry decisions for failed requests.

use std::time::Duration;

use leno_model::{Reason, RetryCondition, RetryRule};

/// A failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedAttempt {
    /// The part of the request that was sent.
    pub sent: SentPart,
    /// True for idempotent methods: see [`is_idempotent`].
    pub idempotent: bool,
    /// True if the whole request, including its body, can be sent again.
    pub body_replayable: bool,
    /// True if part of a response was forwarded.
    pub response_started: bool,
    /// The number of earlier attempts: 0 for the first.
    pub number: u8,
    /// The number of alternative endpoints.
    pub others: usize,
    /// The time since the request began.
    pub waited: Duration,
}

impl FailedAttempt {
    /// True if the request has waited the maximum time for an application that does not listen.
    fn has_waited_out(&self, reason: Reason) -> bool {
        let most = if self.others == 0 { UNREACHABLE_MAX_ALONE } else { UNREACHABLE_MAX };
        reason == Reason::ConnectFailed && self.waited >= most
    }
}

/// The part of a request that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SentPart {
    /// No byte.
    Nothing,
    /// Part of the head, or more.
    HeadOrMore,
}

/// True if the request may be retried.
///
/// At most [`RETRIES_MAX`] times, or [`unsent_max`] if nothing was sent; never after the client received part
/// of a response, and never if bytes to repeat are no longer available. Otherwise the reason decides.
#[must_use]
pub fn may_retry(reason: Reason, attempt: &FailedAttempt) -> bool {
    let unsent = attempt.sent == SentPart::Nothing;
    let most = if unsent { unsent_max(attempt.others) } else { RETRIES_MAX.into() };
    if usize::from(attempt.number) >= most
        || attempt.response_started
        || attempt.has_waited_out(reason)
        || !(unsent || attempt.body_replayable)
    {
        return false;
    }
    match reason.retry() {
        RetryCondition::Never => false,
        RetryCondition::IfUnsent => unsent || attempt.idempotent,
        RetryCondition::Always => true,
    }
}

/// The failure of an attempt, for retry rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptFailure {
    /// No response.
    Failed(Reason),
    /// A response with this status, or a gRPC status that maps to it.
    Response(u16),
}

/// True if the request may be retried under a rule; the budget decides after that.
///
/// A response is retried if the rule lists its status. A failure before any byte was sent is always retried. A
/// failure after that, which may have had an effect, is retried for idempotent methods; for others only if the
/// rule lists the resulting status. A rule with zero attempts permits no retries; any other rule permits an
/// unsent request to try further endpoints, as without a rule.
#[must_use]
pub fn retry_by_rule(rule: &RetryRule, setback: AttemptFailure, attempt: &FailedAttempt) -> bool {
    let unsent = attempt.sent == SentPart::Nothing;
    let most = match rule.attempts {
        0 => 0,
        attempts if unsent => unsent_max(attempt.others).max(attempts.into()),
        attempts => attempts.into(),
    };
    if usize::from(attempt.number) >= most
        || attempt.response_started
        || !(unsent || attempt.body_replayable)
    {
        return false;
    }
    let names = |status: u16| rule.codes.contains(&status);
    match setback {
        AttemptFailure::Response(status) => names(status),
        AttemptFailure::Failed(Reason::AttemptTimeout) => {
            unsent || attempt.idempotent || names(Reason::AttemptTimeout.status())
        }
        // Later attempts follow pauses, which are not waits for an application.
        AttemptFailure::Failed(Reason::ConnectFailed)
            if attempt.number == 0 && attempt.waited >= UNREACHABLE_MAX =>
        {
            false
        }
        AttemptFailure::Failed(reason) => match reason.retry() {
            RetryCondition::Never => false,
            RetryCondition::IfUnsent => unsent || attempt.idempotent || names(reason.status()),
            RetryCondition::Always => true,
        },
    }
}

/// Returns the pause before a retry after this number of retries: doubling each time, up to [`GROWTH_MAX`]
/// times the base, plus up to 50 % jitter.
#[must_use]
pub fn retry_pause(rule: &RetryRule, number: u8, draw: u64) -> Duration {
    let factor = 1_u32.checked_shl(number.into()).unwrap_or(GROWTH_MAX).min(GROWTH_MAX);
    let whole = rule.backoff.saturating_mul(factor);
    let chance_ns = (u128::from(draw) * (whole / 2).as_nanos()) >> 64;
    whole.saturating_add(Duration::from_nanos(u64::try_from(chance_ns).unwrap_or(u64::MAX)))
}

/// True if the method is idempotent (RFC 9110, section 9.2.2).
#[must_use]
pub fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}

/// One: a second failure is more likely caused by the service than by the endpoint, and each further attempt
/// adds load to a service in trouble.
pub const RETRIES_MAX: u8 = 1;

/// Returns the maximum number of retries of an unsent request for this number of alternative endpoints: several
/// may fail at once, with their node, and an attempt to connect costs them no work.
#[must_use]
pub fn unsent_max(others: usize) -> usize {
    others.clamp(RETRIES_MAX.into(), UNSENT_RETRIES_MAX)
}

/// The maximum number of retries of an unsent request: each waits up to a second for a connection.
pub const UNSENT_RETRIES_MAX: usize = 4;

/// The elapsed time after which an unreachable application is not retried at another endpoint. A sidecar waits
/// ten seconds for a starting application, so a request that waited for one does not wait for another.
pub const UNREACHABLE_MAX: Duration = Duration::from_secs(9);

/// The same without an alternative endpoint: the retry is for an application that restarts at this moment, or
/// for a closed connection, and both fail at once.
pub const UNREACHABLE_MAX_ALONE: Duration = Duration::from_secs(1);

/// The maximum pause as a multiple of the base.
pub const GROWTH_MAX: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: FailedAttempt = FailedAttempt {
        sent: SentPart::Nothing,
        idempotent: false,
        body_replayable: false,
        response_started: false,
        number: 0,
        others: 0,
        waited: Duration::ZERO,
    };

    #[test]
    fn what_was_never_sent_is_sent_once_more() {
        for reason in Reason::ALL {
            let expected = reason.retry() != RetryCondition::Never;
            assert_eq!(may_retry(*reason, &FIRST), expected, "{reason:?}");
            let second = FailedAttempt { number: 1, ..FIRST };
            assert!(!may_retry(*reason, &second), "{reason:?}");
        }
    }

    #[test]
    fn what_was_never_sent_goes_to_one_endpoint_after_another() {
        for (others, retries) in [(0, 1), (1, 1), (2, 2), (3, 3), (9, 4)] {
            for number in 0..6 {
                let unsent = FailedAttempt { number, others, ..FIRST };
                let expected = usize::from(number) < retries;
                assert_eq!(
                    may_retry(Reason::ConnectTimeout, &unsent),
                    expected,
                    "{number} of {others}"
                );
                assert!(!may_retry(Reason::Denied, &unsent));
                let sent =
                    FailedAttempt { sent: SentPart::HeadOrMore, body_replayable: true, ..unsent };
                assert_eq!(
                    may_retry(Reason::ConnectFailed, &sent),
                    number == 0,
                    "{number} of {others}"
                );
                let failed = AttemptFailure::Failed(Reason::ConnectFailed);
                assert_eq!(retry_by_rule(&retry_rule(&[], 1), failed, &unsent), expected);
                assert!(!retry_by_rule(&retry_rule(&[], 0), failed, &unsent));
            }
        }
    }

    #[test]
    fn what_was_sent_is_repeated_only_when_that_is_safe() {
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
    fn a_rule_says_which_answers_and_failures_are_tried_again() {
        let sent = FailedAttempt { sent: SentPart::HeadOrMore, body_replayable: true, ..FIRST };
        let safe = FailedAttempt { idempotent: true, ..sent };
        let gone = FailedAttempt { body_replayable: false, ..safe };
        let failed = AttemptFailure::Failed;
        for (setback, attempt, codes, expected) in [
            (AttemptFailure::Response(503), sent, &[503][..], true),
            (AttemptFailure::Response(502), sent, &[503], false),
            (AttemptFailure::Response(503), gone, &[503], false),
            (failed(Reason::ConnectFailed), sent, &[], true),
            (failed(Reason::UpstreamReset), safe, &[], true),
            (failed(Reason::UpstreamReset), sent, &[503], false),
            (failed(Reason::UpstreamReset), sent, &[502], true),
            (failed(Reason::UpstreamReset), gone, &[502], false),
            (failed(Reason::AttemptTimeout), safe, &[], true),
            (failed(Reason::AttemptTimeout), sent, &[], false),
            (failed(Reason::AttemptTimeout), sent, &[504], true),
            (failed(Reason::Denied), safe, &[403], false),
            (failed(Reason::RequestTimeout), safe, &[504], false),
        ] {
            let reported = format!("{setback:?} {attempt:?} {codes:?}");
            assert_eq!(
                retry_by_rule(&retry_rule(codes, 2), setback, &attempt),
                expected,
                "{reported}"
            );
            let third = FailedAttempt { number: 2, ..attempt };
            assert!(!retry_by_rule(&retry_rule(codes, 2), setback, &third), "{reported}");
            assert!(!retry_by_rule(&retry_rule(codes, 0), setback, &attempt), "{reported}");
            let started = FailedAttempt { response_started: true, ..attempt };
            assert!(!retry_by_rule(&retry_rule(codes, 2), setback, &started), "{reported}");
        }
    }

    #[test]
    fn a_request_waits_for_one_application_that_does_not_listen_and_for_no_other() {
        use Reason::{ConnectFailed, ConnectTimeout, UpstreamRefused};
        for (reason, others, waited_ms, expected) in [
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
            for (sent, body_replayable) in
                [(SentPart::Nothing, false), (SentPart::HeadOrMore, true)]
            {
                let attempt = FailedAttempt { sent, body_replayable, others, waited, ..FIRST };
                assert_eq!(may_retry(reason, &attempt), expected, "{reason:?} {attempt:?}");
            }
        }
        for (reason, number, waited_ms, expected) in [
            (ConnectFailed, 0, 8_999, true),
            (ConnectFailed, 0, 9_000, false),
            (ConnectFailed, 1, 60_000, true),
            (ConnectTimeout, 0, 60_000, true),
        ] {
            let attempt =
                FailedAttempt { number, waited: Duration::from_millis(waited_ms), ..FIRST };
            let again =
                retry_by_rule(&retry_rule(&[503], 3), AttemptFailure::Failed(reason), &attempt);
            assert_eq!(again, expected, "{reason:?} {attempt:?}");
        }
    }

    #[test]
    fn pauses_grow_to_a_bound_and_vary() {
        for (number, least_ms) in [(0, 100), (1, 200), (3, 800), (4, 1_000), (200, 1_000)] {
            let least = Duration::from_millis(least_ms);
            assert_eq!(retry_pause(&retry_rule(&[], 1), number, 0), least, "{number}");
            let most = retry_pause(&retry_rule(&[], 1), number, u64::MAX);
            assert!(most > least && most <= least * 3 / 2, "{number} {most:?}");
        }
    }

    #[test]
    fn knows_the_idempotent_methods() {
        for method in ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"] {
            assert!(is_idempotent(method), "{method}");
        }
        for method in ["POST", "PATCH", "CONNECT", "get", ""] {
            assert!(!is_idempotent(method), "{method}");
        }
    }
}
