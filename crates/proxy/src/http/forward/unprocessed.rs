//! Resends requests that an HTTP/2 server did not process: their streams were above the last stream of a
//! GOAWAY, or reset with REFUSED_STREAM (RFC 9113 §6.8 and §8.7).

use std::time::Duration;

use leno_model::Reason;
use leno_telemetry::Count;
use leno_traffic::retry;

use super::{ExchangeProgress, forward_over_http2};
use crate::http::exchange::Exchange;
use crate::http::request::ParsedTarget;
use crate::http2::client::Http2Checkout;
use crate::upstream::cluster::OutcomeGuard;
use crate::upstream::{AttemptTarget, Checkout};

/// Sends a request again after its stream was refused. This does not count as a retry of a rule: the server has
/// not processed the request.
///
/// # Errors
/// The errors of any attempt; `upstream-refused` if the server processes no other stream, has refused the
/// request too often, or if a part of the body is lost.
pub(super) async fn resend_unprocessed(
    exchange: &mut Exchange<'_, '_>,
    request_target: &ParsedTarget<'_>,
    attempt_target: &AttemptTarget,
    refused_checkout: Http2Checkout,
) -> Result<(), Reason> {
    let (mut checkout, mut refusals) = (refused_checkout, Refusals::default());
    loop {
        let is_reset = exchange.progress.reset_code.get().is_some();
        refusals.record_refusal(is_reset);
        if refusals.exceed_limit(exchange)
            || is_resend_impossible(exchange)
            || !checkout.wait_to_repeat(is_reset).await
        {
            return Err(Reason::UpstreamRefused);
        }
        checkout = rewind_and_acquire(exchange, attempt_target).await?;
        match forward_over_http2(exchange, request_target, attempt_target, &mut checkout).await {
            Err(Reason::UpstreamRefused) => {}
            outcome => return outcome,
        }
    }
}

/// The number of times that one endpoint has refused one request.
#[derive(Default)]
struct Refusals {
    total_count: u32,
    /// The number of refusals on connections that stay open.
    reset_count: u32,
}

impl Refusals {
    fn record_refusal(&mut self, is_reset: bool) {
        self.total_count += 1;
        self.reset_count += u32::from(is_reset);
    }

    /// True if there have been too many refusals. A server that refuses the request and processes others may
    /// refuse this request only: a retry, at another endpoint if possible, takes precedence over further
    /// attempts at this endpoint.
    fn exceed_limit(&self, exchange: &Exchange<'_, '_>) -> bool {
        let retry_rule = exchange.actions.as_ref().and_then(|actions| actions.retry.as_ref());
        let max_attempts = retry_rule.map_or(retry::MAX_RETRIES, |retry_rule| retry_rule.attempts);
        let is_last_retry = exchange.record.retries >= u32::from(max_attempts);
        self.total_count > MAX_REFUSALS || (self.reset_count > MAX_RESETS && !is_last_retry)
    }
}

/// True if the request cannot be sent again, or has reached its time limit.
fn is_resend_impossible(exchange: &Exchange<'_, '_>) -> bool {
    let is_whole = !exchange.progress.body_taken
        || exchange.retry_buffer.as_ref().is_some_and(|buffer| !buffer.is_lost());
    exchange.response_started.get()
        || !is_whole
        || exchange.record.started.elapsed() > MAX_RESEND_TIME
}

/// Returns a connection to the same endpoint, with the request rewound to its first byte.
async fn rewind_and_acquire(
    exchange: &mut Exchange<'_, '_>,
    attempt_target: &AttemptTarget,
) -> Result<Http2Checkout, Reason> {
    if exchange.progress.body_taken {
        exchange.body.rewind();
        exchange.record.bytes_in.set(0);
    }
    exchange.progress =
        ExchangeProgress { is_pinned: exchange.progress.is_pinned, ..ExchangeProgress::default() };
    let session = exchange.session;
    session.worker.metrics.add(Count::Retries, 1);
    let checkout = attempt_target.acquire(
        &session.worker,
        exchange.timed_attempt.as_ref(),
        session.detected_http2,
        exchange.exclusive_wait(),
    );
    let checkout = match exchange.outcome_guard.as_ref().map(OutcomeGuard::upstream_cluster) {
        Some(cluster) => cluster.wait_for_connection(checkout).await?,
        None => checkout.await?,
    };
    match checkout {
        Checkout::Http2(checkout) => Ok(checkout),
        // The endpoint has switched to another protocol.
        Checkout::Link(_) | Checkout::Http1(_) => Err(Reason::UpstreamRefused),
    }
}

/// The maximum age of a request that is sent again.
const MAX_RESEND_TIME: Duration = Duration::from_secs(30);
/// The maximum number of refusals of one request in one attempt. A server that closes each connection after a
/// few streams refuses the others of a burst several times.
const MAX_REFUSALS: u32 = 64;
/// The maximum number of refusals of one request on connections that stay open, before a retry.
const MAX_RESETS: u32 = 3;
