//! Holds the mesh: all objects, with indexes that join them, such as the workloads of a service.

mod access;
mod addresses;
mod affected_set;
mod attached;
mod boundary;
mod enforcement;
mod gateways;
mod index;
mod objects;
mod policies;
mod retries;
mod revocations;
mod sidecars;
mod tags;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use leno_model::{
    Change, DefaultPolicy, Gateway, GatewayName, GatewayTcpRoute, GrantName, HttpRoute,
    HttpRouteGroup, MeshConfig, Name, Object, ObjectKey, PolicyName, ReferenceGrant, Revocations,
    RevokedWorkload, RouteGroupName, RouteKind, RouteName, Service, ServiceAccount, ServiceName,
    TcpRoute, TcpRouteName, TlsRoute, TrafficSplit, TrafficTarget, Workload, WorkloadName,
};

pub(crate) use addresses::is_own_address;
pub(crate) use affected_set::AffectedSet;
pub(crate) use attached::{AttachedRoute, RouteAttachments};
pub(crate) use index::Index;
pub(crate) use tags::{AffectedByTags, RuleScope, TagObjects};

/// The mTLS listen addresses of a workload's sidecar, by application port.
pub(crate) type Listeners = BTreeMap<u16, SocketAddr>;

/// All objects and their relations; only the state task changes them. The indexes are derived from the objects: a
/// mesh that was changed step by step equals one built at once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Mesh {
    config: MeshConfig,
    /// All revocations: those of the `MeshConfig` and those of `leno revoke`.
    revocations: Revocations,
    /// The revocations of `leno revoke`.
    operator_revocations: BTreeSet<RevokedWorkload>,
    /// The generation of the certificate authority (CA).
    ca_generation: u64,
    /// The workloads with a sidecar, and the gateway proxies.
    workloads: BTreeMap<WorkloadName, Workload>,
    services: BTreeMap<ServiceName, Service>,
    http_routes: RouteAttachments<(RouteKind, RouteName), HttpRoute>,
    tls_routes: RouteAttachments<RouteName, TlsRoute>,
    traffic_splits: RouteAttachments<RouteName, TrafficSplit>,
    gateway_tcp_routes: RouteAttachments<RouteName, GatewayTcpRoute>,
    traffic_targets: BTreeMap<PolicyName, TrafficTarget>,
    route_groups: BTreeMap<RouteGroupName, HttpRouteGroup>,
    tcp_routes: BTreeMap<TcpRouteName, TcpRoute>,
    policies: policies::Policies,
    reference_grants: BTreeMap<GrantName, ReferenceGrant>,
    gateways: BTreeMap<GatewayName, Arc<Gateway>>,
    unmeshed_workloads: gateways::UnmeshedWorkloads,
    /// The listen addresses of connected sidecars; only of existing workloads.
    sidecar_listeners: BTreeMap<WorkloadName, Listeners>,
    /// Workloads with a sidecar, and a port or account that changed recently.
    changed_workloads: sidecars::ChangedWorkloads,
    /// The workloads that each service selects, and the reverse.
    workloads_by_service: Index<ServiceName, WorkloadName>,
    services_by_workload: Index<WorkloadName, ServiceName>,
    workloads_by_account: Index<ServiceAccount, WorkloadName>,
    /// The default policies set on individual workloads, with the number of workloads.
    workload_default_policies: BTreeMap<DefaultPolicy, usize>,
    targets_by_destination: Index<ServiceAccount, PolicyName>,
    targets_by_source: Index<ServiceAccount, PolicyName>,
    tags: TagObjects,
    access_policies: access::AccessPolicies,
    addresses: addresses::Addresses,
    boundary: boundary::IngressAndEgress,
    retries: retries::Retries,
}

/// Queries.
impl Mesh {
    pub(crate) fn config(&self) -> &MeshConfig {
        &self.config
    }

    pub(crate) fn ca_generation(&self) -> u64 {
        self.ca_generation
    }

    /// True if some workload or namespace denies clients by default.
    pub(crate) fn has_default_deny(&self) -> bool {
        self.any_default_policy(|default_policy| default_policy == DefaultPolicy::Deny)
    }

