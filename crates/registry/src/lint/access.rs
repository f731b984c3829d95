//! Warnings about inbound authorization: modes and rules of access policies.

use leno_model::{
    AccessPolicy, DefaultPolicy, MeshConfig, PolicyAction, PolicyRule, PortSet, Protocol,
    ServiceAccount, Workload, WorkloadPort,
};

use super::suggestion::{known, suggest_name};
use super::{ObjectIndex, WarningCollector};
use crate::rejected::{DocumentLocation, Warning};

impl ObjectIndex<'_> {
    pub(super) fn lint_mesh_config(&self, config: &MeshConfig, lint: &mut WarningCollector<'_>) {
        for name in config.namespaces.keys() {
            let mut workloads = self.workloads.iter();
            if workloads.any(|workload| workload.name.namespace == *name) {
                continue;
            }
            if config.annotated.contains(name) {
                lint.warnings.push(Warning {
                    at: DocumentLocation {
                        kind: Some("Namespace".to_owned()),
                        name: Some(name.to_string()),
                        field: Some("metadata.annotations".to_owned()),
                        ..DocumentLocation::default()
                    },
                    problem: "no pod with a sidecar is in the namespace, so no sidecar enforces \
                              them"
                        .to_owned(),
                    hint: format!(
                        "`kubectl label namespace {name} leno.dev/injection=enabled` and restart its workloads, or \
                         remove the annotations"
                    ),
                });
            } else {
                lint.add_warning(
                    "spec.namespaces".to_owned(),
                    format!("no workload is in the namespace {name}"),
                    "correct the name, or remove the entry",
                );
            }
        }
    }

    /// Warns about a workload with settings below the mesh minimum.
    pub(super) fn lint_floor(&self, workload: &Workload, lint: &mut WarningCollector<'_>) {
        for it in self.config.overruled_in(&workload.name.namespace, workload.admission) {
            lint.add_warning(
                format!("spec.{}", it.field),
                format!("is below the floor of the MeshConfig, and {} is in force", it.in_force),
                format!("use {}, or remove the field", it.in_force),
            );
        }
    }

    /// Warns about a workload that denies by default and to which no policy allows access.
    pub(super) fn lint_unmentioned(&self, workload: &Workload, lint: &mut WarningCollector<'_>) {
        let account = &workload.account;
        let default_policy = self.config.mode_of(workload);
        let allows = |policy: &&AccessPolicy| {
            let mut rules = policy.rules.iter();
            let allows = rules.any(|rule| rule.action == PolicyAction::Allow);
            policy.is_about(account) && allows || policy.allows_something_to(account)
        };
        let is_mentioned =
            self.mentioned.contains(account) || self.access_policies.iter().any(allows);
        if default_policy != DefaultPolicy::Deny || is_mentioned {
            return;
        }
        let all_strict = self.workloads.iter().all(|it| self.config.mode_of(it) == default_policy);
        let calls = if all_strict { "the workload may call no service and " } else { "" };
        lint.add_warning(
            "spec.serviceAccount".to_owned(),
            format!(
                "no policy mentions the account {account}: with default policy deny {calls}no client may \
                 call it"
            ),
            "add it as a source or destination of a TrafficTarget, or in an AccessPolicy",
        );
    }

    pub(super) fn lint_access_policy(
        &self,
        policy: &AccessPolicy,
        lint: &mut WarningCollector<'_>,
    ) {
        let namespace = &policy.name.namespace;
        for (index, name) in policy.accounts.iter().enumerate() {
            let account = ServiceAccount { namespace: namespace.clone(), name: name.clone() };
            if !self.accounts.contains(&account) {
                lint.add_warning(
                    format!("spec.serviceAccounts[{index}]"),
                    format!("no workload runs under the account {account}"),
                    suggest_name(
                        namespace,
                        name,
                        known!(self.accounts.iter()),
                        "add a Workload with it",
                    ),
                );
            }
        }
        let about = |workload: &&&Workload| policy.is_about(&workload.account);
        let workloads: Vec<&Workload> = self.workloads.iter().filter(about).copied().collect();
        if workloads.is_empty() && policy.accounts.is_empty() {
            lint.add_warning(
                "spec".to_owned(),
                format!("no workload is in the namespace {namespace}"),
                "move the policy to the namespace of the called workloads",
            );
        }
        let mut counts = [0, 0];
        for rule in &policy.rules {
            let count = &mut counts[usize::from(rule.action == PolicyAction::Allow)];
            let field = format!("spec.{}[{count}]", rule.action.as_str());
            *count += 1;
            self.lint_policy_rule(rule, &field, &workloads, lint);
            self.lint_claims(rule, &field, &workloads, lint);
            lint_shadowed_rule(policy, rule, &field, lint);
        }
    }

    /// Warns about a rule that can never match.
    fn lint_policy_rule(
        &self,
        rule: &PolicyRule,
        field: &str,
        workloads: &[&Workload],
        lint: &mut WarningCollector<'_>,
    ) {
        for (index, peer) in rule.peers.iter().enumerate() {
            if !self.accounts.iter().any(|account| peer.matches_account(account)) {
                lint.add_warning(
                    format!("{field}.from[{index}]"),
                    format!("no workload runs under an account that matches {peer}"),
                    "correct the names, or add a Workload with such an account",
                );
            }
        }
        let modes = || workloads.iter().map(|workload| self.config.mode_of(workload));
        let permissive = || modes().all(|default_policy| default_policy == DefaultPolicy::Allow);
        if rule.action == PolicyAction::Allow && !workloads.is_empty() && permissive() {
            lint.add_warning(
                field.to_owned(),
                "has no effect: default policy allow already allows it".to_owned(),
                "set `defaultPolicy` to deny or dry-run, or remove the rule",
            );
        }
        let ports = || workloads.iter().flat_map(|workload| &workload.ports);
        if let PortSet::Only(numbers) = &rule.ports {
            for (index, number) in numbers.iter().enumerate() {
                // A workload without declared ports may listen on any port.
                let listens = |it: &&Workload| {
                    it.ports.is_empty() || it.ports.iter().any(|port| port.port == *number)
                };
                if !workloads.is_empty() && !workloads.iter().any(listens) {
                    lint.add_warning(
                        format!("{field}.ports[{index}]"),
                        format!("no workload of the policy has a port {number}"),
                        "use ports of the workload, not of the service",
                    );
                }
            }
        }
        let concerned = |port: &&WorkloadPort| rule.ports.contains(port.port);
        let mut concerned = ports().filter(concerned).peekable();
        if !rule.requests.is_empty()
            && concerned.peek().is_some()
            && concerned.all(|port| port.protocol == Protocol::Tcp)
        {
            let problem = match rule.action {
                PolicyAction::Allow => "can never match: requests on TCP ports are not parsed",
                PolicyAction::Deny => {
                    "cannot match single requests: on TCP ports it denies every connection with \
                     HTTP"
                }
            };
            lint.add_warning(
                format!("{field}.requests"),
                problem.to_owned(),
                "remove `requests`, or use ports that speak HTTP",
            );
        }
    }
}

