//! Retries: whether a failed request may be sent once more, to another endpoint.

use leno_model::{Reason, Retry};

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
/// Never twice more than [`RETRIES_MAX`], never after a part of a response was passed on, and
/// never when bytes that would have to be sent again are gone. Otherwise the reason decides.
#[must_use]
pub fn retry(reason: Reason, attempt: &Attempt) -> bool {
    let unsent = attempt.sent == Sent::Nothing;
    if attempt.number >= RETRIES_MAX
        || attempt.response_started
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

/// Whether doing it twice is as good as doing it once (RFC 9110, section 9.2.2).
#[must_use]
pub fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}

/// One: a second failure says more about the service than about the endpoint, and every further
/// attempt multiplies the load of a service that is already in trouble.
pub const RETRIES_MAX: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Attempt = Attempt {
        sent: Sent::Nothing,
        idempotent: false,
        body_replayable: false,
        response_started: false,
        number: 0,
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
