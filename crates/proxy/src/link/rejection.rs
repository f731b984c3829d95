//! Rejections by the sidecar at the other end of a link or of `leno-http/1`: the only reader of `leno-reason` in responses.

use bytes::Bytes;
use leno_model::{REASON_FIELD, Reason};
use leno_wire::http1::ResponseHead;

/// The head of a response, and the party that wrote it.
#[derive(Debug)]
pub(crate) struct ReceivedHead {
    pub(crate) bytes: Bytes,
    /// True where the link marks the head as a rejection by the peer's sidecar.
    pub(crate) rejected: bool,
}

impl ReceivedHead {
    /// The reason of a rejection by the peer's sidecar; `None` for a response of the application, whatever
    /// fields it has.
    #[inline]
    pub(crate) fn rejection(&self, head: &ResponseHead) -> Option<Reason> {
        self.rejected.then(|| reported(&self.bytes, head))
    }
}

/// The same for a response over `leno-http/1`, which has the option [`REJECTED`] where the peer's sidecar wrote it.
#[cold]
#[inline(never)]
pub(crate) fn rejection_over_http1(bytes: &[u8], head: &ResponseHead) -> Option<Reason> {
    head.has_connection_option(bytes, REJECTED).then(|| reported(bytes, head))
}

/// The reason for which the sidecar of the endpoint rejected the request. It is for counts only.
#[cold]
fn reported(bytes: &[u8], head: &ResponseHead) -> Reason {
    let value = head.find(bytes, REASON_FIELD).next();
    let label = value.and_then(|value| value.split(|byte| *byte == b';').next());
    let label = label.and_then(|label| std::str::from_utf8(label).ok());
    // A later release may have reasons that this one does not know.
    label.and_then(Reason::from_label).unwrap_or(Reason::UpstreamRefused)
}

/// The option of `Connection` in responses over `leno-http/1` that the sidecar itself wrote to reject a request. A response of
/// the application has it never: sidecars write `Connection` anew.
pub(crate) const REJECTED: &str = "leno-rejected";
