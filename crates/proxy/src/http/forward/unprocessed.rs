//! Streams that a server of HTTP/2 did not process: above the last one of a GOAWAY, or reset by REFUSED_STREAM (RFC 9113 §6.8
//! and §8.7).

use std::time::Duration;

use leno_model::Reason;
use leno_telemetry::Count;

use super::Progress;
use crate::http::exchange::Exchange;
use crate::http2::client::Http2Lease;
use crate::upstream::ward::Trial;
use crate::upstream::{Destined, Lease};

/// A lease for the same request again, after its stream was refused. This is no retry of a rule: the server has not seen the
/// request. As long as the server processes other streams, the deadline of the request is the only bound, and [`TIME_MAX`] where it
/// has none.
///
/// # Errors
/// `upstream-refused` where the server processes no other stream, or where a part of the body is gone.
pub(super) async fn lease_again(
    exchange: &mut Exchange<'_, '_>,
    destined: &Destined,
    refused: Http2Lease,
) -> Result<Http2Lease, Reason> {
    let is_whole =
        !exchange.progress.body_taken || exchange.held.as_ref().is_some_and(|held| !held.is_lost());
    let is_late = exchange.record.started.elapsed() > TIME_MAX;
    if exchange.started.get() || !is_whole || is_late || !refused.progresses().await {
        return Err(Reason::UpstreamRefused);
    }
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
