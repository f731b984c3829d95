//! Traffic splits: which share of what is meant for one service goes to which others.

use crate::name::{RouteGroupName, RouteName, ServiceName};
use crate::route::{RouteParent, WeightedBackend};

/// An SMI `TrafficSplit`: it decides what is meant for its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficSplit {
    /// Its name; of several for one root the oldest decides, then the first by name.
    pub name: RouteName,
    /// The service that clients call, with all its ports; of the same namespace.
    pub root: RouteParent,
    /// The requests that it decides: those that any match of these groups fits. Everything, also
    /// what is no request, when absent.
    pub groups: Option<Vec<RouteGroupName>>,
    /// Where they go, at the port that they came for. At least one weight is above 0.
    pub backends: Vec<SplitBackend>,
    /// Its creation in a cluster, in seconds; 0 in a file.
    pub created: i64,
}

impl TrafficSplit {
    /// Its rank among others for the same traffic: the oldest goes first, then the first by name.
    #[must_use]
    pub fn precedence(&self) -> (i64, &RouteName) {
        (self.created, &self.name)
    }

    /// Its backends for what comes to one port of the root.
    #[must_use]
    pub fn at(&self, port: u16) -> Vec<WeightedBackend> {
        let backend = |backend: &SplitBackend| {
            WeightedBackend::new(backend.service.clone(), port, backend.weight)
        };
        self.backends.iter().map(backend).collect()
    }
}

/// A service that takes a share of what is meant for a root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitBackend {
    /// The service; the root itself is reached at its own endpoints.
    pub service: ServiceName,
    /// Its share, relative to the sum over the backends; 0 takes nothing.
    pub weight: u32,
}
