//! Who must know when the client gets an answer.

use std::rc::Rc;

use leno_traffic::Place;

use super::hedged::Beside;
use crate::worker::Worker;

/// Who must know when the client gets an answer.
pub(crate) enum Witness {
    /// Another attempt beside this one.
    Beside(Rc<Beside>),
    /// A place among the requests that the application is given at once.
    Place(Box<Place>),
}

impl Witness {
    /// What another attempt beside this one knows of it.
    pub(crate) fn beside(&self) -> Option<&Beside> {
        match self {
            Self::Beside(beside) => Some(beside),
            Self::Place(_) => None,
        }
    }

    /// Nobody but the application is waited for from now on.
    pub(crate) fn sent(&self, worker: &Worker) {
        match self {
            Self::Beside(_) => {}
            Self::Place(place) => place.sent(worker.world.age()),
        }
    }

    /// The client gets an answer with this status. `is_sent`: nothing more of the request will come.
    pub(crate) fn answers(&self, worker: &Worker, (status, is_sent): (u16, bool)) {
        match self {
            Self::Beside(beside) => beside.answers(),
            // Errors are fast, and say nothing about what it can take.
            Self::Place(place) if is_sent && status < 500 => place.answered(worker.world.age()),
            Self::Place(_) => {}
        }
    }
}
