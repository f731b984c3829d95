//! Determines the conflict status of service policies: whether a policy applies, is overridden by another policy, or
//! has no effect.

use crate::check_service::PortCheck;
use crate::forwarding::{NoEffect, PolicyContext};
use crate::name::ServiceName;
use crate::rate_limit::PortLimits;
use crate::service_policy::{ServicePolicy, ServicePolicyName, TrafficPolicy};

/// The conflict status of a service policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConflictStatus {
    /// The policy applies to one or more ports.
    Effective,
    /// The policy is overridden at all its ports by policies of the same kind. Contains the name of one of them.
    Overridden(ServicePolicyName),
    /// The policy applies to ports, but has no effect: routes forward the traffic of each port to other services,
    /// or the traffic is opaque.
    NoEffect(NoEffect),
    /// The policy is attached to services or ports that do not exist.
    NoTarget,
}

impl ConflictStatus {
    /// Returns the status of a policy at these service ports, which exist. Ports that the policy is not attached to are
    /// skipped. If the status differs between ports, `Effective` takes precedence, then `NoEffect`, then `Overridden`.
    pub fn for_policy<'a, 'b>(
        policy: &ServicePolicy,
        ports: impl IntoIterator<Item = (&'b ServiceName, u16)>,
        context: &impl PolicyContext<'a>,
    ) -> Self {
        let mut status = Self::NoTarget;
        for (service, port) in ports {
            if effective_policies([policy], service, port).is_empty() {
                continue;
            }
            let policies = context.policies_of(service);
            let effective_names = effective_policies(policies.iter().copied(), service, port);
            if effective_names.contains(&policy.name) {
                match NoEffect::detect_at(policy, service, port, context) {
                    None => return Self::Effective,
                    Some(no_effect) => status = Self::NoEffect(no_effect),
                }
                continue;
            }
            // True for an effective policy that alone prevents this policy from applying to the port.
            let overrides = |effective_name: &&ServicePolicyName| {
                let both_policies = policies.iter().copied().filter(|candidate| {
                    candidate.name == **effective_name || candidate.name == policy.name
                });
                !effective_policies(both_policies, service, port).contains(&policy.name)
            };
            // If no single policy overrides this policy, the first effective policy is named.
            let overriding_name =
                effective_names.iter().find(overrides).or(effective_names.first()).cloned();
            let has_no_effect = matches!(status, Self::NoEffect(_));
            status = overriding_name.filter(|_| !has_no_effect).map_or(status, Self::Overridden);
        }
        status
    }
}

/// Returns the names of the policies that apply to a port, at most one of each kind.
fn effective_policies<'a>(
    policies: impl IntoIterator<Item = &'a ServicePolicy> + Clone,
    service: &ServiceName,
    port: u16,
) -> Vec<ServicePolicyName> {
    let limits = PortLimits::for_port(policies.clone(), service, port).map(|limits| limits.policy);
    let checks = PortCheck::for_port(policies.clone(), service, port)
        .into_iter()
        .map(|port_check| port_check.policy);
    let traffic_policy = TrafficPolicy::for_port(policies, service, port);
    traffic_policy.policy_names().cloned().chain(limits).chain(checks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forwarding::{Destinations, PolicySide};
    use crate::hedging::HedgeRule;
    use crate::route::RouteParent;
    use crate::service_policy::{PolicyScope, ServicePolicyKind, ServiceRule};

    fn hedging_policy(name: &str, port: Option<u16>) -> ServicePolicy {
        let service = ServiceName::new("shop", "web").unwrap();
        let after = std::time::Duration::from_millis(50);
        ServicePolicy {
            name: ServicePolicyName::new(ServicePolicyKind::Hedging, "shop", name).unwrap(),
            scope: PolicyScope::Services(vec![RouteParent { service, port }]),
            rule: ServiceRule::Hedging(HedgeRule { after, methods: [].into() }),
            created: 0,
        }
    }

    #[test]
    fn the_most_specific_policy_applies_then_the_first_by_name() {
        let (first, second, most_specific) =
            (hedging_policy("a", None), hedging_policy("b", None), hedging_policy("c", Some(80)));
        let web = ServiceName::new("shop", "web").unwrap();
        let status = |policy: &ServicePolicy, policies: &[&ServicePolicy], ports: &[u16]| {
            let ports = ports.iter().map(|port| (&web, *port));
            let policies = policies.iter().copied().cloned().collect();
            ConflictStatus::for_policy(policy, ports, &TestContext { policies: &policies })
        };
        let overridden = |by: &ServicePolicy| ConflictStatus::Overridden(by.name.clone());
        let two_policies = [&first, &second];
        assert_eq!(status(&first, &two_policies, &[80]), ConflictStatus::Effective);
        assert_eq!(status(&second, &two_policies, &[80]), overridden(&first));
        let three_policies = [&first, &second, &most_specific];
        assert_eq!(status(&first, &three_policies, &[80]), overridden(&most_specific));
        assert_eq!(status(&first, &three_policies, &[80, 81]), ConflictStatus::Effective);
        assert_eq!(status(&most_specific, &three_policies, &[81]), ConflictStatus::NoTarget);
        assert_eq!(status(&first, &two_policies, &[]), ConflictStatus::NoTarget);
    }

    struct TestContext<'a> {
        policies: &'a Vec<ServicePolicy>,
    }

    impl<'a> PolicyContext<'a> for TestContext<'a> {
        fn policies_of(&self, _: &ServiceName) -> Vec<&'a ServicePolicy> {
            self.policies.iter().collect()
        }

        fn port_destinations(&self, _: &ServiceName, _: u16) -> Destinations {
            Destinations { reaches_own_endpoints: true, ..Destinations::default() }
        }

        fn shares_workloads(&self, _: &ServiceName, _: u16) -> bool {
            true
        }

        fn is_backend(&self, _: &ServiceName, _: u16) -> bool {
            false
        }

        fn sees_requests(&self, _: &ServiceName, _: u16, _: PolicySide) -> bool {
            true
        }
    }
}
