//! Decides a request to one backend of a rule: the endpoints that may receive it, and the policies that apply
//! to it.

use std::sync::Arc;

use leno_model::{Endpoint, Reason, WeightedBackend, WorkloadConfig};
use leno_traffic::balance::RequestHash;
use leno_traffic::forwarded::EffectivePolicies;
use leno_traffic::{CompiledPort, CompiledSnapshot, RequestView};

use super::decide::{DecidedBackend, DecidedEndpoint, EndpointAccess};
use super::tags::TagRuleEvaluation;
use super::traffic_policy::{PolicyEffect, describe_fault, describe_policies};

/// Decides requests to a backend of a rule. The routes of the backend's own service do not apply. `called_port`
/// is the port that the rule is attached to, `total_weight` the sum of the weights of all backends of the rule.
/// `request` is `None` for an opaque connection.
pub(super) fn decide_backend(
    compiled: &CompiledSnapshot,
    called_port: &CompiledPort,
    backend: &WeightedBackend,
    total_weight: u64,
    request: Option<&RequestView<'_>>,
) -> DecidedBackend {
    let share = f64::from(backend.weight) / total_weight as f64;
    let service = compiled.service(&backend.service);
    let port = service.and_then(|service| service.ports.get(&backend.port));
    let policies = port.map(|port| called_port.policies_to(&backend.service, backend.port, port));
    decide_port(backend, share, port.zip(policies), &compiled.snapshot.config, request)
}

/// Decides requests to a port under the policies of `destination`, which is `None` if the port does not exist.
/// The port receives `share` of the requests, 0 to 1. `request` is `None` for an opaque connection.
pub(super) fn decide_port(
    backend: &WeightedBackend,
    share: f64,
    destination: Option<(&CompiledPort, EffectivePolicies<'_>)>,
    client_config: &WorkloadConfig,
    request: Option<&RequestView<'_>>,
) -> DecidedBackend {
    let port = destination.map(|(port, _)| port);
    let endpoints = port.map(|port| &port.endpoints);
    let candidates = endpoints.map_or(&[][..], |endpoints| endpoints);
    let tag_rules = port.and_then(|port| port.tags.as_deref());
    let tags = tag_rules.map(|rules| TagRuleEvaluation::for_request(rules, request, candidates));
    let mut rejection = match endpoints {
        None => Some(Reason::InvalidBackend),
        Some(endpoints) if endpoints.is_empty() => Some(Reason::NoEndpoint),
        Some(_) => None,
    };
    // `TagRuleEvaluation` reports the endpoints that tag rules exclude.
    let is_selected =
        |endpoint: &&Arc<Endpoint>| tags.as_ref().is_none_or(|tags| tags.is_selected(endpoint));
    if rejection.is_none() && tags.as_ref().is_some_and(TagRuleEvaluation::rejects_all) {
        rejection = Some(Reason::NoTaggedEndpoint);
    }
    // The caller fills in the decision of the endpoint's sidecar.
    let to_decided = |endpoint: &Arc<Endpoint>| DecidedEndpoint {
        endpoint: Arc::clone(endpoint),
        access: EndpointAccess::Denied(Reason::Denied, None),
        has_token: false,
        limits: Vec::new(),
        lane_headers: Vec::new(),
        ingress_rules: Vec::new(),
    };
    let faults = destination.and_then(|(_, policies)| policies.traffic_policy?.faults.as_ref());
    let fault = faults
        .and_then(|faults| Some((faults, faults.rule_for(request?, &client_config.account)?)));
    let mut rejection_status = None;
    let abort =
        fault.and_then(|(_, rule)| rule.abort.as_ref().filter(|abort| abort.applies_to_all()));
    if let (None, Some(abort)) = (rejection, abort) {
        rejection = Some(Reason::FaultInjected);
        rejection_status = abort.response.status;
    }
    let mut effects = destination
        .map(|(port, policies)| describe_traffic_policy(port, policies, client_config, request))
        .unwrap_or_default();
    effects.extend(fault.map(|(faults, rule)| describe_fault(faults.policy(), rule)));
    DecidedBackend {
        service: backend.service.clone(),
        port: backend.port,
        weight: backend.weight,
        share,
        endpoints: endpoints
            .map(|endpoints| endpoints.iter().filter(is_selected).map(to_decided).collect())
            .unwrap_or_default(),
        effects,
        unapplied: Vec::new(),
        rejection,
        status: rejection_status,
        tags,
        is_ungranted: false,
    }
}

/// Describes the policies for a request to a port; `request` is `None` for an opaque connection.
fn describe_traffic_policy(
    port: &CompiledPort,
    policies: EffectivePolicies<'_>,
    client_config: &WorkloadConfig,
    request: Option<&RequestView<'_>>,
) -> Vec<PolicyEffect> {
    let EffectivePolicies { traffic_policy, hash_table } = policies;
    let Some(traffic_policy) = traffic_policy else { return Vec::new() };
    let mut effects = describe_policies(traffic_policy, request.is_none());
    let balancing = traffic_policy.balancing.as_ref();
    let request_hash = balancing.and_then(|balancing| {
        RequestHash::for_request(
            balancing.rule.algorithm.hash_key()?,
            request,
            &client_config.workload,
        )
    });
    // Every endpoint counts as available: the health of endpoints is unknown here.
    let endpoint_index = request_hash
        .zip(hash_table)
        .and_then(|(request_hash, hash_table)| hash_table.find_endpoint(request_hash.0, |_| true));
    if let (Some(balancing), Some(endpoint)) =
        (balancing, endpoint_index.and_then(|endpoint_index| port.endpoints.get(endpoint_index)))
        && port.tags.is_none()
    {
        effects.push(PolicyEffect {
            policy: balancing.policy.clone(),
            description: format!("such requests go to {}", endpoint.id.workload),
        });
    }
    effects
}
