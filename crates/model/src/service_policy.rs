//! Service policies: traffic policies attached to services. Selects the policies that apply to a port. Also contains
//! the outlier detection settings; the settings of other kinds have their own modules.

use std::fmt;
use std::time::Duration;

use crate::balancing::{LoadBalancing, PortLoadBalancing};
use crate::check_service::RequestCheck;
use crate::circuit_breaker::{CircuitBreaker, PortCircuitBreaker};
use crate::fault::{FaultRule, PortFaults};
use crate::hedging::{HedgeRule, PortHedging};
use crate::name::{InvalidName, Name, ServiceName};
use crate::outlier_detection::{FailureClasses, OutlierDetection};
use crate::rate_limit::{PortLimits, RateLimits};
use crate::route::RouteParent;

/// A traffic policy attached to some services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePolicy {
    /// The kind and name of the policy.
    pub name: ServicePolicyName,
    /// The services that the policy is attached to.
    pub scope: PolicyScope,
    /// The settings of the policy.
    pub rule: ServiceRule,
    /// The creation time in a cluster, in seconds; 0 in a file.
    pub created: i64,
}

impl ServicePolicy {
    /// Returns the precedence among equally specific policies: the oldest first, then the first by name.
    #[must_use]
    pub fn precedence(&self) -> (i64, &Name, ServicePolicyKind) {
        (self.created, &self.name.name, self.name.kind)
    }

    /// Returns the specificity of the policy for a port; `None` if the policy is not attached to the port.
    #[must_use]
    pub fn specificity_for(&self, service: &ServiceName, port: u16) -> Option<Specificity> {
        if self.name.namespace != service.namespace {
            return None;
        }
        match &self.scope {
            PolicyScope::Namespace => Some(Specificity::Namespace),
            PolicyScope::Services(parents) => {
                let parents = parents.iter().filter(|parent| parent.service == *service);
                let specificities = parents.filter_map(|parent| match parent.port {
                    None => Some(Specificity::Service),
                    Some(number) => (number == port).then_some(Specificity::Port),
                });
                specificities.max()
            }
        }
    }
}

/// The specificity of a policy for a port. Among the policies of one kind, the most specific one applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Specificity {
    /// Attached to all services of the namespace.
    Namespace,
    /// Attached to the service.
    Service,
    /// Attached to the port.
    Port,
}

/// The identity of a service policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePolicyName {
    /// The kind of the policy.
    pub kind: ServicePolicyKind,
    /// The namespace of the policy and of its services.
    pub namespace: Name,
    /// The name of the policy, unique for its kind in the namespace.
    pub name: Name,
}

impl ServicePolicyName {
    /// Validates the namespace and the name.
    ///
    /// # Errors
    /// [`InvalidName`] for the first of the two that is not a DNS-1123 subdomain.
    pub fn new(kind: ServicePolicyKind, namespace: &str, name: &str) -> Result<Self, InvalidName> {
        Ok(Self { kind, namespace: Name::new(namespace)?, name: Name::new(name)? })
    }
}

/// Formats as `Kind namespace/name`.
impl fmt::Display for ServicePolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.as_str(), self.namespace, self.name)
    }
}

/// The kinds of service policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServicePolicyKind {
    /// Outlier detection.
    OutlierDetection,
    /// Outlier detection with the format of Sermant's `sermant.removal.config`.
    SermantRemoval,
    /// Concurrency limits and circuit breaking at clients.
    CircuitBreaker,
    /// Concurrency limits and circuit breaking at clients, and rate limits at servers, as in OSM, osm-edge and
    /// FSM.
    UpstreamTrafficSetting,
    /// Rate limits and concurrency limits at servers.
    RateLimit,
    /// Fault injection.
    FaultInjection,
    /// Load balancing.
    LoadBalancing,
    /// Slow start, as in FSM.
    TrafficWarmup,
    /// Request hedging.
    Hedging,
    /// External authorization.
    ExternalAuthorization,
    /// JWT validation.
    JwtValidation,
}

