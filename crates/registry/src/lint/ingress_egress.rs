//! Warns about ingress, egress and external principals: references to missing objects, and rules without effect.

use leno_model::{
    AccessCert, Egress, EgressPolicy, IngressBackend, IngressPolicy, IngressSource, Name,
    RouteGroupName, ServiceName, SubjectScope, Workload, check_subject,
};

use super::suggestion::{existing_objects, suggest_name};
use super::{ObjectIndex, ServiceReference, WarningCollector, selects_workload};

impl ObjectIndex<'_> {
    /// Warns about an ingress policy: missing services and ports, conflicts, unknown sources and missing route groups.
    pub(super) fn lint_ingress(
        &self,
        policy: &IngressPolicy,
        collector: &mut WarningCollector<'_>,
    ) {
        let namespace = &policy.name.namespace;
        for (index, backend) in policy.backends.iter().enumerate() {
            self.lint_ingress_port(namespace, index, backend, collector);
            self.lint_ingress_conflict(policy, index, backend, collector);
        }
        for (index, source) in policy.sources.iter().enumerate() {
            let field = format!("spec.sources[{index}]");
            match source {
                IngressSource::Service(service) => {
                    let reference =
                        ServiceReference { service, port: None, field, name_field: "name" };
                    self.lint_reference(&reference, collector);
                }
                IngressSource::Principal(id)
                    if id.trust_domain != self.mesh_config.trust_domain =>
                {
                    let (own_domain, domain) = (&self.mesh_config.trust_domain, &id.trust_domain);
                    collector.add_warning(
                        format!("{field}.name"),
                        format!("is in the trust domain {domain}, but this mesh is {own_domain}"),
                        format!("use ACCOUNT.NAMESPACE.{own_domain}"),
                    );
                }
                IngressSource::Named(name) => self.lint_named_source(name, field, collector),
                IngressSource::Principal(_) | IngressSource::Range(_) => {}
            }
        }
        self.lint_groups(&policy.groups, collector);
    }

    /// Warns about the name of a source that is neither an account of the mesh's trust domain nor an external
    /// principal.
    fn lint_named_source(&self, name: &Name, field: String, collector: &mut WarningCollector<'_>) {
        let own_domain = &self.mesh_config.trust_domain;
        let is_account = IngressSource::Named(name.clone()).account_in(own_domain).is_some();
        if !is_account && !self.external_principals.contains(name) {
            collector.add_warning(
                format!("{field}.name"),
                format!(
                    "is not an account of this mesh ({own_domain}), and no AccessCert names it"
                ),
                format!(
                    "use ACCOUNT.NAMESPACE.{own_domain}, or write an AccessCert with this name"
                ),
            );
        }
    }

    /// Warns about names of an `AccessCert` that an external principal may not have.
    pub(super) fn lint_access_cert(&self, cert: &AccessCert, collector: &mut WarningCollector<'_>) {
        let issuing_scope = SubjectScope::Namespace(&cert.name.namespace);
        for (index, subject) in cert.subjects.iter().enumerate() {
            if let Err(reason) =
                check_subject(subject, issuing_scope, &self.mesh_config.trust_domain)
            {
                let field = format!("spec.subjectAltNames[{index}]");
                collector.add_warning(field, reason.to_string(), "use a name outside the mesh");
            }
        }
    }

    /// Warns about an egress policy: no effect because all egress is allowed, missing accounts and missing route groups.
    pub(super) fn lint_egress(&self, policy: &EgressPolicy, collector: &mut WarningCollector<'_>) {
        if self.mesh_config.egress == Egress::Allow {
            collector.add_warning(
                "spec".to_owned(),
                "has no effect while the MeshConfig allows all egress".to_owned(),
                "set `spec.egress` of the MeshConfig to deny, or remove it",
            );
        }
        for (index, source) in policy.sources.iter().enumerate() {
            if !self.accounts.contains(source) {
                collector.add_warning(
                    format!("spec.sources[{index}].name"),
                    format!("no workload runs under the account {source}"),
                    suggest_name(
                        &source.namespace,
                        &source.name,
                        existing_objects!(self.accounts.iter()),
                        "add a Workload with this account",
                    ),
                );
            }
        }
        self.lint_groups(&policy.groups, collector);
    }

    /// Warns about a backend whose service does not exist, or whose port is not a port of the service's workloads. The
    /// ports of workloads may differ from the ports of the service.
    fn lint_ingress_port(
        &self,
        namespace: &Name,
        index: usize,
        backend: &IngressBackend,
        collector: &mut WarningCollector<'_>,
    ) {
        let field = format!("spec.backends[{index}]");
        let service = ServiceName { namespace: namespace.clone(), name: backend.service.clone() };
        let reference = ServiceReference {
            service: &service,
            port: None,
            field: field.clone(),
            name_field: "name",
        };
        self.lint_reference(&reference, collector);
        let Some(service) = self.services.get(&service) else { return };
        let mut workloads =
            self.workloads.iter().filter(|workload| selects_workload(service, workload)).peekable();
        if workloads.peek().is_some() && !workloads.any(|workload| has_port(workload, backend.port))
        {
            collector.add_warning(
                format!("{field}.port.number"),
                format!("no workload of the service has a port {}", backend.port),
                "use the port of the workloads, not of the service",
            );
        }
    }

    /// Warns about a port that a policy with precedence opens as well.
    fn lint_ingress_conflict(
        &self,
        policy: &IngressPolicy,
        index: usize,
        backend: &IngressBackend,
        collector: &mut WarningCollector<'_>,
    ) {
        let opens_same_port = |other: &&&IngressPolicy| {
            let mut other_backends = other.backends.iter();
            other.name.namespace == policy.name.namespace
                && other.precedence() < policy.precedence()
                && other_backends.any(|other_backend| {
                    other_backend.service == backend.service && other_backend.port == backend.port
                })
        };
        if let Some(preceding_policy) = self
            .ingress_policies
            .iter()
            .filter(opens_same_port)
            .min_by_key(|other| other.precedence())
        {
            collector.add_warning(
                format!("spec.backends[{index}]"),
                format!("the {} opens this port and takes precedence", preceding_policy.name),
                "merge the sources of both",
            );
        }
    }

    /// Warns about missing `HTTPRouteGroup`s.
    fn lint_groups(&self, groups: &[RouteGroupName], collector: &mut WarningCollector<'_>) {
        for (index, group) in groups.iter().enumerate() {
            if !self.route_groups.contains_key(group) {
                collector.add_warning(
                    format!("spec.matches[{index}].name"),
                    format!("there is no HTTPRouteGroup {group}, so it allows no request"),
                    suggest_name(
                        &group.namespace,
                        &group.name,
                        existing_objects!(self.route_groups.keys()),
                        "add the HTTPRouteGroup",
                    ),
                );
            }
        }
    }
}

/// True if the workload may listen on the port. A workload without declared ports may listen on any port.
fn has_port(workload: &Workload, port: u16) -> bool {
    workload.ports.is_empty()
        || workload.ports.iter().any(|workload_port| workload_port.port == port)
}
