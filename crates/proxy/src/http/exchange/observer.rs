//! Observers notified when the response starts.

use std::rc::Rc;

use leno_traffic::ConcurrencySlot;
use leno_wire::http1::ResponseHead;

use super::hedged::HedgeState;
use crate::http::grpc;
use crate::http::request::Request;
use crate::worker::Worker;

/// An observer notified when the response starts.
pub(crate) enum ResponseObserver {
    /// A hedged attempt in parallel.
    Hedge(Rc<HedgeState>),
    /// A concurrency permit of the application.
    ConcurrencyPermit(Box<TimedPermit>),
}

/// A concurrency permit, and the worker that provides the clock for its latency samples.
pub(crate) struct TimedPermit {
    pub(crate) place: ConcurrencySlot,
    pub(crate) worker: Rc<Worker>,
}

impl Drop for TimedPermit {
    fn drop(&mut self) {
        self.place.given_up(self.worker.config_store.age());
    }
}

impl ResponseObserver {
    /// Returns the state shared with a hedged attempt.
    pub(crate) fn hedge_state(&self) -> Option<&HedgeState> {
        match self {
            Self::Hedge(hedge_state) => Some(hedge_state),
            Self::ConcurrencyPermit(_) => None,
        }
    }

    /// Records that the whole request has been sent.
    pub(crate) fn record_sent(&self) {
        match self {
            Self::Hedge(_) => {}
            Self::ConcurrencyPermit(seat) => seat.place.mark_sent(seat.worker.config_store.age()),
        }
    }

    /// Records that the client receives a response with this head.
    #[inline(never)]
    pub(crate) fn record_response(&self, request: &Request<'_>, bytes: &[u8], head: &ResponseHead) {
        let seat = match self {
            Self::Hedge(hedge_state) => return hedge_state.mark_answered(),
            Self::ConcurrencyPermit(seat) => seat,
        };
        let status = match request.is_grpc() {
            true => grpc::stands_for(bytes, head),
            false => head.status,
        };
        let now = seat.worker.config_store.age();
        // Errors and cache revalidations are fast, and do not measure the capacity of the application.
        match status {
            304 | ..200 | 400.. => seat.place.record_error(now),
            _ => seat.place.record_response(now),
        }
    }
}
