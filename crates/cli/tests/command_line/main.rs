//! The command line as its users meet it: the real binary, its output, its exit codes.

mod check;
mod cluster;
mod explain;
mod help;
mod migrate;
mod mistakes;
mod run;
mod seeing;
