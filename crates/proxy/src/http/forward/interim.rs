//! Interim (1xx) heads: how many of them an exchange may have, and those of an HTTP/2 server.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason as Code, RecvStream};
use http::response::Parts;
use leno_model::Reason;
use leno_wire::link::ResetCode;

use crate::http2::client::is_unprocessed;
use crate::http2::head;

/// What the interim heads of an answer may still take. No window holds heads back: the codec of
/// HTTP/2 queues as many as it is given, for a client that reads none.
pub(super) struct Allowance(usize);

impl Allowance {
    pub(super) fn new() -> Self {
        Self(INTERIM_BYTES_MAX)
    }

    /// # Errors
    /// `upstream-malformed` when there have been too many of them.
    pub(super) fn spend(&mut self, head: &[u8]) -> Result<(), Reason> {
        let left = self.0.checked_sub(head.len() + INTERIM_COST);
        self.0 = left.ok_or(Reason::UpstreamMalformed)?;
        Ok(())
    }
}

/// The answer of an HTTP/2 server that is awaited.
pub(crate) struct Awaited {
    response: ResponseFuture,
    /// Interim heads that came while something else was done, as HTTP/1.1 writes them.
    waiting: VecDeque<Bytes>,
    allowance: Allowance,
}

/// The next head of an answer.
pub(crate) enum Http2Answer {
    /// As HTTP/1.1 writes it.
    Interim(Bytes),
    Final(Parts, RecvStream),
}

impl Awaited {
    pub(crate) fn new(response: ResponseFuture) -> Self {
        Self { response, waiting: VecDeque::new(), allowance: Allowance::new() }
    }

    /// The next head.
    ///
    /// # Errors
    /// Why none comes; `upstream-malformed` also when too many have come.
    pub(crate) async fn next(&mut self) -> Result<Http2Answer, Unanswered> {
        poll_fn(|cx| {
            self.poll_interim(cx)?;
            if let Some(interim) = self.waiting.pop_front() {
                return Poll::Ready(Ok(Http2Answer::Interim(interim)));
            }
            Pin::new(&mut self.response).poll(cx).map_err(Unanswered::from).map_ok(|answer| {
                let (parts, body) = answer.into_parts();
                Http2Answer::Final(parts, body)
            })
        })
        .await
    }

    /// Does something that takes time. The codec keeps interim heads, any number of them, until they
    /// are asked for, so that happens meanwhile.
    ///
    /// # Errors
    /// `upstream-malformed` when too many of them come.
    pub(crate) async fn meanwhile<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, Reason> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            self.poll_interim(cx)?;
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Takes the interim heads that are there. What broke the stream is for the answer to say.
    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Result<(), Reason> {
        while let Poll::Ready(Some(Ok(interim))) = self.response.poll_informational(cx) {
            let bytes = head::response(&interim.into_parts().0);
            self.allowance.spend(&bytes)?;
            self.waiting.push_back(bytes);
        }
        Ok(())
    }
}

/// Why there is no answer, and the code of HTTP/2 by which its stream was reset.
pub(crate) struct Unanswered {
    pub(crate) reason: Reason,
    pub(crate) reset: Option<ResetCode>,
}

impl From<Reason> for Unanswered {
    fn from(reason: Reason) -> Self {
        Self { reason, reset: None }
    }
}

impl From<h2::Error> for Unanswered {
    fn from(error: h2::Error) -> Self {
        let reason = match error.reason() {
            _ if is_unprocessed(&error) => Reason::UpstreamRefused,
            Some(Code::PROTOCOL_ERROR) => Reason::UpstreamMalformed,
            _ => Reason::UpstreamReset,
        };
        let code = error.reason().filter(|_| error.is_reset() && error.is_remote());
        Self { reason, reset: code.map(|code| ResetCode::of_http2(code.into())) }
    }
}

/// What the interim heads of one answer take together: as much as one head may have. A link then has
/// room for a final head as large and for trailers behind them (`docs/link.md`, *Limits*).
const INTERIM_BYTES_MAX: usize = leno_wire::http1::HEAD_BYTES_MAX;
/// What each counts for beyond its bytes, as a codec keeps it: so there are at most 200 or so.
const INTERIM_COST: usize = 256;
