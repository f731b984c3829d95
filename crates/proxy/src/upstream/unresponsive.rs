//! Handles endpoints that do not respond in time: new requests avoid them, and their links are suspended.

use super::Upstream;
use crate::link::LinkHandle;
use crate::worker::Worker;

impl Upstream {
    /// Marks the endpoint unresponsive: requests prefer other endpoints until a connection succeeds.
    pub(super) fn mark_unresponsive(&self, worker: &Worker) {
        self.back_off(worker);
        self.is_unresponsive.set(true);
        self.http1_pool.clear();
        self.http2_pool.clear();
    }

    /// Suspends a link that does not respond: new requests avoid it, and its requests in flight wait.
    pub(super) fn suspend_link(&self, link: &LinkHandle, worker: &Worker) {
        self.links.borrow_mut().retain(|candidate| !candidate.is_same(link));
        self.suspended_links.borrow_mut().push(link.clone());
        self.mark_unresponsive(worker);
    }

    /// Resumes a suspended link.
    pub(super) fn resume_link(&self, link: &LinkHandle) {
        self.remove_suspended_link(link);
        self.clear_failures();
        self.add_link(link.clone());
    }

    /// Removes a suspended link.
    pub(super) fn remove_suspended_link(&self, link: &LinkHandle) {
        self.suspended_links.borrow_mut().retain(|candidate| !candidate.is_same(link));
    }
}
