//! State of gateways: facts and the resolved configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_model::{Gateway, GatewayName, Name, ObjectKey, ServiceName};

use super::{ObjectOrigin, ObjectStore};
use crate::gateway::{
    ClusterFact, ClusterFacts, DesiredGateway, PreviousResult, ResolvedGateways, RouteId,
    collect_secrets, resolve_gateways,
};
use crate::source::ObjectId;

/// The state of gateways: facts and the resolved configuration.
#[derive(Default)]
pub(super) struct GatewayState {
    pub(super) facts: ClusterFacts,
    pub(super) resolved: ResolvedGateways,
    /// The key of the fact that each object contributes.
    fact_keys: BTreeMap<ObjectOrigin, FactKey>,
    /// True if the result may have changed.
    is_stale: bool,
    /// The Secrets that gateways refer to.
    referenced_secrets: Arc<BTreeSet<ObjectId>>,
    /// The Secrets of which all existing ones have been seen.
    covered_secrets: Arc<BTreeSet<ObjectId>>,
    /// True if reading Secrets is forbidden.
    secrets_forbidden: bool,
    /// True if reading Secrets has failed at least once.
    secrets_failed: bool,
}

/// The key in [`ClusterFacts`] of the fact that an object contributes.
#[derive(Clone)]
enum FactKey {
    Class(String),
    Gateway(ObjectId),
    Route(RouteId),
    Grant(ObjectId),
    TlsServices(ObjectId),
    Pod(BTreeSet<IpAddr>, ObjectId),
    Certificate(ObjectId),
    Namespace(String),
    Deployment(ObjectId),
    GatewayService(ObjectId),
}

impl GatewayState {
    pub(super) fn gateway(&self, name: &GatewayName) -> Option<&Gateway> {
        self.resolved.gateways.get(name)
    }

    /// Returns true if a gateway routes to a service.
    pub(super) fn routes_to(&self, service: &ServiceName) -> bool {
        self.resolved.backends.contains(service)
    }

    /// Returns the reason for rejection of a route that refers to a gateway of Leno.
    pub(super) fn rejection_reason(&self, kind: &'static str, id: &ObjectId) -> Option<String> {
        let id = RouteId { kind, id: id.clone() };
        self.resolved.parent_statuses.get(&id)?;
        self.facts.routes.get(&id)?.rejection.clone()
    }

    /// Marks a change outside the facts on which gateways depend.
    pub(super) fn mark_changed(&mut self) {
        self.is_stale = true;
    }

    /// Returns the Secrets that gateways refer to and that have not been read yet.
    fn pending_secrets(&self) -> BTreeSet<ObjectId> {
        match self.secrets_forbidden {
            true => BTreeSet::new(),
            false => self.referenced_secrets.difference(&self.covered_secrets).cloned().collect(),
        }
    }

    /// Returns true if the first update has to wait for Secrets. If they cannot be read, the mesh does not
    /// wait.
    pub(super) fn has_pending_secrets(&self) -> bool {
        !self.secrets_forbidden
            && !self.secrets_failed
            && !self.referenced_secrets.is_subset(&self.covered_secrets)
    }

    pub(super) fn mark_secrets_failed(&mut self) {
        self.secrets_failed = true;
    }

    /// Drops Secrets that no gateway refers to any more. They are read again when a gateway refers to them.
    fn drop_unreferenced(&mut self) {
        let Self { referenced_secrets, covered_secrets, facts, fact_keys, .. } = self;
        facts.certificates.retain(|id, _| referenced_secrets.contains(id));
        fact_keys.retain(
            |_, key| !matches!(key, FactKey::Certificate(id) if !referenced_secrets.contains(id)),
        );
        if !covered_secrets.is_subset(referenced_secrets) {
            *covered_secrets =
                Arc::new(covered_secrets.intersection(referenced_secrets).cloned().collect());
        }
    }

