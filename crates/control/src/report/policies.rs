//! Policies as operators are told of them.

use std::collections::BTreeSet;

use leno_model::{AccessPolicy, PortSet, TargetRule, TrafficTarget};

use super::Report;
use crate::compile::missing;
use crate::status::PolicyStatus;

impl Report<'_> {
    pub(crate) fn policies(&self) -> Vec<PolicyStatus> {
        let targets = self.mesh.targets().map(|target| self.policy(target));
        targets.chain(self.mesh.access_policies().map(|policy| self.access(policy))).collect()
    }

    fn access(&self, policy: &AccessPolicy) -> PolicyStatus {
        let namespace = &policy.name.namespace;
        let accounts = policy.accounts.iter().map(|name| format!("{namespace}/{name}"));
        let accounts: Vec<String> = accounts.collect();
        let peers = policy.rules.iter().flat_map(|rule| &rule.peers).map(ToString::to_string);
        let peers: BTreeSet<String> = peers.collect();
        let rules = policy.rules.iter().map(|rule| {
            let action = rule.action.as_str();
            let requests = match rule.requests.len() {
                0 => String::new(),
                1 => ", one kind of request".to_owned(),
                several => format!(", {several} kinds of requests"),
            };
            let ports = match &rule.ports {
                PortSet::All => String::new(),
                PortSet::Only(ports) => format!(", ports {ports:?}"),
            };
            format!("{action} {}{requests}{ports}", rule.name)
        });
        PolicyStatus {
            kind: "AccessPolicy".to_owned(),
            name: policy.name.to_string(),
            destination: match accounts.is_empty() {
                true => format!("{namespace}/*"),
                false => accounts.join(", "),
            },
            sources: peers.into_iter().collect(),
            rules: rules.collect(),
            in_force: self.mesh.is_policy_in_force(policy),
            problems: Vec::new(),
        }
    }

    fn policy(&self, target: &TrafficTarget) -> PolicyStatus {
        let rules = target.rules.iter().map(|rule| match rule {
            TargetRule::Http { group, matches } => {
                format!("HTTPRouteGroup {group}: {}", matches.join(", "))
            }
            TargetRule::Tcp { route } => {
                let ports = self.mesh.tcp_route(route).map(|route| &route.ports);
                let ports = match ports {
                    None => "none".to_owned(),
                    Some(PortSet::All) => "all ports".to_owned(),
                    Some(PortSet::Only(ports)) => format!("ports {ports:?}"),
                };
                format!("TCPRoute {route}: {ports}")
            }
        });
        PolicyStatus {
            kind: "TrafficTarget".to_owned(),
            name: target.name.to_string(),
            destination: target.destination.to_string(),
            sources: target.sources.iter().map(ToString::to_string).collect(),
            rules: rules.collect(),
            in_force: self.mesh.is_in_force(target),
            problems: missing(self.mesh, target),
        }
    }
}