impl ServicePolicyKind {
    /// All values, in the order of the documentation.
    pub const ALL: &'static [Self] = &[
        Self::OutlierDetection,
        Self::SermantRemoval,
        Self::CircuitBreaker,
        Self::UpstreamTrafficSetting,
        Self::RateLimit,
        Self::FaultInjection,
        Self::LoadBalancing,
        Self::TrafficWarmup,
        Self::Hedging,
        Self::ExternalAuthorization,
        Self::JwtValidation,
    ];

    /// Returns the word used in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OutlierDetection => "OutlierDetection",
            Self::SermantRemoval => "SermantRemoval",
            Self::CircuitBreaker => "CircuitBreaker",
            Self::UpstreamTrafficSetting => "UpstreamTrafficSetting",
            Self::RateLimit => "RateLimit",
            Self::FaultInjection => "FaultInjection",
            Self::LoadBalancing => "LoadBalancing",
            Self::TrafficWarmup => "TrafficWarmup",
            Self::Hedging => "Hedging",
            Self::ExternalAuthorization => "ExternalAuthorization",
            Self::JwtValidation => "JwtValidation",
        }
    }

    /// Returns the kind with this word in manifests; `None` if there is none.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == word)
    }
}

/// The services that a policy applies to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyScope {
    /// These services or service ports; at least one.
    Services(Vec<RouteParent>),
    /// Every service of the policy's namespace that the rule supports.
    Namespace,
}

/// The rule of a service policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceRule {
    /// Outlier detection.
    OutlierDetection(OutlierDetection),
    /// Outlier detection by Sermant's algorithm.
    SermantRemoval(SermantConfig),
    /// Concurrency limits and circuit breaking.
    CircuitBreaker(Box<CircuitBreaker>),
    /// Rate limits and concurrency limits.
    RateLimit(RateLimits),
    /// Fault injection by the first matching rule; never empty.
    FaultInjection(Vec<FaultRule>),
    /// Load balancing.
    LoadBalancing(LoadBalancing),
    /// Request hedging.
    Hedging(HedgeRule),
    /// A circuit breaker for the clients' sidecars, and rate limits for the servers' sidecars.
    UpstreamTrafficSetting(Box<UpstreamTrafficSettings>),
    /// External authorization or JWT validation.
    RequestCheck(RequestCheck),
}

/// The settings of an `UpstreamTrafficSetting`. At least one of the two differs from its default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamTrafficSettings {
    /// The circuit breaker, which the clients' sidecars enforce; the default has no effect.
    pub circuit_breaker: CircuitBreaker,
    /// The rate limits, which the servers' sidecars enforce; no limits when empty.
    pub rate_limits: RateLimits,
}

impl ServiceRule {
    /// Returns the circuit breaker that the clients' sidecars enforce; `None` if the policy has none.
    #[must_use]
    pub fn circuit_breaker(&self) -> Option<&CircuitBreaker> {
        let breaker = match self {
            Self::CircuitBreaker(rule) => Some(&**rule),
            Self::UpstreamTrafficSetting(settings) => Some(&settings.circuit_breaker),
            _ => None,
        };
        breaker.filter(|rule| **rule != CircuitBreaker::default())
    }

    /// Returns the rate limits that the servers' sidecars enforce; `None` if the policy has none.
    #[must_use]
    pub fn rate_limits(&self) -> Option<&RateLimits> {
        let limits = match self {
            Self::RateLimit(limits) => Some(limits),
            Self::UpstreamTrafficSetting(settings) => Some(&settings.rate_limits),
            _ => None,
        };
        limits.filter(|limits| !limits.is_empty())
    }
}

/// The traffic policies of one service port, at most one of each kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TrafficPolicy {
    /// Outlier detection.
    pub outlier_detection: Option<PortOutlierDetection>,
    /// Circuit breaking.
    pub breaker: Option<PortCircuitBreaker>,
    /// Fault injection.
    pub faults: Option<PortFaults>,
    /// Load balancing; the default algorithm when absent.
    pub balancing: Option<PortLoadBalancing>,
    /// Request hedging; disabled when absent.
    pub hedging: Option<PortHedging>,
}

