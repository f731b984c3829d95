//! Finds the policies that are attached to the called service or to a backend but do not apply to the request, and
//! the reason for each.

use std::collections::BTreeSet;

use leno_model::{
    Object, PortCheck, PortLimits, Reason, RetryPolicy, Service, ServiceName, ServicePolicy,
    ServicePolicyName, TagEffects, TagRules, TagScope, TrafficPolicy, Workload,
};

use super::decide::{DecidedBackend, EndpointAccess, RequestDecision, is_opaque};

/// A policy that does not apply, with the reason.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnappliedPolicy {
    pub(super) policy: String,
    pub(super) reason: String,
}

/// Returns the policies that are attached to the called service or to a backend and do not apply to the
/// request.
pub(super) fn find_unapplied(
    objects: &[Object],
    decision: &RequestDecision,
    port: u16,
    backend: &DecidedBackend,
) -> Vec<UnappliedPolicy> {
    let Some(called_service) = &decision.service else { return Vec::new() };
    let policies = service_policies(objects);
    let endpoint_effects = backend.endpoints.iter().flat_map(|endpoint| &endpoint.limits);
    let applied_policies: BTreeSet<&ServicePolicyName> =
        backend.effects.iter().chain(endpoint_effects).map(|effect| &effect.policy).collect();
    let context = BackendContext {
        objects,
        policies: &policies,
        called_port: (called_service, port),
        decision,
        backend,
    };
    let other_policies = policies.iter().filter(|policy| !applied_policies.contains(&policy.name));
    let mut unapplied: Vec<UnappliedPolicy> = other_policies
        .filter(|policy| !context.is_rejected_by(&policy.name))
        .filter_map(|policy| {
            let reason = context.unapplied_reason(policy)?;
            Some(UnappliedPolicy { policy: policy.name.to_string(), reason })
        })
        .collect();
    unapplied.extend(context.find_unapplied_tags());
    unapplied.extend(find_unapplied_retries(
        objects,
        decision,
        called_service,
        port,
        &backend.service,
    ));
    unapplied
}

/// Returns the policies of the called service, for a request to which the client's sidecar responds without
/// forwarding it.
pub(super) fn find_unforwarded(
    objects: &[Object],
    decision: &RequestDecision,
    port: u16,
) -> Vec<UnappliedPolicy> {
    let Some(called_service) = &decision.service else { return Vec::new() };
    let reason = match (&decision.route, decision.rejection) {
        (_, Some(Reason::NoRoute)) => {
            "no rule of the attached routes matches, and the client's sidecar rejects the request"
                .to_owned()
        }
        (_, Some(reason)) => {
            format!("the client's sidecar rejects the request first: {}", reason.label())
        }
        (_, None) if decision.is_preflight => {
            "the client's sidecar answers the preflight request without forwarding it".to_owned()
        }
        (Some(route), None) => {
            let rule = &route.rule;
            let kind = rule.kind.as_str();
            format!("{kind} {} answers the request without forwarding it", rule.route)
        }
        (None, None) => return Vec::new(),
    };
    let policies = service_policies(objects);
    let attached_policies =
        policies.iter().filter(|policy| policy.specificity_for(called_service, port).is_some());
    let retry_policies = objects.iter().filter_map(|object| match object {
        Object::Retry(policy)
            if policy.source == decision.client.account
                && policy.services.contains(called_service) =>
        {
            Some(policy)
        }
        _ => None,
    });
    let tag_objects =
        objects.iter().filter(|object| !tag_effects(object, called_service, port).is_none());
    let policy_names = attached_policies
        .map(|policy| policy.name.to_string())
        .chain(tag_objects.map(|object| object.object_key().to_string()))
        .chain(retry_policies.map(|policy| format!("Retry {}", policy.name)));
    policy_names.map(|policy| UnappliedPolicy { policy, reason: reason.clone() }).collect()
}

