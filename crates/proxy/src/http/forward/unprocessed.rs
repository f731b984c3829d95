//! Streams that a server of HTTP/2 did not process: above the last one of a GOAWAY, or reset by REFUSED_STREAM (RFC 9113 §6.8
//! and §8.7).

use std::time::Duration;

use leno_model::Reason;
use leno_telemetry::Count;
use leno_traffic::retry;

use super::{Progress, over_http2};
use crate::http::exchange::Exchange;
use crate::http::request::Aim;
use crate::http2::client::Http2Lease;
use crate::upstream::ward::Trial;
use crate::upstream::{Destined, Lease};

/// Sends a request again after its stream was refused. This is no retry of a rule: the server has not seen the request.
///
/// # Errors
/// As for any attempt; `upstream-refused` where the server processes no other stream, has refused the request too often, or where a
/// part of the body is gone.
pub(super) async fn send_again(
    exchange: &mut Exchange<'_, '_>,
    aim: &Aim<'_>,
    destined: &Destined,
    refused: Http2Lease,
) -> Result<(), Reason> {
    let (mut lease, mut refusals) = (refused, Refusals::default());
    loop {
        let is_reset = exchange.progress.reset.get().is_some();
        refusals.count(is_reset);
        if refusals.are_too_many(exchange)
            || is_final(exchange)
            || !lease.may_repeat(is_reset).await
        {
            return Err(Reason::UpstreamRefused);
        }
        lease = lease_again(exchange, destined).await?;
        match over_http2(exchange, aim, destined, &mut lease).await {
            Err(Reason::UpstreamRefused) => {}
            outcome => return outcome,
        }
    }
}

/// The refusals of one request at one endpoint.
#[derive(Default)]
struct Refusals {
    all: u32,
    /// Those on connections that go on.
    resets: u32,
}

impl Refusals {
    fn count(&mut self, is_reset: bool) {
        self.all += 1;
        self.resets += u32::from(is_reset);
    }

    /// A server that refuses the request and processes others may refuse this request alone: another attempt, which goes to
    /// another endpoint where there is one, comes before the patience with this endpoint.
    fn are_too_many(&self, exchange: &Exchange<'_, '_>) -> bool {
        let rule = exchange.actions.as_ref().and_then(|actions| actions.retry.as_ref());
        let attempts = rule.map_or(retry::RETRIES_MAX, |rule| rule.attempts);
        let is_last = exchange.record.retries >= u32::from(attempts);
        self.all > REFUSALS_MAX || (self.resets > RESETS_MAX && !is_last)
    }
}

/// True where the request cannot be sent again, or was for too long.
fn is_final(exchange: &Exchange<'_, '_>) -> bool {
    let is_whole =
        !exchange.progress.body_taken || exchange.held.as_ref().is_some_and(|held| !held.is_lost());
    exchange.started.get() || !is_whole || exchange.record.started.elapsed() > TIME_MAX
}

/// A lease of the same endpoint, for the request from its first byte.
async fn lease_again(
    exchange: &mut Exchange<'_, '_>,
    destined: &Destined,
) -> Result<Http2Lease, Reason> {
    if exchange.progress.body_taken {
        exchange.body.rewind();
        exchange.record.bytes_in.set(0);
    }
    exchange.progress = Progress { pins: exchange.progress.pins, ..Progress::default() };
    let session = exchange.session;
    session.worker.shard.add(Count::Retries, 1);
    let how = (session.found_http2, exchange.wait_alone());
    let lease = destined.lease(&session.worker, exchange.timed.as_ref(), how);
    let lease = match exchange.trial.as_ref().map(Trial::ward) {
        Some(ward) => ward.wait(lease).await?,
        None => lease.await?,
    };
    match lease {
        Lease::Http2(lease) => Ok(lease),
        // The endpoint speaks another protocol since.
        Lease::Link(_) | Lease::Http1(_) => Err(Reason::UpstreamRefused),
    }
}

/// The time in which a request without a deadline is sent again.
const TIME_MAX: Duration = Duration::from_secs(30);
/// The refusals of one request in one attempt. A server that ends each connection after a few streams refuses the others of a
/// burst several times.
const REFUSALS_MAX: u32 = 64;
/// The refusals of one request on connections that go on, before another attempt.
const RESETS_MAX: u32 = 3;
