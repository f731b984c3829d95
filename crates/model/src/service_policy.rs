//! Service policies: objects attached to services that say how requests to them are treated.

use std::fmt;
use std::time::Duration;

use crate::balancing::{Balancing, LoadBalancing};
use crate::breaker::{Breaker, CircuitBreaker};
use crate::decider::Guard;
use crate::fault::{FaultRule, Faults};
use crate::health_check::HealthCheck;
use crate::hedging::{HedgeRule, Hedging};
use crate::name::{InvalidName, Name, ServiceName};
use crate::rate_limit::{PortLimits, RateLimits};
use crate::route::RouteParent;

/// An object that says how requests to some services are treated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePolicy {
    /// Its kind and name.
    pub name: ServicePolicyName,
    /// Whom it is about.
    pub scope: PolicyScope,
    /// What it says.
    pub rule: ServiceRule,
    /// Its creation in a cluster, in seconds; 0 in a file.
    pub created: i64,
}

impl ServicePolicy {
    /// Its rank among those that are attached as closely: the oldest goes first, then the first by name.
    #[must_use]
    pub fn precedence(&self) -> (i64, &Name, ServicePolicyKind) {
        (self.created, &self.name.name, self.name.kind)
    }

    /// How closely it is attached to a port; `None` when it is not.
    #[must_use]
    pub fn closeness(&self, service: &ServiceName, port: u16) -> Option<Closeness> {
        if self.name.namespace != service.namespace {
            return None;
        }
        match &self.scope {
            PolicyScope::Namespace => Some(Closeness::Namespace),
            PolicyScope::Services(parents) => {
                let parents = parents.iter().filter(|parent| parent.service == *service);
                let closeness = parents.filter_map(|parent| match parent.port {
                    None => Some(Closeness::Service),
                    Some(number) => (number == port).then_some(Closeness::Port),
                });
                closeness.max()
            }
        }
    }
}

/// How closely a policy is attached to a port: the closest of those with one concern decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Closeness {
    /// To all services of the namespace.
    Namespace,
    /// To its service.
    Service,
    /// To itself.
    Port,
}

/// What identifies a service policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePolicyName {
    /// Its kind.
    pub kind: ServicePolicyKind,
    /// The namespace that holds it; its services are there too.
    pub namespace: Name,
    /// Its own name, unique for its kind in the namespace.
    pub name: Name,
}

impl ServicePolicyName {
    /// Checks both parts of the name.
    ///
    /// # Errors
    /// [`InvalidName`] for the first part that is not a DNS-1123 subdomain.
    pub fn new(kind: ServicePolicyKind, namespace: &str, name: &str) -> Result<Self, InvalidName> {
        Ok(Self { kind, namespace: Name::new(namespace)?, name: Name::new(name)? })
    }
}

/// `Kind namespace/name`.
impl fmt::Display for ServicePolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.as_str(), self.namespace, self.name)
    }
}

/// The kinds of service policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServicePolicyKind {
    /// Which endpoints are removed for a while, natively.
    OutlierRemoval,
    /// The same as Sermant's `sermant.removal.config` says it.
    SermantRemoval,
    /// How much may be under way to a service, and when nothing is sent.
    CircuitBreaker,
    /// The same, and how much may come in, as OSM, osm-edge and FSM have it.
    UpstreamTrafficSetting,
    /// How much may come in at a service in a time.
    RateLimit,
    /// Delays and errors on purpose.
    FaultInjection,
    /// How an endpoint is chosen.
    LoadBalancing,
    /// How an endpoint that is new gets its share, as FSM has it.
    TrafficWarmup,
    /// When a request is sent to a second endpoint.
    Hedging,
    /// Who else decides whether requests may come in.
    ExternalAuthorization,
    /// Which JSON web tokens requests may, or must, show.
    JwtValidation,
}

impl ServicePolicyKind {
    /// Every kind.
    pub const ALL: &'static [Self] = &[
        Self::OutlierRemoval,
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

    /// The word used in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OutlierRemoval => "OutlierRemoval",
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

    /// The kind with this word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == word)
    }
}

