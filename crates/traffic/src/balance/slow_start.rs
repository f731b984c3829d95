//! Tracks the slow start of a port's endpoints: the times at which they were added. The load balancer reduces the share
//! of requests of endpoints that were added recently.

use std::sync::Arc;
use std::time::Duration;

use leno_model::{Endpoint, EndpointId};
use rustc_hash::{FxHashMap, FxHashSet};

/// The endpoints of a port, with the times at which those in slow start were added. Times are durations since an
/// arbitrary start.
#[derive(Debug, Default)]
pub struct SlowStartEndpoints {
    /// The current endpoints; absent before the first update.
    endpoints: Option<Arc<[Arc<Endpoint>]>>,
    /// The time at which each endpoint in slow start was added.
    added_at: FxHashMap<EndpointId, Duration>,
    /// The time of the last addition.
    last_added: Duration,
}

impl SlowStartEndpoints {
    /// Updates the endpoints. The first endpoints of a port are not in slow start. Endpoints that are added later are
    /// in slow start until their age is `duration`.
    pub fn update_endpoints(
        &mut self,
        endpoints: &Arc<[Arc<Endpoint>]>,
        now: Duration,
        duration: Duration,
    ) {
        let is_in_slow_start = |added_time: Duration| now.saturating_sub(added_time) < duration;
        // The slow start of the endpoint that was added last is over, so no endpoint is in slow start.
        if !self.added_at.is_empty() && !is_in_slow_start(self.last_added) {
            self.added_at = FxHashMap::default();
        }
        if self.endpoints.as_ref().is_some_and(|current| Arc::ptr_eq(current, endpoints)) {
            return;
        }
        let previous_endpoints = self.endpoints.replace(endpoints.clone());
        let current_ids: FxHashSet<&EndpointId> =
            endpoints.iter().map(|endpoint| &endpoint.id).collect();
        self.added_at
            .retain(|id, added_time| current_ids.contains(id) && is_in_slow_start(*added_time));
        let Some(previous_endpoints) =
            previous_endpoints.filter(|previous_endpoints| !previous_endpoints.is_empty())
        else {
            // These are the first endpoints, or the first after a time without endpoints.
            return;
        };
        let previous_ids: FxHashSet<&EndpointId> =
            previous_endpoints.iter().map(|endpoint| &endpoint.id).collect();
        let added_endpoints =
            endpoints.iter().filter(|endpoint| !previous_ids.contains(&endpoint.id));
        for endpoint in added_endpoints {
            self.added_at.insert(endpoint.id.clone(), now);
            self.last_added = now;
        }
    }

    /// Returns the age of an endpoint in slow start; `None` for other endpoints.
    #[must_use]
    pub fn endpoint_age(&self, endpoint: &EndpointId, now: Duration) -> Option<Duration> {
        self.added_at.get(endpoint).map(|added_time| now.saturating_sub(*added_time))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use leno_model::{ServiceAccount, ServiceName, WorkloadName};

    use super::*;

    fn test_endpoints(names: &[&str]) -> Arc<[Arc<Endpoint>]> {
        names
            .iter()
            .map(|name| {
                Arc::new(Endpoint {
                    id: endpoint_id(name),
                    address: ([127, 0, 0, 1], 80).into(),
                    account: ServiceAccount::new("shop", "stock").ok(),
                    tags: BTreeMap::new(),
                    weight: None,
                })
            })
            .collect()
    }

    fn endpoint_id(name: &str) -> EndpointId {
        let service = ServiceName::new("shop", "stock").unwrap();
        EndpointId { service, port: 80, workload: WorkloadName::new("shop", name).unwrap() }
    }

    #[test]
    fn an_added_endpoint_is_in_slow_start_for_its_duration() {
        let at = Duration::from_secs;
        let mut slow_start = SlowStartEndpoints::default();
        slow_start.update_endpoints(&test_endpoints(&[]), at(1), at(10));
        slow_start.update_endpoints(&test_endpoints(&["a", "b"]), at(2), at(10));
        assert_eq!(slow_start.endpoint_age(&endpoint_id("a"), at(3)), None);
        let three_endpoints = test_endpoints(&["a", "b", "c"]);
        slow_start.update_endpoints(&three_endpoints, at(4), at(10));
        slow_start.update_endpoints(&three_endpoints, at(6), at(10));
        assert_eq!(slow_start.endpoint_age(&endpoint_id("c"), at(7)), Some(at(3)));
        assert_eq!(slow_start.endpoint_age(&endpoint_id("a"), at(7)), None);
        // An endpoint that is added again is in slow start again.
        slow_start.update_endpoints(&test_endpoints(&["b", "c"]), at(8), at(10));
        slow_start.update_endpoints(&three_endpoints, at(9), at(10));
        assert_eq!(slow_start.endpoint_age(&endpoint_id("a"), at(9)), Some(at(0)));
        slow_start.update_endpoints(&test_endpoints(&["a", "c"]), at(15), at(10));
        assert_eq!(slow_start.endpoint_age(&endpoint_id("c"), at(15)), None);
    }

    #[test]
    fn slow_start_ends_without_changes_of_endpoints() {
        let at = Duration::from_secs;
        let mut slow_start = SlowStartEndpoints::default();
        slow_start.update_endpoints(&test_endpoints(&["a"]), at(1), at(10));
        let two_endpoints = test_endpoints(&["a", "b"]);
        slow_start.update_endpoints(&two_endpoints, at(2), at(10));
        slow_start.update_endpoints(&two_endpoints, at(11), at(10));
        assert_eq!(slow_start.added_at.len(), 1);
        slow_start.update_endpoints(&two_endpoints, at(12), at(10));
        assert!(slow_start.added_at.is_empty());
    }
}
