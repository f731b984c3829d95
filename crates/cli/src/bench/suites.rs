//! The suites, each with the figures of one published table.

pub(super) mod all;
pub(super) mod gateway_ratings;
pub(super) mod latency;
pub(super) mod router;
pub(super) mod scale;
pub(super) mod sidecar;
