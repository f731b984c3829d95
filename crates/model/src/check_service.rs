//! External authorization and rate limit services, and the check requests that they receive.

use std::fmt;
use std::time::Duration;

use crate::circuit_breaker::FixedResponse;
use crate::jwt::JwtValidation;
use crate::name::ServiceName;
use crate::route::RequestMatch;
use crate::server::Server;
use crate::service_policy::{ServicePolicy, ServicePolicyName, ServiceRule, attached_policies};

/// A check service (an external authorization or rate limit service), and the handling of requests for which it
/// sends no response.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CheckService {
    /// The address of the service.
    pub address: CheckServiceAddress,
    /// The timeout of a check request.
    pub timeout: Duration,
    /// The handling of a request for which no check response arrives.
    pub failure_mode: FailureMode,
}

impl CheckService {
    /// The minimum timeout of a check request.
    pub const MIN_TIMEOUT: Duration = Duration::from_millis(1);
    /// The maximum timeout of a check request. The checked request waits for the response.
    pub const MAX_TIMEOUT: Duration = Duration::from_secs(60);
}

/// The address of a check service, which is called over gRPC.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CheckServiceAddress {
    /// A port of a mesh service, called over mutual TLS links.
    Service {
        /// The name of the service.
        service: ServiceName,
        /// The port of the service.
        port: u16,
    },
    /// A server outside the mesh.
    External(Server),
}

impl fmt::Display for CheckServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service { service, port } => write!(f, "{service} port {port}"),
            Self::External(server) => server.fmt(f),
        }
    }
}

/// The handling of a request for which a check service does not respond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureMode {
    /// The request is denied.
    Deny,
    /// The request is allowed, and a metric counts it.
    Allow,
}

impl FailureMode {
    /// All values, by their names in manifests.
    pub const ALL: &'static [(&'static str, Self)] =
        &[("deny", Self::Deny), ("allow", Self::Allow)];
}

/// The requests that an external authorization service checks, and the content of its check requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Authorization {
    /// The authorization service.
    pub check_service: CheckService,
    /// The requests that are checked; one matching entry is enough. All requests when empty.
    pub requests: Vec<RequestMatch>,
    /// The lower-case names of the request headers that are sent to the service; all headers when absent.
    pub headers: Option<Vec<String>>,
    /// The additional names and values that are sent to the service (Envoy's `context_extensions`); each name
    /// occurs once.
    pub context_extensions: Vec<(String, String)>,
    /// The body excerpt that is sent; none when absent.
    pub body: Option<BodyExcerpt>,
}

/// The excerpt of a request body that an authorization service receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BodyExcerpt {
    /// The maximum size of the excerpt in bytes.
    pub max_bytes: u32,
    /// The handling of longer bodies.
    pub long_body: LongBodyAction,
    /// True if the excerpt is sent as bytes; otherwise as text.
    pub pack_as_bytes: bool,
}

impl BodyExcerpt {
    /// The default of `max_bytes`: 64 KiB.
    pub const DEFAULT_MAX_BYTES: u32 = 64 << 10;
    /// The upper bound of `max_bytes`: 1 MiB, because the excerpt stays in memory while the service decides.
    pub const MAX_BYTES: u32 = 1 << 20;
}

/// The handling of a request with a body longer than the excerpt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LongBodyAction {
    /// The request is rejected without a check.
    Reject,
    /// The service receives the beginning of the body, which is marked as partial.
    SendPrefix,
}

/// A global rate limit: the rate limit service, and the descriptors that it receives.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GlobalLimit {
    /// The rate limit service.
    pub check_service: CheckService,
    /// The namespace of the limits at the service (`domain` of Envoy's `RateLimitRequest`).
    pub domain: String,
    /// The descriptors, at least one; a descriptor is sent if all its entries have a value.
    pub descriptors: Vec<Descriptor>,
    /// The response to requests over the limit.
    pub response: FixedResponse,
    /// True if responses contain headers with the limit, the remaining requests and the reset time.
    pub rate_limit_headers: bool,
}

/// A descriptor: the keys and values by which the rate limit service selects the limit of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// The requests that the descriptor applies to; one matching entry is enough. All requests when empty.
    pub requests: Vec<RequestMatch>,
    /// The entries, at least one.
    pub entries: Vec<DescriptorEntry>,
    /// The number of hits that a request counts as; at least 1.
    pub hits_addend: u32,
}

/// A key and the source of its value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DescriptorEntry {
    /// The key of the entry.
    pub key: String,
    /// The source of the entry's value.
    pub value: DescriptorValue,
}

/// The source of an entry's value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DescriptorValue {
    /// A constant value.
    Text(String),
    /// The value of the header with this lower-case name; the descriptor is omitted if the request lacks it.
    Header(String),
    /// The path, without the query.
    Path,
    /// The request method.
    Method,
    /// The calling account; the descriptor is omitted for an unauthenticated caller.
    Client,
    /// The IP address of the client.
    Address,
}

/// The check that an external authorization or token policy requires at an application port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortCheck {
    /// The name of the policy.
    pub policy: ServicePolicyName,
    /// The check that the policy requires.
    pub check: RequestCheck,
}

/// An additional check of requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RequestCheck {
    /// An external authorization service.
    Authorization(Box<Authorization>),
    /// Validation of JSON web tokens.
    Tokens(Box<JwtValidation>),
}

impl PortCheck {
    /// Selects the policies for requests at a port: for each kind of check the most specific policy, then the
    /// oldest, then the first by name.
    pub fn for_port<'a>(
        policies: impl IntoIterator<Item = &'a ServicePolicy>,
        service: &ServiceName,
        port: u16,
    ) -> Vec<Self> {
        let mut checks: Vec<Self> = Vec::new();
        for policy in attached_policies(policies, service, port) {
            let Some(check) = policy.rule.server_check() else { continue };
            let is_same_kind =
                |selected: &Self| std::mem::discriminant(&selected.check) == check.discriminant();
            if !checks.iter().any(is_same_kind) {
                checks.push(Self { policy: policy.name.clone(), check: check.clone() });
            }
        }
        checks
    }
}

impl RequestCheck {
    /// Returns the kind of the check, without its settings.
    fn discriminant(&self) -> std::mem::Discriminant<Self> {
        std::mem::discriminant(self)
    }
}

impl ServiceRule {
    /// Returns the check that the servers' sidecars run; `None` for a policy of another kind.
    #[must_use]
    pub fn server_check(&self) -> Option<&RequestCheck> {
        match self {
            Self::RequestCheck(check) => Some(check),
            _ => None,
        }
    }

    /// True if the sidecars of the service's own workloads enforce the policy.
    #[must_use]
    pub fn is_inbound(&self) -> bool {
        self.rate_limits().is_some() || self.server_check().is_some()
    }
}
