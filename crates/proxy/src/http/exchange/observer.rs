//! Observers notified when the response starts.

use std::rc::Rc;

use leno_traffic::Place;
use leno_wire::http1::ResponseHead;

use super::hedged::Beside;
use crate::http::grpc;
use crate::http::request::Request;
use crate::worker::Worker;

/// An observer notified when the response starts.
pub(crate) enum ResponseObserver {
    /// A hedged attempt in parallel.
    Beside(Rc<Beside>),
    /// A concurrency permit of the application.
    Place(Box<Seat>),
}

/// A concurrency permit, and the worker that provides the clock for its latency samples.
pub(crate) struct Seat {
    pub(crate) place: Place,
    pub(crate) worker: Rc<Worker>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.place.given_up(self.worker.world.age());
    }
}

impl ResponseObserver {
    /// Returns the state shared with a hedged attempt.
    pub(crate) fn hedge_state(&self) -> Option<&Beside> {
        match self {
            Self::Beside(beside) => Some(beside),
            Self::Place(_) => None,
        }
    }

    /// Records that the whole request has been sent.
    pub(crate) fn record_sent(&self) {
        match self {
            Self::Beside(_) => {}
            Self::Place(seat) => seat.place.mark_sent(seat.worker.world.age()),
        }
    }

    /// Records that the client receives a response with this head.
    #[inline(never)]
    pub(crate) fn record_response(&self, request: &Request<'_>, bytes: &[u8], head: &ResponseHead) {
        let seat = match self {
            Self::Beside(beside) => return beside.mark_answered(),
            Self::Place(seat) => seat,
        };
        let status = match request.is_grpc() {
            true => grpc::stands_for(bytes, head),
            false => head.status,
        };
        let now = seat.worker.world.age();
        // Errors and cache revalidations are fast, and do not measure the capacity of the application.
        match status {
            304 | ..200 | 400.. => seat.place.record_error(now),
            _ => seat.place.record_response(now),
        }
    }
}
