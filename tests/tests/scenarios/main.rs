//! Scenarios: real, unmodified programs through a real mesh on this machine.

#[cfg(test)]
mod access;
#[cfg(test)]
mod balancing;
#[cfg(test)]
mod bench;
#[cfg(test)]
mod bug_report;
#[cfg(test)]
mod canary;
#[cfg(test)]
mod check_services;
#[cfg(test)]
mod conditions;
#[cfg(test)]
mod dashboards;
#[cfg(test)]
mod descriptors;
#[cfg(test)]
mod diagnosis;
mod faults;
#[cfg(test)]
mod faults_on_purpose;
#[cfg(test)]
mod gateway;
#[cfg(test)]
mod interception;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod live_changes;
#[cfg(test)]
mod load;
#[cfg(test)]
mod netns;
#[cfg(test)]
mod one_machine;
mod peers;
#[cfg(test)]
mod pending_connections;
#[cfg(test)]
mod prometheus;
#[cfg(test)]
mod protocols;
#[cfg(test)]
mod published_holes;
#[cfg(test)]
mod rejections;
mod resilience;
#[cfg(test)]
mod seeing;
#[cfg(test)]
mod sidecar_queries;
#[cfg(test)]
mod splits;
#[cfg(test)]
mod start_and_stop;
#[cfg(test)]
mod tags;
#[cfg(test)]
mod tap;
#[cfg(test)]
mod tokens;
#[cfg(test)]
mod topics;
#[cfg(test)]
mod traces;
#[cfg(test)]
mod vectors;
