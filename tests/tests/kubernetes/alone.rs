//! Scenarios that trouble everything in the cluster, and have it for themselves: `./test kubernetes`
//! runs them one by one.

mod cut_off;
mod egress;
mod leader;
mod maintenance;
mod roots;
mod upgrade;
