//! Policies attached to a service of the request that do not apply to it.

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
    let Some(called) = &decision.service else { return Vec::new() };
    let policies = service_policies(objects);
    let limits = backend.endpoints.iter().flat_map(|endpoint| &endpoint.limits);
    let applied: BTreeSet<&ServicePolicyName> =
        backend.treated.iter().chain(limits).map(|treated| &treated.policy).collect();
    let context =
        BackendContext { objects, policies: &policies, called: (called, port), decision, backend };
    let idle = policies.iter().filter(|policy| !applied.contains(&policy.name));
    let mut found: Vec<UnappliedPolicy> = idle
        .filter(|policy| !context.is_rejected_by(&policy.name))
        .filter_map(|policy| {
            let why = context.unapplied_reason(policy)?;
            Some(UnappliedPolicy { policy: policy.name.to_string(), reason: why })
        })
        .collect();
    found.extend(context.unapplied_tags());
    found.extend(unapplied_retries(objects, decision, called, port, &backend.service));
    found
}

/// Returns the policies of the called service, for a request that the client's sidecar answers without
/// forwarding it.
pub(super) fn find_unforwarded(
    objects: &[Object],
    decision: &RequestDecision,
    port: u16,
) -> Vec<UnappliedPolicy> {
    let Some(called) = &decision.service else { return Vec::new() };
    let why = match (&decision.route, decision.refused) {
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
    let attached = policies.iter().filter(|it| it.closeness(called, port).is_some());
    let retries = objects.iter().filter_map(|object| match object {
        Object::Retry(policy) if policy.source == decision.client.account => Some(policy),
        _ => None,
    });
    let retries = retries.filter(|policy| policy.services.contains(called));
    let names = attached.map(|policy| policy.name.to_string());
    let tags = objects.iter().filter(|it| !tag_effects(it, called, port).is_none());
    let names = names.chain(tags.map(|it| it.object_key().to_string()));
    let names = names.chain(retries.map(|policy| format!("Retry {}", policy.name)));
    names.map(|policy| UnappliedPolicy { policy, reason: why.clone() }).collect()
}

/// Returns why per-request policies do not apply to a TCP port.
fn no_requests(service: &ServiceName, port: u16) -> String {
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
    let names = |scope: &TagScope| match scope {
        TagScope::Service(name, only) => name == service && only.is_none_or(|it| it == port),
        TagScope::Namespace(_) | TagScope::Mesh => false,
    };
    match object {
        Object::TagRoute(route) if names(&route.scope) => TagEffects::from_rules(&route.rules, &[]),
        Object::SermantRouteRule(rule) => {
            let entry = rule.entries.iter().find(|(scope, _)| names(scope));
            entry.map(|(_, it)| TagEffects::from_rules(&it.rules, &it.lanes)).unwrap_or_default()
        }
        Object::Lane(lane) if lane.service == *service => {
            TagEffects::from_rules(&TagRules::default(), &lane.rules)
        }
        _ => TagEffects::default(),
    }
}

/// The configuration and the decision for a request to one backend.
struct BackendContext<'a> {
    objects: &'a [Object],
    policies: &'a [&'a ServicePolicy],
    called: (&'a ServiceName, u16),
    decision: &'a RequestDecision,
    backend: &'a DecidedBackend,
}

