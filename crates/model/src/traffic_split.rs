//! Traffic splits: weighted distribution of one service's traffic to other services.

use crate::name::{RouteGroupName, RouteName, ServiceName};
use crate::route::{RouteParent, WeightedBackend};

/// An SMI `TrafficSplit`: it distributes the traffic of its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficSplit {
    /// The name of the split; of several for one root the oldest takes precedence, then the first by name.
    pub name: RouteName,
    /// The service that clients call, with all its ports; of the same namespace.
    pub root: RouteParent,
    /// The requests that it applies to: those that any match of these groups accepts. All traffic, including
    /// opaque connections, when absent.
    pub groups: Option<Vec<RouteGroupName>>,
    /// The weighted backends, at the port that was called. At least one weight is above 0.
    pub backends: Vec<SplitBackend>,
    /// The creation time in a cluster, in seconds; 0 in a file.
    pub created: i64,
}

impl TrafficSplit {
    /// Returns the precedence among objects for the same traffic: the oldest first, then the first by name.
    #[must_use]
    pub fn precedence(&self) -> (i64, &RouteName) {
        (self.created, &self.name)
    }

    /// Returns the backends for one port of the root.
    #[must_use]
    pub fn backends_for(&self, port: u16) -> Vec<WeightedBackend> {
        let backend = |backend: &SplitBackend| {
            WeightedBackend::new(backend.service.clone(), port, backend.weight)
        };
        self.backends.iter().map(backend).collect()
    }
}

/// A service that receives a share of a root's traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitBackend {
    /// The service; the root itself means its own endpoints.
    pub service: ServiceName,
    /// The share of the traffic, relative to the sum over the backends; 0 receives nothing.
    pub weight: u32,
}
