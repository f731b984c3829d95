//! Warns about SMI `TrafficSplit`s: references to missing objects, and objects that take precedence.

use leno_model::{
    RouteGroupName, RouteKind, ServiceName, SplitBackend, TrafficSplit, precedence_reason,
};

use super::suggestion::{existing_objects, suggest_name};
use super::{ObjectIndex, ServiceReference, WarningCollector};
use crate::suggest::join_with_or;

impl ObjectIndex<'_> {
    /// Warns about missing services, ports, grants and route groups, and about objects that take precedence over the
    /// split.
    pub(super) fn lint_split(&self, split: &TrafficSplit, collector: &mut WarningCollector<'_>) {
        let root = &split.root.service;
        self.lint_service_name(root, "spec".to_owned(), collector);
        for (index, backend) in split.backends.iter().enumerate() {
            self.lint_service_name(&backend.service, format!("spec.backends[{index}]"), collector);
            self.lint_split_ports(root, index, backend, collector);
            self.lint_split_grant(split, index, backend, collector);
        }
        for (index, group) in split.groups.iter().flatten().enumerate() {
            self.lint_split_group(group, index, collector);
        }
        self.lint_split_conflicts(split, collector);
    }

    /// Warns about a missing service in the field `service` below `field`.
    fn lint_service_name(
        &self,
        name: &ServiceName,
        field: String,
        collector: &mut WarningCollector<'_>,
    ) {
        let reference =
            ServiceReference { service: name, port: None, field, name_field: "service" };
        self.lint_reference(&reference, collector);
    }

    /// Warns about a backend that lacks a port of the root: requests are forwarded to the port number on which they
    /// arrived.
    fn lint_split_ports(
        &self,
        root: &ServiceName,
        index: usize,
        backend: &SplitBackend,
        collector: &mut WarningCollector<'_>,
    ) {
        let port_numbers = |name| {
            let service = self.services.get(name)?;
            Some(service.ports.iter().map(|port| port.port).collect::<Vec<u16>>())
        };
        let (Some(root_ports), Some(backend_ports)) =
            (port_numbers(root), port_numbers(&backend.service))
        else {
            return;
        };
        for port in root_ports.iter().filter(|port| !backend_ports.contains(port)) {
            let root_port_numbers: Vec<String> =
                root_ports.iter().map(ToString::to_string).collect();
            let root_port_texts: Vec<&str> = root_port_numbers.iter().map(String::as_str).collect();
            collector.add_warning(
                format!("spec.backends[{index}].service"),
                format!(
                    "the Service {} has no port {port}, so its share of requests gets the status \
                     500",
                    backend.service
                ),
                format!("give it the ports of the root: {}", join_with_or(&root_port_texts)),
            );
        }
    }

    /// Warns about a backend in another namespace without a grant.
    fn lint_split_grant(
        &self,
        split: &TrafficSplit,
        index: usize,
        backend: &SplitBackend,
        collector: &mut WarningCollector<'_>,
    ) {
        let (own_namespace, service_namespace) =
            (&split.name.namespace, &backend.service.namespace);
        let mut grants = self.reference_grants.iter();
        if own_namespace != service_namespace
            && !grants
                .any(|grant| grant.permits_route(RouteKind::Split, own_namespace, &backend.service))
        {
            collector.add_warning(
                format!("spec.backends[{index}].service"),
                format!(
                    "no ReferenceGrant in {service_namespace} permits it, so its share of requests gets the \
                     status 500"
                ),
                format!("add one there, from TrafficSplits in {own_namespace} to the Service"),
            );
        }
    }

    /// Warns about a missing `HTTPRouteGroup`.
    fn lint_split_group(
        &self,
        group: &RouteGroupName,
        index: usize,
        collector: &mut WarningCollector<'_>,
    ) {
        if !self.route_groups.contains_key(group) {
            collector.add_warning(
                format!("spec.matches[{index}].name"),
                format!("there is no HTTPRouteGroup {group}, so it splits no request"),
                suggest_name(
                    &group.namespace,
                    &group.name,
                    existing_objects!(self.route_groups.keys()),
                    "add the HTTPRouteGroup",
                ),
            );
        }
    }

    /// Warns about objects that take precedence over this split on ports of its root.
    fn lint_split_conflicts(&self, split: &TrafficSplit, collector: &mut WarningCollector<'_>) {
        let root = &split.root.service;
        for (key, namespace, parents) in &self.attached_routes {
            // Routes in other namespaces apply only to clients in those namespaces.
            let mut own_parents = parents.iter().filter(|_| **namespace == root.namespace);
            if let Some(parent) = own_parents.find(|parent| parent.service == *root) {
                let location = match parent.port {
                    Some(port) => format!("port {port} of it"),
                    None => "it".to_owned(),
                };
                collector.add_warning(
                    "spec.service".to_owned(),
                    format!("the {key} is attached to {location} and takes precedence there"),
                    "use only one of the two per port",
                );
            }
        }
        let unrestricted_splits = self.traffic_splits.iter().filter(|other| {
            other.groups.is_none()
                && other.root.service == *root
                && other.precedence() < split.precedence()
        });
        if let Some(preceding_split) = unrestricted_splits.min_by_key(|other| other.precedence())
            && split.groups.is_none()
        {
            collector.add_warning(
                "spec.service".to_owned(),
                format!(
                    "the TrafficSplit {} is for the same service and {}, so this one has no effect",
                    preceding_split.name,
                    precedence_reason(preceding_split.created, split.created)
                ),
                "remove one of the two, or restrict this one with `matches`",
            );
        }
    }
}