/// Returns the reason why per-request policies do not apply to a TCP port.
fn describe_tcp_port(service: &ServiceName, port: u16) -> String {
    format!("port {port} of {service} carries TCP, in which requests are not visible")
}

fn service_policies(objects: &[Object]) -> Vec<&ServicePolicy> {
    let policies = objects.iter().filter_map(|object| match object {
        Object::ServicePolicy(policy) => Some(policy),
        _ => None,
    });
    policies.collect()
}

/// Returns the effects of an object's tag rules or lanes on a port of a service, or on all of its ports.
fn tag_effects(object: &Object, service: &ServiceName, port: u16) -> TagEffects {
    let includes = |scope: &TagScope| match scope {
        TagScope::Service(name, scoped_port) => {
            name == service && scoped_port.is_none_or(|scoped_port| scoped_port == port)
        }
        TagScope::Namespace(_) | TagScope::Mesh => false,
    };
    match object {
        Object::TagRoute(route) if includes(&route.scope) => {
            TagEffects::from_rules(&route.rules, &[])
        }
        Object::SermantRouteRule(rule) => {
            let entry = rule.entries.iter().find(|(scope, _)| includes(scope));
            entry
                .map(|(_, native)| TagEffects::from_rules(&native.rules, &native.lanes))
                .unwrap_or_default()
        }
        Object::Lane(lane) if lane.service == *service => {
            TagEffects::from_rules(&TagRules::default(), &lane.rules)
        }
        _ => TagEffects::default(),
    }
}

/// A backend of a decided request, with the mesh configuration and the decision.
struct BackendContext<'a> {
    objects: &'a [Object],
    /// All policies of the mesh that are attached to services.
    policies: &'a [&'a ServicePolicy],
    /// The service and the port that the client calls; a route may forward the request to another backend.
    called_port: (&'a ServiceName, u16),
    decision: &'a RequestDecision,
    backend: &'a DecidedBackend,
}

