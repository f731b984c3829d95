//! Policies that match by request: opaque bytes are rejected at ports where one applies.

use crate::access_policy::{PolicyAction, PolicyRule};
use crate::balancing::{HashKey, LoadBalancing};
use crate::check_service::RequestCheck;
use crate::circuit_breaker::{CircuitBreaker, CircuitLimits, FixedResponse, TripConditions};
use crate::fault::PortFaults;
use crate::jwt::TokenRequirement;
use crate::rate_limit::RateLimits;
use crate::service::Protocol;
use crate::service_policy::{
    FailureClasses, OutlierAlgorithm, OutlierDetection, PortOutlierDetection, ServicePolicyName,
    ServiceRule,
};
use crate::snapshot::WorkloadConfig;

/// The traffic that a policy must see to be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestNeed {
    /// Connections; requests are not needed.
    None,
    /// Requests, at ports where opaque bytes may contain some. A port that is declared `TCP` has none: bytes
    /// that begin like HTTP are rejected there.
    IfSupported,
    /// Requests only, at any port: each must be authenticated.
    Always,
}

impl RequestNeed {
    /// True if opaque bytes would bypass the policy at a port of this protocol. They are rejected there.
    #[must_use]
    pub const fn rejects_bytes(self, declared: Protocol) -> bool {
        match self {
            Self::None => false,
            Self::IfSupported => !matches!(declared, Protocol::Tcp),
            Self::Always => true,
        }
    }
}

impl ServiceRule {
    /// Returns the need of the policy, for every kind of service policy.
    #[must_use]
    pub fn request_need(&self) -> RequestNeed {
        match self {
            Self::RateLimit(limits) => limits.request_need(),
            Self::UpstreamTrafficSetting(setting) => setting.1.request_need(),
            Self::FaultInjection(_) => PortFaults::REQUEST_NEED,
            Self::RequestCheck(check) => check.request_need(),
            // These limit, balance and retry the client's own requests.
            Self::OutlierDetection(_)
            | Self::SermantRemoval(_)
            | Self::CircuitBreaker(_)
            | Self::LoadBalancing(_)
            | Self::Hedging(_) => RequestNeed::None,
        }
    }
}

impl ServiceRule {
    /// True if the policy has an effect on opaque connections.
    #[must_use]
    pub fn acts_on_connections(&self) -> bool {
        match self {
            Self::OutlierDetection(rule) => rule.acts_on_connections(),
            Self::SermantRemoval(config) => config.common.failures.has_connections(),
            Self::CircuitBreaker(rule) => rule.acts_on_connections(),
            Self::UpstreamTrafficSetting(setting) => {
                setting.0.acts_on_connections() || setting.1.connections.is_some()
            }
            Self::RateLimit(limits) => limits.connections.is_some(),
            Self::LoadBalancing(rule) => rule.acts_on_connections(),
            Self::FaultInjection(_) | Self::Hedging(_) => false,
            Self::RequestCheck(check) => check.request_need() == RequestNeed::Always,
        }
    }
}

impl PortOutlierDetection {
    /// True if the policy has an effect on opaque connections.
    #[must_use]
    pub fn acts_on_connections(&self) -> bool {
        match &self.algorithm {
            OutlierAlgorithm::Native(rule) => rule.acts_on_connections(),
            OutlierAlgorithm::Sermant(rule) => rule.common.failures.has_connections(),
        }
    }
}

impl OutlierDetection {
    fn acts_on_connections(&self) -> bool {
        self.failures.has_connections() || self.health_check.is_some()
    }
}

impl FailureClasses {
    /// True if a class of connection failures counts; the rest are responses.
    #[must_use]
    pub const fn has_connections(&self) -> bool {
        self.connect || self.timeout || self.reset
    }
}

impl CircuitBreaker {
    /// True if the circuit breaker has an effect on opaque connections.
    #[must_use]
    pub fn acts_on_connections(&self) -> bool {
        let opens = |trip: &TripConditions| trip.failures.has_connections() || trip.slow.is_some();
        self.limits.connections.is_some()
            || self.connect_timeout.is_some()
            || self.trip.as_ref().is_some_and(opens)
    }