/// Whom a service policy is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyScope {
    /// These services, or one port of each, at least one.
    Services(Vec<RouteParent>),
    /// Every service of the policy's namespace that the rule knows.
    Namespace,
}

/// What a service policy says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceRule {
    /// Which endpoints are removed.
    OutlierRemoval(OutlierRemoval),
    /// Which endpoints are removed, as Sermant decides it.
    SermantRemoval(SermantConfig),
    /// How much may be under way, and when nothing is sent.
    CircuitBreaker(Box<CircuitBreaker>),
    /// How much may come in.
    RateLimit(RateLimits),
    /// Delays and errors, by the first rule that fits; never empty.
    FaultInjection(Vec<FaultRule>),
    /// How an endpoint is chosen.
    LoadBalancing(LoadBalancing),
    /// When a request is sent to a second endpoint.
    Hedging(HedgeRule),
    /// Both: at least one of them says something.
    UpstreamTrafficSetting(Box<(CircuitBreaker, RateLimits)>),
    /// What else decides about requests that come in.
    Guard(Guard),
}

impl ServiceRule {
    /// What it says to clients about what may be under way.
    #[must_use]
    pub fn breaker(&self) -> Option<&CircuitBreaker> {
        let breaker = match self {
            Self::CircuitBreaker(rule) => Some(&**rule),
            Self::UpstreamTrafficSetting(both) => Some(&both.0),
            _ => None,
        };
        breaker.filter(|rule| **rule != CircuitBreaker::default())
    }

    /// What it says to servers about what may come in.
    #[must_use]
    pub fn limits(&self) -> Option<&RateLimits> {
        let limits = match self {
            Self::RateLimit(limits) => Some(limits),
            Self::UpstreamTrafficSetting(both) => Some(&both.1),
            _ => None,
        };
        limits.filter(|limits| !limits.is_empty())
    }
}

/// How requests to one port of a service are treated: at most one policy for each concern.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Treatment {
    /// Which endpoints are removed for a while.
    pub removal: Option<Removal>,
    /// How much may be under way, and when nothing is sent for a while.
    pub breaker: Option<Breaker>,
    /// Delays and errors on purpose.
    pub faults: Option<Faults>,
    /// How an endpoint is chosen; by the default when absent.
    pub balancing: Option<Balancing>,
    /// When a request is sent to a second endpoint; never when absent.
    pub hedging: Option<Hedging>,
}

impl Treatment {
    /// What these policies say about a port. For each concern the one that is attached most
    /// closely decides, and of equals the oldest, then the first by name.
    pub fn of<'a>(
        policies: impl IntoIterator<Item = &'a ServicePolicy>,
        service: &ServiceName,
        port: u16,
    ) -> Self {
        let mut treatment = Self::default();
        for policy in attached(policies, service, port) {
            treatment.add(policy, service);
        }
        treatment
    }

    /// Takes in a policy unless a closer one has said something about the same concern.
    fn add(&mut self, policy: &ServicePolicy, service: &ServiceName) {
        let algorithm = match &policy.rule {
            ServiceRule::OutlierRemoval(rule) => Some(RemovalAlgorithm::Native(rule.clone())),
            ServiceRule::SermantRemoval(config) => {
                config.of(&service.name).map(RemovalAlgorithm::Sermant)
            }
            _ => None,
        };
        if let (None, Some(algorithm)) = (&self.removal, algorithm) {
            self.removal = Some(Removal { policy: policy.name.clone(), algorithm });
        }
        if let (None, Some(rule)) = (&self.breaker, policy.rule.breaker()) {
            self.breaker = Some(Breaker { policy: policy.name.clone(), rule: rule.clone() });
        }
        if let (None, ServiceRule::FaultInjection(rules)) = (&self.faults, &policy.rule) {
            self.faults = Some(Faults { policy: policy.name.clone(), rules: rules.clone() });
        }
        if let (None, ServiceRule::LoadBalancing(rule)) = (&self.balancing, &policy.rule) {
            self.balancing = Some(Balancing { policy: policy.name.clone(), rule: rule.clone() });
        }
        if let (None, ServiceRule::Hedging(rule)) = (&self.hedging, &policy.rule) {
            self.hedging = Some(Hedging { policy: policy.name.clone(), rule: rule.clone() });
        }
    }

    /// The policies that decide, one for each concern.
    pub fn policies(&self) -> impl Iterator<Item = &ServicePolicyName> {
        let removal = self.removal.iter().map(|removal| &removal.policy);
        let breaker = self.breaker.iter().map(|breaker| &breaker.policy);
        let faults = self.faults.iter().map(|faults| &faults.policy);
        let balancing = self.balancing.iter().map(|balancing| &balancing.policy);
        let hedging = self.hedging.iter().map(|hedging| &hedging.policy);
        removal.chain(breaker).chain(faults).chain(balancing).chain(hedging)
    }

    /// Whether no policy says anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl PortLimits {
    /// What these policies say may come in at a port: the one that is attached most closely
    /// decides, and of equals the oldest, then the first by name.
    pub fn of<'a>(
        policies: impl IntoIterator<Item = &'a ServicePolicy>,
        service: &ServiceName,
        port: u16,
    ) -> Option<Self> {
        let mut policies = attached(policies, service, port).into_iter();
        policies.find_map(|policy| {
            let limits = policy.rule.limits()?.clone();
            Some(Self { policy: policy.name.clone(), limits })
        })
    }
}

