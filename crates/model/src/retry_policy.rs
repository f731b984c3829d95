//! Retry policies: the retry settings of one account's requests to some services.

use std::time::Duration;

use crate::action::RetryRule;
use crate::identity::ServiceAccount;
use crate::name::{PolicyName, ServiceName};

/// A `Retry` of OSM, osm-edge or FSM. The retry settings of a route rule take precedence over the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The name of the policy.
    pub name: PolicyName,
    /// The account of the clients, in the policy's namespace.
    pub source: ServiceAccount,
    /// The destination services, at least one, each once.
    pub services: Vec<ServiceName>,
    /// The conditions and number of retries.
    pub rule: RetryRule,
    /// The timeout of one attempt until the response begins; no separate timeout when absent.
    pub response_timeout: Option<Duration>,
    /// The creation time in a cluster, in seconds; 0 in a file.
    pub created: i64,
}

impl RetryPolicy {
    /// Returns the precedence among policies for the same traffic: the oldest first, then the first by name.
    #[must_use]
    pub fn precedence(&self) -> (i64, &PolicyName) {
        (self.created, &self.name)
    }

    /// Returns the settings that are sent to the clients' sidecars for each of the policy's services.
    #[must_use]
    pub fn to_service_retry(&self) -> ServiceRetry {
        ServiceRetry {
            policy: self.name.clone(),
            rule: self.rule.clone(),
            response_timeout: self.response_timeout,
        }
    }
}

/// The retry settings of a workload's requests to one service, as sent to its sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServiceRetry {
    /// The name of the policy.
    pub policy: PolicyName,
    /// The conditions and number of retries.
    pub rule: RetryRule,
    /// The timeout of one attempt until the response begins; no separate timeout when absent.
    pub response_timeout: Option<Duration>,
}
