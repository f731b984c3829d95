//! Scenarios that disrupt the whole cluster and run exclusively: `./test kubernetes` runs them one by one.

mod cut_off;
mod egress;
mod leader;
mod maintenance;
mod roots;
mod upgrade;
