//! Retries: whether a failed request may be sent once more, to another endpoint.

use std::time::Duration;

use leno_model::{Reason, Retry, RetryRule};

/// What became of an attempt that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// How much of the request left this sidecar.
    pub sent: Sent,
    /// Whether the method is idempotent: see [`is_idempotent`].
    pub idempotent: bool,
    /// Whether the whole request, body included, can be sent again from its first byte.
    pub body_replayable: bool,
    /// Whether any byte of a response has been passed on.
    pub response_started: bool,
    /// How many attempts came before it: 0 for the first.
    pub number: u8,
    /// The number of endpoints that it could have gone to instead.
    pub others: usize,
    /// The time since the request began.
    pub waited: Duration,
}

impl Attempt {
    /// True when the request waited for an application that does not listen, as long as requests wait for one.
    fn has_waited_out(&self, reason: Reason) -> bool {
        let most = if self.others == 0 { UNREACHABLE_MAX_ALONE } else { UNREACHABLE_MAX };
        reason == Reason::ConnectFailed && self.waited >= most
    }
}

/// How much of a request left this sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// Not one byte.
    Nothing,
    /// The head, or a part of it, or more.
    HeadOrMore,
}

/// Whether the request may be sent once more.
///
/// At most [`RETRIES_MAX`] times, or [`unsent_max`] where nothing was sent; never after a part of a response has reached the client, and
/// never when bytes that would have to be sent again are gone. Otherwise the reason decides.
#[must_use]
pub fn retry(reason: Reason, attempt: &Attempt) -> bool {
    let unsent = attempt.sent == Sent::Nothing;
    let most = if unsent { unsent_max(attempt.others) } else { RETRIES_MAX.into() };
    if usize::from(attempt.number) >= most
        || attempt.response_started
        || attempt.has_waited_out(reason)
        || !(unsent || attempt.body_replayable)
    {
        return false;
    }
    match reason.retry() {
        Retry::Never => false,
        Retry::IfUnsent => unsent || attempt.idempotent,
        Retry::Always => true,
    }
}

/// How an attempt failed, as far as a rule about retries is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setback {
    /// There is no answer.
    Failed(Reason),
    /// There is one, with this status, or with one of gRPC that stands for it.
    Answered(u16),
}

/// Whether the request may be sent once more under a rule; the budget decides after that.
///
/// An answer counts when the rule names its status. A failure before anything was sent always
/// counts. One after that, which may have had its effect, counts for methods that are idempotent;
/// for others only when the rule names the status that the client would get for it. A rule without attempts permits none;
/// any other lets a request of which nothing was sent go to one endpoint after another, as without a rule.
#[must_use]
pub fn retry_by_rule(rule: &RetryRule, setback: Setback, attempt: &Attempt) -> bool {
    let unsent = attempt.sent == Sent::Nothing;
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
        Setback::Answered(status) => names(status),
        Setback::Failed(Reason::AttemptTimeout) => {
            unsent || attempt.idempotent || names(Reason::AttemptTimeout.status())
        }
        // Later attempts come after pauses, which are no wait for an application.
        Setback::Failed(Reason::ConnectFailed)
            if attempt.number == 0 && attempt.waited >= UNREACHABLE_MAX =>
        {
            false
        }
        Setback::Failed(reason) => match reason.retry() {
            Retry::Never => false,
            Retry::IfUnsent => unsent || attempt.idempotent || names(reason.status()),
            Retry::Always => true,
        },
    }
}

/// How long to wait before a retry, of which this many came before: twice as long each time, up to
/// [`GROWTH_MAX`] times, and up to half as much again by chance.
#[must_use]
pub fn pause(rule: &RetryRule, number: u8, draw: u64) -> Duration {
    let factor = 1_u32.checked_shl(number.into()).unwrap_or(GROWTH_MAX).min(GROWTH_MAX);
    let whole = rule.backoff.saturating_mul(factor);
    let chance_ns = (u128::from(draw) * (whole / 2).as_nanos()) >> 64;
    whole.saturating_add(Duration::from_nanos(u64::try_from(chance_ns).unwrap_or(u64::MAX)))
}

/// Whether doing it twice is as good as doing it once (RFC 9110, section 9.2.2).
#[must_use]
pub fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}

/// One: a second failure says more about the service than about the endpoint, and every further
/// attempt multiplies the load of a service that is already in trouble.
pub const RETRIES_MAX: u8 = 1;

/// The most retries of a request of which nothing was sent, where there are so many other endpoints: several may be lost at once,
/// with their node, and none of them has work with an attempt to connect.
#[must_use]
pub fn unsent_max(others: usize) -> usize {
    others.clamp(RETRIES_MAX.into(), UNSENT_RETRIES_MAX)
}

/// Retries of a request of which nothing was sent: each waits for a connection for a second.
pub const UNSENT_RETRIES_MAX: usize = 4;

/// The wait of a request after which no other endpoint is tried for one that accepts no connection. A sidecar waits for an
/// application that starts for ten seconds, so that a request which has waited for one such application waits for no other.
pub const UNREACHABLE_MAX: Duration = Duration::from_secs(9);

/// The same where there is no other endpoint: the repetition is for an application that starts again at this moment, or a
/// connection that was closed, which both fail at once.
pub const UNREACHABLE_MAX_ALONE: Duration = Duration::from_secs(1);

