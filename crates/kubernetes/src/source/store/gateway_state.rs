//! Tracks gateways in the object store: their inputs, the resolved configuration, and the Secrets that they
//! refer to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_model::{Gateway, GatewayName, Name, ObjectKey, ServiceName};

use super::{ObjectOrigin, ObjectStore};
use crate::gateway::{
    DesiredGateway, GatewayInput, GatewayInputs, PreviousResult, ResolvedGateways, RouteId,
    collect_secrets, resolve_gateways,
};
use crate::source::ObjectId;

/// The state of gateways: inputs and the resolved configuration.
#[derive(Default)]
pub(super) struct GatewayState {
    pub(super) inputs: GatewayInputs,
    pub(super) resolved: ResolvedGateways,
    /// The key of the input that each object contributes.
    input_keys: BTreeMap<ObjectOrigin, InputKey>,
    /// True if gateways must be resolved again.
    is_stale: bool,
    /// The Secrets that gateways refer to.
    referenced_secrets: Arc<BTreeSet<ObjectId>>,
    /// The Secrets that the watch covers. The existing Secrets among them have been received.
    covered_secrets: Arc<BTreeSet<ObjectId>>,
    /// True if reading Secrets is forbidden.
    secrets_forbidden: bool,
    /// True if reading Secrets has failed at least once. The first update then does not wait for Secrets.
    secrets_failed: bool,
}

/// The key in [`GatewayInputs`] of the input that an object contributes.
#[derive(Clone)]
enum InputKey {
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
        let route_id = RouteId { kind, id: id.clone() };
        self.resolved.parent_statuses.get(&route_id)?;
        self.inputs.routes.get(&route_id)?.rejection.clone()
    }

    /// Marks gateways for resolution after a change of an object that is not among their inputs.
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

    /// Returns true if the first update has to wait for Secrets. If Secrets cannot be read, it does not wait, because
    /// the rest of the mesh does not need them.
    pub(super) fn has_pending_secrets(&self) -> bool {
        !self.secrets_forbidden
            && !self.secrets_failed
            && !self.referenced_secrets.is_subset(&self.covered_secrets)
    }

    pub(super) fn mark_secrets_failed(&mut self) {
        self.secrets_failed = true;
    }

    /// Drops Secrets that no gateway refers to any more. They are read again when a gateway refers to them.
    fn drop_unreferenced_secrets(&mut self) {
        let Self { referenced_secrets, covered_secrets, inputs, input_keys, .. } = self;
        inputs.certificates.retain(|id, _| referenced_secrets.contains(id));
        input_keys.retain(
            |_, key| !matches!(key, InputKey::Certificate(id) if !referenced_secrets.contains(id)),
        );
        if !covered_secrets.is_subset(referenced_secrets) {
            *covered_secrets =
                Arc::new(covered_secrets.intersection(referenced_secrets).cloned().collect());
        }
    }

    pub(super) fn set_received_secrets(&mut self, ids: Arc<BTreeSet<ObjectId>>) {
        self.covered_secrets = ids;
        self.secrets_forbidden = false;
        self.is_stale = true;
    }

    /// Marks Secrets as forbidden to read.
    pub(super) fn mark_secrets_forbidden(&mut self) {
        self.secrets_forbidden = true;
        self.is_stale = true;
    }

    /// Returns true if a pod of another namespace has this address.
    pub(super) fn is_in_other_namespace(&self, address: IpAddr, namespace: &Name) -> bool {
        let mut pods = self.inputs.pods.get(&address).into_iter().flatten();
        pods.any(|pod| pod.namespace != namespace.as_str())
    }

    /// Returns the addresses of a pod.
    fn pod_addresses(&self, origin: &ObjectOrigin) -> BTreeSet<IpAddr> {
        match self.input_keys.get(origin) {
            Some(InputKey::Pod(addresses, _)) => addresses.clone(),
            _ => BTreeSet::new(),
        }
    }

    /// Stores the input that an object contributes, and the key by which it is removed later.
    pub(super) fn store_input(&mut self, origin: &ObjectOrigin, input: GatewayInput) {
        // A change of a pod alone does not affect gateways. Pods change too often to resolve gateways each
        // time.
        self.is_stale |= !matches!(input, GatewayInput::Pod(_));
        let (id, inputs) = (origin.id.clone(), &mut self.inputs);
        let key = match input {
            GatewayInput::Class(class) => {
                inputs.classes.insert(id.name.clone(), class);
                InputKey::Class(id.name)
            }
            GatewayInput::Gateway(gateway) => {
                inputs.gateways.insert(id.clone(), *gateway);
                InputKey::Gateway(id)
            }
            GatewayInput::Route(kind, mut route) => {
                let route_id = RouteId { kind, id };
                let previous_version =
                    inputs.routes.get(&route_id).and_then(|previous| previous.last_valid.clone());
                // The last valid version stays in use.
                route.last_valid = route.last_valid.or(previous_version);
                inputs.routes.insert(route_id.clone(), *route);
                InputKey::Route(route_id)
            }
            GatewayInput::Grant(grant) => {
                inputs.grants.insert(id.clone(), grant);
                InputKey::Grant(id)
            }
            GatewayInput::TlsServices(services) => {
                inputs.tls_services.insert(id.clone(), services);
                InputKey::TlsServices(id)
            }
            GatewayInput::Pod(addresses) => {
                for address in &addresses {
                    inputs.pods.entry(*address).or_default().insert(id.clone());
                }
                InputKey::Pod(addresses, id)
            }
            GatewayInput::Certificate(certificate) => {
                inputs.certificates.insert(id.clone(), certificate);
                InputKey::Certificate(id)
            }
            GatewayInput::Namespace(labels) => {
                inputs.namespaces.insert(id.name.clone(), labels);
                InputKey::Namespace(id.name)
            }
            GatewayInput::Deployment(is_available) => {
                inputs.deployments.insert(id.clone(), is_available);
                InputKey::Deployment(id)
            }
            GatewayInput::GatewayService(gateway_service) => {
                inputs.gateway_services.insert(id.clone(), gateway_service);
                InputKey::GatewayService(id)
            }
        };
        self.input_keys.insert(origin.clone(), key);
    }

    pub(super) fn remove_input(&mut self, origin: &ObjectOrigin) {
        let Some(key) = self.input_keys.remove(origin) else { return };
        self.is_stale |= !matches!(key, InputKey::Pod(..));
        let inputs = &mut self.inputs;
        match key {
            InputKey::TlsServices(id) => drop(inputs.tls_services.remove(&id)),
            InputKey::Pod(addresses, id) => {
                for address in addresses {
                    if let Some(pods) = inputs.pods.get_mut(&address) {
                        pods.remove(&id);
                        if pods.is_empty() {
                            inputs.pods.remove(&address);
                        }
                    }
                }
            }
            InputKey::Class(name) => drop(inputs.classes.remove(&name)),
            InputKey::Gateway(id) => drop(inputs.gateways.remove(&id)),
            InputKey::Route(id) => drop(inputs.routes.remove(&id)),
            InputKey::Grant(id) => drop(inputs.grants.remove(&id)),
            InputKey::Certificate(id) => drop(inputs.certificates.remove(&id)),
            InputKey::Namespace(name) => drop(inputs.namespaces.remove(&name)),
            InputKey::Deployment(id) => drop(inputs.deployments.remove(&id)),
            InputKey::GatewayService(id) => drop(inputs.gateway_services.remove(&id)),
        }
    }
}

