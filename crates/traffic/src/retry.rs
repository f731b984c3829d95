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
    pub alternatives: usize,
    /// The time since the request began.
    pub waited: Duration,
}

impl FailedAttempt {
    /// True if the request has waited the maximum time for an application that does not listen.
    fn has_waited_maximum(&self, reason: Reason) -> bool {
        let wait_max = if self.alternatives == 0 { MAX_UNREACHABLE_ALONE } else { MAX_UNREACHABLE };
        reason == Reason::ConnectFailed && self.waited >= wait_max
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
/// A request is retried at most [`MAX_RETRIES`] times, or [`unsent_max`] times while nothing was sent. It is
/// never retried after the client received part of a response, or if sent bytes are no longer available.
/// Otherwise the reason decides.
#[must_use]
pub fn may_retry(reason: Reason, attempt: &FailedAttempt) -> bool {
    let unsent = attempt.sent == SentPart::Nothing;
    let retries_max = if unsent { unsent_max(attempt.alternatives) } else { MAX_RETRIES.into() };
    if usize::from(attempt.number) >= retries_max
        || attempt.response_started
        || attempt.has_waited_maximum(reason)
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
pub fn retry_by_rule(rule: &RetryRule, failure: AttemptFailure, attempt: &FailedAttempt) -> bool {
    let unsent = attempt.sent == SentPart::Nothing;
    let retries_max = match rule.attempts {
        0 => 0,
        attempts if unsent => unsent_max(attempt.alternatives).max(attempts.into()),
        attempts => attempts.into(),
    };
    if usize::from(attempt.number) >= retries_max
        || attempt.response_started
        || !(unsent || attempt.body_replayable)
    {
        return false;
    }
    let lists = |status: u16| rule.codes.contains(&status);
    match failure {
        AttemptFailure::Response(status) => lists(status),
        AttemptFailure::Failed(Reason::AttemptTimeout) => {
            unsent || attempt.idempotent || lists(Reason::AttemptTimeout.status())
        }
        // Later attempts follow pauses, which are not waits for an application.
        AttemptFailure::Failed(Reason::ConnectFailed)
            if attempt.number == 0 && attempt.waited >= MAX_UNREACHABLE =>
        {
            false
        }
        AttemptFailure::Failed(reason) => match reason.retry() {
            RetryCondition::Never => false,
            RetryCondition::IfUnsent => unsent || attempt.idempotent || lists(reason.status()),
            RetryCondition::Always => true,
        },
    }
}

/// Returns the pause before the next retry, after this number of retries. It doubles with each retry, up to
/// [`MAX_GROWTH`] times the base, plus up to 50 % jitter. `random` is a uniform random number.
#[must_use]
pub fn retry_pause(rule: &RetryRule, number: u8, random: u64) -> Duration {
    let factor = 1_u32.checked_shl(number.into()).unwrap_or(MAX_GROWTH).min(MAX_GROWTH);
    let pause = rule.backoff.saturating_mul(factor);
    let jitter_ns = (u128::from(random) * (pause / 2).as_nanos()) >> 64;
    pause.saturating_add(Duration::from_nanos(u64::try_from(jitter_ns).unwrap_or(u64::MAX)))
}

/// True if the method is idempotent (RFC 9110, section 9.2.2).
#[must_use]
pub fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}

/// The maximum number of retries of a request of which some bytes were sent. It is one, because a second
/// failure is more likely caused by the service than by the endpoint, and each further attempt adds load to the
/// service.
pub const MAX_RETRIES: u8 = 1;

/// Returns the maximum number of retries of an unsent request for this number of alternative endpoints. Several
/// endpoints may fail at once, with their node, and an attempt to connect costs them no work.
#[must_use]
pub fn unsent_max(alternatives: usize) -> usize {
    alternatives.clamp(MAX_RETRIES.into(), MAX_UNSENT_RETRIES)
}

/// The maximum number of retries of an unsent request: each waits up to a second for a connection.
pub const MAX_UNSENT_RETRIES: usize = 4;

/// The elapsed time after which an unreachable application is not retried at another endpoint. A sidecar waits
/// ten seconds for a starting application, so a request that waited for one does not wait for another.
pub const MAX_UNREACHABLE: Duration = Duration::from_secs(9);

/// The elapsed time after which an unreachable application without an alternative endpoint is not retried. Such
/// a retry helps if the application is restarting, or if the connection was closed; both fail at once.
pub const MAX_UNREACHABLE_ALONE: Duration = Duration::from_secs(1);

/// The maximum pause as a multiple of the base.
pub const MAX_GROWTH: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: FailedAttempt = FailedAttempt {
        sent: SentPart::Nothing,
        idempotent: false,
        body_replayable: false,
        response_started: false,
        number: 0,
        alternatives: 0,
        waited: Duration::ZERO,
    };

    #[test]
    fn an_unsent_request_is_retried_once() {
        for reason in Reason::ALL {
            let expected = reason.retry() != RetryCondition::Never;
            assert_eq!(may_retry(*reason, &FIRST), expected, "{reason:?}");
            let second = FailedAttempt { number: 1, ..FIRST };
            assert!(!may_retry(*reason, &second), "{reason:?}");
        }
    }

    #[test]
    fn an_unsent_request_tries_one_endpoint_after_another() {
        for (alternatives, retries) in [(0, 1), (1, 1), (2, 2), (3, 3), (9, 4)] {
            for number in 0..6 {
                let unsent = FailedAttempt { number, alternatives, ..FIRST };
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
                assert_eq!(retry_by_rule(&retry_rule(&[], 1), failed, &unsent), expected);
                assert!(!retry_by_rule(&retry_rule(&[], 0), failed, &unsent));
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
            assert_eq!(retry_by_rule(&retry_rule(codes, 2), failure, &attempt), expected, "{case}");
            let third = FailedAttempt { number: 2, ..attempt };
            assert!(!retry_by_rule(&retry_rule(codes, 2), failure, &third), "{case}");
            assert!(!retry_by_rule(&retry_rule(codes, 0), failure, &attempt), "{case}");
            let started = FailedAttempt { response_started: true, ..attempt };
            assert!(!retry_by_rule(&retry_rule(codes, 2), failure, &started), "{case}");
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
            for (sent, body_replayable) in
                [(SentPart::Nothing, false), (SentPart::HeadOrMore, true)]
            {
                let attempt =
                    FailedAttempt { sent, body_replayable, alternatives, waited, ..FIRST };
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
            let may_retry_by_rule =
                retry_by_rule(&retry_rule(&[503], 3), AttemptFailure::Failed(reason), &attempt);
            assert_eq!(may_retry_by_rule, expected, "{reason:?} {attempt:?}");
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