impl BackendContext<'_> {
    /// True if an endpoint's sidecar rejects the request because of the policy, or would reject it without dry
    /// run.
    fn is_rejected_by(&self, policy: &ServicePolicyName) -> bool {
        let name = policy.to_string();
        self.backend.endpoints.iter().any(|endpoint| match &endpoint.access {
            EndpointAccess::Denied(_, Some(decision))
            | EndpointAccess::DryRun(_, Some(decision)) => {
                format!("{} {decision}", decision.policy_kind()) == name
            }
            _ => false,
        })
    }

    /// Returns the reason why a policy enforced by the client's sidecar does not apply, although no other policy
    /// overrides it.
    fn outbound_unapplied_reason(&self) -> String {
        let DecidedBackend { service, port, is_ungranted, rejection, .. } = self.backend;
        let is_backend_service = |object: &Object| matches!(object, Object::Service(candidate) if candidate.name == *service);
        if self.is_opaque() {
            describe_tcp_port(self.called_port.0, self.called_port.1)
        } else if *is_ungranted {
            format!("no request is sent to {service}: no ReferenceGrant permits it")
        } else if *rejection != Some(Reason::InvalidBackend) {
            "no rule of the policy matches the request".to_owned()
        } else if self.objects.iter().any(is_backend_service) {
            format!("no request is sent to {service}: it has no port {port}")
        } else {
            format!("no request is sent to {service}: there is no such Service")
        }
    }

    /// True if the client's sidecar forwards the connection as opaque bytes, and sees no requests.
    fn is_opaque(&self) -> bool {
        self.decision.protocol.is_some_and(is_opaque)
    }

    /// Returns the reason why a policy does not apply; `None` if it is attached to neither the called service nor
    /// the backend.
    fn unapplied_reason(&self, policy: &ServicePolicy) -> Option<String> {
        let backend = (&self.backend.service, self.backend.port);
        let matches_port =
            |(service, port): (&ServiceName, u16)| policy.specificity_for(service, port).is_some();
        let attached_port = [self.called_port, backend]
            .into_iter()
            .find(|attached_port| matches_port(*attached_port))?;
        let policies = || self.policies.iter().copied();
        let (service, port) = attached_port;
        let traffic_policy = TrafficPolicy::for_port(policies(), service, port);
        let limit_policy =
            PortLimits::for_port(policies(), service, port).map(|limits| limits.policy);
        let check_policies =
            PortCheck::for_port(policies(), service, port).into_iter().map(|check| check.policy);
        let inbound_policies: Vec<ServicePolicyName> =
            limit_policy.into_iter().chain(check_policies).collect();
        if inbound_policies.contains(&policy.name) {
            return Some(self.inbound_unapplied_reason(service));
        }
        if !traffic_policy.policy_names().any(|name| *name == policy.name) {
            let applied_policies: Vec<&ServicePolicyName> =
                traffic_policy.policy_names().chain(&inbound_policies).collect();
            let same_kind = applied_policies.iter().find(|name| name.kind == policy.name.kind);
            return Some(match same_kind.or(applied_policies.first()) {
                Some(applied_policy) => {
                    format!("{applied_policy} takes precedence at {service} port {port}")
                }
                None => format!("it sets nothing for {service}"),
            });
        }
        // A policy attached to both the called service and the backend applies as a policy of the backend, so
        // that no policy of the called service overrides it.
        let override_reason = (attached_port == backend || !matches_port(backend))
            .then(|| self.override_reason(&policy.name, &traffic_policy, attached_port))
            .flatten();
        override_reason.or_else(|| Some(self.outbound_unapplied_reason()))
    }

    /// Returns the reason if the policy is attached to the called service and a policy of the backend overrides
    /// it, or the reverse.
    fn override_reason(
        &self,
        name: &ServicePolicyName,
        traffic_policy: &TrafficPolicy,
        attached_port: (&ServiceName, u16),
    ) -> Option<String> {
        let backend = (&self.backend.service, self.backend.port);
        let other_port = if attached_port == self.called_port { backend } else { self.called_port };
        if other_port == attached_port {
            return None;
        }
        let (service, port) = other_port;
        let other_policy = TrafficPolicy::for_port(self.policies.iter().copied(), service, port);
        let outlier_detection = other_policy.outlier_detection.map(|detection| detection.policy);
        let balancing = other_policy.balancing.map(|balancing| balancing.policy);
        let faults = other_policy.faults.map(|faults| faults.policy);
        let hedging = other_policy.hedging.map(|hedging| hedging.policy);
        let is_policy = |policy: Option<&ServicePolicyName>| policy == Some(name);
        let overriding_policy = match () {
            () if is_policy(
                traffic_policy.outlier_detection.as_ref().map(|detection| &detection.policy),
            ) =>
            {
                outlier_detection
            }
            () if is_policy(
                traffic_policy.balancing.as_ref().map(|balancing| &balancing.policy),
            ) =>
            {
                balancing
            }
            () if is_policy(traffic_policy.faults.as_ref().map(|faults| &faults.policy)) => faults,
            () if is_policy(traffic_policy.hedging.as_ref().map(|hedging| &hedging.policy)) => {
                hedging
            }
            () => None,
        }?;
        Some(match attached_port == self.called_port {
            true => format!("the backend {service} has its own: {overriding_policy}"),
            false => format!("the called service {service} has its own: {overriding_policy}"),
        })
    }

    /// Returns the reason why a policy enforced by the servers' sidecars does not apply.
    fn inbound_unapplied_reason(&self, service: &ServiceName) -> String {
        let mut endpoints = self.backend.endpoints.iter().peekable();
        if endpoints.peek().is_none() || self.is_opaque() {
            return match self.backend.rejection {
                Some(Reason::NoEndpoint | Reason::NoTaggedEndpoint) => {
                    "no endpoint gets the request".to_owned()
                }
                _ => self.outbound_unapplied_reason(),
            };
        }
        if !self.reaches_workloads_of(service) {
            return describe_other_enforcers(service);
        }
        match endpoints.all(|endpoint| endpoint.access.rejection_reason().is_some()) {
            true => "the sidecar of the endpoint rejects the request first".to_owned(),
            false => "no rule of the policy matches the request".to_owned(),
        }
    }

    /// True if an endpoint of the backend is a workload of the service.
    fn reaches_workloads_of(&self, service: &ServiceName) -> bool {
        let selects = |service: &&Service, workload: &Workload| {
            service.name.namespace == workload.name.namespace
                && !service.selector.is_empty()
                && service.selector.iter().all(|(key, value)| {
                    workload.labels.get(key).is_some_and(|label| label == value)
                })
        };
        let service_object = self.objects.iter().find_map(|object| match object {
            Object::Service(candidate) if candidate.name == *service => Some(candidate),
            _ => None,
        });
        self.objects.iter().any(|object| match object {
            Object::Workload(workload) => {
                let mut endpoints = self.backend.endpoints.iter();
                endpoints.any(|decided| decided.endpoint.id.workload == workload.name)
                    && service_object.as_ref().is_some_and(|service| selects(service, workload))
            }
            _ => false,
        })
    }

    /// Returns the tag rules and lanes of the called service that do not apply to a request forwarded to
    /// another service.
    fn find_unapplied_tags(&self) -> Vec<UnappliedPolicy> {
        let backend = &self.backend.service;
        if self.called_port == (backend, self.backend.port) {
            return Vec::new();
        }
        let called_service = self.called_port.0;
        let describe = |object: &Object| {
            let effects = tag_effects(object, self.called_port.0, self.called_port.1);
            let reason = match () {
                () if effects.by_request || effects.by_caller => {
                    format!(
                        "it selects among the endpoints of {called_service}, but the request is forwarded to {backend}"
                    )
                }
                () if effects.marks && !self.reaches_workloads_of(called_service) => {
                    describe_other_enforcers(called_service)
                }
                () => return None,
            };
            Some(UnappliedPolicy { policy: object.object_key().to_string(), reason })
        };
        self.objects.iter().filter_map(describe).collect()
    }
}