/// The policies that are attached to a port, the closest first, and of equals by age, then by name.
pub(crate) fn attached<'a>(
    policies: impl IntoIterator<Item = &'a ServicePolicy>,
    service: &ServiceName,
    port: u16,
) -> Vec<&'a ServicePolicy> {
    let attached = policies.into_iter().filter_map(|policy| {
        let closeness = policy.closeness(service, port)?;
        Some((closeness, policy))
    });
    let mut attached: Vec<_> = attached.collect();
    attached.sort_by(|(a, one), (b, other)| {
        b.cmp(a).then_with(|| one.precedence().cmp(&other.precedence()))
    });
    attached.into_iter().map(|(_, policy)| policy).collect()
}

/// Which endpoints of a port are removed, and who said so.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Removal {
    /// The policy.
    pub policy: ServicePolicyName,
    /// By which algorithm.
    pub algorithm: RemovalAlgorithm,
}

/// The two ways to decide which endpoints are removed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RemovalAlgorithm {
    /// Ours.
    Native(OutlierRemoval),
    /// Sermant's, as published.
    Sermant(SermantRemoval),
}

/// When an endpoint is removed, and when it comes back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OutlierRemoval {
    /// What counts as a failure; never empty.
    pub failures: FailureClasses,
    /// How far back the share of failures looks.
    pub window: Duration,
    /// Into how many steps the window is divided; it slides by one at a time.
    pub steps: u8,
    /// Removed when this share of its requests in the window failed; not when absent.
    pub rate: Option<FailureRate>,
    /// Removed after so many failures in a row; not when absent.
    pub consecutive: Option<u32>,
    /// The most endpoints that are out at the same time, percent of all, rounded down.
    pub removed_percent_max: u8,
    /// How many endpoints must stay, at least one.
    pub keep: u32,
    /// How long an endpoint is out.
    pub back_off: RemovalBackOff,
    /// How many requests must succeed, one after the other, before it is back in full.
    pub probes: u32,
    /// How endpoints are asked besides, whether they are well; not when absent.
    pub health_check: Option<Box<HealthCheck>>,
}

/// A share of failures that is too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FailureRate {
    /// Percent of the requests, 1 to 100.
    pub percent: u8,
    /// Fewer requests in the window prove nothing.
    pub requests_min: u32,
}

/// How long an endpoint is out: doubling from the base to the most, minus a share of chance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemovalBackOff {
    /// The first time.
    pub base: Duration,
    /// However often it failed.
    pub most: Duration,
    /// How much of it chance may take away, percent.
    pub jitter_percent: u8,
}

/// The classes of failure that count.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FailureClasses {
    /// No connection, or no session, with the endpoint or the application behind it.
    pub connect: bool,
    /// No connection, answer or end of the answer in time.
    pub timeout: bool,
    /// The connection broke, or what came over it was no HTTP.
    pub reset: bool,
    /// Statuses 500 to 599.
    pub server_errors: bool,
    /// Statuses 502, 503 and 504.
    pub gateway_errors: bool,
    /// These statuses of gRPC, in order, each once.
    pub grpc: Vec<u8>,
}