    /// True if the default policy of some workload or namespace is not `allow`: allow policies apply there.
    pub(crate) fn has_evaluated_policies(&self) -> bool {
        self.any_default_policy(|default_policy| default_policy != DefaultPolicy::Allow)
    }

    /// Returns the default policy of a workload. With `allow`, allow policies do not apply to it.
    pub(crate) fn default_policy_of(&self, workload: &Workload) -> DefaultPolicy {
        self.config.default_policy_of(workload)
    }

    /// True if some workload of a policy's destination has a default policy other than `allow`. Without
    /// workloads, the default policy of the destination's namespace decides.
    pub(crate) fn is_target_enforced(&self, target: &TrafficTarget) -> bool {
        let workloads =
            self.account_workloads(&target.destination).filter_map(|name| self.workload(name));
        let mut default_policies =
            workloads.map(|workload| self.default_policy_of(workload)).peekable();
        match default_policies.peek() {
            Some(_) => {
                default_policies.any(|default_policy| default_policy != DefaultPolicy::Allow)
            }
            None => {
                self.config.default_policy_in(&target.destination.namespace) != DefaultPolicy::Allow
            }
        }
    }

    fn any_default_policy(&self, predicate: impl Fn(DefaultPolicy) -> bool) -> bool {
        self.config
            .default_policies()
            .chain(self.workload_default_policies.keys().copied())
            .any(predicate)
    }

    pub(crate) fn workload(&self, name: &WorkloadName) -> Option<&Workload> {
        self.workloads.get(name)
    }

    pub(crate) fn workloads(&self) -> impl ExactSizeIterator<Item = &Workload> {
        self.workloads.values()
    }

    pub(crate) fn service(&self, name: &ServiceName) -> Option<&Service> {
        self.services.get(name)
    }

    pub(crate) fn services(&self) -> impl ExactSizeIterator<Item = &Service> {
        self.services.values()
    }

    pub(crate) fn http_routes(&self) -> &RouteAttachments<(RouteKind, RouteName), HttpRoute> {
        &self.http_routes
    }

    pub(crate) fn tls_routes(&self) -> &RouteAttachments<RouteName, TlsRoute> {
        &self.tls_routes
    }

    pub(crate) fn traffic_splits(&self) -> &RouteAttachments<RouteName, TrafficSplit> {
        &self.traffic_splits
    }

    pub(crate) fn gateway_tcp_routes(&self) -> &RouteAttachments<RouteName, GatewayTcpRoute> {
        &self.gateway_tcp_routes
    }

    pub(crate) fn traffic_targets(&self) -> impl ExactSizeIterator<Item = &TrafficTarget> {
        self.traffic_targets.values()
    }

    pub(crate) fn route_group(&self, name: &RouteGroupName) -> Option<&HttpRouteGroup> {
        self.route_groups.get(name)
    }

    pub(crate) fn tcp_route(&self, name: &TcpRouteName) -> Option<&TcpRoute> {
        self.tcp_routes.get(name)
    }

    /// Returns the workloads of a service, by name.
    pub(crate) fn service_workloads(
        &self,
        service: &ServiceName,
    ) -> impl Iterator<Item = &Workload> {
        let names = self.workloads_by_service.values_for(service);
        names.filter_map(|name| self.workloads.get(name))
    }

    /// Returns the services that select a workload, by name.
    pub(crate) fn services_of(&self, workload: &WorkloadName) -> impl Iterator<Item = &Service> {
        let names = self.services_by_workload.values_for(workload);
        names.filter_map(|name| self.services.get(name))
    }

    /// Returns the workloads that run under an account, by name.
    pub(crate) fn account_workloads(
        &self,
        account: &ServiceAccount,
    ) -> impl Iterator<Item = &WorkloadName> {
        self.workloads_by_account.values_for(account)
    }

    /// True if a namespace has consumer routes for a service of another namespace.
    pub(crate) fn has_consumers(&self, service: &ServiceName, namespace: &Name) -> bool {
        self.http_routes.has_consumers(service, namespace)
            || self.tls_routes.has_consumers(service, namespace)
            || self.gateway_tcp_routes.has_consumers(service, namespace)
    }

