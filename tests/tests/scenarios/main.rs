//! Scenarios: real programs, unmodified, through a real mesh on this machine.

mod faults;
#[cfg(test)]
mod netns;
#[cfg(test)]
mod one_machine;
mod peers;