impl ObjectStore {
    /// Resolves gateways if the result may have changed. Gateways with pending Secrets keep their previous
    /// result.
    pub(crate) fn resolve_gateways(&mut self) {
        let is_synced = self.is_synced();
        let Some(gateways) =
            self.gateways.as_mut().filter(|gateways| gateways.is_stale && is_synced)
        else {
            return;
        };
        gateways.referenced_secrets = Arc::new(collect_secrets(&gateways.inputs));
        gateways.drop_unreferenced_secrets();
        gateways.is_stale = false;
        let pending_secrets = gateways.pending_secrets();
        let (own_services, selectorless) = (&self.services, &self.selectorless);
        let find_service =
            |name: &ServiceName| own_services.get(name).or_else(|| selectorless.service(name));
        let previous =
            PreviousResult { resolved: &gateways.resolved, pending_secrets: &pending_secrets };
        let resolved = resolve_gateways(&gateways.inputs, &find_service, &previous);
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

    /// Updates the input that an object contributes; `None` removes it.
    pub(super) fn apply_gateway_input(
        &mut self,
        origin: &ObjectOrigin,
        list_number: u64,
        input: Option<GatewayInput>,
    ) {
        let Some(gateways) = &mut self.gateways else { return };
        let mut addresses = gateways.pod_addresses(origin);
        // The previous input of a route is not removed, because it contains the last valid version. A pod has no
        // such version, and its previous addresses must be removed.
        if input.is_none() || !addresses.is_empty() {
            gateways.remove_input(origin);
        }
        if let Some(input) = input {
            if let GatewayInput::Pod(new_addresses) = &input {
                addresses.extend(new_addresses);
            }
            gateways.store_input(origin, input);
            self.list_numbers.insert(origin.clone(), list_number);
        }
        addresses.into_iter().for_each(|address| self.mark_address(address));
    }

    pub(super) fn remove_gateway_input(&mut self, origin: &ObjectOrigin) {
        let Some(gateways) = &mut self.gateways else { return };
        let addresses = gateways.pod_addresses(origin);
        gateways.remove_input(origin);
        addresses.into_iter().for_each(|address| self.mark_address(address));
    }
}
