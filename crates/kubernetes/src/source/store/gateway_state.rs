//! State of gateways: facts and the resolved configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_model::{Gateway, GatewayName, Name, ObjectKey, ServiceName};

use super::{ObjectOrigin, ObjectStore};
use crate::gateway::{
    ClusterFact, ClusterFacts, DesiredGateway, PreviousResult, ResolvedGateways, RouteId,
    resolve_gateways, secrets_of,
};
use crate::source::ObjectId;

/// The state of gateways: facts and the resolved configuration.
#[derive(Default)]
pub(super) struct GatewayState {
    pub(super) facts: ClusterFacts,
    pub(super) resolved: ResolvedGateways,
    kept: BTreeMap<ObjectOrigin, FactKey>,
    /// True if the result may have changed.
    unresolved: bool,
    /// The Secrets that gateways refer to.
    wanted: Arc<BTreeSet<ObjectId>>,
    /// The Secrets of which all existing ones have been seen.
    covered: Arc<BTreeSet<ObjectId>>,
    /// True if reading Secrets is forbidden.
    secrets_forbidden: bool,
    /// True if reading Secrets has failed at least once.
    has_failed: bool,
}

/// The fact of an object.
#[derive(Clone)]
enum FactKey {
    Class(String),
    Gateway(ObjectId),
    Route(RouteId),
    Grant(ObjectId),
    Encrypted(ObjectId),
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
    pub(super) fn leads_to(&self, service: &ServiceName) -> bool {
        self.resolved.backends.contains(service)
    }

    /// Returns the reason for rejection of a route that refers to a gateway of ours.
    pub(super) fn rejection_reason(&self, kind: &'static str, id: &ObjectId) -> Option<String> {
        let id = RouteId { kind, id: id.clone() };
        self.resolved.parents.get(&id)?;
        self.facts.routes.get(&id)?.refusal.clone()
    }

    /// Marks a change outside the facts on which gateways depend.
    pub(super) fn mark_changed(&mut self) {
        self.unresolved = true;
    }

    /// Returns the referenced Secrets that have not been read yet.
    fn pending_secrets(&self) -> BTreeSet<ObjectId> {
        match self.secrets_forbidden {
            true => BTreeSet::new(),
            false => self.wanted.difference(&self.covered).cloned().collect(),
        }
    }

    /// Returns true if the first update has to wait for Secrets. If they cannot be read, the mesh does not
    /// wait.
    pub(super) fn holds_back(&self) -> bool {
        !self.secrets_forbidden && !self.has_failed && !self.wanted.is_subset(&self.covered)
    }

    pub(super) fn mark_failed(&mut self) {
        self.has_failed = true;
    }

    /// Drops keys without a reference. They have to be read again when they are referenced.
    fn forget_unwanted(&mut self) {
        let Self { wanted, covered, facts, kept, .. } = self;
        facts.certificates.retain(|id, _| wanted.contains(id));
        kept.retain(|_, kept| !matches!(kept, FactKey::Certificate(id) if !wanted.contains(id)));
        if !covered.is_subset(wanted) {
            *covered = Arc::new(covered.intersection(wanted).cloned().collect());
        }
    }

    pub(super) fn set_covered(&mut self, ids: Arc<BTreeSet<ObjectId>>) {
        self.covered = ids;
        self.secrets_forbidden = false;
        self.unresolved = true;
    }

    /// Notes that reading Secrets is forbidden.
    pub(super) fn cover_nothing(&mut self) {
        self.secrets_forbidden = true;
        self.unresolved = true;
    }

    /// Returns true if a pod of another namespace has this address.
    pub(super) fn is_of_others(&self, address: IpAddr, namespace: &Name) -> bool {
        let mut pods = self.facts.pods.get(&address).into_iter().flatten();
        pods.any(|pod| pod.namespace != namespace.as_str())
    }

    /// Returns the addresses of a pod.
    fn pod_addresses(&self, origin: &ObjectOrigin) -> BTreeSet<IpAddr> {
        match self.kept.get(origin) {
            Some(FactKey::Pod(addresses, _)) => addresses.clone(),
            _ => BTreeSet::new(),
        }
    }

