//! Warnings about ingress and egress: references to missing objects.

use leno_model::{
    AccessCert, Egress, EgressPolicy, IngressBackend, IngressPolicy, IngressSource, Name,
    RouteGroupName, ServiceName, SubjectScope, Workload, check_subject,
};

use super::suggestion::{known, suggest_name};
use super::{ObjectIndex, ServiceReference, WarningCollector, is_selected};

impl ObjectIndex<'_> {
    pub(super) fn lint_ingress(&self, policy: &IngressPolicy, lint: &mut WarningCollector<'_>) {
        let namespace = &policy.name.namespace;
        for (index, backend) in policy.backends.iter().enumerate() {
            self.lint_opened(namespace, index, backend, lint);
            self.lint_conflict_opening(policy, index, backend, lint);
        }
        for (index, source) in policy.sources.iter().enumerate() {
            let field = format!("spec.sources[{index}]");
            match source {
                IngressSource::Service(service) => {
                    let reference =
                        ServiceReference { service, port: None, field, name_field: "name" };
                    self.lint_reference(&reference, lint);
                }
                IngressSource::Principal(id) if id.trust_domain != self.config.trust_domain => {
                    let (own, domain) = (&self.config.trust_domain, &id.trust_domain);
                    lint.add_warning(
                        format!("{field}.name"),
                        format!("is in the trust domain {domain}, but this mesh is {own}"),
                        format!("use ACCOUNT.NAMESPACE.{own}"),
                    );
                }
                IngressSource::Named(name) => self.lint_named(name, field, lint),
                IngressSource::Principal(_) | IngressSource::Range(_) => {}
            }
        }
        self.lint_groups(&policy.groups, lint);
    }

    /// A name in our own trust domain is an account; any other must be an external principal.
    fn lint_named(&self, name: &Name, field: String, lint: &mut WarningCollector<'_>) {
        let own = &self.config.trust_domain;
        let is_account = IngressSource::Named(name.clone()).account_in(own).is_some();
        if !is_account && !self.external_principals.contains(name) {
            lint.add_warning(
                format!("{field}.name"),
                format!("is not an account of this mesh ({own}), and no AccessCert names it"),
                format!("use ACCOUNT.NAMESPACE.{own}, or write an AccessCert with this name"),
            );
        }
    }

    pub(super) fn lint_access_cert(&self, cert: &AccessCert, lint: &mut WarningCollector<'_>) {
        let sponsor = SubjectScope::Namespace(&cert.name.namespace);
        for (index, subject) in cert.subjects.iter().enumerate() {
            if let Err(reason) = check_subject(subject, sponsor, &self.config.trust_domain) {
                let field = format!("spec.subjectAltNames[{index}]");
                lint.add_warning(field, reason.to_string(), "use a name outside the mesh");
            }
        }
    }

    pub(super) fn lint_egress(&self, policy: &EgressPolicy, lint: &mut WarningCollector<'_>) {
        if self.config.egress == Egress::Allow {
            lint.add_warning(
                "spec".to_owned(),
                "has no effect while the MeshConfig allows all egress".to_owned(),
                "set `spec.egress` of the MeshConfig to deny, or remove it",
            );
        }
        for (index, source) in policy.sources.iter().enumerate() {
            if !self.accounts.contains(source) {
                lint.add_warning(
                    format!("spec.sources[{index}].name"),
                    format!("no workload runs under the account {source}"),
                    suggest_name(
                        &source.namespace,
                        &source.name,
                        known!(self.accounts.iter()),
                        "add a Workload with this account",
                    ),
                );
            }
        }
        self.lint_groups(&policy.groups, lint);
    }

    /// The port is the workload's, which may differ from the service's.
    fn lint_opened(
        &self,
        namespace: &Name,
        index: usize,
        backend: &IngressBackend,
        lint: &mut WarningCollector<'_>,
    ) {
        let field = format!("spec.backends[{index}]");
        let service = ServiceName { namespace: namespace.clone(), name: backend.service.clone() };
        let reference = ServiceReference {
            service: &service,
            port: None,
            field: field.clone(),
            name_field: "name",
        };
        self.lint_reference(&reference, lint);
        let Some(service) = self.services.get(&service) else { return };
        let mut behind = self.workloads.iter().filter(|it| is_selected(service, it)).peekable();
        if behind.peek().is_some() && !behind.any(|it| has_port(it, backend.port)) {
            lint.add_warning(
                format!("{field}.port.number"),
                format!("no workload of the service has a port {}", backend.port),
                "use the port of the workloads, not of the service",
            );
        }
    }

    fn lint_conflict_opening(
        &self,
        policy: &IngressPolicy,
        index: usize,
        backend: &IngressBackend,
        lint: &mut WarningCollector<'_>,
    ) {
        let opens_the_same = |other: &&&IngressPolicy| {
            let mut theirs = other.backends.iter();
            other.name.namespace == policy.name.namespace
                && other.precedence() < policy.precedence()
                && theirs.any(|it| it.service == backend.service && it.port == backend.port)
        };
        if let Some(first) =
            self.openings.iter().filter(opens_the_same).min_by_key(|it| it.precedence())
        {
            lint.add_warning(
                format!("spec.backends[{index}]"),
                format!("the {} opens this port and takes precedence", first.name),
                "merge the sources of both",
            );
        }
    }

    fn lint_groups(&self, groups: &[RouteGroupName], lint: &mut WarningCollector<'_>) {
        for (index, group) in groups.iter().enumerate() {
            if !self.groups.contains_key(group) {
                lint.add_warning(
                    format!("spec.matches[{index}].name"),
                    format!("there is no HTTPRouteGroup {group}, so it allows no request"),
                    suggest_name(
                        &group.namespace,
                        &group.name,
                        known!(self.groups.keys()),
                        "add the HTTPRouteGroup",
                    ),
                );
            }
        }
    }
}

/// A workload without declared ports may listen on any port.
fn has_port(workload: &Workload, port: u16) -> bool {
    workload.ports.is_empty() || workload.ports.iter().any(|it| it.port == port)
}
