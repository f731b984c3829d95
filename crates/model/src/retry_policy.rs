//! Retry policies: whose requests to which services are sent once more.

use std::time::Duration;

use crate::action::RetryRule;
use crate::identity::ServiceAccount;
use crate::name::{PolicyName, ServiceName};

/// A `Retry` of OSM, osm-edge or FSM. A rule of a route that speaks of retries goes before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Its name.
    pub name: PolicyName,
    /// Whose requests; of the policy's namespace.
    pub source: ServiceAccount,
    /// To which services, at least one, each once.
    pub services: Vec<ServiceName>,
    /// When, and how often.
    pub rule: RetryRule,
    /// How long one attempt may take until its answer begins; no limit of its own when absent.
    pub answer_timeout: Option<Duration>,
    /// Its creation in a cluster, in seconds; 0 in a file.
    pub created: i64,
}

impl RetryPolicy {
    /// Its rank among others for the same traffic: the oldest goes first, then the first by name.
    #[must_use]
    pub fn precedence(&self) -> (i64, &PolicyName) {
        (self.created, &self.name)
    }

    /// What it says of requests to one of its services.
    #[must_use]
    pub fn of_service(&self) -> ServiceRetry {
        ServiceRetry {
            policy: self.name.clone(),
            rule: self.rule.clone(),
            answer_timeout: self.answer_timeout,
        }
    }
}

/// When requests of a workload to one service are sent once more, as its sidecar has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServiceRetry {
    /// The policy.
    pub policy: PolicyName,
    /// When, and how often.
    pub rule: RetryRule,
    /// How long one attempt may take until its answer begins; no limit of its own when absent.
    pub answer_timeout: Option<Duration>,
}
