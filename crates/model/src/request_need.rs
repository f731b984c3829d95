//! Determines whether policies need to see requests, or only connections. A port rejects opaque bytes if one of its
//! policies needs requests, because opaque bytes would bypass the policy.

use crate::access_policy::{PolicyAction, PolicyRule};
use crate::balancing::{HashKey, LoadBalancing};
use crate::check_service::RequestCheck;
use crate::circuit_breaker::{CircuitBreaker, CircuitLimits, TripConditions};
use crate::fault::PortFaults;
use crate::fixed_response::FixedResponse;
use crate::jwt::TokenRequirement;
use crate::outlier_detection::{FailureClasses, OutlierDetection};
use crate::rate_limit::RateLimits;
use crate::service::Protocol;
use crate::service_policy::{
    OutlierAlgorithm, PortOutlierDetection, ServicePolicyName, ServiceRule,
};
use crate::snapshot::WorkloadConfig;

/// The need of a policy to see requests, without which it cannot be enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestNeed {
    /// The policy acts on connections, and does not need requests.
    None,
    /// The policy needs requests at ports whose opaque bytes may contain requests. A port with the declared protocol
    /// `TCP` carries no requests: it rejects bytes that begin like HTTP.
    IfSupported,
    /// The policy needs requests at every port, because each request must be authenticated.
    Always,
}

impl RequestNeed {
    /// True if a port with this declared protocol rejects opaque bytes, because they would bypass the policy.
    #[must_use]
    pub const fn rejects_bytes(self, declared_protocol: Protocol) -> bool {
        match self {
            Self::None => false,
            Self::IfSupported => !matches!(declared_protocol, Protocol::Tcp),
            Self::Always => true,
        }
    }
}

impl ServiceRule {
    /// Returns the need of the server's sidecar to see requests, for every kind of service policy.
    #[must_use]
    pub fn request_need(&self) -> RequestNeed {
        match self {
            Self::RateLimit(limits) => limits.request_need(),
            Self::UpstreamTrafficSetting(settings) => settings.rate_limits.request_need(),
            Self::FaultInjection(_) => PortFaults::REQUEST_NEED,
            Self::RequestCheck(check) => check.request_need(),
            // The client's sidecar enforces these policies on its own requests.
            Self::OutlierDetection(_)
            | Self::SermantRemoval(_)
            | Self::CircuitBreaker(_)
            | Self::LoadBalancing(_)
            | Self::Hedging(_) => RequestNeed::None,
        }
    }

    /// True if the policy has an effect on opaque connections.
    #[must_use]
    pub fn acts_on_connections(&self) -> bool {
        match self {
            Self::OutlierDetection(rule) => rule.acts_on_connections(),
            Self::SermantRemoval(config) => config.common.failures.has_connections(),
            Self::CircuitBreaker(rule) => rule.acts_on_connections(),
            Self::UpstreamTrafficSetting(settings) => {
                settings.circuit_breaker.acts_on_connections()
                    || settings.rate_limits.connections.is_some()
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
    /// True if a class of connection failures counts. The other classes are failures of responses.
    #[must_use]
    pub const fn has_connections(&self) -> bool {
        self.connect || self.timeout || self.reset
    }
}

impl CircuitBreaker {
    /// True if the circuit breaker has an effect on opaque connections.
    #[must_use]
    pub fn acts_on_connections(&self) -> bool {
        let has_effect =
            |trip: &TripConditions| trip.failures.has_connections() || trip.slow_requests.is_some();
        self.limits.connections.is_some()
            || self.connect_timeout.is_some()
            || self.trip.as_ref().is_some_and(has_effect)
    }

    /// Returns the circuit breaker with only the settings that have an effect on opaque connections.
    #[must_use]
    pub fn for_connections(&self) -> Self {
        let limits =
            CircuitLimits { connections: self.limits.connections, ..CircuitLimits::default() };
        let trip = self.trip.clone();
        // An opaque connection is reset and gets no response.
        let response = FixedResponse::default();
        Self { limits, trip, response, connect_timeout: self.connect_timeout }
    }
}

impl LoadBalancing {
    /// True if the algorithm has an effect on opaque connections. A hash of a header or cookie has none, because
    /// only requests have headers and cookies.
    #[must_use]
    pub fn acts_on_connections(&self) -> bool {
        !matches!(self.algorithm.hash_key(), Some(HashKey::Header(_) | HashKey::Cookie(_)))
    }
}

impl PortFaults {
    /// The need of fault injection to see requests, at the sidecar of the client.
    pub const REQUEST_NEED: RequestNeed = RequestNeed::IfSupported;
}

impl RateLimits {
    /// Returns the need of the limits to see requests. A connection limit needs none; all other limits need requests.
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
    /// Returns the need of an external authorization or token policy to see requests. A policy with optional tokens
    /// needs requests as well: it verifies tokens and removes forged claim headers.
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
    /// Returns the need of a rule to see requests. An allow rule has none, because an allow rule that matches by
    /// request never allows opaque bytes.
    #[must_use]
    pub fn request_need(&self) -> RequestNeed {
        match self.action == PolicyAction::Deny && self.matches_by_request() {
            true => RequestNeed::IfSupported,
            false => RequestNeed::None,
        }
    }
}

impl WorkloadConfig {
    /// Returns the declared protocol of a port; [`Protocol::Detect`] if none is declared.
    #[must_use]
    pub fn declared_protocol(&self, port: u16) -> Protocol {
        let port_config = self.ports.iter().find(|port_config| port_config.port == port);
        port_config.map_or(Protocol::Detect, |port_config| port_config.protocol)
    }

    /// Returns a policy because of which a port rejects opaque bytes of every peer; `None` if there is none. Access
    /// policies are not considered: their rules match single peers, and are evaluated when a peer connects.
    #[must_use]
    pub fn policy_rejecting_bytes(&self, port: u16) -> Option<&ServicePolicyName> {
        let declared_protocol = self.declared_protocol(port);
        self.request_needs(port)
            .find_map(|(need, policy)| need.rejects_bytes(declared_protocol).then_some(policy))
    }

    /// Returns a policy because of which a port rejects opaque bytes that begin like HTTP, from every peer and
    /// regardless of the declared protocol; `None` if there is none.
    #[must_use]
    pub fn policy_rejecting_hidden_requests(&self, port: u16) -> Option<&ServicePolicyName> {
        self.request_needs(port)
            .find_map(|(need, policy)| (need != RequestNeed::None).then_some(policy))
    }

    /// Returns the needs of all service policies of a port, with the policies' names.
    fn request_needs(&self, port: u16) -> impl Iterator<Item = (RequestNeed, &ServicePolicyName)> {
        let checks = self.request_checks.get(&port).into_iter().flatten();
        let check_needs = checks.map(|check| (check.check.request_need(), &check.policy));
        let limits = self.limits.get(&port).into_iter().flatten();
        let limit_needs = limits.map(|limit| (limit.limits.request_need(), &limit.policy));
        check_needs.chain(limit_needs)
    }
}
