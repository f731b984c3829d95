//! Endpoints that a world lacks perhaps only because their sidecars have not come back yet.

use std::collections::BTreeSet;
use std::sync::Arc;

use leno_model::EndpointId;

/// Endpoints that a world lacks, of which nobody knows yet whether they are gone: a control plane
/// that has just started has not heard of their sidecars. A proxy that holds them keeps them.
///
/// Only of services and ports that are in that world. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Doubt(Arc<BTreeSet<EndpointId>>);

impl Doubt {
    /// Whether everything is certain.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the absence of this endpoint may mean nothing.
    #[must_use]
    pub fn contains(&self, endpoint: &EndpointId) -> bool {
        self.0.contains(endpoint)
    }

    /// All of them, in the order of their services.
    pub fn iter(&self) -> impl Iterator<Item = &EndpointId> {
        self.0.iter()
    }
}

impl FromIterator<EndpointId> for Doubt {
    fn from_iter<I: IntoIterator<Item = EndpointId>>(endpoints: I) -> Self {
        Self(Arc::new(endpoints.into_iter().collect()))
    }
}