impl TrafficPolicy {
    /// Selects the policies of a port. Of each kind, the most specific policy is selected, then the oldest, then the
    /// first by name.
    pub fn for_port<'a>(
        policies: impl IntoIterator<Item = &'a ServicePolicy>,
        service: &ServiceName,
        port: u16,
    ) -> Self {
        let mut traffic_policy = Self::default();
        for policy in attached_policies(policies, service, port) {
            traffic_policy.add_policy(policy, service);
        }
        traffic_policy
    }

    /// Adds a policy unless a more specific one of the same kind is present.
    fn add_policy(&mut self, policy: &ServicePolicy, service: &ServiceName) {
        let algorithm = match &policy.rule {
            ServiceRule::OutlierDetection(rule) => Some(OutlierAlgorithm::Native(rule.clone())),
            ServiceRule::SermantRemoval(config) => {
                config.for_service(&service.name).map(OutlierAlgorithm::Sermant)
            }
            _ => None,
        };
        if let (None, Some(algorithm)) = (&self.outlier_detection, algorithm) {
            self.outlier_detection =
                Some(PortOutlierDetection { policy: policy.name.clone(), algorithm });
        }
        if let (None, Some(rule)) = (&self.breaker, policy.rule.circuit_breaker()) {
            self.breaker =
                Some(PortCircuitBreaker { policy: policy.name.clone(), rule: rule.clone() });
        }
        if let (None, ServiceRule::FaultInjection(rules)) = (&self.faults, &policy.rule) {
            self.faults = Some(PortFaults { policy: policy.name.clone(), rules: rules.clone() });
        }
        if let (None, ServiceRule::LoadBalancing(rule)) = (&self.balancing, &policy.rule) {
            self.balancing =
                Some(PortLoadBalancing { policy: policy.name.clone(), rule: rule.clone() });
        }
        if let (None, ServiceRule::Hedging(rule)) = (&self.hedging, &policy.rule) {
            self.hedging = Some(PortHedging { policy: policy.name.clone(), rule: rule.clone() });
        }
    }

    /// Returns the names of the effective policies, at most one of each kind.
    pub fn policy_names(&self) -> impl Iterator<Item = &ServicePolicyName> {
        let outlier_detection =
            self.outlier_detection.iter().map(|outlier_detection| &outlier_detection.policy);
        let breaker = self.breaker.iter().map(|breaker| &breaker.policy);
        let faults = self.faults.iter().map(|faults| &faults.policy);
        let balancing = self.balancing.iter().map(|balancing| &balancing.policy);
        let hedging = self.hedging.iter().map(|hedging| &hedging.policy);
        outlier_detection.chain(breaker).chain(faults).chain(balancing).chain(hedging)
    }

    /// True if there is no policy.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl PortLimits {
    /// Selects the rate limits of a port: those of the most specific policy, then the oldest, then the first by name.
    /// `None` if no policy limits the port.
    pub fn for_port<'a>(
        policies: impl IntoIterator<Item = &'a ServicePolicy>,
        service: &ServiceName,
        port: u16,
    ) -> Option<Self> {
        let mut policies = attached_policies(policies, service, port).into_iter();
        policies.find_map(|policy| {
            let limits = policy.rule.rate_limits()?.clone();
            Some(Self { policy: policy.name.clone(), limits })
        })
    }
}

/// Returns the policies attached to a port: the most specific first, then by age, then by name.
pub(crate) fn attached_policies<'a>(
    policies: impl IntoIterator<Item = &'a ServicePolicy>,
    service: &ServiceName,
    port: u16,
) -> Vec<&'a ServicePolicy> {
    let attached = policies.into_iter().filter_map(|policy| {
        let specificity = policy.specificity_for(service, port)?;
        Some((specificity, policy))
    });
    let mut attached: Vec<_> = attached.collect();
    attached.sort_by(|(first_specificity, first_policy), (second_specificity, second_policy)| {
        second_specificity
            .cmp(first_specificity)
            .then_with(|| first_policy.precedence().cmp(&second_policy.precedence()))
    });
    attached.into_iter().map(|(_, policy)| policy).collect()
}

/// The outlier detection of a port, and the policy that sets it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortOutlierDetection {
    /// The name of the policy.
    pub policy: ServicePolicyName,
    /// The algorithm with its settings.
    pub algorithm: OutlierAlgorithm,
}

/// The outlier detection algorithms.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum OutlierAlgorithm {
    /// Leno's algorithm: see [`OutlierDetection`].
    Native(OutlierDetection),
    /// The algorithm of Sermant's service-removal.
    Sermant(SermantRemoval),
}