    /// True if a route may refer to a service: one of the route's own namespace, or one that a `ReferenceGrant`
    /// permits. A parent service needs no permission, so parents are not checked here.
    pub(crate) fn may_refer_to(
        &self,
        route: (RouteKind, &RouteName),
        service: &ServiceName,
    ) -> bool {
        let (kind, RouteName { namespace, .. }) = route;
        let permits = |grant: &ReferenceGrant| grant.permits_route(kind, namespace, service);
        *namespace == service.namespace || self.reference_grants.values().any(permits)
    }

    /// Returns the `TrafficTarget`s with this account as destination, by name.
    pub(crate) fn targets_of(
        &self,
        destination: &ServiceAccount,
    ) -> impl Iterator<Item = &TrafficTarget> {
        let names = self.targets_by_destination.values_for(destination);
        names.filter_map(|name| self.traffic_targets.get(name))
    }

    /// Returns the accounts that some `TrafficTarget` lets `source` call.
    pub(crate) fn permitted_accounts(&self, source: &ServiceAccount) -> BTreeSet<&ServiceAccount> {
        let names = self.targets_by_source.values_for(source);
        let targets = names.filter_map(|name| self.traffic_targets.get(name));
        targets.map(|target| &target.destination).collect()
    }

    /// Returns the objects with tag rules and lanes.
    pub(crate) fn tags(&self) -> &TagObjects {
        &self.tags
    }
}

/// Changes. The methods `set_` with a name and an optional object add, replace or remove (`None`) the object, and extend
/// the affected set.
impl Mesh {
    /// Applies a change from a registry, and returns its affected set.
    pub(crate) fn apply(&mut self, change: Change) -> AffectedSet {
        let mut affected_set = AffectedSet::default();
        match change {
            Change::Upsert(object) => self.upsert(object, &mut affected_set),
            Change::Remove(key) => self.remove(&key, &mut affected_set),
        }
        self.mark_ingress_affected(&mut affected_set);
        self.mark_shared_services_affected(&mut affected_set);
        affected_set
    }

    /// Sets the CA generation of new certificates. Affects all proxies if it differs from the previous one.
    pub(crate) fn set_ca_generation(&mut self, ca_generation: u64) -> AffectedSet {
        let all_proxies = self.ca_generation != ca_generation;
        self.ca_generation = ca_generation;
        AffectedSet { all_proxies, ..AffectedSet::default() }
    }

