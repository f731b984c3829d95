//! The load generator: it knows nothing of the mesh, so it cannot flatter it.
//!
//! [`drive`] sends the requests of a [`Plan`] at its [`Pace`] and gives back a [`Report`] in which
//! every request is either a response with its status or an error with its kind. With an open
//! pace a latency counts from the moment the request was due, so that a server which stalls
//! answers for all the requests it kept waiting, not only for those it had been sent.

mod clock;
mod draw;
mod drive;
mod exchange;
mod ledger;
mod plan;
mod report;
mod request;
mod schedule;

pub use drive::{DriveError, drive};
pub use ledger::Counters;
pub use plan::{Form, InvalidPlan, Pace, Plan, Target};
pub use report::{ErrorKind, Latency, Report, TargetReport};

#[cfg(test)]
mod tests;
