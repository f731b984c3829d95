//! Defines unknown endpoints and addresses: a configuration lacks them, perhaps only because their sidecars
//! have not reconnected yet.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use leno_model::EndpointId;

/// Endpoints and addresses that a configuration lacks, although they may exist: a control plane that has just
/// started does not know sidecars that have not reconnected yet. A proxy that holds such an endpoint or address
/// entry retains it; other proxies receive it after the sidecar has reconnected.
///
/// Only endpoints of services and ports in that configuration are included. Clones share the sets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnknownEndpoints {
    endpoints: Arc<BTreeSet<EndpointId>>,
    addresses: Arc<BTreeSet<IpAddr>>,
}

impl UnknownEndpoints {
    /// True if no endpoint or address is unknown.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty() && self.addresses.is_empty()
    }

    /// True if this missing endpoint may still exist.
    #[must_use]
    pub fn contains(&self, endpoint: &EndpointId) -> bool {
        self.endpoints.contains(endpoint)
    }

    /// Returns the same unknown endpoints with these unknown addresses.
    #[must_use]
    pub fn with_addresses(self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        Self { addresses: Arc::new(addresses.into_iter().collect()), ..self }
    }

    /// True if the entry for this missing address may still exist.
    #[must_use]
    pub fn contains_address(&self, address: &IpAddr) -> bool {
        self.addresses.contains(address)
    }

    /// Returns all unknown endpoints, ordered by service.
    pub fn iter(&self) -> impl Iterator<Item = &EndpointId> {
        self.endpoints.iter()
    }
}

impl FromIterator<EndpointId> for UnknownEndpoints {
    fn from_iter<I: IntoIterator<Item = EndpointId>>(endpoints: I) -> Self {
        Self { endpoints: Arc::new(endpoints.into_iter().collect()), addresses: Arc::default() }
    }
}