    pub(super) fn set_covered(&mut self, ids: Arc<BTreeSet<ObjectId>>) {
        self.covered_secrets = ids;
        self.secrets_forbidden = false;
        self.is_stale = true;
    }

    /// Notes that reading Secrets is forbidden.
    pub(super) fn mark_secrets_forbidden(&mut self) {
        self.secrets_forbidden = true;
        self.is_stale = true;
    }

    /// Returns true if a pod of another namespace has this address.
    pub(super) fn is_in_other_namespace(&self, address: IpAddr, namespace: &Name) -> bool {
        let mut pods = self.facts.pods.get(&address).into_iter().flatten();
        pods.any(|pod| pod.namespace != namespace.as_str())
    }

    /// Returns the addresses of a pod.
    fn pod_addresses(&self, origin: &ObjectOrigin) -> BTreeSet<IpAddr> {
        match self.fact_keys.get(origin) {
            Some(FactKey::Pod(addresses, _)) => addresses.clone(),
            _ => BTreeSet::new(),
        }
    }

    pub(super) fn store_fact(&mut self, origin: &ObjectOrigin, fact: ClusterFact) {
        // Gateways do not depend on pods alone, of which there are many.
        self.is_stale |= !matches!(fact, ClusterFact::Pod(_));
        let (id, facts) = (origin.id.clone(), &mut self.facts);
        let key = match fact {
            ClusterFact::Class(class) => {
                facts.classes.insert(id.name.clone(), class);
                FactKey::Class(id.name)
            }
            ClusterFact::Gateway(gateway) => {
                facts.gateways.insert(id.clone(), *gateway);
                FactKey::Gateway(id)
            }
            ClusterFact::Route(kind, mut route) => {
                let id = RouteId { kind, id };
                let before = facts.routes.get(&id).and_then(|route| route.last_valid.clone());
                // The last valid version stays in use.
                route.last_valid = route.last_valid.or(before);
                facts.routes.insert(id.clone(), *route);
                FactKey::Route(id)
            }
            ClusterFact::Grant(grant) => {
                facts.grants.insert(id.clone(), grant);
                FactKey::Grant(id)
            }
            ClusterFact::TlsServices(services) => {
                facts.tls_services.insert(id.clone(), services);
                FactKey::TlsServices(id)
            }
            ClusterFact::Pod(addresses) => {
                for address in &addresses {
                    facts.pods.entry(*address).or_default().insert(id.clone());
                }
                FactKey::Pod(addresses, id)
            }
            ClusterFact::Certificate(certificate) => {
                facts.certificates.insert(id.clone(), certificate);
                FactKey::Certificate(id)
            }
            ClusterFact::Namespace(labels) => {
                facts.namespaces.insert(id.name.clone(), labels);
                FactKey::Namespace(id.name)
            }
            ClusterFact::Deployment(runs) => {
                facts.deployments.insert(id.clone(), runs);
                FactKey::Deployment(id)
            }
            ClusterFact::GatewayService(gateway_service) => {
                facts.gateway_services.insert(id.clone(), gateway_service);
                FactKey::GatewayService(id)
            }
        };
        self.fact_keys.insert(origin.clone(), key);
    }

    pub(super) fn remove(&mut self, origin: &ObjectOrigin) {
        let Some(key) = self.fact_keys.remove(origin) else { return };
        self.is_stale |= !matches!(key, FactKey::Pod(..));
        let facts = &mut self.facts;
        match key {
            FactKey::TlsServices(id) => drop(facts.tls_services.remove(&id)),
            FactKey::Pod(addresses, id) => {
                for address in addresses {
                    if let Some(pods) = facts.pods.get_mut(&address) {
                        pods.remove(&id);
                        if pods.is_empty() {
                            facts.pods.remove(&address);
                        }
                    }
                }
            }
            FactKey::Class(name) => drop(facts.classes.remove(&name)),
            FactKey::Gateway(id) => drop(facts.gateways.remove(&id)),
            FactKey::Route(id) => drop(facts.routes.remove(&id)),
            FactKey::Grant(id) => drop(facts.grants.remove(&id)),
            FactKey::Certificate(id) => drop(facts.certificates.remove(&id)),
            FactKey::Namespace(name) => drop(facts.namespaces.remove(&name)),
            FactKey::Deployment(id) => drop(facts.deployments.remove(&id)),
            FactKey::GatewayService(id) => drop(facts.gateway_services.remove(&id)),
        }
    }
}

