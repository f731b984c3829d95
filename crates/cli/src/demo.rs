//! The demo: bookinfo in a local mesh, with load, measurements and a verdict.

pub(crate) mod bookinfo;
mod observe;
pub(crate) mod report;
pub(crate) mod run;
mod traffic;
mod verdict;
