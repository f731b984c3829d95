//! Policies that seem to apply to a request, and do not.

use std::collections::BTreeSet;

use leno_model::{
    Object, PolicyName, PortGuard, PortLimits, RetryPolicy, Service, ServiceAccount, ServiceName,
    ServicePolicy, ServicePolicyName, Treatment, Workload,
};

use super::decide::DecidedBackend;

/// A policy that does not apply, with the reason.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unapplied {
    pub(super) policy: String,
    pub(super) why: String,
}

/// The called service, the account of the client, and the called port.
type Call<'a> = (&'a ServiceName, ServiceAccount, u16);

/// The policies that are attached to the called service or to a backend and do not apply to the
/// request. `retry` is the policy about retries that does.
pub(super) fn unapplied(
    objects: &[Object],
    call: &Call<'_>,
    retry: Option<&PolicyName>,
    backend: &DecidedBackend,
) -> Vec<Unapplied> {
    let policies: Vec<&ServicePolicy> = objects
        .iter()
        .filter_map(|object| match object {
            Object::ServicePolicy(policy) => Some(policy),
            _ => None,
        })
        .collect();
    let limits = backend.endpoints.iter().flat_map(|endpoint| &endpoint.limits);
    let applied: BTreeSet<&ServicePolicyName> =
        backend.treated.iter().chain(limits).map(|treated| &treated.policy).collect();
    let view = View { objects, policies: &policies, called: (call.0, call.2), backend };
    let idle = policies.iter().filter(|policy| !applied.contains(&policy.name));
    let mut found: Vec<Unapplied> = idle
        .filter_map(|policy| {
            let why = view.reason(policy)?;
            Some(Unapplied { policy: policy.name.to_string(), why })
        })
        .collect();
    found.extend(retries(objects, call, retry, &backend.service));
    found
}

/// The objects around a request that goes to one backend.
struct View<'a> {
    objects: &'a [Object],
    policies: &'a [&'a ServicePolicy],
    called: (&'a ServiceName, u16),
    backend: &'a DecidedBackend,
}

impl View<'_> {
    /// The reason for a policy not to apply; `None` when it is attached to neither service.
    fn reason(&self, policy: &ServicePolicy) -> Option<String> {
        let behind = (&self.backend.service, self.backend.port);
        let is_at = |place: (&ServiceName, u16)| policy.closeness(place.0, place.1).is_some();
        let place = [self.called, behind].into_iter().find(|place| is_at(*place))?;
        let all = || self.policies.iter().copied();
        let (service, port) = place;
        let treatment = Treatment::of(all(), service, port);
        let limits = PortLimits::of(all(), service, port).map(|it| it.policy);
        let guards = PortGuard::of(all(), service, port).into_iter().map(|it| it.policy);
        let inbound: Vec<ServicePolicyName> = limits.into_iter().chain(guards).collect();
        if inbound.contains(&policy.name) {
            return Some(self.not_inbound(service));
        }
        if !treatment.policies().any(|name| *name == policy.name) {
            let others: Vec<&ServicePolicyName> = treatment.policies().chain(&inbound).collect();
            let same = others.iter().find(|name| name.kind == policy.name.kind);
            return Some(match same.or(others.first()) {
                Some(other) => format!("{other} decides at {service} port {port}"),
                None => format!("it says nothing about {service}"),
            });
        }
        // Attached to both, it would apply as that of the backend at least.
        let gives_way = (place == behind || !is_at(behind))
            .then(|| self.gives_way(&policy.name, &treatment, place))
            .flatten();
        gives_way.or_else(|| Some("no rule of it matches this request".to_owned()))
    }

    /// A policy that decides at one of the two services gives way to one of the other.
    fn gives_way(
        &self,
        name: &ServicePolicyName,
        treatment: &Treatment,
        place: (&ServiceName, u16),
    ) -> Option<String> {
        let behind = (&self.backend.service, self.backend.port);
        let other = if place == self.called { behind } else { self.called };
        if other == place {
            return None;
        }
        let theirs = Treatment::of(self.policies.iter().copied(), other.0, other.1);
        let removal = theirs.removal.map(|it| it.policy);
        let balancing = theirs.balancing.map(|it| it.policy);
        let faults = theirs.faults.map(|it| it.policy);
        let hedging = theirs.hedging.map(|it| it.policy);
        let is = |policy: Option<&ServicePolicyName>| policy == Some(name);
        let by = match () {
            () if is(treatment.removal.as_ref().map(|it| &it.policy)) => removal,
            () if is(treatment.balancing.as_ref().map(|it| &it.policy)) => balancing,
            () if is(treatment.faults.as_ref().map(|it| &it.policy)) => faults,
            () if is(treatment.hedging.as_ref().map(|it| &it.policy)) => hedging,
            () => None,
        }?;
        Some(match place == self.called {
            true => format!("the backend {} has its own: {by}", other.0),
            false => format!("the called service {} has its own: {by}", other.0),
        })
    }

    /// The reason for a policy that sidecars of servers enforce.
    fn not_inbound(&self, service: &ServiceName) -> String {
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
        let is_behind = self.objects.iter().any(|object| match object {
            Object::Workload(workload) => {
                let mut endpoints = self.backend.endpoints.iter();
                endpoints.any(|it| it.endpoint.id.workload == workload.name)
                    && named.as_ref().is_some_and(|service| selects(service, workload))
            }
            _ => false,
        });
        match is_behind {
            true => "no rule of it matches this request".to_owned(),
            false => format!(
                "the sidecars of the workloads behind {service} enforce it, and the request goes to others"
            ),
        }
    }
}

/// The policies about retries that do not apply to requests of this client.
fn retries(
    objects: &[Object],
    (called, account, _): &Call<'_>,
    applied: Option<&PolicyName>,
    backend: &ServiceName,
) -> Vec<Unapplied> {
    let of_client = objects.iter().filter_map(|object| match object {
        Object::Retry(policy) if policy.source == *account => Some(policy),
        _ => None,
    });
    let reason = |policy: &RetryPolicy| {
        let is_called = policy.services.contains(called);
        if Some(&policy.name) == applied || !(is_called || policy.services.contains(backend)) {
            return None;
        }
        let why = match (is_called, applied) {
            (false, _) => {
                format!("it is for requests that call {backend}, and this one calls {called}")
            }
            (true, Some(other)) => format!("Retry {other} decides about the same requests"),
            (true, None) => "the rule of the route decides about retries".to_owned(),
        };
        Some(Unapplied { policy: format!("Retry {}", policy.name), why })
    };
    of_client.filter_map(reason).collect()
}