/// How many times its first length a pause may reach.
pub const GROWTH_MAX: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Attempt = Attempt {
        sent: Sent::Nothing,
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
            let expected = reason.retry() != Retry::Never;
            assert_eq!(retry(*reason, &FIRST), expected, "{reason:?}");
            let second = Attempt { number: 1, ..FIRST };
            assert!(!retry(*reason, &second), "{reason:?}");
        }
    }

    #[test]
    fn what_was_never_sent_goes_to_one_endpoint_after_another() {
        for (others, retries) in [(0, 1), (1, 1), (2, 2), (3, 3), (9, 4)] {
            for number in 0..6 {
                let unsent = Attempt { number, others, ..FIRST };
                let expected = usize::from(number) < retries;
                assert_eq!(
                    retry(Reason::ConnectTimeout, &unsent),
                    expected,
                    "{number} of {others}"
                );
                assert!(!retry(Reason::Denied, &unsent));
                let sent = Attempt { sent: Sent::HeadOrMore, body_replayable: true, ..unsent };
                assert_eq!(
                    retry(Reason::ConnectFailed, &sent),
                    number == 0,
                    "{number} of {others}"
                );
                let failed = Setback::Failed(Reason::ConnectFailed);
                assert_eq!(retry_by_rule(&rule(&[], 1), failed, &unsent), expected);
                assert!(!retry_by_rule(&rule(&[], 0), failed, &unsent));
            }
        }
    }

    #[test]
    fn what_was_sent_is_repeated_only_when_that_is_safe() {
        for (reason, idempotent, body_replayable, expected) in [
            (Reason::UpstreamReset, true, true, true),
            (Reason::UpstreamReset, false, true, false),
            (Reason::UpstreamReset, true, false, false),
            // Refused before it was looked at: it need not be idempotent, only whole.
            (Reason::UpstreamRefused, false, true, true),
            (Reason::UpstreamRefused, true, false, false),
            (Reason::WrongIdentity, true, true, false),
            (Reason::RequestTimeout, true, true, false),
        ] {
            let attempt = Attempt { sent: Sent::HeadOrMore, idempotent, body_replayable, ..FIRST };
            assert_eq!(retry(reason, &attempt), expected, "{reason:?} {attempt:?}");
            let started = Attempt { response_started: true, ..attempt };
            assert!(!retry(reason, &started), "{reason:?}");
        }
    }

    fn rule(codes: &[u16], attempts: u8) -> RetryRule {
        RetryRule { codes: codes.to_vec(), attempts, backoff: Duration::from_millis(100) }
    }

    #[test]
    fn a_rule_says_which_answers_and_failures_are_tried_again() {
        let sent = Attempt { sent: Sent::HeadOrMore, body_replayable: true, ..FIRST };
        let safe = Attempt { idempotent: true, ..sent };
        let gone = Attempt { body_replayable: false, ..safe };
        let failed = Setback::Failed;
        for (setback, attempt, codes, expected) in [
            (Setback::Answered(503), sent, &[503][..], true),
            (Setback::Answered(502), sent, &[503], false),
            (Setback::Answered(503), gone, &[503], false),
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
            let told = format!("{setback:?} {attempt:?} {codes:?}");
            assert_eq!(retry_by_rule(&rule(codes, 2), setback, &attempt), expected, "{told}");
            let third = Attempt { number: 2, ..attempt };
            assert!(!retry_by_rule(&rule(codes, 2), setback, &third), "{told}");
            assert!(!retry_by_rule(&rule(codes, 0), setback, &attempt), "{told}");
            let started = Attempt { response_started: true, ..attempt };
            assert!(!retry_by_rule(&rule(codes, 2), setback, &started), "{told}");
        }
    }

    #[test]
    fn a_request_waits_for_one_application_that_does_not_listen_and_for_no_other() {
        use Reason::{ConnectFailed, ConnectTimeout, UpstreamRefused};
        for (reason, others, waited_ms, expected) in [
            (ConnectFailed, 0, 999, true),
            (ConnectFailed, 0, 1_000, false),
            // Its sidecar was not reached: the time went into connections.
            (ConnectTimeout, 0, 60_000, true),
            (ConnectFailed, 1, 8_999, true),
            (ConnectFailed, 1, 9_000, false),
            // It was refused, after whatever time: another connection or endpoint takes it.
            (UpstreamRefused, 0, 60_000, true),
        ] {
            let waited = Duration::from_millis(waited_ms);
            for (sent, body_replayable) in [(Sent::Nothing, false), (Sent::HeadOrMore, true)] {
                let attempt = Attempt { sent, body_replayable, others, waited, ..FIRST };
                assert_eq!(retry(reason, &attempt), expected, "{reason:?} {attempt:?}");
            }
        }
        for (reason, number, waited_ms, expected) in [
            (ConnectFailed, 0, 8_999, true),
            (ConnectFailed, 0, 9_000, false),
            (ConnectFailed, 1, 60_000, true),
            (ConnectTimeout, 0, 60_000, true),
        ] {
            let attempt = Attempt { number, waited: Duration::from_millis(waited_ms), ..FIRST };
            let again = retry_by_rule(&rule(&[503], 3), Setback::Failed(reason), &attempt);
            assert_eq!(again, expected, "{reason:?} {attempt:?}");
        }
    }

    #[test]
    fn pauses_grow_to_a_bound_and_vary() {
        for (number, least_ms) in [(0, 100), (1, 200), (3, 800), (4, 1_000), (200, 1_000)] {
            let least = Duration::from_millis(least_ms);
            assert_eq!(pause(&rule(&[], 1), number, 0), least, "{number}");
            let most = pause(&rule(&[], 1), number, u64::MAX);
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
