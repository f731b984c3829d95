//! Recognizes rejections by the sidecar at the other end of a link or of `leno-http/1` (HTTP/1.1 between two sidecars),
//! and reads their reason from the field `leno-reason`. No other module reads this field of responses.

use bytes::Bytes;
use leno_model::{REASON_FIELD, Reason};
use leno_wire::http1::ResponseHead;

/// The head of a response over a link, written by the application or by the peer's sidecar.
#[derive(Debug)]
pub(crate) struct ReceivedHead {
    pub(crate) bytes: Bytes,
    /// True if the link marks the head as a rejection by the peer's sidecar.
    pub(crate) rejected: bool,
}

impl ReceivedHead {
    /// Returns the reason of a rejection by the peer's sidecar; `None` for a response of the application, even
    /// if it has the field `leno-reason`.
    #[inline]
    pub(crate) fn rejection_reason(&self, head: &ResponseHead) -> Option<Reason> {
        self.rejected.then(|| reported_reason(&self.bytes, head))
    }
}

/// Returns the reason of a rejection by the peer's sidecar over `leno-http/1`; `None` for a response of the
/// application, which never has the option [`REJECTED_OPTION`].
#[cold]
#[inline(never)]
pub(crate) fn rejection_over_http1(bytes: &[u8], head: &ResponseHead) -> Option<Reason> {
    head.has_connection_option(bytes, REJECTED_OPTION).then(|| reported_reason(bytes, head))
}

/// Returns the reason for which the endpoint's sidecar rejected the request. Used for counts only.
#[cold]
fn reported_reason(bytes: &[u8], head: &ResponseHead) -> Reason {
    let value = head.find(bytes, REASON_FIELD).next();
    let label_bytes = value.and_then(|value| value.split(|byte| *byte == b';').next());
    let label = label_bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
    // A later release may have reasons unknown to this one.
    label.and_then(Reason::from_label).unwrap_or(Reason::UpstreamRefused)
}

/// The `Connection` option in responses over `leno-http/1` with which the sidecar itself rejects a request.
/// Responses of the application never have it: sidecars rewrite `Connection`.
pub(crate) const REJECTED_OPTION: &str = "leno-rejected";
