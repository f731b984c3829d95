//! Picks an endpoint for each attempt: the less loaded of two random endpoints, or the choice of a policy's
//! algorithm. Unreachable endpoints are avoided.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use leno_model::{BalanceAlgorithm, Endpoint, EndpointId, Reason, Weight};
use leno_telemetry::Count;
use leno_traffic::Endpoints;
use leno_traffic::balance::hashing::EndpointHashTable;
use leno_traffic::balance::{self, Candidates, KeyedCandidates, Load, RequestHash};

use super::Upstream;
use super::cluster::UpstreamCluster;
use super::priorities::Priorities;
use crate::worker::Worker;

/// The hash of one request, for hash-based load balancing, and the hash table of the port's endpoints, if one
/// was built.
pub(crate) struct HashSelection {
    pub(crate) request_hash: RequestHash,
    /// All endpoints of the port, and the table built from them.
    pub(crate) hash_table: Option<(Endpoints, Arc<EndpointHashTable>)>,
}

/// Picks an endpoint by priority, outlier detection and load. `avoided_endpoint`: the endpoint of the
/// previous attempt, which is picked only if there is no other.
pub(crate) fn pick_endpoint(
    worker: &Rc<Worker>,
    priorities: &Priorities,
    cluster: Option<&UpstreamCluster>,
    hash_selection: Option<&HashSelection>,
    avoided_endpoint: Option<&EndpointId>,
) -> Result<Rc<Upstream>, Reason> {
    let endpoint_list = priorities.serving_endpoints(worker, cluster, avoided_endpoint);
    if priorities.is_fallback(endpoint_list) {
        worker.metrics.add(Count::PreferenceFallbacks, 1);
    }
    let endpoints: &[Arc<Endpoint>] = endpoint_list;
    let now = Instant::now();
    let policy_balancer = cluster.and_then(|cluster| Some((cluster, cluster.balancer()?)));
    // Hash-based algorithms consider the latency for requests without a key.
    let uses_latency = policy_balancer.is_none_or(|(_, balancer)| {
        !matches!(balancer.rule().algorithm, BalanceAlgorithm::LeastRequest { .. })
    });
    let candidates = EndpointCandidates {
        worker,
        endpoints,
        cluster,
        avoided_endpoint,
        now,
        latency_time: uses_latency.then_some(now),
    };
    let index = match policy_balancer {
        None => balance::pick_candidate(&candidates, worker.random_number()),
        Some((cluster, balancer)) => {
            // The hash table applies only if all endpoints of the port are candidates.
            let keyed_candidates =
                hash_selection.map(|hash_selection| match &hash_selection.hash_table {
                    Some((endpoints_of_port, hash_table))
                        if Arc::ptr_eq(endpoints_of_port, endpoint_list) =>
                    {
                        (hash_selection.request_hash, KeyedCandidates::HashTable(hash_table))
                    }
                    _ => (hash_selection.request_hash, KeyedCandidates::Few(endpoints)),
                });
            let endpoint_age =
                |index: usize| cluster.endpoint_age(worker, &endpoints.get(index)?.id);
            balancer.choose_candidate(
                &candidates,
                keyed_candidates,
                endpoint_age,
                worker.random_number(),
            )
        }
    };
    let endpoint = index.and_then(|index| endpoints.get(index)).ok_or(Reason::NoEndpoint)?;
    let upstream = worker.upstream_for(endpoint);
    upstream.record_pick((endpoints.len() > 1).then_some(now));
    Ok(upstream)
}

/// Returns the upstream of a session's endpoint; `None` if the endpoint is not healthy.
pub(crate) fn session_endpoint(
    worker: &Rc<Worker>,
    endpoint: &Arc<Endpoint>,
    cluster: Option<&UpstreamCluster>,
    avoided_endpoint: Option<&EndpointId>,
) -> Option<Rc<Upstream>> {
    let (upstream, now) = (worker.upstream_for(endpoint), Instant::now());
    if !is_healthy(&upstream, cluster, avoided_endpoint, now) {
        upstream.probe_unresponsive(worker, now);
        return None;
    }
    upstream.record_pick(Some(now));
    Some(upstream)
}

/// True if an endpoint is healthy, not in backoff, and not to be avoided.
pub(super) fn is_healthy(
    upstream: &Upstream,
    cluster: Option<&UpstreamCluster>,
    avoided_endpoint: Option<&EndpointId>,
    now: Instant,
) -> bool {
    avoided_endpoint != Some(&upstream.endpoint.id)
        && upstream.is_usable(now)
        && cluster.is_none_or(|cluster| cluster.is_admitted(upstream))
}

/// The candidate endpoints of one request, as the balancer of `leno-traffic` sees them.
struct EndpointCandidates<'a> {
    worker: &'a Rc<Worker>,
    endpoints: &'a [Arc<Endpoint>],
    cluster: Option<&'a UpstreamCluster>,
    avoided_endpoint: Option<&'a EndpointId>,
    now: Instant,
    /// The current time, if latency is considered.
    latency_time: Option<Instant>,
}

impl Candidates for EndpointCandidates<'_> {
    fn len(&self) -> usize {
        self.endpoints.len()
    }

    fn load(&self, index: usize) -> Load {
        self.endpoints.get(index).map_or(Load::from_requests(u32::MAX), |endpoint| {
            self.worker.upstream_for(endpoint).load(endpoint.weight, self.latency_time)
        })
    }

    fn weight(&self, index: usize) -> Option<Weight> {
        self.endpoints.get(index)?.weight
    }

    fn is_usable(&self, index: usize) -> bool {
        self.endpoints.get(index).is_some_and(|endpoint| {
            let upstream = self.worker.upstream_for(endpoint);
            let is_usable = is_healthy(&upstream, self.cluster, self.avoided_endpoint, self.now);
            if !is_usable {
                upstream.probe_unresponsive(self.worker, self.now);
            }
            is_usable
        })
    }

    fn is_eligible(&self, index: usize) -> bool {
        let Some(cluster) = self.cluster else { return true };
        let endpoint = self.endpoints.get(index);
        endpoint.is_some_and(|endpoint| cluster.is_admitted(&self.worker.upstream_for(endpoint)))
    }
}