    fn upsert(&mut self, object: Object, affected_set: &mut AffectedSet) {
        match object {
            Object::Workload(workload) => self.upsert_workload(workload, affected_set),
            Object::Service(service) => {
                self.set_service(&service.name.clone(), Some(service), affected_set);
            }
            Object::MeshConfig(config) => self.set_config(config, affected_set),
            Object::HttpRoute(route) | Object::GrpcRoute(route) => {
                let name = (route.kind, route.name.clone());
                affected_set.services.extend(self.http_routes.set_route(&name, Some(route)));
            }
            Object::TlsRoute(route) => {
                let name = route.rule.route.clone();
                affected_set.services.extend(self.tls_routes.set_route(&name, Some(route)));
            }
            Object::TrafficTarget(target) => {
                self.set_target(&target.name.clone(), Some(target), affected_set);
            }
            Object::HttpRouteGroup(group) => {
                self.mark_group_users_affected(&group.name, affected_set);
                self.route_groups.insert(group.name.clone(), group);
            }
            Object::TcpRoute(route) => {
                self.mark_tcp_route_users_affected(&route.name, affected_set);
                self.tcp_routes.insert(route.name.clone(), route);
            }
            Object::ServicePolicy(policy) => {
                self.set_policy(&policy.name.clone(), Some(policy), affected_set);
            }
            Object::TagRoute(route) => {
                let affected = self.tags.set_route(&route.name.clone(), Some(route));
                self.mark_tags_affected(affected, affected_set);
            }
            Object::SermantRouteRule(rule) => {
                let affected = self.tags.set_sermant_rule(&rule.name.clone(), Some(rule));
                self.mark_tags_affected(affected, affected_set);
            }
            Object::Lane(lane) => {
                let affected = self.tags.set_lane(&lane.name.clone(), Some(lane));
                self.mark_tags_affected(affected, affected_set);
            }
            Object::ReferenceGrant(grant) => {
                self.set_grant(&grant.name.clone(), Some(grant), affected_set);
            }
            Object::AccessPolicy(policy) => {
                self.set_access_policy(&policy.name.clone(), Some(policy), affected_set);
            }
            Object::GatewayTcpRoute(route) => {
                let name = route.rule.route.clone();
                affected_set.services.extend(self.gateway_tcp_routes.set_route(&name, Some(route)));
            }
            Object::Gateway(gateway) => {
                self.set_gateway(&gateway.name.clone(), Some(gateway), affected_set);
            }
            Object::Ingress(policy) => {
                self.set_ingress(&policy.name.clone(), Some(policy), affected_set);
            }
            Object::Egress(policy) => {
                self.set_egress(&policy.name.clone(), Some(policy), affected_set)
            }
            Object::Retry(policy) => {
                self.set_retry(&policy.name.clone(), Some(policy), affected_set)
            }
            Object::AccessCert(cert) => self.set_access_cert(&cert.name.clone(), Some(cert)),
            Object::TrafficSplit(split) => {
                let name = split.name.clone();
                affected_set.services.extend(self.traffic_splits.set_route(&name, Some(split)));
            }
        }
    }

    /// Adds or replaces a workload. A workload without a sidecar is stored as an unmeshed one.
    fn upsert_workload(&mut self, workload: Workload, affected_set: &mut AffectedSet) {
        let name = workload.name.clone();
        let (meshed_workload, unmeshed_workload) = match workload.sidecar {
            true => (Some(workload), None),
            false => (None, Some(workload)),
        };
        self.set_workload(&name, meshed_workload, affected_set);
        self.set_unmeshed_workload(&name, unmeshed_workload, affected_set);
    }

    fn remove(&mut self, key: &ObjectKey, affected_set: &mut AffectedSet) {
        match key {
            ObjectKey::Workload(name) => {
                self.set_workload(name, None, affected_set);
                self.set_unmeshed_workload(name, None, affected_set);
            }
            ObjectKey::Service(name) => self.set_service(name, None, affected_set),
            ObjectKey::MeshConfig => self.set_config(MeshConfig::default(), affected_set),
            ObjectKey::HttpRoute(name) => {
                let name = (RouteKind::Http, name.clone());
                affected_set.services.extend(self.http_routes.set_route(&name, None));
            }
            ObjectKey::GrpcRoute(name) => {
                let name = (RouteKind::Grpc, name.clone());
                affected_set.services.extend(self.http_routes.set_route(&name, None));
            }
            ObjectKey::TlsRoute(name) => {
                affected_set.services.extend(self.tls_routes.set_route(name, None))
            }
            ObjectKey::TrafficTarget(name) => self.set_target(name, None, affected_set),
            ObjectKey::HttpRouteGroup(name) => {
                self.mark_group_users_affected(name, affected_set);
                self.route_groups.remove(name);
            }
            ObjectKey::TcpRoute(name) => {
                self.mark_tcp_route_users_affected(name, affected_set);
                self.tcp_routes.remove(name);
            }
            ObjectKey::ServicePolicy(name) => self.set_policy(name, None, affected_set),
            ObjectKey::TagRoute(name) => {
                let affected = self.tags.set_route(name, None);
                self.mark_tags_affected(affected, affected_set);
            }
            ObjectKey::SermantRouteRule(name) => {
                let affected = self.tags.set_sermant_rule(name, None);
                self.mark_tags_affected(affected, affected_set);
            }
            ObjectKey::Lane(name) => {
                let affected = self.tags.set_lane(name, None);
                self.mark_tags_affected(affected, affected_set);
            }
            ObjectKey::ReferenceGrant(name) => self.set_grant(name, None, affected_set),
            ObjectKey::AccessPolicy(name) => self.set_access_policy(name, None, affected_set),
            ObjectKey::GatewayTcpRoute(name) => {
                affected_set.services.extend(self.gateway_tcp_routes.set_route(name, None));
            }
            ObjectKey::Gateway(name) => self.set_gateway(name, None, affected_set),
            ObjectKey::Ingress(name) => self.set_ingress(name, None, affected_set),
            ObjectKey::Egress(name) => self.set_egress(name, None, affected_set),
            ObjectKey::Retry(name) => self.set_retry(name, None, affected_set),
            ObjectKey::AccessCert(name) => self.set_access_cert(name, None),
            ObjectKey::TrafficSplit(name) => {
                affected_set.services.extend(self.traffic_splits.set_route(name, None))
            }
        }
    }

