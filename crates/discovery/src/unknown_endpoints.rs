//! Uncertain endpoints and addresses: missing from a configuration, perhaps only because their sidecars have
//! not reconnected yet.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use leno_model::EndpointId;

/// Endpoints that a configuration lacks, although they may exist: a control plane that has just started does
/// not know sidecars that have not reconnected yet. A proxy that holds such endpoints retains them.
///
/// Only endpoints of services and ports in that configuration are included. The same holds for the
/// addresses of workloads with disconnected sidecars: a proxy that holds an entry for one of these addresses
/// keeps the entry, and other proxies receive it later. Clones share the sets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnknownEndpoints {
    endpoints: Arc<BTreeSet<EndpointId>>,
    addresses: Arc<BTreeSet<IpAddr>>,
}

impl UnknownEndpoints {
    /// True if no endpoint or address is uncertain.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty() && self.addresses.is_empty()
    }

    /// True if this missing endpoint may still exist.
    #[must_use]
    pub fn contains(&self, endpoint: &EndpointId) -> bool {
        self.endpoints.contains(endpoint)
    }

    /// Adds uncertain addresses.
    #[must_use]
    pub fn with_addresses(self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        Self { addresses: Arc::new(addresses.into_iter().collect()), ..self }
    }

    /// True if the entry for an address is uncertain.
    #[must_use]
    pub fn contains_address(&self, address: &IpAddr) -> bool {
        self.addresses.contains(address)
    }

    /// Returns all uncertain endpoints, ordered by service.
    pub fn iter(&self) -> impl Iterator<Item = &EndpointId> {
        self.endpoints.iter()
    }
}

impl FromIterator<EndpointId> for UnknownEndpoints {
    fn from_iter<I: IntoIterator<Item = EndpointId>>(endpoints: I) -> Self {
        Self { endpoints: Arc::new(endpoints.into_iter().collect()), addresses: Arc::default() }
    }
}