    /// Returns the part that has an effect on opaque connections.
    #[must_use]
    pub fn for_connections(&self) -> Self {
        let limits =
            CircuitLimits { connections: self.limits.connections, ..CircuitLimits::default() };
        let trip = self.trip.clone();
        // A connection is reset, without a response.
        let response = FixedResponse::default();
        Self { limits, trip, response, connect_timeout: self.connect_timeout }
    }
}

impl LoadBalancing {
    /// True if the algorithm has an effect on opaque connections: only requests have headers and cookies to
    /// hash.
    #[must_use]
    pub fn acts_on_connections(&self) -> bool {
        !matches!(self.algorithm.hash_key(), Some(HashKey::Header(_) | HashKey::Cookie(_)))
    }
}

impl PortFaults {
    /// The need of faults, at the sidecar of the client.
    pub const REQUEST_NEED: RequestNeed = RequestNeed::IfSupported;
}

impl RateLimits {
    /// Returns the need of limits: requests, except for a connection limit.
    #[must_use]
    pub fn request_need(&self) -> RequestNeed {
        let Self { connections: _, rules, concurrency, global } = self;
        match rules.is_empty() && concurrency.is_none() && global.is_none() {
            true => RequestNeed::None,
            false => RequestNeed::IfSupported,
        }
    }
}

impl RequestCheck {
    /// Returns the need of an external authorization or token policy. Optional tokens are verified, and forged
    /// claim headers removed, only in requests.
    #[must_use]
    pub fn request_need(&self) -> RequestNeed {
        match self {
            Self::Authorization(_) => RequestNeed::Always,
            Self::Tokens(tokens) if tokens.required == TokenRequirement::Never => {
                RequestNeed::IfSupported
            }
            Self::Tokens(_) => RequestNeed::Always,
        }
    }
}

impl PolicyRule {
    /// Returns the need of a rule: an allow rule for requests never allows bytes anyway.
    #[must_use]
    pub fn request_need(&self) -> RequestNeed {
        match self.action == PolicyAction::Deny && self.is_about_requests() {
            true => RequestNeed::IfSupported,
            false => RequestNeed::None,
        }
    }
}

impl WorkloadConfig {
    /// Returns the declared protocol of a port.
    #[must_use]
    pub fn declared_protocol(&self, port: u16) -> Protocol {
        let port_config = self.ports.iter().find(|port_config| port_config.port == port);
        port_config.map_or(Protocol::Detect, |port_config| port_config.protocol)
    }

    /// Returns the policy that makes a port reject opaque bytes of every peer. Access policy rules match single
    /// peers, and are evaluated when a peer connects.
    #[must_use]
    pub fn policy_rejecting_bytes(&self, port: u16) -> Option<&ServicePolicyName> {
        let declared = self.declared_protocol(port);
        self.request_needs(port)
            .find_map(|(need, policy)| need.rejects_bytes(declared).then_some(policy))
    }

    /// Returns the policy that makes a port reject opaque bytes that begin like HTTP, of every peer, regardless
    /// of the declared protocol.
    #[must_use]
    pub fn policy_rejecting_hidden_requests(&self, port: u16) -> Option<&ServicePolicyName> {
        self.request_needs(port)
            .find_map(|(need, policy)| (need != RequestNeed::None).then_some(policy))
    }

    /// Returns the needs of all policies of a port.
    fn request_needs(&self, port: u16) -> impl Iterator<Item = (RequestNeed, &ServicePolicyName)> {
        let checks = self.request_checks.get(&port).into_iter().flatten();
        let checks = checks.map(|check| (check.check.request_need(), &check.policy));
        let limits = self.limits.get(&port).into_iter().flatten();
        let limits = limits.map(|limit| (limit.limits.request_need(), &limit.policy));
        checks.chain(limits)
    }
}