/// Warns about a rule that is shadowed by another rule of the policy.
fn lint_shadowed_rule(
    policy: &AccessPolicy,
    rule: &PolicyRule,
    field: &str,
    lint: &mut WarningCollector<'_>,
) {
    let everything = |other: &&PolicyRule| {
        !other.is_about_requests()
            && (other.ports == PortSet::All || other.ports == rule.ports)
            && (other.peers.is_empty() || other.peers == rule.peers)
            && (other.action == rule.action || other.action == PolicyAction::Deny)
    };
    let mut before = policy.rules.iter().take_while(|other| !std::ptr::eq(*other, rule));
    if let Some(other) = before.find(everything) {
        lint.add_warning(
            field.to_owned(),
            format!("has no effect: the rule {} applies first to all of its requests", other.name),
            "remove one of the two, or change `from`, `requests` or `ports`",
        );
    }
}

#[cfg(test)]
mod tests {
    use leno_model::{AdmissionSettings, Name, Object};

    use super::*;
    use crate::lint_objects;

    /// In Kubernetes, annotations of a Namespace set its default policy; a MeshConfig may be absent.
    #[test]
    fn a_namespace_without_members_is_named_with_the_object_that_sets_its_mode() {
        let st = Name::new("st").unwrap();
        let admission = AdmissionSettings { default_policy: Some(DefaultPolicy::Deny), mtls: None };
        let mut config = MeshConfig::default();
        config.namespaces.insert(st.clone(), admission);
        let of = |config: &MeshConfig| {
            lint_objects(&[Object::MeshConfig(config.clone())])[0].to_string()
        };
        assert!(
            of(&config).starts_with("MeshConfig: spec.namespaces: no workload"),
            "{}",
            of(&config)
        );
        config.annotated.insert(st);
        assert_eq!(
            of(&config),
            "Namespace st: metadata.annotations: no pod with a sidecar is in the namespace, so no \
             sidecar enforces them; `kubectl label namespace st leno.dev/injection=enabled` and \
             restart its workloads, or remove the annotations"
        );
    }
}
