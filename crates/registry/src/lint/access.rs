//! Warns about inbound authorization: settings of namespaces and workloads that have no effect, and access policies that
//! match no workload or no request.

use leno_model::{
    AccessPolicy, DefaultPolicy, MeshConfig, PolicyAction, PolicyRule, PortSet, Protocol,
    ServiceAccount, Workload, WorkloadPort,
};

use super::suggestion::{existing_objects, suggest_name};
use super::{ObjectIndex, WarningCollector};
use crate::rejections::{DocumentLocation, Warning};

impl ObjectIndex<'_> {
    /// Warns about namespaces with settings but without workloads.
    pub(super) fn lint_mesh_config(
        &self,
        config: &MeshConfig,
        collector: &mut WarningCollector<'_>,
    ) {
        for name in config.namespaces.keys() {
            let mut workloads = self.workloads.iter();
            if workloads.any(|workload| workload.name.namespace == *name) {
                continue;
            }
            // These settings are annotations of the Namespace, so the warning is about the Namespace.
            if config.annotated.contains(name) {
                collector.warnings.push(Warning {
                    location: DocumentLocation {
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
                collector.add_warning(
                    "spec.namespaces".to_owned(),
                    format!("no workload is in the namespace {name}"),
                    "correct the name, or remove the entry",
                );
            }
        }
    }

    /// Warns about the settings of a workload that are weaker than the `floor` of the `MeshConfig`, which replaces them.
    pub(super) fn lint_floor(&self, workload: &Workload, collector: &mut WarningCollector<'_>) {
        for setting in self.mesh_config.overridden_in(&workload.name.namespace, workload.admission)
        {
            collector.add_warning(
                format!("spec.{}", setting.field),
                format!(
                    "is below the floor of the MeshConfig, and {} is in force",
                    setting.effective
                ),
                format!("use {}, or remove the field", setting.effective),
            );
        }
    }

    /// Warns about a workload that denies by default and has an account that no policy names as a client or a server.
    pub(super) fn lint_missing_policy(
        &self,
        workload: &Workload,
        collector: &mut WarningCollector<'_>,
    ) {
        let account = &workload.account;
        let default_policy = self.mesh_config.default_policy_of(workload);
        let allows_access = |policy: &&AccessPolicy| {
            let mut rules = policy.rules.iter();
            let has_allow_rule = rules.any(|rule| rule.action == PolicyAction::Allow);
            policy.selects_account(account) && has_allow_rule || policy.allows_any_from(account)
        };
        let is_target = self.target_accounts.contains(account)
            || self.access_policies.iter().any(allows_access);
        if default_policy != DefaultPolicy::Deny || is_target {
            return;
        }
        let all_deny_by_default = self
            .workloads
            .iter()
            .all(|workload| self.mesh_config.default_policy_of(workload) == default_policy);
        let outbound_clause =
            if all_deny_by_default { "the workload may call no service and " } else { "" };
        collector.add_warning(
            "spec.serviceAccount".to_owned(),
            format!(
                "no policy mentions the account {account}: with default policy deny {outbound_clause}no client may \
                 call it"
            ),
            "add it as a source or destination of a TrafficTarget, or in an AccessPolicy",
        );
    }

    /// Warns about a policy without matching workloads, and about each rule of the policy.
    pub(super) fn lint_access_policy(
        &self,
        policy: &AccessPolicy,
        collector: &mut WarningCollector<'_>,
    ) {
        let namespace = &policy.name.namespace;
        for (index, name) in policy.accounts.iter().enumerate() {
            let account = ServiceAccount { namespace: namespace.clone(), name: name.clone() };
            if !self.accounts.contains(&account) {
                collector.add_warning(
                    format!("spec.serviceAccounts[{index}]"),
                    format!("no workload runs under the account {account}"),
                    suggest_name(
                        namespace,
                        name,
                        existing_objects!(self.accounts.iter()),
                        "add a Workload with this account",
                    ),
                );
            }
        }
        let is_affected = |workload: &&&Workload| policy.selects_account(&workload.account);
        let workloads: Vec<&Workload> =
            self.workloads.iter().filter(is_affected).copied().collect();
        if workloads.is_empty() && policy.accounts.is_empty() {
            collector.add_warning(
                "spec".to_owned(),
                format!("no workload is in the namespace {namespace}"),
                "move the policy to the namespace of the called workloads",
            );
        }
        // The numbers of deny rules and allow rules so far: `spec.deny` and `spec.allow` are separate lists.
        let mut rule_counts = [0, 0];
        for rule in &policy.rules {
            let count = &mut rule_counts[usize::from(rule.action == PolicyAction::Allow)];
            let field = format!("spec.{}[{count}]", rule.action.as_str());
            *count += 1;
            self.lint_policy_rule(rule, &field, &workloads, collector);
            self.lint_claims(rule, &field, &workloads, collector);
            lint_shadowed_rule(policy, rule, &field, collector);
        }
    }

    /// Warns about peers, ports and requests of a rule that match nothing, and about a rule without effect.
    fn lint_policy_rule(
        &self,
        rule: &PolicyRule,
        field: &str,
        workloads: &[&Workload],
        collector: &mut WarningCollector<'_>,
    ) {
        for (index, peer) in rule.peers.iter().enumerate() {
            if !self.accounts.iter().any(|account| peer.matches_account(account)) {
                collector.add_warning(
                    format!("{field}.from[{index}]"),
                    format!("no workload runs under an account that matches {peer}"),
                    "correct the names, or add a Workload with such an account",
                );
            }
        }
        let default_policies =
            || workloads.iter().map(|workload| self.mesh_config.default_policy_of(workload));
        let all_allow_by_default =
            || default_policies().all(|default_policy| default_policy == DefaultPolicy::Allow);
        if rule.action == PolicyAction::Allow && !workloads.is_empty() && all_allow_by_default() {
            collector.add_warning(
                field.to_owned(),
                "has no effect: default policy allow already allows it".to_owned(),
                "set `defaultPolicy` to deny or dry-run, or remove the rule",
            );
        }
        let ports = || workloads.iter().flat_map(|workload| &workload.ports);
        if let PortSet::Only(numbers) = &rule.ports {
            for (index, number) in numbers.iter().enumerate() {
                // A workload without declared ports may listen on any port.
                let has_port = |workload: &&Workload| {
                    workload.ports.is_empty()
                        || workload.ports.iter().any(|port| port.port == *number)
                };
                if !workloads.is_empty() && !workloads.iter().any(has_port) {
                    collector.add_warning(
                        format!("{field}.ports[{index}]"),
                        format!("no workload of the policy has a port {number}"),
                        "use ports of the workload, not of the service",
                    );
                }
            }
        }
        let is_affected = |port: &&WorkloadPort| rule.ports.contains(port.port);
        let mut affected_ports = ports().filter(is_affected).peekable();
        if !rule.requests.is_empty()
            && affected_ports.peek().is_some()
            && affected_ports.all(|port| port.protocol == Protocol::Tcp)
        {
            let problem = match rule.action {
                PolicyAction::Allow => "can never match: requests on TCP ports are not parsed",
                PolicyAction::Deny => {
                    "cannot match single requests: on TCP ports it denies every connection with \
                     HTTP"
                }
            };
            collector.add_warning(
                format!("{field}.requests"),
                problem.to_owned(),
                "remove `requests`, or use ports that speak HTTP",
            );
        }
    }
}

/// Warns about a rule without effect because a preceding rule of the policy decides about all of its requests.
fn lint_shadowed_rule(
    policy: &AccessPolicy,
    rule: &PolicyRule,
    field: &str,
    collector: &mut WarningCollector<'_>,
) {
    let decides_first = |preceding_rule: &&PolicyRule| {
        !preceding_rule.matches_by_request()
            && (preceding_rule.ports == PortSet::All || preceding_rule.ports == rule.ports)
            && (preceding_rule.peers.is_empty() || preceding_rule.peers == rule.peers)
            && (preceding_rule.action == rule.action || preceding_rule.action == PolicyAction::Deny)
    };
    let mut preceding_rules =
        policy.rules.iter().take_while(|preceding_rule| !std::ptr::eq(*preceding_rule, rule));
    if let Some(preceding_rule) = preceding_rules.find(decides_first) {
        collector.add_warning(
            field.to_owned(),
            format!(
                "has no effect: the rule {} applies first to all of its requests",
                preceding_rule.name
            ),
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
    fn a_warning_about_a_namespace_names_the_object_that_configures_it() {
        let namespace = Name::new("st").unwrap();
        let admission = AdmissionSettings { default_policy: Some(DefaultPolicy::Deny), mtls: None };
        let mut config = MeshConfig::default();
        config.namespaces.insert(namespace.clone(), admission);
        let first_warning = |config: &MeshConfig| {
            lint_objects(&[Object::MeshConfig(config.clone())])[0].to_string()
        };
        assert!(
            first_warning(&config).starts_with("MeshConfig: spec.namespaces: no workload"),
            "{}",
            first_warning(&config)
        );
        config.annotated.insert(namespace);
        assert_eq!(
            first_warning(&config),
            "Namespace st: metadata.annotations: no pod with a sidecar is in the namespace, so no \
             sidecar enforces them; `kubectl label namespace st leno.dev/injection=enabled` and \
             restart its workloads, or remove the annotations"
        );
    }
}
