//! Warnings about traffic splits: references, and objects that take precedence.

use leno_model::{
    RouteGroupName, RouteKind, ServiceName, SplitBackend, TrafficSplit, first_because,
};

use super::suggestion::{known, suggest_name};
use super::{ObjectIndex, ServiceReference, WarningCollector};
use crate::suggest::one_of;

impl ObjectIndex<'_> {
    pub(super) fn lint_split(&self, split: &TrafficSplit, lint: &mut WarningCollector<'_>) {
        let root = &split.root.service;
        self.lint_service_name(root, "spec".to_owned(), lint);
        for (index, backend) in split.backends.iter().enumerate() {
            self.lint_service_name(&backend.service, format!("spec.backends[{index}]"), lint);
            self.lint_split_ports(root, index, backend, lint);
            self.lint_split_grant(split, index, backend, lint);
        }
        for (index, group) in split.groups.iter().flatten().enumerate() {
            self.lint_split_group(group, index, lint);
        }
        self.lint_split_conflicts(split, lint);
    }

    fn lint_service_name(
        &self,
        name: &ServiceName,
        field: String,
        lint: &mut WarningCollector<'_>,
    ) {
        let reference =
            ServiceReference { service: name, port: None, field, name_field: "service" };
        self.lint_reference(&reference, lint);
    }

    /// A share is forwarded to the port on which it arrived.
    fn lint_split_ports(
        &self,
        root: &ServiceName,
        index: usize,
        backend: &SplitBackend,
        lint: &mut WarningCollector<'_>,
    ) {
        let numbers = |name| {
            let service = self.services.get(name)?;
            Some(service.ports.iter().map(|port| port.port).collect::<Vec<u16>>())
        };
        let (Some(wanted), Some(known)) = (numbers(root), numbers(&backend.service)) else {
            return;
        };
        for port in wanted.iter().filter(|port| !known.contains(port)) {
            let roots: Vec<String> = wanted.iter().map(ToString::to_string).collect();
            let roots: Vec<&str> = roots.iter().map(String::as_str).collect();
            lint.add_warning(
                format!("spec.backends[{index}].service"),
                format!(
                    "the Service {} has no port {port}, so its share of requests gets the status \
                     500",
                    backend.service
                ),
                format!("give it the ports of the root: {}", one_of(&roots)),
            );
        }
    }

    fn lint_split_grant(
        &self,
        split: &TrafficSplit,
        index: usize,
        backend: &SplitBackend,
        lint: &mut WarningCollector<'_>,
    ) {
        let (own, theirs) = (&split.name.namespace, &backend.service.namespace);
        let mut grants = self.grants.iter();
        if own != theirs
            && !grants.any(|grant| grant.permits_route(RouteKind::Split, own, &backend.service))
        {
            lint.add_warning(
                format!("spec.backends[{index}].service"),
                format!(
                    "no ReferenceGrant in {theirs} permits it, so its share of requests gets the \
                     status 500"
                ),
                format!("add one there, from TrafficSplits in {own} to the Service"),
            );
        }
    }

    fn lint_split_group(
        &self,
        group: &RouteGroupName,
        index: usize,
        lint: &mut WarningCollector<'_>,
    ) {
        if !self.groups.contains_key(group) {
            lint.add_warning(
                format!("spec.matches[{index}].name"),
                format!("there is no HTTPRouteGroup {group}, so it splits no request"),
                suggest_name(
                    &group.namespace,
                    &group.name,
                    known!(self.groups.keys()),
                    "add the HTTPRouteGroup",
                ),
            );
        }
    }

    /// Returns objects that replace this split on a port of the root, or take precedence.
    fn lint_split_conflicts(&self, split: &TrafficSplit, lint: &mut WarningCollector<'_>) {
        let root = &split.root.service;
        for (key, namespace, parents) in &self.attached {
            // Routes of other namespaces apply only to clients there.
            let mut parents = parents.iter().filter(|_| **namespace == root.namespace);
            if let Some(parent) = parents.find(|parent| parent.service == *root) {
                let place = match parent.port {
                    Some(port) => format!("port {port} of it"),
                    None => "it".to_owned(),
                };
                lint.add_warning(
                    "spec.service".to_owned(),
                    format!("the {key} is attached to {place} and takes precedence there"),
                    "use only one of the two per port",
                );
            }
        }
        let for_everything = self.splits.iter().filter(|other| {
            other.groups.is_none()
                && other.root.service == *root
                && other.precedence() < split.precedence()
        });
        if let Some(first) = for_everything.min_by_key(|other| other.precedence())
            && split.groups.is_none()
        {
            lint.add_warning(
                "spec.service".to_owned(),
                format!(
                    "the TrafficSplit {} is for the same service and {}, so this one has no effect",
                    first.name,
                    first_because(first.created, split.created)
                ),
                "remove one of the two, or restrict this one with `matches`",
            );
        }
    }
}
