//! The load generator: it knows nothing of the mesh, so it cannot flatter it.
//!
//! [`drive`] sends the requests of a [`Plan`] at its [`Pace`] and gives back a [`Report`] in which
//! every request is either a response with its status or an error with its kind. With an open
//! pace a latency counts from the moment the request was due, so that a server which stalls
//! answers for all the requests it kept waiting, not only for those it had been sent.
//! [`drive_on_threads`] does the same on as many cores as one likes.

mod clock;
mod deadline;
mod draw;
mod drive;
mod error_kind;
mod http1;
mod http2;
mod latency;
mod ledger;
mod plan;
mod report;
mod schedule;
mod share;
mod stop;
mod threads;
mod timeline;
mod window;
mod world;

pub use drive::{DriveError, drive};
pub use error_kind::ErrorKind;
pub use latency::Latency;
pub use ledger::Counters;
pub use plan::{Form, InvalidPlan, Pace, Plan, Protocol, Reuse, Target};
pub use report::{Report, TargetReport};
pub use stop::Stop;
pub use threads::drive_on_threads;
pub use timeline::{Moment, Timeline};

#[cfg(test)]
mod tests;
