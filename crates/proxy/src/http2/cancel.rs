//! The code of HTTP/2 by which a client gives its request up, for the streams upstream that end with it, and attempts that
//! this sidecar abandons.

use std::cell::Cell;

use leno_wire::link::ResetCode;

thread_local! {
    /// Read by streams that are dropped before their end. An argument cannot reach them: a request ends where its future is
    /// dropped.
    static CODE: Cell<ResetCode> = const { Cell::new(ResetCode::Cancelled) };
    /// True while attempts are dropped, and the client still waits.
    static ABANDONED: Cell<bool> = const { Cell::new(false) };
}

/// The code for a stream that is dropped now.
pub(crate) fn code() -> ResetCode {
    CODE.get()
}

/// Resets the code when a request is over: it is declared before the request, so that it is dropped after that.
pub(crate) struct Request;

impl Request {
    /// The client gives the request up by `code`; it is dropped next.
    pub(crate) fn is_given_up(&self, code: ResetCode) {
        CODE.set(code);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        CODE.set(ResetCode::Cancelled);
    }
}

/// True where this sidecar abandons the attempt that is dropped now, and not its client.
pub(crate) fn is_abandoned() -> bool {
    ABANDONED.get()
}

/// The scope of an attempt that may be abandoned: it is declared before the attempt, so that it is dropped after that.
pub(crate) struct Attempt;

impl Attempt {
    /// The client still waits, and the attempt is dropped next.
    pub(crate) fn abandon() {
        ABANDONED.set(true);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        ABANDONED.set(false);
    }
}
