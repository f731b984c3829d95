//! Propagates the HTTP/2 code with which a client cancels a request to the request's upstream streams, and
//! marks attempts that this sidecar abandons.

use std::cell::Cell;

use leno_wire::link::ResetCode;

thread_local! {
    /// The code that resets streams which are dropped before their end. It cannot be an argument, because a
    /// request is canceled by dropping its future.
    static CANCEL_CODE: Cell<ResetCode> = const { Cell::new(ResetCode::Cancelled) };
    /// True while attempts are dropped although the client still waits.
    static ATTEMPT_IS_ABANDONED: Cell<bool> = const { Cell::new(false) };
}

/// Returns the code for a stream that is dropped now.
pub(crate) fn current_code() -> ResetCode {
    CANCEL_CODE.get()
}

/// The scope of a request: clears the code when dropped. Declared before the request's future, so that the
/// scope is dropped after the future.
pub(crate) struct RequestScope;

impl RequestScope {
    /// Records that the client cancels the request with `code`; the request is dropped next.
    pub(crate) fn record_cancel(&self, code: ResetCode) {
        CANCEL_CODE.set(code);
    }
}

impl Drop for RequestScope {
    fn drop(&mut self) {
        CANCEL_CODE.set(ResetCode::Cancelled);
    }
}

/// True if the attempt being dropped is abandoned by this sidecar, and not canceled by its client.
pub(crate) fn is_abandoned() -> bool {
    ATTEMPT_IS_ABANDONED.get()
}

/// The scope of an attempt that may be abandoned. Declared before the attempt's future, so that the scope is
/// dropped after the future.
pub(crate) struct AttemptScope;

impl AttemptScope {
    /// Records that the attempt is abandoned while the client still waits; it is dropped next.
    pub(crate) fn mark_abandoned() {
        ATTEMPT_IS_ABANDONED.set(true);
    }
}

impl Drop for AttemptScope {
    fn drop(&mut self) {
        ATTEMPT_IS_ABANDONED.set(false);
    }
}
