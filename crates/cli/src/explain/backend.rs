//! Decision for one backend: the endpoints that remain, and the policies that apply.

use std::sync::Arc;

use leno_model::{Endpoint, Reason, WeightedBackend, WorkloadConfig};
use leno_traffic::balance::RequestHash;
use leno_traffic::forwarded::EffectivePolicies;
use leno_traffic::{CompiledPort, CompiledSnapshot, RequestView};

use super::decide::{DecidedBackend, DecidedEndpoint, EndpointAccess};
use super::tags::DecidedTags;
use super::traffic_policy::{PolicyEffect, describe_fault, list_policies};

/// Decides for a backend of a rule. The backend is addressed directly: its own routes do not apply. `called` is
/// the port that the rule is attached to, `total` the sum of the weights.
pub(super) fn decided_backend(
    plans: &CompiledSnapshot,
    called: &CompiledPort,
    backend: &WeightedBackend,
    total: u64,
    request: Option<&RequestView<'_>>,
) -> DecidedBackend {
    let share = f64::from(backend.weight) / total as f64;
    let plan = plans.service(&backend.service);
    let port = plan.and_then(|plan| plan.ports.get(&backend.port));
    let policies = port.map(|port| called.policies_to(&backend.service, backend.port, port));
    with_port(backend, share, port.zip(policies), &plans.snapshot.config, request)
}

/// Decides for a port that gets this share of the requests under these policies.
pub(super) fn with_port(
    backend: &WeightedBackend,
    share: f64,
    way: Option<(&CompiledPort, EffectivePolicies<'_>)>,
    caller: &WorkloadConfig,
    request: Option<&RequestView<'_>>,
) -> DecidedBackend {
    let port = way.map(|(port, _)| port);
    let tags = port.and_then(|port| port.tags.as_deref());
    let endpoints = port.map(|port| &port.endpoints);
    let all = endpoints.map_or(&[][..], |endpoints| endpoints);
    let tags = tags.map(|tags| DecidedTags::for_request(tags, request, all));
    let mut refused = match endpoints {
        None => Some(Reason::InvalidBackend),
        Some(endpoints) if endpoints.is_empty() => Some(Reason::NoEndpoint),
        Some(_) => None,
    };
    // Endpoints that tag rules exclude are not reported.
    let left =
        |endpoint: &&Arc<Endpoint>| tags.as_ref().is_none_or(|tags| tags.is_selected(endpoint));
    if refused.is_none() && tags.as_ref().is_some_and(DecidedTags::leave_nobody) {
        refused = Some(Reason::NoTaggedEndpoint);
    }
    let decided = |endpoint: &Arc<Endpoint>| DecidedEndpoint {
        endpoint: Arc::clone(endpoint),
        access: EndpointAccess::Denied(Reason::Denied, None),
        is_by_token: false,
        limits: Vec::new(),
        marks: Vec::new(),
        ingress_rules: Vec::new(),
    };
    let faults = way.and_then(|(_, (traffic_policy, _))| traffic_policy?.faults.as_ref());
    let fault =
        faults.and_then(|faults| Some((faults, faults.rule_for(request?, &caller.account)?)));
    let mut status = None;
    let abort = fault.and_then(|(_, rule)| rule.abort.as_ref().filter(|abort| abort.is_whole()));
    if let (None, Some(abort)) = (refused, abort) {
        refused = Some(Reason::FaultInjected);
        status = abort.response.status;
    }
    let mut treated = way
        .map(|(port, policies)| reported_traffic_policy(port, policies, caller, request))
        .unwrap_or_default();
    treated.extend(fault.map(|(faults, rule)| describe_fault(faults.policy(), rule)));
    DecidedBackend {
        service: backend.service.clone(),
        port: backend.port,
        weight: backend.weight,
        share,
        endpoints: endpoints
            .map(|endpoints| endpoints.iter().filter(left).map(decided).collect())
            .unwrap_or_default(),
        treated,
        unapplied: Vec::new(),
        refused,
        status,
        tags,
        ungranted: false,
    }
}

/// Describes the policies for a request to a port, or for an opaque connection.
fn reported_traffic_policy(
    port: &CompiledPort,
    (traffic_policy, places): EffectivePolicies<'_>,
    caller: &WorkloadConfig,
    request: Option<&RequestView<'_>>,
) -> Vec<PolicyEffect> {
    let Some(traffic_policy) = traffic_policy else { return Vec::new() };
    let mut reported = list_policies(traffic_policy, request.is_none());
    let balancing = traffic_policy.balancing.as_ref();
    let key = balancing.and_then(|balancing| {
        RequestHash::for_request(balancing.rule.algorithm.hash_key()?, request, &caller.workload)
    });
    let found = key.zip(places).and_then(|(key, places)| places.find_endpoint(key.0, |_| true));
    if let (Some(balancing), Some(endpoint)) =
        (balancing, found.and_then(|index| port.endpoints.get(index)))
        && port.tags.is_none()
    {
        reported.push(PolicyEffect {
            policy: balancing.policy.clone(),
            reported: format!("such requests go to {}", endpoint.id.workload),
        });
    }
    reported
}
