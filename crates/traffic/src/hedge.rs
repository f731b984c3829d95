//! Hedging: eligibility of requests for a second, parallel attempt.

use leno_model::{HedgeRule, RetryRule};

use crate::retry::{RETRIES_MAX, is_idempotent};

/// The properties of a request that determine hedging, known before the first attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HedgeConditions<'a> {
    /// Its method.
    pub method: &'a str,
    /// True for an upgrade or `Expect: 100-continue`: the following bytes must not be sent twice, or at all.
    pub waits: bool,
    /// Its client has session affinity.
    pub keeps: bool,
    /// The number of earlier attempts.
    pub retries: u8,
}

/// True if a request may have a second, parallel attempt. `retry`: the retry rule, since a hedge is a retry.
#[must_use]
pub fn may_hedge(
    rule: &HedgeRule,
    retry: Option<&RetryRule>,
    request: &HedgeConditions<'_>,
) -> bool {
    let covers = match rule.methods.is_empty() {
        true => is_idempotent(request.method),
        false => rule.methods.iter().any(|method| method == request.method),
    };
    let most = retry.map_or(RETRIES_MAX, |retry| retry.attempts);
    covers && !request.waits && !request.keeps && request.retries < most
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn hedge_rule(methods: &[&str]) -> HedgeRule {
        let methods = methods.iter().map(|method| (*method).to_owned()).collect();
        HedgeRule { after: Duration::from_millis(50), methods }
    }

    const GET: HedgeConditions<'_> =
        HedgeConditions { method: "GET", waits: false, keeps: false, retries: 0 };

    #[test]
    fn only_what_may_be_done_twice_is_sent_twice() {
        for (methods, request, expected) in [
            (&[][..], GET, true),
            (&[], HedgeConditions { method: "PUT", ..GET }, true),
            (&[], HedgeConditions { method: "POST", ..GET }, false),
            (&["POST"], HedgeConditions { method: "POST", ..GET }, true),
            (&["POST"], GET, false),
            (&[], HedgeConditions { waits: true, ..GET }, false),
            (&[], HedgeConditions { keeps: true, ..GET }, false),
        ] {
            assert_eq!(may_hedge(&hedge_rule(methods), None, &request), expected, "{request:?}");
        }
    }

    #[test]
    fn it_is_one_of_the_retries_that_a_request_has() {
        let retry = |attempts| RetryRule { codes: vec![503], attempts, backoff: Duration::ZERO };
        for (attempts, retries, expected) in [
            (None, 0, true),
            (None, 1, false),
            (Some(0), 0, false),
            (Some(1), 0, true),
            (Some(2), 1, true),
            (Some(2), 2, false),
        ] {
            let (retry, request) = (attempts.map(retry), HedgeConditions { retries, ..GET });
            assert_eq!(
                may_hedge(&hedge_rule(&[]), retry.as_ref(), &request),
                expected,
                "{attempts:?} {retries}"
            );
        }
    }
}
