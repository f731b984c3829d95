//! Who must know when the client gets an answer.

use std::rc::Rc;

use leno_traffic::Place;
use leno_wire::http1::ResponseHead;

use super::hedged::Beside;
use crate::http::grpc;
use crate::http::request::Request;
use crate::worker::Worker;

/// Who must know when the client gets an answer.
pub(crate) enum Witness {
    /// Another attempt beside this one.
    Beside(Rc<Beside>),
    /// A place among the requests that the application is given at once.
    Place(Box<Seat>),
}

/// A place, with whose clock it is learned how long an answer takes.
pub(crate) struct Seat {
    pub(crate) place: Place,
    pub(crate) worker: Rc<Worker>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.place.given_up(self.worker.world.age());
    }
}

impl Witness {
    /// What another attempt beside this one knows of it.
    pub(crate) fn beside(&self) -> Option<&Beside> {
        match self {
            Self::Beside(beside) => Some(beside),
            Self::Place(_) => None,
        }
    }

    /// All of the request is on its way.
    pub(crate) fn sent(&self) {
        match self {
            Self::Beside(_) => {}
            Self::Place(seat) => seat.place.sent(seat.worker.world.age()),
        }
    }

    /// The client gets an answer that begins so.
    #[inline(never)]
    pub(crate) fn answers(&self, request: &Request<'_>, (bytes, head): (&[u8], &ResponseHead)) {
        let seat = match self {
            Self::Beside(beside) => return beside.answers(),
            Self::Place(seat) => seat,
        };
        let status = match request.is_grpc() {
            true => grpc::stands_for(bytes, head),
            false => head.status,
        };
        let now = seat.worker.world.age();
        // Errors, and what a cache asks, are fast, and say nothing about what the application can take.
        match status {
            304 | ..200 | 400.. => seat.place.failed(now),
            _ => seat.place.answered(now),
        }
    }
}
