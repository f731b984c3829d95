//! Ingress policies: unmeshed pods that are their sources, and policies without effect.

use std::collections::BTreeSet;

use leno_model::{
    IngressBackend, IngressName, IngressPolicy, IngressSource, Object, ObjectKey, RouteGroupName,
    Service, ServiceName, Workload, WorkloadName,
};
use leno_registry::NODE_NETWORK_LABEL;

use super::{ObjectOrigin, ObjectStore, smallest_name};
use crate::read::{matches_selector, with_target_ports};

impl ObjectStore {
    /// Marks custom resources that may have changed.
    pub(super) fn touch_customs(&mut self, keys: impl IntoIterator<Item = ObjectKey>) {
        let mut boundary = false;
        for key in keys {
            boundary |= matches!(key, ObjectKey::Ingress(_));
            self.statuses_stale |= matches!(key, ObjectKey::HttpRouteGroup(_));
            if matches!(key, ObjectKey::AccessCert(_) | ObjectKey::MeshConfig) {
                self.external_principals.mark_changed();
            }
            if key == ObjectKey::MeshConfig {
                self.touch_floor();
            }
            self.dirty.insert(key);
        }
        if boundary {
            self.touch_let_in();
        }
    }

    /// Returns true if a workload is behind a service that is the source of an ingress policy.
    pub(super) fn is_let_in(&self, workload: &Workload) -> bool {
        let near = self.services.may_select(workload).chain(self.listed.may_select(workload));
        let mut near = near.filter(|it| self.ingress_sources.contains(&it.name));
        near.any(|service| matches_selector(&service.selector, &workload.labels))
    }

    /// Marks statuses as changed if the pods behind the services of an ingress policy change.
    pub(super) fn touch_openings(&mut self, before: Option<&Workload>, now: Option<&Workload>) {
        let shape = |it: &Workload| (it.labels.clone(), it.ports.clone(), it.sidecar);
        if self.statuses_stale || before.map(shape) == now.map(shape) {
            return;
        }
        let near = |it: &Workload| -> BTreeSet<ServiceName> {
            self.services.may_select(it).map(|service| service.name.clone()).collect()
        };
        let near: BTreeSet<ServiceName> = before.into_iter().chain(now).flat_map(near).collect();
        let is_named = |policy: &IngressPolicy| {
            let backends = &policy.backends;
            let names = backends.iter().map(|it| service_of(policy, it));
            names.into_iter().any(|name| near.contains(&name))
        };
        let is_source = near.iter().any(|name| self.ingress_sources.contains(name));
        self.statuses_stale |= is_source
            || (!near.is_empty()
                && self.custom_resources.all().filter_map(as_ingress).any(is_named));
    }