/// Returns the reason for rules that sidecars of other workloads enforce.
fn describe_other_enforcers(service: &ServiceName) -> String {
    format!(
        "the sidecars of the workloads of {service} enforce it, but the request goes to other workloads"
    )
}

/// Returns the retry policies that do not apply to requests of this client.
fn find_unapplied_retries(
    objects: &[Object],
    decision: &RequestDecision,
    called_service: &ServiceName,
    port: u16,
    backend: &ServiceName,
) -> Vec<UnappliedPolicy> {
    let policies = objects.iter().filter_map(|object| match object {
        Object::Retry(policy) if policy.source == decision.client.account => Some(policy),
        _ => None,
    });
    let applied_retry = decision.retry.as_ref().map(|retry| &retry.policy);
    let describe = |policy: &RetryPolicy| {
        let is_called = policy.services.contains(called_service);
        if Some(&policy.name) == applied_retry || !(is_called || policy.services.contains(backend))
        {
            return None;
        }
        let reason = match (is_called, applied_retry) {
            (false, _) => {
                format!("it applies to requests to {backend}, but this one is to {called_service}")
            }
            (true, Some(applied_policy)) => {
                format!("Retry {applied_policy} takes precedence for the same requests")
            }
            (true, None) if decision.protocol.is_some_and(is_opaque) => {
                describe_tcp_port(called_service, port)
            }
            (true, None) => "the rule of the route sets the retries".to_owned(),
        };
        Some(UnappliedPolicy { policy: format!("Retry {}", policy.name), reason })
    };
    policies.filter_map(describe).collect()
}