impl ObjectStore {
    /// Resolves gateways if the result may have changed. Gateways with pending Secrets keep their previous
    /// result.
    pub(crate) fn resolve_gateways(&mut self) {
        let is_settled = self.is_settled();
        let Some(gateways) =
            self.gateways.as_mut().filter(|gateways| gateways.is_stale && is_settled)
        else {
            return;
        };
        gateways.referenced_secrets = Arc::new(collect_secrets(&gateways.facts));
        gateways.drop_unreferenced();
        gateways.is_stale = false;
        let pending = gateways.pending_secrets();
        let (own_services, selectorless) = (&self.services, &self.selectorless);
        let services =
            |name: &ServiceName| own_services.get(name).or_else(|| selectorless.service(name));
        let previous = PreviousResult { resolved: &gateways.resolved, pending: &pending };
        let resolved = resolve_gateways(&gateways.facts, &services, &previous);
        let previous = std::mem::replace(&mut gateways.resolved, resolved);
        let current = &gateways.resolved;
        let names = previous.gateways.keys().chain(current.gateways.keys());
        self.dirty.extend(names.cloned().map(ObjectKey::Gateway));
        let changed_backends: Vec<ServiceName> =
            previous.backends.symmetric_difference(&current.backends).cloned().collect();
        for name in changed_backends {
            let service = self.mesh_service(&name).cloned();
            self.mark_selected_workloads(&name, &[service.as_ref()]);
            self.dirty.insert(ObjectKey::Service(name));
        }
        self.statuses_stale = true;
    }

    /// Returns the Secrets that gateways refer to.
    pub(crate) fn referenced_secrets(&self) -> Arc<BTreeSet<ObjectId>> {
        self.gateways
            .as_ref()
            .map(|gateways| Arc::clone(&gateways.referenced_secrets))
            .unwrap_or_default()
    }

    /// Returns the desired objects of gateways.
    pub(crate) fn desired_gateways(&self) -> &[DesiredGateway] {
        self.gateways
            .as_ref()
            .map(|gateways| gateways.resolved.desired.as_slice())
            .unwrap_or_default()
    }

    /// Returns true if a gateway routes to the service.
    pub(super) fn gateways_route_to(&self, service: &ServiceName) -> bool {
        self.gateways.as_ref().is_some_and(|gateways| gateways.routes_to(service))
    }

    /// Updates the fact of an object that concerns gateways.
    pub(super) fn apply_fact(
        &mut self,
        origin: &ObjectOrigin,
        listing: u64,
        fact: Option<ClusterFact>,
    ) {
        let Some(gateways) = &mut self.gateways else { return };
        let mut addresses = gateways.pod_addresses(origin);
        // A route keeps its last valid version, which is part of the previous fact.
        if fact.is_none() || !addresses.is_empty() {
            gateways.remove(origin);
        }
        if let Some(fact) = fact {
            if let ClusterFact::Pod(new_addresses) = &fact {
                addresses.extend(new_addresses);
            }
            gateways.store_fact(origin, fact);
            self.listings.insert(origin.clone(), listing);
        }
        addresses.into_iter().for_each(|address| self.mark_address(address));
    }

    pub(super) fn remove_fact(&mut self, origin: &ObjectOrigin) {
        let Some(gateways) = &mut self.gateways else { return };
        let addresses = gateways.pod_addresses(origin);
        gateways.remove(origin);
        addresses.into_iter().for_each(|address| self.mark_address(address));
    }
}