    fn set_workload(
        &mut self,
        name: &WorkloadName,
        new: Option<Workload>,
        affected_set: &mut AffectedSet,
    ) {
        let old = self.workloads.remove(name);
        let had_default_deny = self.has_default_deny();
        self.count_default_policy(old.as_ref(), new.as_ref());
        let old_services = self.services_by_workload.remove_key(name);
        for service in &old_services {
            self.workloads_by_service.remove(service, name);
        }
        if let Some(old) = &old {
            self.workloads_by_account.remove(&old.account, name);
        }
        let mut services = old_services;
        let is_same_for_all_clients = affected_set::is_same_for_clients(old.as_ref(), new.as_ref());
        if old != new {
            affected_set.workloads.insert(name.clone());
            self.addresses.update_workload(old.as_ref(), new.as_ref(), affected_set);
        }
        self.update_sidecar(name, old.as_ref(), new.as_ref());
        if let Some(new) = new {
            let selecting_services =
                self.services.values().filter(|service| service_selects(service, &new));
            for service in selecting_services {
                self.workloads_by_service.insert(&service.name, name);
                self.services_by_workload.insert(name, &service.name);
                services.insert(service.name.clone());
            }
            self.workloads_by_account.insert(&new.account, name);
            self.workloads.insert(name.clone(), new);
        }
        // `defaultPolicy: deny` switches between shared service configurations and one per account.
        affected_set.all_proxies |= had_default_deny != self.has_default_deny();
        if !is_same_for_all_clients {
            for service in services {
                self.mark_service_affected(&service, affected_set);
            }
        }
    }

    fn count_default_policy(&mut self, old: Option<&Workload>, new: Option<&Workload>) {
        let default_policy = |workload: Option<&Workload>| {
            workload.and_then(|workload| workload.admission.default_policy)
        };
        if let Some(count) = default_policy(old)
            .and_then(|default_policy| self.workload_default_policies.get_mut(&default_policy))
        {
            *count -= 1;
        }
        if let Some(default_policy) = default_policy(new) {
            *self.workload_default_policies.entry(default_policy).or_default() += 1;
        }
        self.workload_default_policies.retain(|_, count| *count > 0);
    }

    fn set_service(
        &mut self,
        name: &ServiceName,
        new: Option<Service>,
        affected_set: &mut AffectedSet,
    ) {
        let old = self.services.remove(name);
        let differs = old != new;
        self.select_unmeshed_workloads(name, new.as_ref());
        let mut workloads = self.workloads_by_service.remove_key(name);
        for workload in &workloads {
            self.services_by_workload.remove(workload, name);
        }
        if let Some(new) = new {
            for workload in
                self.workloads.values().filter(|workload| service_selects(&new, workload))
            {
                self.workloads_by_service.insert(name, &workload.name);
                self.services_by_workload.insert(&workload.name, name);
                workloads.insert(workload.name.clone());
            }
            self.services.insert(name.clone(), new);
        }
        if differs {
            self.addresses.update_service(old.as_ref(), self.services.get(name), affected_set);
            workloads
                .iter()
                .for_each(|workload| self.mark_addresses_affected(workload, affected_set));
            // A workload's configuration contains the service under which each of its ports is counted.
            affected_set.workloads.extend(workloads);
            self.mark_service_affected(name, affected_set);
        }
    }

