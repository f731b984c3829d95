//! Hedging: decides whether a request may have a second attempt in parallel to the first. The proxy calls it when the
//! first attempt is slow to respond.

use leno_model::{HedgeRule, RetryRule};

use crate::retry::{MAX_RETRIES, is_idempotent};

/// The properties of a request that determine hedging, known before the first attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HedgeConditions<'a> {
    /// The method.
    pub method: &'a str,
    /// True for an upgrade or `Expect: 100-continue`, whose following bytes must be sent at most once.
    pub is_unrepeatable: bool,
    /// True if the request has session affinity.
    pub has_affinity: bool,
    /// The number of retries so far.
    pub retries: u8,
}

/// True if a request may have a second, parallel attempt. `retry` is the retry rule of the request, if any. A second
/// attempt counts as a retry, so it needs a retry that the rule permits and that is not used yet.
#[must_use]
pub fn may_hedge(
    rule: &HedgeRule,
    retry: Option<&RetryRule>,
    request: &HedgeConditions<'_>,
) -> bool {
    let allows_method = match rule.methods.is_empty() {
        true => is_idempotent(request.method),
        false => rule.methods.contains(request.method),
    };
    let max_retries = retry.map_or(MAX_RETRIES, |retry| retry.attempts);
    allows_method
        && !request.is_unrepeatable
        && !request.has_affinity
        && request.retries < max_retries
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leno_model::HedgeMethod;

    use super::*;

    fn hedge_rule(methods: &[&str]) -> HedgeRule {
        let methods = methods.iter().filter_map(|method| HedgeMethod::new(method)).collect();
        HedgeRule { after: Duration::from_millis(50), methods }
    }

    const GET: HedgeConditions<'_> =
        HedgeConditions { method: "GET", is_unrepeatable: false, has_affinity: false, retries: 0 };

    #[test]
    fn only_repeatable_requests_are_hedged() {
        for (methods, request, expected) in [
            (&[][..], GET, true),
            (&[], HedgeConditions { method: "PUT", ..GET }, true),
            (&[], HedgeConditions { method: "POST", ..GET }, false),
            (&["POST"], HedgeConditions { method: "POST", ..GET }, true),
            (&["POST"], GET, false),
            (&[], HedgeConditions { is_unrepeatable: true, ..GET }, false),
            (&[], HedgeConditions { has_affinity: true, ..GET }, false),
        ] {
            assert_eq!(may_hedge(&hedge_rule(methods), None, &request), expected, "{request:?}");
        }
    }

    #[test]
    fn a_hedge_counts_as_a_retry() {
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
