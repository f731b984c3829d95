//! Notifies an observer when the response starts: a hedged attempt, or a concurrency permit of the application.

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
    pub(crate) slot: ConcurrencySlot,
    pub(crate) worker: Rc<Worker>,
}

impl Drop for TimedPermit {
    fn drop(&mut self) {
        self.slot.record_abandoned(self.worker.config_store.age());
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
            Self::ConcurrencyPermit(permit) => {
                permit.slot.mark_sent(permit.worker.config_store.age())
            }
        }
    }

    /// Records that the client receives a response with this head.
    #[inline(never)]
    pub(crate) fn record_response(&self, request: &Request<'_>, bytes: &[u8], head: &ResponseHead) {
        let permit = match self {
            Self::Hedge(hedge_state) => return hedge_state.mark_first_response(),
            Self::ConcurrencyPermit(permit) => permit,
        };
        let status = match request.is_grpc() {
            true => grpc::equivalent_http_status(bytes, head),
            false => head.status,
        };
        let now = permit.worker.config_store.age();
        // Errors and cache revalidations are fast, and do not measure the capacity of the application.
        match status {
            304 | ..200 | 400.. => permit.slot.record_error(now),
            _ => permit.slot.record_response(now),
        }
    }
}
