//! Defines the protocol between the benchmark and a running crowd: a line of JSON per command and per reply.

use serde::{Deserialize, Serialize};

/// A command to a crowd.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(in crate::bench) enum CrowdCommand {
    /// One sidecar moves repeatedly: it changes its listener address, each time after all subscribers received the
    /// previous change.
    Endpoint {
        /// The index of the sidecar in the crowd.
        member: usize,
        /// The number of moves.
        times: usize,
        /// The time after each move in which messages to non-subscribers are counted.
        rest_ms: u64,
    },
    /// All sidecars move one after the other, at a constant rate.
    Storm { per_second: u32, seconds: f64 },
    /// Sends [`CrowdReply::Ready`], and waits until the configuration of every sidecar has changed, at most for
    /// `max_wait_ms`.
    Rule { max_wait_ms: u64 },
    /// Returns the number of connected streams.
    Streams,
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::bench) enum CrowdReply {
    /// The crowd observes configurations: the benchmark may change the rule now.
    Ready,
    /// All changes of endpoints were delivered, or timed out.
    Delivery(ChangeDelivery),
    /// Configurations changed, at these times in microseconds since the Unix epoch.
    ConfigChanges(Vec<u64>),
    /// The number of connected streams.
    Streams(usize),
}

/// Statistics of the delivery of endpoint changes to subscribers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(in crate::bench) struct ChangeDelivery {
    /// The number of moves.
    pub(in crate::bench) changes: usize,
    /// The number of deliveries that were expected but did not arrive in time.
    pub(in crate::bench) missed: usize,
    /// The number of subscribers of the endpoint that moved; 0 if several endpoints moved.
    pub(in crate::bench) users: usize,
    /// The number of messages to sidecars that do not subscribe to this endpoint; 0 if several endpoints moved.
    pub(in crate::bench) to_others: usize,
    /// The latency until a subscriber received a change, in milliseconds: median, 99th percentile and maximum.
    pub(in crate::bench) p50_ms: f64,
    pub(in crate::bench) p99_ms: f64,
    pub(in crate::bench) max_ms: f64,
    /// Moves per second.
    pub(in crate::bench) per_second: f64,
}
