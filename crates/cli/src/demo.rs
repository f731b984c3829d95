//! `leno demo`: runs bookinfo in a local mesh, generates load, measures, and checks the results.

pub(crate) mod bookinfo;
mod observe;
pub(crate) mod report;
pub(crate) mod run;
mod traffic;
mod verdict;