    pub(super) fn store_fact(&mut self, origin: &ObjectOrigin, fact: ClusterFact) {
        // Gateways do not depend on pods alone, of which there are many.
        self.unresolved |= !matches!(fact, ClusterFact::Pod(_));
        let (id, facts) = (origin.id.clone(), &mut self.facts);
        let kept = match fact {
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
                let before = facts.routes.get(&id).and_then(|route| route.good.clone());
                // The last valid version stays in use.
                route.good = route.good.or(before);
                facts.routes.insert(id.clone(), *route);
                FactKey::Route(id)
            }
            ClusterFact::Grant(grant) => {
                facts.grants.insert(id.clone(), grant);
                FactKey::Grant(id)
            }
            ClusterFact::Encrypted(services) => {
                facts.encrypted.insert(id.clone(), services);
                FactKey::Encrypted(id)
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
        self.kept.insert(origin.clone(), kept);
    }

    pub(super) fn remove(&mut self, origin: &ObjectOrigin) {
        let Some(kept) = self.kept.remove(origin) else { return };
        self.unresolved |= !matches!(kept, FactKey::Pod(..));
        let facts = &mut self.facts;
        match kept {
            FactKey::Encrypted(id) => drop(facts.encrypted.remove(&id)),
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
        let Some(edge) = self.edge.as_mut().filter(|edge| edge.unresolved && is_settled) else {
            return;
        };
        edge.wanted = Arc::new(secrets_of(&edge.facts));
        edge.forget_unwanted();
        edge.unresolved = false;
        let pending = edge.pending_secrets();
        let (own, listed) = (&self.services, &self.listed);
        let services = |name: &ServiceName| own.get(name).or_else(|| listed.service(name));
        let before = PreviousResult { resolved: &edge.resolved, pending: &pending };
        let resolved = resolve_gateways(&edge.facts, &services, &before);
        let before = std::mem::replace(&mut edge.resolved, resolved);
        let now = &edge.resolved;
        let gateways = before.gateways.keys().chain(now.gateways.keys());
        self.dirty.extend(gateways.cloned().map(ObjectKey::Gateway));
        let led_to: Vec<ServiceName> =
            before.backends.symmetric_difference(&now.backends).cloned().collect();
        for name in led_to {
            let service = self.mesh_service(&name).cloned();
            self.touch_selected(&name, &[service.as_ref()]);
            self.dirty.insert(ObjectKey::Service(name));
        }
        self.statuses_stale = true;
    }

    /// Returns the Secrets that gateways refer to.
    pub(crate) fn referenced_secrets(&self) -> Arc<BTreeSet<ObjectId>> {
        self.edge.as_ref().map(|edge| Arc::clone(&edge.wanted)).unwrap_or_default()
    }

    /// Returns the desired objects of gateways.
    pub(crate) fn desired_gateways(&self) -> &[DesiredGateway] {
        self.edge.as_ref().map(|edge| edge.resolved.desired.as_slice()).unwrap_or_default()
    }

    /// Returns true if a gateway routes to the service.
    pub(super) fn gateways_lead_to(&self, service: &ServiceName) -> bool {
        self.edge.as_ref().is_some_and(|edge| edge.leads_to(service))
    }

    /// Updates the fact of an object that concerns gateways.
    pub(super) fn see_fact(
        &mut self,
        origin: &ObjectOrigin,
        listing: u64,
        fact: Option<ClusterFact>,
    ) {
        let Some(edge) = &mut self.edge else { return };
        let mut addresses = edge.pod_addresses(origin);
        // A route keeps its last valid version, which is part of the previous fact.
        if fact.is_none() || !addresses.is_empty() {
            edge.remove(origin);
        }
        if let Some(fact) = fact {
            if let ClusterFact::Pod(now) = &fact {
                addresses.extend(now);
            }
            edge.store_fact(origin, fact);
            self.seen.insert(origin.clone(), listing);
        }
        addresses.into_iter().for_each(|address| self.touch_address(address));
    }

    pub(super) fn forget_fact(&mut self, origin: &ObjectOrigin) {
        let Some(edge) = &mut self.edge else { return };
        let addresses = edge.pod_addresses(origin);
        edge.remove(origin);
        addresses.into_iter().for_each(|address| self.touch_address(address));
    }
}
