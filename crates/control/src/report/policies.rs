//! Reports the status of policies to operators: destination, sources, rules, and problems. This file has the policies
//! for access, ingress, egress and retries, and `rules` has service policies and tag rules.

use std::collections::BTreeSet;

use leno_model::{
    AccessCert, AccessPolicy, ClientCertificateMode, Egress, EgressPolicy, IngressName,
    IngressPolicy, IngressProtocol, IngressSource, MatchedBy, Name, NoEffect, ObjectKey,
    PolicyName, PortSet, RetryPolicy, ServiceName, SubjectScope, TargetRule, TrafficTarget,
    check_subject, describe_tcp_only_services,
};

use super::{Report, other_namespaces};
use crate::compile::{
    excluded_endpoints, is_opaque, missing_groups, missing_references, policy_problems,
};
use crate::figures::format_count;
use crate::status::PolicyStatus;

impl Report<'_> {
    /// Returns the status of every policy, ordered by kind.
    pub(crate) fn policy_statuses(&self) -> Vec<PolicyStatus> {
        let targets = self.mesh.traffic_targets().map(|target| self.target_status(target));
        let access_policies = self.mesh.access_policies().map(|policy| self.access_status(policy));
        let ingress = self.mesh.ingress_policies().map(|policy| self.ingress_status(policy));
        let egress = self.mesh.egress_policies().map(|policy| self.egress_status(policy));
        let retries = self.mesh.retry_policies().map(|policy| self.retry_status(policy));
        let certs = self.mesh.access_certs().map(|cert| self.access_cert_status(cert));
        let service_policies =
            self.mesh.service_policies().map(|policy| self.service_policy_status(policy));
        let statuses =
            targets.chain(access_policies).chain(ingress).chain(egress).chain(retries).chain(certs);
        statuses.chain(service_policies).chain(self.tag_rule_statuses()).collect()
    }

    fn ingress_status(&self, policy: &IngressPolicy) -> PolicyStatus {
        let IngressName { kind, namespace, name } = &policy.name;
        let backends = policy.backends.iter();
        let destinations: BTreeSet<String> =
            backends.clone().map(|backend| format!("{namespace}/{}", backend.service)).collect();
        let sources = policy.sources.iter().map(|source| match source {
            IngressSource::Service(service) => format!("Service {service}"),
            IngressSource::Range(range) => range.to_string(),
            IngressSource::Principal(id) => format!("{} of {}", id.account, id.trust_domain),
            IngressSource::Named(name) => {
                let trust_domain = &self.mesh.config().trust_domain;
                let account = source
                    .account_in(trust_domain)
                    .map(|account| format!("{account} of {trust_domain}"));
                account.unwrap_or_else(|| name.to_string())
            }
        });
        let rules = backends.clone().map(|backend| {
            let protocol = match &backend.protocol {
                IngressProtocol::Http => "HTTP",
                IngressProtocol::Grpc => "gRPC",
                IngressProtocol::Tcp => "TCP",
                IngressProtocol::Https {
                    client_certificate: ClientCertificateMode::Required,
                    ..
                } => "HTTPS with certificates",
                IngressProtocol::Https {
                    client_certificate: ClientCertificateMode::Skipped,
                    ..
                } => "HTTPS",
            };
            format!("{protocol} at port {} of {namespace}/{}", backend.port, backend.service)
        });
        let opens_port = |backend| self.mesh.preceding_ingress(policy, backend).is_none();
        let in_force = backends.clone().any(opens_port);
        let mut preceding_policies =
            backends.clone().filter_map(|backend| self.mesh.preceding_ingress(policy, backend));
        let preceding_policy = preceding_policies.next().filter(|_| !in_force);
        PolicyStatus {
            kind: kind.as_str().to_owned(),
            name: format!("{namespace}/{name}"),
            destinations: destinations.into_iter().collect(),
            sources: sources.collect(),
            rules: rules.collect(),
            in_force,
            reason: preceding_policy
                .map(|preceding_policy| format!("{preceding_policy} opens these ports")),
            problems: policy_problems(self.mesh, policy),
            ..PolicyStatus::default()
        }
    }

    fn egress_status(&self, policy: &EgressPolicy) -> PolicyStatus {
        let rules = policy.ports.iter().map(|port| {
            let protocol = match port.matched_by {
                MatchedBy::Http => "HTTP",
                MatchedBy::ServerName => "TLS",
                MatchedBy::Address => "TCP",
            };
            format!("{protocol} to port {}", port.port)
        });
        let hosts = policy.hosts.iter().map(ToString::to_string);
        let ranges = policy.ranges.iter().map(ToString::to_string);
        PolicyStatus {
            kind: "Egress".to_owned(),
            name: policy.name.to_string(),
            destinations: hosts.chain(ranges).collect(),
            sources: policy.sources.iter().map(ToString::to_string).collect(),
            rules: rules.collect(),
            in_force: self.mesh.config().egress == Egress::Deny,
            reason: (self.mesh.config().egress == Egress::Allow)
                .then(|| "no effect: spec.egress is allow".to_owned()),
            problems: missing_groups(self.mesh, &policy.groups),
            ..PolicyStatus::default()
        }
    }

    /// Returns the status of the subjects of an `AccessCert`; the component that writes its Secret reports the
    /// status of the Secret.
    fn access_cert_status(&self, cert: &AccessCert) -> PolicyStatus {
        let trust_domain = &self.mesh.config().trust_domain;
        let issuing_namespace = SubjectScope::Namespace(&cert.name.namespace);
        let subject_problem = |name: &Name| {
            check_subject(name, issuing_namespace, trust_domain)
                .err()
                .map(|reason| format!("`{name}` {reason}"))
        };
        let problems: Vec<String> = cert.subjects.iter().filter_map(subject_problem).collect();
        PolicyStatus {
            kind: "AccessCert".to_owned(),
            name: cert.name.to_string(),
            destinations: vec![format!("Secret {}/{}", cert.name.namespace, cert.secret)],
            sources: cert.subjects.iter().map(ToString::to_string).collect(),
            rules: Vec::new(),
            in_force: problems.is_empty(),
            reason: problems.first().cloned(),
            problems,
            ..PolicyStatus::default()
        }
    }

    fn retry_status(&self, policy: &RetryPolicy) -> PolicyStatus {
        let services: Vec<String> = policy.services.iter().map(ToString::to_string).collect();
        let existing_services =
            policy.services.iter().filter(|name| self.mesh.service(name).is_some());
        let applied_policies: Vec<&PolicyName> = existing_services
            .filter_map(|service| {
                let mut source_policies = self.mesh.retries_of(&policy.source);
                source_policies
                    .find(|other| other.services.contains(service))
                    .map(|other| &other.name)
            })
            .collect();
        let has_source = self.mesh.account_workloads(&policy.source).next().is_some();
        let is_tcp_service = |name: &ServiceName| {
            let service = self.mesh.service(name).filter(|service| !service.ports.is_empty());
            service.is_some_and(|service| {
                service.ports.iter().all(|port| is_opaque(self.mesh, name, port.port))
            })
        };
        let are_all_tcp = policy.services.iter().all(is_tcp_service);
        let reason = match applied_policies.first() {
            _ if !has_source => Some("no workload runs under its source account".to_owned()),
            None => Some("none of its services exists".to_owned()),
            Some(_) if are_all_tcp => Some(describe_tcp_only_services(&policy.services)),
            Some(_) if applied_policies.contains(&&policy.name) => {
                let services = policy.services.iter().filter_map(|name| self.mesh.service(name));
                let ports = services.flat_map(|service| {
                    service.ports.iter().map(|port| (&service.name, port.port))
                });
                NoEffect::detect_for_retry_policy(ports, &self.mesh)
                    .map(|no_effect| no_effect.to_string())
            }
            Some(other_policy) => {
                Some(format!("Retry {other_policy} applies to the same requests"))
            }
        };
        let missing_source =
            (!has_source).then(|| format!("no workload runs under the account {}", policy.source));
        let missing_services =
            policy.services.iter().filter(|name| self.mesh.service(name).is_none()).map(|name| {
                format!("Service {name} does not exist{}", other_namespaces(self.mesh, name))
            });
        PolicyStatus {
            kind: "Retry".to_owned(),
            name: policy.name.to_string(),
            destinations: services,
            sources: vec![policy.source.to_string()],
            rules: vec![format!("at most {}", format_count(policy.rule.attempts, "retry"))],
            in_force: reason.is_none(),
            reason,
            problems: missing_source.into_iter().chain(missing_services).collect(),
            ..PolicyStatus::default()
        }
    }

    fn access_status(&self, policy: &AccessPolicy) -> PolicyStatus {
        let namespace = &policy.name.namespace;
        let in_force = self.mesh.is_policy_enforced(policy);
        let selects_workload =
            self.mesh.workloads().any(|workload| policy.selects_account(&workload.account));
        let accounts: Vec<String> =
            policy.accounts.iter().map(|name| format!("{namespace}/{name}")).collect();
        let peers: BTreeSet<String> =
            policy.rules.iter().flat_map(|rule| &rule.peers).map(ToString::to_string).collect();
        let rules = policy.rules.iter().map(|rule| {
            let action = rule.action.as_str();
            let requests = match rule.requests.len() {
                0 => String::new(),
                1 => ", one kind of request".to_owned(),
                count => format!(", {count} kinds of requests"),
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
            destinations: match accounts.is_empty() {
                true => vec![format!("{namespace}/*")],
                false => accounts,
            },
            sources: peers.into_iter().collect(),
            rules: rules.collect(),
            in_force,
            reason: (!in_force).then(|| match selects_workload {
                true => ALLOWED_BY_DEFAULT.to_owned(),
                false => NO_WORKLOAD.to_owned(),
            }),
            problems: self
                .excluded_endpoints(&ObjectKey::AccessPolicy(policy.name.clone()))
                .collect(),
            ..PolicyStatus::default()
        }
    }

    /// Returns the unmeshed endpoints that are left out because of a policy, as a sentence for its author.
    pub(super) fn excluded_endpoints(
        &self,
        policy: &ObjectKey,
    ) -> impl Iterator<Item = String> + use<> {
        let endpoint_names: Vec<String> =
            excluded_endpoints(self.mesh, policy).into_iter().map(ToString::to_string).collect();
        let names = match endpoint_names.get(..MAX_LISTED_ENDPOINTS) {
            Some(first_names) if endpoint_names.len() > MAX_LISTED_ENDPOINTS => {
                format!(
                    "{} and {} more",
                    first_names.join(", "),
                    endpoint_names.len() - MAX_LISTED_ENDPOINTS
                )
            }
            _ => endpoint_names.join(", "),
        };
        let sentence = format!(
            "gateways and sidecars send no request to endpoints without a sidecar, which cannot enforce it: {names}"
        );
        (!endpoint_names.is_empty()).then_some(sentence).into_iter()
    }

    fn target_status(&self, target: &TrafficTarget) -> PolicyStatus {
        let missing_objects = missing_references(self.mesh, target).into_iter();
        let excluded_endpoints =
            self.excluded_endpoints(&ObjectKey::TrafficTarget(target.name.clone()));
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
            destinations: vec![target.destination.to_string()],
            sources: target.sources.iter().map(ToString::to_string).collect(),
            rules: rules.collect(),
            in_force: self.mesh.is_target_enforced(target),
            reason: (!self.mesh.is_target_enforced(target)).then(|| ALLOWED_BY_DEFAULT.to_owned()),
            problems: missing_objects.chain(excluded_endpoints).collect(),
            ..PolicyStatus::default()
        }
    }
}

/// Maximum endpoints in one sentence.
const MAX_LISTED_ENDPOINTS: usize = 3;
/// The reason why an allow policy has no effect with `defaultPolicy: allow`.
const ALLOWED_BY_DEFAULT: &str = "default policy allow: all clients are allowed";
/// The reason why a policy without workloads has no effect.
const NO_WORKLOAD: &str = "it selects no workload";
