//! The phases of a proxy from its start to its end, and the time for last requests when the drain begins.

use std::time::Duration;

use crate::config::Limits;

/// The phase of a proxy. Phases follow each other in this order; `Leaving` may be skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The proxy accepts connections and requests.
    Serving,
    /// The drain delay: the proxy still serves, but is not ready and closes connections after the next
    /// response. Load balancers stop sending connections, and HTTP/1.1 clients leave before idle connections
    /// are closed.
    Leaving,
    /// The proxy accepts no new connections; requests in progress finish.
    Draining,
    /// The data threads have ended. The admin endpoint and the health server complete their responses.
    Stopped,
}

/// Returns the time for which an idle or new connection may send a last request after the drain has begun. A
/// request that crosses the close of its connection is lost (RFC 9112 §9.5), so busy clients get a response
/// with `Connection: close` instead.
pub(crate) fn last_request_timeout(limits: &Limits) -> Duration {
    limits.last_request_timeout.min(limits.drain_timeout / 2)
}