/// Sermant's outlier configuration for all services of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SermantConfig {
    /// The settings common to all services.
    pub common: SermantCommon,
    /// The rules by service name, in order, each name once.
    pub rules: Vec<(Name, SermantRule)>,
    /// The rule for services without their own rule; their endpoints are never ejected when absent.
    pub default_rule: Option<SermantRule>,
}

impl SermantConfig {
    /// Returns the configuration of a service; `None` if the endpoints of the service are never ejected.
    #[must_use]
    pub fn for_service(&self, service: &Name) -> Option<SermantRemoval> {
        let own_rule = self.rules.iter().find(|(name, _)| name == service).map(|(_, rule)| *rule);
        let rule = own_rule.or(self.default_rule)?;
        Some(SermantRemoval { common: self.common.clone(), rule })
    }
}

/// Sermant's outlier detection of one service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SermantRemoval {
    /// The settings common to all services.
    pub common: SermantCommon,
    /// The settings of the service.
    pub rule: SermantRule,
}

/// The settings of Sermant's configuration that are common to all services.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SermantCommon {
    /// The responses that count as failures; no response counts when empty.
    pub failures: FailureClasses,
    /// The time without requests after which the state of an instance is reset (`expireTime`).
    pub expire: Duration,
    /// The ejection time (`recoveryTime`).
    pub recovery: Duration,
    /// The length of one window (`windowsTime`).
    pub window: Duration,
    /// The number of windows (`windowsNum`).
    pub windows: u32,
}

/// One of Sermant's `rules`. Shares are in millionths, where Sermant has decimal fractions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SermantRule {
    /// The maximum share of ejected instances (`scaleUpLimit`).
    pub scale_up_limit_ppm: u32,
    /// The minimum number of instances in service (`minInstanceNum`).
    pub min_instances: u32,
    /// The failure rate that ejects an instance (`errorRate`).
    pub error_rate_ppm: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service_policy(kind: ServicePolicyKind, name: &str, scope: PolicyScope) -> ServicePolicy {
        let rule = SermantRule { scale_up_limit_ppm: 1, min_instances: 1, error_rate_ppm: 1 };
        let one_second = Duration::from_secs(1);
        let config = SermantConfig {
            common: SermantCommon {
                failures: FailureClasses::default(),
                expire: one_second,
                recovery: one_second,
                window: one_second,
                windows: 1,
            },
            rules: vec![(Name::new("own").expect("the name is valid"), rule)],
            default_rule: None,
        };
        let name = ServicePolicyName::new(kind, "shop", name).expect("the names are valid");
        ServicePolicy { name, scope, rule: ServiceRule::SermantRemoval(config), created: 0 }
    }

    #[test]
    fn the_most_specific_policy_applies_then_the_first() {
        let service = ServiceName::new("shop", "own").expect("the names are valid");
        let kind = ServicePolicyKind::SermantRemoval;
        let attached_to =
            |port| PolicyScope::Services(vec![RouteParent { service: service.clone(), port }]);
        let policies = [
            service_policy(kind, "a", PolicyScope::Namespace),
            service_policy(kind, "c", attached_to(None)),
            service_policy(kind, "b", attached_to(None)),
            service_policy(kind, "z", attached_to(Some(80))),
        ];
        let effective_name = |policies: &[ServicePolicy], port| {
            let traffic_policy = TrafficPolicy::for_port(policies, &service, port);
            traffic_policy
                .outlier_detection
                .map(|outlier_detection| outlier_detection.policy.name.to_string())
        };
        assert_eq!(effective_name(&policies, 80).as_deref(), Some("z"));
        assert_eq!(effective_name(&policies, 81).as_deref(), Some("b"));
        assert_eq!(effective_name(&policies[..1], 81).as_deref(), Some("a"));
        assert_eq!(effective_name(&[], 81), None);
        let other_service = ServiceName::new("shop", "other").expect("the names are valid");
        assert!(
            TrafficPolicy::for_port(&policies, &other_service, 80).is_empty(),
            "the configuration has no rule for the service"
        );
        let service_of_other_namespace =
            ServiceName::new("elsewhere", "own").expect("the names are valid");
        assert!(TrafficPolicy::for_port(&policies, &service_of_other_namespace, 80).is_empty());
    }
}