    fn set_grant(
        &mut self,
        name: &GrantName,
        new: Option<ReferenceGrant>,
        affected_set: &mut AffectedSet,
    ) {
        let old = self.reference_grants.remove(name);
        if old != new {
            affected_set.services.extend(self.http_routes.parents_with_backend_in(&name.namespace));
            affected_set
                .services
                .extend(self.traffic_splits.parents_with_backend_in(&name.namespace));
            affected_set
                .services
                .extend(self.gateway_tcp_routes.parents_with_backend_in(&name.namespace));
            affected_set.services.extend(self.tls_routes.parents_with_backend_in(&name.namespace));
        }
        if let Some(new) = new {
            self.reference_grants.insert(name.clone(), new);
        }
    }

    fn set_target(
        &mut self,
        name: &PolicyName,
        new: Option<TrafficTarget>,
        affected_set: &mut AffectedSet,
    ) {
        let old = self.traffic_targets.remove(name);
        let differs = old != new;
        if let Some(old) = &old {
            self.targets_by_destination.remove(&old.destination, name);
            for source in &old.sources {
                self.targets_by_source.remove(source, name);
            }
        }
        if let Some(new) = &new {
            self.targets_by_destination.insert(&new.destination, name);
            for source in &new.sources {
                self.targets_by_source.insert(source, name);
            }
        }
        if differs && self.has_evaluated_policies() {
            let accounts_of =
                |target: &TrafficTarget| (target.destination.clone(), target.sources.clone());
            let same_accounts = old.as_ref().map(accounts_of) == new.as_ref().map(accounts_of);
            for target in old.iter().chain(&new) {
                self.mark_account_affected(&target.destination, affected_set);
                self.mark_unmeshed_services_affected(
                    |workload| workload.account == target.destination,
                    affected_set,
                );
                if !same_accounts {
                    affected_set.accounts.extend(target.sources.iter().cloned());
                }
            }
        }
        if let Some(new) = new {
            self.traffic_targets.insert(name.clone(), new);
        }
    }

    /// Marks a service as affected. With `defaultPolicy: deny`, the permission to call a backend of a service's routes
    /// permits calls of the service, so the services that route to this one are marked too.
    fn mark_service_affected(&self, name: &ServiceName, affected_set: &mut AffectedSet) {
        affected_set.services.insert(name.clone());
        if self.has_default_deny() {
            let parents = self
                .http_routes
                .parents_of_backend(name)
                .chain(self.tls_routes.parents_of_backend(name));
            affected_set
                .services
                .extend(parents.chain(self.traffic_splits.parents_of_backend(name)).cloned());
            affected_set.services.extend(self.gateway_tcp_routes.parents_of_backend(name).cloned());
        }
    }

    /// Marks the services and workloads affected by changed tag rules or lanes.
    fn mark_tags_affected(&self, affected: AffectedByTags, affected_set: &mut AffectedSet) {
        affected_set.all_proxies |= affected.caller_attributes;
        for scope in affected.scopes {
            match scope {
                RuleScope::Service(service) => {
                    affected_set.services.insert(service);
                }
                RuleScope::Namespace(namespace) => {
                    let namespace_services =
                        self.services.keys().filter(|name| name.namespace == namespace);
                    affected_set.services.extend(namespace_services.cloned());
                }
                RuleScope::Mesh => affected_set.services.extend(self.services.keys().cloned()),
            }
        }
        for service in &affected.entry_services {
            affected_set.workloads.extend(self.workloads_by_service.values_for(service).cloned());
        }
    }
}

/// True if a service selects a workload: same namespace, and all labels of a non-empty selector.
fn service_selects(service: &Service, workload: &Workload) -> bool {
    let has_label = |(key, value): (&String, &String)| workload.labels.get(key) == Some(value);
    service.name.namespace == workload.name.namespace
        && !service.selector.is_empty()
        && service.selector.iter().all(has_label)
}

#[cfg(test)]
mod tests;
