//! Phases of a proxy: serving, leaving, draining, stopped.

use std::time::Duration;

use crate::config::Limits;

/// The phase of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Accepts connections and requests.
    Serving,
    /// Serves as before, but is not ready and closes connections after the next response: load balancers stop
    /// sending connections here, and HTTP/1.1 clients leave before idle connections are closed.
    Leaving,
    /// Accepts no new connections; requests in progress finish.
    Draining,
    /// The data threads have ended. The admin and health pages complete their responses.
    Stopped,
}

/// Returns the time for which an idle or new connection may send a last request after the drain has begun. A
/// request that crosses the close of its connection is lost (RFC 9112 §9.5), so busy clients get a response
/// with `Connection: close` instead.
pub(crate) fn last_call(limits: &Limits) -> Duration {
    limits.last_call.min(limits.drain_timeout / 2)
}
