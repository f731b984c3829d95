//! The demo: bookinfo in a mesh on this machine, driven, measured and judged.

pub(crate) mod bookinfo;
mod observe;
pub(crate) mod report;
pub(crate) mod run;
mod traffic;
mod verdict;