impl FailureClasses {
    /// Whether nothing counts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Sermant's configuration of service removal, for all services of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SermantConfig {
    /// What is the same for every service.
    pub common: SermantCommon,
    /// The rules by name of service, in order, each name once.
    pub rules: Vec<(Name, SermantRule)>,
    /// The rule for all other services.
    pub default_rule: Option<SermantRule>,
}

impl SermantConfig {
    /// What it says about a service; `None` when nothing is removed there.
    #[must_use]
    pub fn of(&self, service: &Name) -> Option<SermantRemoval> {
        let own = self.rules.iter().find(|(name, _)| name == service).map(|(_, rule)| *rule);
        let rule = own.or(self.default_rule)?;
        Some(SermantRemoval { common: self.common.clone(), rule })
    }
}

/// When Sermant removes an instance of one service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SermantRemoval {
    /// What is the same for every service.
    pub common: SermantCommon,
    /// What is the service's own.
    pub rule: SermantRule,
}

/// The part of Sermant's configuration that is the same for every service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SermantCommon {
    /// What counts as a failure; may be empty, and then nothing does.
    pub failures: FailureClasses,
    /// An instance that was not called for so long is forgotten (`expireTime`).
    pub expire: Duration,
    /// How long an instance is out (`recoveryTime`).
    pub recovery: Duration,
    /// The length of one window (`windowsTime`).
    pub window: Duration,
    /// How many windows are kept (`windowsNum`).
    pub windows: u32,
}

/// One of Sermant's `rules`. Shares are in millionths: Sermant has them as decimal numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SermantRule {
    /// The most instances that are out (`scaleUpLimit`).
    pub scale_up_limit_ppm: u32,
    /// How many instances must stay (`minInstanceNum`).
    pub min_instances: u32,
    /// From which share of failures an instance is out (`errorRate`).
    pub error_rate_ppm: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(kind: ServicePolicyKind, name: &str, scope: PolicyScope) -> ServicePolicy {
        let rule = SermantRule { scale_up_limit_ppm: 1, min_instances: 1, error_rate_ppm: 1 };
        let time = Duration::from_secs(1);
        let config = SermantConfig {
            common: SermantCommon {
                failures: FailureClasses::default(),
                expire: time,
                recovery: time,
                window: time,
                windows: 1,
            },
            rules: vec![(Name::new("own").expect("a name"), rule)],
            default_rule: None,
        };
        let name = ServicePolicyName::new(kind, "shop", name).expect("names");
        ServicePolicy { name, scope, rule: ServiceRule::SermantRemoval(config), created: 0 }
    }

    #[test]
    fn the_closest_policy_decides_and_of_equals_the_first() {
        let service = ServiceName::new("shop", "own").expect("names");
        let kind = ServicePolicyKind::SermantRemoval;
        let to = |port| PolicyScope::Services(vec![RouteParent { service: service.clone(), port }]);
        let all = [
            policy(kind, "a", PolicyScope::Namespace),
            policy(kind, "c", to(None)),
            policy(kind, "b", to(None)),
            policy(kind, "z", to(Some(80))),
        ];
        let decides = |policies: &[ServicePolicy], port| {
            let treatment = Treatment::of(policies, &service, port);
            treatment.removal.map(|removal| removal.policy.name.to_string())
        };
        assert_eq!(decides(&all, 80).as_deref(), Some("z"));
        assert_eq!(decides(&all, 81).as_deref(), Some("b"));
        assert_eq!(decides(&all[..1], 81).as_deref(), Some("a"));
        assert_eq!(decides(&[], 81), None);
        let other = ServiceName::new("shop", "other").expect("names");
        assert!(Treatment::of(&all, &other, 80).is_empty(), "the configuration has no rule for it");
        let foreign = ServiceName::new("elsewhere", "own").expect("names");
        assert!(Treatment::of(&all, &foreign, 80).is_empty());
    }
}
