//! The suites of `leno bench`. Most of them reproduce a published benchmark and its table of figures.

pub(super) mod all;
pub(super) mod gateway_ratings;
pub(super) mod latency;
pub(super) mod router;
pub(super) mod scale;
pub(super) mod sidecar;
