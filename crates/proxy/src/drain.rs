//! The phases of a proxy: serving, leaving, draining, over.

use std::time::Duration;

use crate::config::Limits;

/// Where a proxy is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Taking connections and requests.
    Serving,
    /// The same, but not ready, and each response asks its client to use another connection: load balancers stop sending
    /// connections here, and clients of HTTP/1.1 leave before idle connections are closed.
    Leaving,
    /// No new connections; requests under way finish.
    Draining,
    /// The data threads have ended. The admin and health pages complete their responses.
    Over,
}

/// The time for a last request on a connection that is idle when the drain begins, or new. A request that crosses the
/// end of its connection is lost (RFC 9112 §9.5), so clients that send requests all the time get a response with
/// `Connection: close` instead.
pub(crate) fn last_call(limits: &Limits) -> Duration {
    limits.last_call.min(limits.drain_timeout / 2)
}
