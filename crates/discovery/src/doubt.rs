//! Endpoints that a world lacks, and addresses that it misjudges, perhaps only because their sidecars have not come back yet.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use leno_model::EndpointId;

/// Endpoints that a world lacks, of which nobody knows yet whether they are gone: a control plane
/// that has just started has not heard of their sidecars. A proxy that holds them keeps them.
///
/// Only of services and ports that are in that world. So it is with addresses of workloads whose
/// sidecars nobody has heard of: a proxy that knows such an address keeps what it knows, and one
/// that does not is told later. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Doubt(Arc<BTreeSet<EndpointId>>, Arc<BTreeSet<IpAddr>>);

impl Doubt {
    /// Whether everything is certain.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty() && self.1.is_empty()
    }

    /// Whether the absence of this endpoint may mean nothing.
    #[must_use]
    pub fn contains(&self, endpoint: &EndpointId) -> bool {
        self.0.contains(endpoint)
    }

    /// The same doubt, and one about these addresses.
    #[must_use]
    pub fn with_addresses(self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        Self(self.0, Arc::new(addresses.into_iter().collect()))
    }

    /// Whether what the world says of an address may not hold.
    #[must_use]
    pub fn is_about(&self, address: &IpAddr) -> bool {
        self.1.contains(address)
    }

    /// All of these endpoints, in the order of their services.
    pub fn iter(&self) -> impl Iterator<Item = &EndpointId> {
        self.0.iter()
    }
}

impl FromIterator<EndpointId> for Doubt {
    fn from_iter<I: IntoIterator<Item = EndpointId>>(endpoints: I) -> Self {
        Self(Arc::new(endpoints.into_iter().collect()), Arc::default())
    }
}
