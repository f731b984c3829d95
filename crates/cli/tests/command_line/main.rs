//! Tests of the command line: the real binary, its output and exit codes.

mod check;
mod cluster;
#[cfg(test)]
mod corpus;
mod explain;
#[cfg(test)]
mod garbage;
#[cfg(test)]
#[path = "../../../control/tests/tags/group.rs"]
mod group;
mod help;
mod migrate;
#[cfg(test)]
mod migrate_items;
#[cfg(test)]
mod migrate_sermant;
mod mistakes;
mod run;
mod status;
