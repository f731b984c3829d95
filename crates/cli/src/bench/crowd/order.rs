//! What the benchmark asks of a running crowd, and what that answers: a line of JSON each.

use serde::{Deserialize, Serialize};

/// What a crowd is to do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(in crate::bench) enum Order {
    /// One sidecar listens elsewhere, so many times, each when everybody has heard of the last.
    Endpoint {
        /// Its place in the crowd.
        member: usize,
        times: usize,
        /// How long who should hear nothing is watched after each.
        rest_ms: u64,
    },
    /// Sidecars listen elsewhere one after the other, at a constant rate.
    Storm { per_second: u32, seconds: f64 },
    /// Waits until every plan has changed; answered `Ready` first.
    Rule { patience_ms: u64 },
    /// Tells how many streams are up.
    Streams,
}

/// What came of an order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::bench) enum Told {
    /// What is waited for may happen now.
    Ready,
    /// Endpoints changed.
    Seen(Seen),
    /// Plans changed, each so many microseconds after 1970.
    Plans(Vec<u64>),
    /// How many streams are up.
    Streams(usize),
}

/// How changes of endpoints were heard of.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(in crate::bench) struct Seen {
    pub(in crate::bench) changes: usize,
    /// How often somebody had to hear of one, and did not in time.
    pub(in crate::bench) missed: usize,
    /// How many sidecars use the endpoint that changed last.
    pub(in crate::bench) users: usize,
    /// How many messages went to sidecars that use nothing of what changed.
    pub(in crate::bench) to_others: usize,
    /// Until each of those that had to had heard, in milliseconds.
    pub(in crate::bench) p50_ms: f64,
    pub(in crate::bench) p99_ms: f64,
    pub(in crate::bench) max_ms: f64,
    /// How fast changes were made.
    pub(in crate::bench) per_second: f64,
}