    /// Returns the pods that a service selects.
    pub(super) fn pods_behind<'a>(
        &'a self,
        service: &'a Service,
    ) -> impl Iterator<Item = &'a Workload> {
        let namespace = service.name.namespace.clone();
        let first = WorkloadName { namespace: namespace.clone(), name: smallest_name() };
        let own = self.workloads.range(first..);
        let own = own.take_while(move |(name, _)| name.namespace == namespace);
        own.map(|(_, it)| it).filter(|it| matches_selector(&service.selector, &it.labels))
    }

    /// Returns the reason that a port of an ingress policy is not open: another policy takes precedence, or an
    /// object is missing.
    pub(super) fn closed_reason(&self, origin: &ObjectOrigin) -> Option<String> {
        let Some(Object::Ingress(policy)) = self.custom_resources.get_by_origin(origin) else {
            return None;
        };
        for backend in &policy.backends {
            let same = |other: &IngressPolicy| {
                let mut theirs = other.backends.iter();
                other.name.namespace == policy.name.namespace
                    && other.precedence() < policy.precedence()
                    && theirs.any(|it| (&it.service, it.port) == (&backend.service, backend.port))
            };
            let others = self.custom_resources.all().filter_map(as_ingress);
            if let Some(first) = others.filter(|it| same(it)).min_by_key(|it| it.precedence()) {
                return Some(format!(
                    "spec.backends: the {} opens port {} of {}; merge the sources of both",
                    first.name, backend.port, backend.service
                ));
            }
            if let Some(problem) = self.shut_backend(policy, backend) {
                return Some(format!("spec.backends: {problem}"));
            }
        }
        let is_there = |group: &RouteGroupName| {
            self.custom_resources.get(&ObjectKey::HttpRouteGroup(group.clone()))
        };
        if let Some(group) = policy.groups.iter().find(|group| is_there(group).is_none()) {
            return Some(format!("spec.matches: there is no HTTPRouteGroup {group}"));
        }
        policy.sources.iter().find_map(|source| match source {
            IngressSource::Service(service) => self.absent_source(service),
            IngressSource::Range(_) | IngressSource::Principal(_) | IngressSource::Named(_) => None,
        })
    }

    /// Returns the reason that a service that is a source lets no client in.
    fn absent_source(&self, name: &ServiceName) -> Option<String> {
        let service = self.services.get(name).cloned().or_else(|| self.configured_service(name));
        let sources = service.iter().flat_map(|it| self.endpoints_of(it));
        let mut sources = sources.filter(|it| !self.is_borrowed(it)).peekable();
        let is_on_node = sources.peek().is_some();
        if sources.any(|it| !it.labels.contains_key(NODE_NETWORK_LABEL)) {
            return None;
        }
        let hint = match is_on_node {
            true => {
                ": its pods have the addresses of their nodes (hostNetwork); write an IPRange with those addresses"
            }
            false => "",
        };
        Some(format!("endpoints not found for service {name}{hint}"))
    }

    /// Returns the reason that a port of a service is not open, or not as this policy specifies.
    fn shut_backend(&self, policy: &IngressPolicy, backend: &IngressBackend) -> Option<String> {
        let (name, port) = (service_of(policy, backend), backend.port);
        let own = || self.services.get(&name);
        let joined = || self.listed.service(&name).filter(|it| self.joined.contains(&it.name));
        let Some(service) = own().or_else(joined) else {
            return Some(format!("there is no Service {name} that selects pods"));
        };
        let members = || self.pods_behind(service).filter(|it| it.sidecar);
        let has_port = |it: &Workload| {
            let listed = self.offered_near(it);
            let reported = with_target_ports(it, self.services.may_select(it).chain(&listed));
            reported.ports.iter().any(|known| known.port == port)
        };
        if members().next().is_some() && !members().any(has_port) {
            return Some(format!("no pod of the Service {name} has the port {port}"));
        }
        let contradicted = |it: &Workload| self.contradicting_policy(it, policy, backend);
        let first = members().find_map(contradicted)?;
        Some(format!("the {first} opens port {port} of pods of {name} with other settings"))
    }

    /// Returns the policy that already opens a port of a pod differently, through another service.
    fn contradicting_policy<'a>(
        &'a self,
        pod: &Workload,
        policy: &IngressPolicy,
        backend: &IngressBackend,
    ) -> Option<IngressName> {
        let near =
            self.services.may_select(pod).filter(|it| matches_selector(&it.selector, &pod.labels));
        let near: BTreeSet<&ServiceName> = near.map(|it| &it.name).collect();
        let all = self.custom_resources.all().filter_map(as_ingress);
        let all = all.filter(|it| it.name.namespace == policy.name.namespace);
        let how = |it: &'a IngressPolicy| {
            let mut those = it.backends.iter();
            let found = those
                .find(|one| one.port == backend.port && near.contains(&service_of(it, one)))?;
            Some((it, found.protocol.clone()))
        };
        let (first, entry) = all.filter_map(how).min_by_key(|(it, _)| it.precedence())?;
        (entry != backend.protocol).then(|| first.name.clone())
    }

    fn touch_let_in(&mut self) {
        // Another policy may be in force or in conflict now.
        self.statuses_stale = true;
        let sources =
            self.custom_resources.all().filter_map(as_ingress).flat_map(|policy| &policy.sources);
        let services = sources.filter_map(|source| match source {
            IngressSource::Service(service) => Some(service.clone()),
            IngressSource::Range(_) | IngressSource::Principal(_) | IngressSource::Named(_) => None,
        });
        let now: BTreeSet<ServiceName> = services.collect();
        let before = std::mem::replace(&mut self.ingress_sources, now);
        let changed: Vec<ServiceName> =
            before.symmetric_difference(&self.ingress_sources).cloned().collect();
        for name in changed {
            let service = self.known_service(&name).cloned();
            self.touch_selected(&name, &[service.as_ref()]);
            // A service without a selector becomes known to sidecars.
            self.dirty.insert(ObjectKey::Service(name));
        }
    }
}

fn service_of(policy: &IngressPolicy, backend: &IngressBackend) -> ServiceName {
    ServiceName { namespace: policy.name.namespace.clone(), name: backend.service.clone() }
}

fn as_ingress(object: &Object) -> Option<&IngressPolicy> {
    match object {
        Object::Ingress(policy) => Some(policy),
        _ => None,
    }
}
