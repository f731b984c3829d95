//! Traffic splits: weighted distribution of one service's traffic to other services.

use crate::name::{RouteGroupName, RouteName, ServiceName};
use crate::route::{RouteParent, WeightedBackend};

/// An SMI `TrafficSplit`, which distributes the traffic of its root service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficSplit {
    /// The name of the split. Among several splits of one root service, the oldest takes precedence, then the first
    /// by name.
    pub name: RouteName,
    /// The root service, which clients call; in the same namespace, with all its ports.
    pub root: RouteParent,
    /// The route groups whose matches select the requests that the split applies to. When absent, the split applies
    /// to all traffic, including opaque connections.
    pub groups: Option<Vec<RouteGroupName>>,
    /// The weighted backends. Traffic is forwarded to the same port number that the client called. At least one
    /// weight is above 0.
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

    /// Returns the backends for one port of the root service.
    #[must_use]
    pub fn backends_for(&self, port: u16) -> Vec<WeightedBackend> {
        let at_port = |backend: &SplitBackend| {
            WeightedBackend::new(backend.service.clone(), port, backend.weight)
        };
        self.backends.iter().map(at_port).collect()
    }
}

/// A service that receives a share of the root service's traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitBackend {
    /// The name of the service. The root service itself stands for its own endpoints.
    pub service: ServiceName,
    /// The share of the traffic, relative to the sum of all weights. A backend of weight 0 receives no traffic.
    pub weight: u32,
}
