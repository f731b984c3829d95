//! Selects the list of endpoints that serves requests: the preferred list, or the next one while a list is
//! unhealthy.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use leno_model::{Endpoint, EndpointId};
use leno_traffic::Endpoints;

use super::Upstream;
use super::cluster::UpstreamCluster;
use super::pick::is_healthy;
use crate::worker::Worker;

/// Lists of endpoints in order of preference.
#[derive(Clone)]
pub(crate) struct Priorities {
    preferred: Endpoints,
    /// The lists after the preferred one; `None` without failover.
    fallbacks: Option<Arc<[Endpoints]>>,
}

impl Priorities {
    pub(crate) fn new(preferred: Endpoints, fallbacks: Option<Arc<[Endpoints]>>) -> Self {
        Self { preferred, fallbacks }
    }

    /// Returns the number of endpoints in all lists.
    pub(crate) fn len(&self) -> usize {
        let fallbacks = self.fallbacks.iter().flat_map(|lists| lists.iter());
        self.preferred.len() + fallbacks.map(|list| list.len()).sum::<usize>()
    }

    /// Returns the endpoints of all lists.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        let fallbacks = self.fallbacks.iter().flat_map(|lists| lists.iter());
        std::iter::once(&self.preferred).chain(fallbacks).flat_map(|list| list.iter())
    }

    /// Returns the lists without the endpoints that have no sidecar.
    pub(crate) fn with_sidecars(self) -> Self {
        let retain_lists =
            |lists: &Arc<[Endpoints]>| lists.iter().cloned().map(retain_meshed).collect();
        Self {
            preferred: retain_meshed(self.preferred),
            fallbacks: self.fallbacks.as_ref().map(retain_lists),
        }
    }

    /// Returns the list from which an attempt picks: the first list with a healthy endpoint other than
    /// `avoided_endpoint`. An endpoint that outlier detection would eject, but for its ejection limits, does
    /// not count as healthy here. If no list has such an endpoint, returns the first list with another endpoint
    /// that is not ejected, and otherwise the first list with any endpoint that is not ejected.
    #[inline]
    pub(crate) fn serving_endpoints(
        &self,
        worker: &Rc<Worker>,
        cluster: Option<&UpstreamCluster>,
        avoided_endpoint: Option<&EndpointId>,
    ) -> &Endpoints {
        match &self.fallbacks {
            None => &self.preferred,
            Some(fallbacks) => self.find_healthy_list(fallbacks, worker, cluster, avoided_endpoint),
        }
    }

    /// True if the serving list is not the preferred one.
    #[inline]
    pub(crate) fn is_fallback(&self, serving: &Endpoints) -> bool {
        self.fallbacks.is_some() && !Arc::ptr_eq(serving, &self.preferred)
    }

    /// Returns the list from which an attempt picks, if there are several lists.
    #[inline(never)]
    fn find_healthy_list<'a>(
        &'a self,
        fallbacks: &'a [Endpoints],
        worker: &Rc<Worker>,
        cluster: Option<&UpstreamCluster>,
        avoided_endpoint: Option<&EndpointId>,
    ) -> &'a Endpoints {
        let now = Instant::now();
        let is_healthy_candidate = |upstream: &Rc<Upstream>| {
            let is_usable = is_healthy(upstream, cluster, avoided_endpoint, now);
            if !is_usable {
                // While another list serves, no request would detect that the endpoint responds again.
                upstream.probe_unresponsive(worker, now);
            }
            is_usable && !cluster.is_some_and(|cluster| cluster.is_exempt_from_ejection(upstream))
        };
        let is_admitted =
            |upstream: &Rc<Upstream>| cluster.is_none_or(|cluster| cluster.is_admitted(upstream));
        let is_admitted_alternative = |upstream: &Rc<Upstream>| {
            avoided_endpoint != Some(&upstream.endpoint.id) && is_admitted(upstream)
        };
        let find_list = |condition: &dyn Fn(&Rc<Upstream>) -> bool| {
            let mut lists = std::iter::once(&self.preferred).chain(fallbacks);
            lists.find(|list| list.iter().any(|endpoint| condition(&worker.upstream_for(endpoint))))
        };
        let list = find_list(&is_healthy_candidate)
            .or_else(|| find_list(&is_admitted_alternative))
            .or_else(|| find_list(&is_admitted));
        list.unwrap_or(&self.preferred)
    }
}

/// Returns a list without unmeshed endpoints; the same list if all endpoints are meshed.
fn retain_meshed(endpoint_list: Endpoints) -> Endpoints {
    match endpoint_list.iter().all(|endpoint| endpoint.account.is_some()) {
        true => endpoint_list,
        false => {
            endpoint_list.iter().filter(|endpoint| endpoint.account.is_some()).cloned().collect()
        }
    }
}