impl BackendContext<'_> {
    /// True if an endpoint's sidecar rejects the traffic because of the policy.
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

    /// Returns why a policy enforced by the client's sidecar does not apply, although no other policy overrides
    /// it.
    fn not_outbound(&self) -> String {
        let DecidedBackend { service, port, ungranted, refused, .. } = self.backend;
        let is_there =
            |object: &Object| matches!(object, Object::Service(it) if it.name == *service);
        if self.is_opaque() {
            no_requests(self.called.0, self.called.1)
        } else if *ungranted {
            format!("no request is sent to {service}: no ReferenceGrant permits it")
        } else if *refused != Some(Reason::InvalidBackend) {
            "no rule of the policy matches the request".to_owned()
        } else if self.objects.iter().any(is_there) {
            format!("no request is sent to {service}: it has no port {port}")
        } else {
            format!("no request is sent to {service}: there is no such Service")
        }
    }

    /// True if the client's sidecar forwards opaque bytes.
    fn is_opaque(&self) -> bool {
        self.decision.protocol.is_some_and(is_opaque)
    }

    /// Returns why a policy does not apply; `None` if it is attached to neither service.
    fn unapplied_reason(&self, policy: &ServicePolicy) -> Option<String> {
        let behind = (&self.backend.service, self.backend.port);
        let is_at =
            |(service, port): (&ServiceName, u16)| policy.closeness(service, port).is_some();
        let place = [self.called, behind].into_iter().find(|place| is_at(*place))?;
        let all = || self.policies.iter().copied();
        let (service, port) = place;
        let traffic_policy = TrafficPolicy::for_port(all(), service, port);
        let limits = PortLimits::for_port(all(), service, port).map(|it| it.policy);
        let guards = PortCheck::for_port(all(), service, port).into_iter().map(|it| it.policy);
        let inbound: Vec<ServicePolicyName> = limits.into_iter().chain(guards).collect();
        if inbound.contains(&policy.name) {
            return Some(self.not_inbound(service));
        }
        if !traffic_policy.policy_names().any(|name| *name == policy.name) {
            let others: Vec<&ServicePolicyName> =
                traffic_policy.policy_names().chain(&inbound).collect();
            let same = others.iter().find(|name| name.kind == policy.name.kind);
            return Some(match same.or(others.first()) {
                Some(other) => format!("{other} takes precedence at {service} port {port}"),
                None => format!("it sets nothing for {service}"),
            });
        }
        // A policy attached to both services would apply as that of the backend.
        let gives_way = (place == behind || !is_at(behind))
            .then(|| self.gives_way(&policy.name, &traffic_policy, place))
            .flatten();
        gives_way.or_else(|| Some(self.not_outbound()))
    }

    /// Returns the reason if a policy of one of the two services is overridden by one of the other.
    fn gives_way(
        &self,
        name: &ServicePolicyName,
        traffic_policy: &TrafficPolicy,
        place: (&ServiceName, u16),
    ) -> Option<String> {
        let behind = (&self.backend.service, self.backend.port);
        let other = if place == self.called { behind } else { self.called };
        if other == place {
            return None;
        }
        let (service, port) = other;
        let theirs = TrafficPolicy::for_port(self.policies.iter().copied(), service, port);
        let outlier_detection = theirs.outlier_detection.map(|it| it.policy);
        let balancing = theirs.balancing.map(|it| it.policy);
        let faults = theirs.faults.map(|it| it.policy);
        let hedging = theirs.hedging.map(|it| it.policy);
        let is = |policy: Option<&ServicePolicyName>| policy == Some(name);
        let by = match () {
            () if is(traffic_policy.outlier_detection.as_ref().map(|it| &it.policy)) => {
                outlier_detection
            }
            () if is(traffic_policy.balancing.as_ref().map(|it| &it.policy)) => balancing,
            () if is(traffic_policy.faults.as_ref().map(|it| &it.policy)) => faults,
            () if is(traffic_policy.hedging.as_ref().map(|it| &it.policy)) => hedging,
            () => None,
        }?;
        Some(match place == self.called {
            true => format!("the backend {service} has its own: {by}"),
            false => format!("the called service {service} has its own: {by}"),
        })
    }

    /// Returns why a policy enforced by servers' sidecars does not apply.
    fn not_inbound(&self, service: &ServiceName) -> String {
        let mut endpoints = self.backend.endpoints.iter().peekable();
        if endpoints.peek().is_none() || self.is_opaque() {
            return match self.backend.refused {
                Some(Reason::NoEndpoint | Reason::NoTaggedEndpoint) => {
                    "no endpoint gets the request".to_owned()
                }
                _ => self.not_outbound(),
            };
        }
        if !self.reaches_workloads_of(service) {
            return enforced_by_others(service);
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
        let named = self.objects.iter().find_map(|object| match object {
            Object::Service(found) if found.name == *service => Some(found),
            _ => None,
        });
        self.objects.iter().any(|object| match object {
            Object::Workload(workload) => {
                let mut endpoints = self.backend.endpoints.iter();
                endpoints.any(|it| it.endpoint.id.workload == workload.name)
                    && named.as_ref().is_some_and(|service| selects(service, workload))
            }
            _ => false,
        })
    }

    /// Returns the tag rules and lanes of the called service that do not apply to a request forwarded to
    /// another service.
    fn unapplied_tags(&self) -> Vec<UnappliedPolicy> {
        let behind = &self.backend.service;
        if self.called == (behind, self.backend.port) {
            return Vec::new();
        }
        let called = self.called.0;
        let reason = |object: &Object| {
            let effects = tag_effects(object, self.called.0, self.called.1);
            let why = match () {
                () if effects.by_request || effects.by_caller => {
                    format!(
                        "it selects among the endpoints of {called}, but the request is forwarded to {behind}"
                    )
                }
                () if effects.marks && !self.reaches_workloads_of(called) => {
                    enforced_by_others(called)
                }
                () => return None,
            };
            Some(UnappliedPolicy { policy: object.object_key().to_string(), reason: why })
        };
        self.objects.iter().filter_map(reason).collect()
    }
}

/// Returns the reason for rules that sidecars of other workloads enforce.
fn enforced_by_others(service: &ServiceName) -> String {
    format!(
        "the sidecars of the workloads of {service} enforce it, but the request goes to other workloads"
    )
}

/// Returns the retry policies that do not apply to requests of this client.
fn unapplied_retries(
    objects: &[Object],
    decision: &RequestDecision,
    called: &ServiceName,
    port: u16,
    backend: &ServiceName,
) -> Vec<UnappliedPolicy> {
    let of_client = objects.iter().filter_map(|object| match object {
        Object::Retry(policy) if policy.source == decision.client.account => Some(policy),
        _ => None,
    });
    let applied = decision.retry.as_ref().map(|retry| &retry.policy);
    let reason = |policy: &RetryPolicy| {
        let is_called = policy.services.contains(called);
        if Some(&policy.name) == applied || !(is_called || policy.services.contains(backend)) {
            return None;
        }
        let why = match (is_called, applied) {
            (false, _) => {
                format!("it applies to requests to {backend}, but this one is to {called}")
            }
            (true, Some(other)) => format!("Retry {other} takes precedence for the same requests"),
            (true, None) if decision.protocol.is_some_and(is_opaque) => no_requests(called, port),
            (true, None) => "the rule of the route sets the retries".to_owned(),
        };
        Some(UnappliedPolicy { policy: format!("Retry {}", policy.name), reason: why })
    };
    of_client.filter_map(reason).collect()
}
