//! Endpoints that do not answer in time: new requests go elsewhere.

use super::Upstream;
use crate::link::LinkHandle;
use crate::worker::Worker;

impl Upstream {
    /// It did not answer in time: others are preferred until it can be connected to.
    pub(super) fn lose(&self, worker: &Worker) {
        self.avoid(worker);
        self.is_unresponsive.set(true);
        self.foreign.clear();
        self.http2.clear();
    }

    /// One of its links is silent: no new request goes there, and those in progress wait.
    pub(super) fn suspend(&self, link: &LinkHandle, worker: &Worker) {
        self.links.borrow_mut().retain(|it| !it.is(link));
        self.suspended.borrow_mut().push(link.clone());
        self.lose(worker);
    }

    /// A link that was silent carries requests again.
    pub(super) fn resume(&self, link: &LinkHandle) {
        self.forget(link);
        self.welcome();
        self.add_link(link.clone());
    }

    /// A link that was silent has ended, or returns.
    pub(super) fn forget(&self, link: &LinkHandle) {
        self.suspended.borrow_mut().retain(|it| !it.is(link));
    }
}
