//! Slow-start state of the endpoints of a port.

use std::sync::Arc;
use std::time::Duration;

use leno_model::{Endpoint, EndpointId};
use rustc_hash::{FxHashMap, FxHashSet};

/// The endpoints of a port, with the time of addition of those in slow start.
#[derive(Debug, Default)]
pub struct SlowStartEndpoints {
    endpoints: Option<Arc<[Arc<Endpoint>]>>,
    /// The time at which each was added.
    new: FxHashMap<EndpointId, Duration>,
    /// The time of the last addition.
    youngest: Duration,
}

impl SlowStartEndpoints {
    /// Updates the endpoints. Endpoints of a port that had none are not in slow start; later additions are,
    /// until their age is `grown`.
    pub fn update_endpoints(
        &mut self,
        endpoints: &Arc<[Arc<Endpoint>]>,
        now: Duration,
        grown: Duration,
    ) {
        let young = |came: Duration| now.saturating_sub(came) < grown;
        if !self.new.is_empty() && !young(self.youngest) {
            self.new = FxHashMap::default();
        }
        if self.endpoints.as_ref().is_some_and(|known| Arc::ptr_eq(known, endpoints)) {
            return;
        }
        let before = self.endpoints.replace(endpoints.clone());
        let there: FxHashSet<&EndpointId> = endpoints.iter().map(|it| &it.id).collect();
        self.new.retain(|id, came| there.contains(id) && young(*came));
        let Some(before) = before.filter(|before| !before.is_empty()) else { return };
        let known: FxHashSet<&EndpointId> = before.iter().map(|it| &it.id).collect();
        let came = endpoints.iter().filter(|endpoint| !known.contains(&endpoint.id));
        for endpoint in came {
            self.new.insert(endpoint.id.clone(), now);
            self.youngest = now;
        }
    }

    /// Returns the age of an endpoint in slow start.
    #[must_use]
    pub fn endpoint_age(&self, endpoint: &EndpointId, now: Duration) -> Option<Duration> {
        self.new.get(endpoint).map(|came| now.saturating_sub(*came))
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
    fn who_comes_beside_others_is_new_until_it_is_grown() {
        let at = Duration::from_secs;
        let mut slow_start = SlowStartEndpoints::default();
        slow_start.update_endpoints(&test_endpoints(&[]), at(1), at(10));
        slow_start.update_endpoints(&test_endpoints(&["a", "b"]), at(2), at(10));
        assert_eq!(slow_start.endpoint_age(&endpoint_id("a"), at(3)), None);
        let three = test_endpoints(&["a", "b", "c"]);
        slow_start.update_endpoints(&three, at(4), at(10));
        slow_start.update_endpoints(&three, at(6), at(10));
        assert_eq!(slow_start.endpoint_age(&endpoint_id("c"), at(7)), Some(at(3)));
        assert_eq!(slow_start.endpoint_age(&endpoint_id("a"), at(7)), None);
        // An endpoint that returns starts anew.
        slow_start.update_endpoints(&test_endpoints(&["b", "c"]), at(8), at(10));
        slow_start.update_endpoints(&three, at(9), at(10));
        assert_eq!(slow_start.endpoint_age(&endpoint_id("a"), at(9)), Some(at(0)));
        slow_start.update_endpoints(&test_endpoints(&["a", "c"]), at(15), at(10));
        assert_eq!(slow_start.endpoint_age(&endpoint_id("c"), at(15)), None);
    }

    #[test]
    fn who_is_grown_is_forgotten_though_nobody_comes_or_goes() {
        let at = Duration::from_secs;
        let mut slow_start = SlowStartEndpoints::default();
        slow_start.update_endpoints(&test_endpoints(&["a"]), at(1), at(10));
        let two = test_endpoints(&["a", "b"]);
        slow_start.update_endpoints(&two, at(2), at(10));
        slow_start.update_endpoints(&two, at(11), at(10));
        assert_eq!(slow_start.new.len(), 1);
        slow_start.update_endpoints(&two, at(12), at(10));
        assert!(slow_start.new.is_empty());
    }
}
