//! Tests of the registry's public interface: manifests to changes, rejections and warnings.

#[cfg(test)]
mod access_policy;
#[cfg(test)]
mod arbitrary;
mod boundary;
#[cfg(test)]
mod check_services;
#[cfg(test)]
mod circuit_breakers;
#[cfg(test)]
mod faults_and_balancing;
#[cfg(test)]
mod filters;
#[cfg(test)]
mod forwarded;
mod gateway_tcp_route;
#[cfg(test)]
mod jwt;
#[cfg(test)]
mod lint;
#[cfg(test)]
#[path = "../corpus/manifest.rs"]
mod manifest;
#[cfg(test)]
mod manifests;
#[cfg(test)]
mod pages;
mod persistence;
#[cfg(test)]
mod rate_limits;
#[cfg(test)]
mod rejections;
#[cfg(test)]
mod reload;
#[cfg(test)]
mod request_checks;
#[cfg(test)]
mod retries;
#[cfg(test)]
mod service_policies;
#[cfg(test)]
mod tags;
#[cfg(test)]
mod tls_route;
#[cfg(test)]
mod traffic_split;
#[cfg(test)]
mod watch;
