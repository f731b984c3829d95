//! Leno's load generator: independent of the mesh, so that it cannot favor it.
//!
//! [`drive`] sends the requests of a [`Plan`] at its [`Pace`] and returns a [`Report`] with a status or an
//! error kind for every request. With an open pace, latencies are measured from the time a request was due, so
//! that a stall of the server counts for all delayed requests, not only for those already sent (no coordinated
//! omission). [`drive_on_threads`] does the same on several cores.

mod clock;
mod deadline;
mod draw;
mod drive;
mod error_kind;
mod http1;
mod http2;
mod latency;
mod plan;
mod report;
mod schedule;
mod share;
mod statistics;
mod stop;
mod threads;
mod timeline;
mod window;
mod world;

pub use drive::{DriveError, drive_load};
pub use error_kind::ErrorKind;
pub use latency::Latency;
pub use plan::{Form, InvalidPlan, Pace, Plan, Protocol, Reuse, Target};
pub use report::{Report, TargetReport};
pub use statistics::Counters;
pub use stop::Stop;
pub use threads::drive_on_threads;
pub use timeline::{Moment, Timeline};

#[cfg(test)]
mod tests;
