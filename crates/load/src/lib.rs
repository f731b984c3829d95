//! Generates HTTP and gRPC load, and measures the responses. This crate does not depend on the mesh, so that it cannot
//! favor the mesh.
//!
//! [`drive_load`] sends the requests of a [`LoadPlan`] with its [`LoadModel`], and returns a [`LoadReport`] that counts
//! a status or an error kind for every request. In an open loop, latencies are measured from the time at which a
//! request was due. A stall of the server therefore counts for all delayed requests, not only for those that were
//! already sent (no coordinated omission). [`drive_on_threads`] does the same on several cores.

mod clock;
mod deadline;
mod drive;
mod environment;
mod error_kind;
mod http1;
mod http2;
mod latency;
mod plan;
mod report;
mod schedule;
mod statistics;
mod stop;
mod target_sampler;
mod thread_share;
mod threads;
mod timeline;
mod window;

pub use drive::{DriveError, drive_load};
pub use error_kind::ErrorKind;
pub use latency::LatencyHistogram;
pub use plan::{
    ConnectionReuse, InvalidPlan, LoadModel, LoadPlan, LoadProtocol, LoadTarget, TargetForm,
};
pub use report::{LoadReport, TargetReport};
pub use statistics::ProgressCounters;
pub use stop::StopHandle;
pub use threads::drive_on_threads;
pub use timeline::{IntervalResult, Timeline};

#[cfg(test)]
mod tests;
