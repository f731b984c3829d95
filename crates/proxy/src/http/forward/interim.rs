//! Limits the size of interim (1xx) heads per response, and collects the interim heads of an HTTP/2 server's
//! pending response.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason as Http2Code, RecvStream};
use http::response::Parts;
use leno_model::Reason;
use leno_wire::link::ResetCode;

use crate::http2::client::is_unprocessed;
use crate::http2::head;

/// The remaining bytes of interim heads that one response may have. Flow control does not apply to heads: the
/// HTTP/2 codec queues any number of them for a client that does not read.
pub(super) struct InterimBudget(usize);

impl InterimBudget {
    pub(super) fn new() -> Self {
        Self(MAX_INTERIM_BYTES)
    }

    /// Deducts an interim head from the budget.
    ///
    /// # Errors
    /// `upstream-malformed` if the budget is exhausted.
    pub(super) fn spend_head(&mut self, head: &[u8]) -> Result<(), Reason> {
        let remaining = self.0.checked_sub(head.len() + INTERIM_OVERHEAD_BYTES);
        self.0 = remaining.ok_or(Reason::UpstreamMalformed)?;
        Ok(())
    }
}

/// The pending response of an HTTP/2 server.
pub(crate) struct PendingResponse {
    response_future: ResponseFuture,
    /// Interim heads that arrived during other work, in HTTP/1.1 format.
    received_interim: VecDeque<Bytes>,
    interim_budget: InterimBudget,
}

/// The next head of a response.
pub(crate) enum Http2ResponseHead {
    /// In HTTP/1.1 format.
    Interim(Bytes),
    Final(Parts, RecvStream),
}

impl PendingResponse {
    pub(crate) fn new(response_future: ResponseFuture) -> Self {
        Self {
            response_future,
            received_interim: VecDeque::new(),
            interim_budget: InterimBudget::new(),
        }
    }

    /// Returns the next head.
    ///
    /// # Errors
    /// The reason for the missing response; `upstream-malformed` also after too many interim heads.
    pub(crate) async fn next_head(&mut self) -> Result<Http2ResponseHead, MissingResponse> {
        poll_fn(|cx| {
            self.poll_interim(cx)?;
            if let Some(interim) = self.received_interim.pop_front() {
                return Poll::Ready(Ok(Http2ResponseHead::Interim(interim)));
            }
            Pin::new(&mut self.response_future).poll(cx).map_err(MissingResponse::from).map_ok(
                |response| {
                    let (parts, body) = response.into_parts();
                    Http2ResponseHead::Final(parts, body)
                },
            )
        })
        .await
    }

    /// Runs `work`, and collects interim heads at the same time, because the codec queues any number of interim
    /// heads until they are polled.
    ///
    /// # Errors
    /// `upstream-malformed` after too many interim heads.
    pub(crate) async fn run_and_collect<T>(
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

    /// Collects the available interim heads. Stream errors are reported by the final head.
    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Result<(), Reason> {
        while let Poll::Ready(Some(Ok(interim))) = self.response_future.poll_informational(cx) {
            let bytes = head::response_to_http1(&interim.into_parts().0);
            self.interim_budget.spend_head(&bytes)?;
            self.received_interim.push_back(bytes);
        }
        Ok(())
    }
}

/// The reason for a missing response, and the HTTP/2 code with which its stream was reset, if it was.
pub(crate) struct MissingResponse {
    pub(crate) reason: Reason,
    pub(crate) reset_code: Option<ResetCode>,
}

impl From<Reason> for MissingResponse {
    fn from(reason: Reason) -> Self {
        Self { reason, reset_code: None }
    }
}

impl From<h2::Error> for MissingResponse {
    fn from(error: h2::Error) -> Self {
        let reason = match error.reason() {
            _ if is_unprocessed(&error) => Reason::UpstreamRefused,
            Some(Http2Code::PROTOCOL_ERROR) => Reason::UpstreamMalformed,
            _ => Reason::UpstreamReset,
        };
        let code = error.reason().filter(|_| error.is_reset() && error.is_remote());
        Self { reason, reset_code: code.map(|code| ResetCode::from_http2(code.into())) }
    }
}

/// The maximum size of all interim heads of one response, equal to the limit of one head. A link then has
/// room for a final head of that size and for trailers behind them (`docs/link.md`, *Limits*).
const MAX_INTERIM_BYTES: usize = leno_wire::http1::MAX_HEAD_BYTES;
/// The overhead that each head adds to its size, as a codec stores it; this limits their number to about 200.
const INTERIM_OVERHEAD_BYTES: usize = 256;
