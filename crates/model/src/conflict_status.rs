//! Conflict status of service policies: those in force, and those that another one overrides.

use crate::check_service::PortCheck;
use crate::forwarding::{NoEffect, PolicyContext};
use crate::name::ServiceName;
use crate::rate_limit::PortLimits;
use crate::service_policy::{ServicePolicy, ServicePolicyName, TrafficPolicy};

/// The conflict status of a service policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConflictStatus {
    /// It is in force at some port at least.
    InForce,
    /// It is overridden everywhere, by this policy or others like it.
    Overridden(ServicePolicyName),
    /// It is in force and has no effect: routes forward the traffic of each port elsewhere, or the traffic is
    /// opaque.
    NoEffect(NoEffect),
    /// It is attached to services or ports that do not exist.
    NoTarget,
}

impl ConflictStatus {
    /// The status of a policy at the existing ports.
    pub fn for_policy<'a, 'b>(
        policy: &ServicePolicy,
        ports: impl IntoIterator<Item = (&'b ServiceName, u16)>,
        around: &impl PolicyContext<'a>,
    ) -> Self {
        let mut standing = Self::NoTarget;
        for (service, port) in ports {
            if effective_policies([policy], service, port).is_empty() {
                continue;
            }
            let all = around.policies_of(service);
            let decides = effective_policies(all.iter().copied(), service, port);
            if decides.contains(&policy.name) {
                match NoEffect::detect_at(policy, service, port, around) {
                    None => return Self::InForce,
                    Some(idle) => standing = Self::NoEffect(idle),
                }
                continue;
            }
            // The policies in force at the port that prevent this one from being in force.
            let in_its_place = |decides: &&ServicePolicyName| {
                let both = all.iter().copied();
                let both = both.filter(|it| it.name == **decides || it.name == policy.name);
                !effective_policies(both, service, port).contains(&policy.name)
            };
            let winner = decides.iter().find(in_its_place).or(decides.first()).cloned();
            let is_idle = matches!(standing, Self::NoEffect(_));
            standing = winner.filter(|_| !is_idle).map_or(standing, Self::Overridden);
        }
        standing
    }
}

/// The policies in force at a port, one of each kind.
fn effective_policies<'a>(
    policies: impl IntoIterator<Item = &'a ServicePolicy> + Clone,
    service: &ServiceName,
    port: u16,
) -> Vec<ServicePolicyName> {
    let limits = PortLimits::for_port(policies.clone(), service, port).map(|limits| limits.policy);
    let guards =
        PortCheck::for_port(policies.clone(), service, port).into_iter().map(|it| it.policy);
    let traffic_policy = TrafficPolicy::for_port(policies, service, port);
    traffic_policy.policy_names().cloned().chain(limits).chain(guards).collect()
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
            rule: ServiceRule::Hedging(HedgeRule { after, methods: Vec::new() }),
            created: 0,
        }
    }

    #[test]
    fn the_closest_decides_and_of_equals_the_first_by_name() {
        let (first, second, close) =
            (hedging_policy("a", None), hedging_policy("b", None), hedging_policy("c", Some(80)));
        let web = ServiceName::new("shop", "web").unwrap();
        let standing = |policy: &ServicePolicy, all: &[&ServicePolicy], ports: &[u16]| {
            let ports = ports.iter().map(|port| (&web, *port));
            let policies = all.iter().copied().cloned().collect();
            ConflictStatus::for_policy(policy, ports, &Around { policies: &policies })
        };
        let overruled = |by: &ServicePolicy| ConflictStatus::Overridden(by.name.clone());
        let both = [&first, &second];
        assert_eq!(standing(&first, &both, &[80]), ConflictStatus::InForce);
        assert_eq!(standing(&second, &both, &[80]), overruled(&first));
        let three = [&first, &second, &close];
        assert_eq!(standing(&first, &three, &[80]), overruled(&close));
        assert_eq!(standing(&first, &three, &[80, 81]), ConflictStatus::InForce);
        assert_eq!(standing(&close, &three, &[81]), ConflictStatus::NoTarget);
        assert_eq!(standing(&first, &both, &[]), ConflictStatus::NoTarget);
    }

    struct Around<'a> {
        policies: &'a Vec<ServicePolicy>,
    }

    impl<'a> PolicyContext<'a> for Around<'a> {
        fn policies_of(&self, _: &ServiceName) -> Vec<&'a ServicePolicy> {
            self.policies.iter().collect()
        }

        fn port_destinations(&self, _: &ServiceName, _: u16) -> Destinations {
            Destinations { own: true, ..Destinations::default() }
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
