//! Deciders: services that decide about requests in place of a sidecar, and what they are asked.

use std::fmt;
use std::time::Duration;

use crate::breaker::FixedAnswer;
use crate::jwt::JwtValidation;
use crate::name::ServiceName;
use crate::route::RequestMatch;
use crate::server::Server;
use crate::service_policy::{ServicePolicy, ServicePolicyName, ServiceRule, attached};

/// Who decides, and what becomes of requests while it does not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Decider {
    /// Where it is.
    pub at: DeciderAddress,
    /// How long its answer is waited for.
    pub timeout: Duration,
    /// What becomes of a request about which it says nothing.
    pub unanswered: Unanswered,
}

impl Decider {
    /// The shortest time to wait for an answer.
    pub const TIMEOUT_MIN: Duration = Duration::from_millis(1);
    /// The longest time.
    pub const TIMEOUT_MAX: Duration = Duration::from_secs(60);
}

/// Where a decider is. Calls of gRPC are what is spoken there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DeciderAddress {
    /// A port of a service of the mesh, over links.
    Service {
        /// The service.
        service: ServiceName,
        /// Its port.
        port: u16,
    },
    /// A server outside the mesh.
    Outside(Server),
}

impl fmt::Display for DeciderAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service { service, port } => write!(f, "{service} port {port}"),
            Self::Outside(server) => server.fmt(f),
        }
    }
}

/// What becomes of a request about which a decider says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unanswered {
    /// It is denied.
    Deny,
    /// It goes on, and is counted.
    Allow,
}

impl Unanswered {
    /// Both, by the words used in manifests.
    pub const ALL: &'static [(&'static str, Self)] =
        &[("deny", Self::Deny), ("allow", Self::Allow)];
}

/// Which requests an authorization service is asked about, and what it is told of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Authorization {
    /// Whom to ask.
    pub decider: Decider,
    /// Which requests, any of these; all when empty.
    pub requests: Vec<RequestMatch>,
    /// The headers that it is told, by their names in lower case; all when absent.
    pub headers: Option<Vec<String>>,
    /// What it is told beside, each name once.
    pub context: Vec<(String, String)>,
    /// How much of bodies it is shown; nothing when absent.
    pub body: Option<ShownBody>,
}

/// How much of the body of a request an authorization service is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShownBody {
    /// The most of it.
    pub bytes_max: u32,
    /// What becomes of a body that is longer.
    pub longer: LongerBody,
    /// Whether it is shown as bytes; else as text.
    pub as_bytes: bool,
}

impl ShownBody {
    /// The most of a body that is shown, unless a policy says otherwise.
    pub const BYTES_DEFAULT: u32 = 64 << 10;
    /// The most that a policy may say: it is kept in memory while the service decides.
    pub const BYTES_MAX: u32 = 1 << 20;
}

/// What becomes of a request whose body is longer than what a service is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LongerBody {
    /// It is refused, and nobody is asked.
    Refused,
    /// The service decides by the beginning, and is told that this is not all.
    Begun,
}

/// What a rate limit service is asked about requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GlobalLimit {
    /// Whom to ask.
    pub decider: Decider,
    /// The domain under which it keeps its limits.
    pub domain: String,
    /// What describes a request: each is sent whose entries all have a value; at least one.
    pub descriptors: Vec<Descriptor>,
    /// What is answered to those that are too many.
    pub answer: FixedAnswer,
    /// Whether clients are told the limit, what is left of it and when it begins anew.
    pub tells: bool,
}

/// What describes a request to a rate limit service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// Which requests, any of these; all when empty.
    pub requests: Vec<RequestMatch>,
    /// Its entries, at least one.
    pub entries: Vec<DescriptorEntry>,
    /// As how many it counts; at least 1.
    pub hits: u32,
}

/// A key and where its value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DescriptorEntry {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: DescriptorValue,
}

/// Where the value of an entry comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DescriptorValue {
    /// Always this.
    Text(String),
    /// The value of this header, in lower case; without it there is no descriptor.
    Header(String),
    /// The path, without the query.
    Path,
    /// The method.
    Method,
    /// The account that calls; without one there is no descriptor.
    Client,
    /// The address that the connection came from.
    Address,
}

/// What else decides about requests at a port of an application, and who said so.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PortGuard {
    /// The policy.
    pub policy: ServicePolicyName,
    /// What it says.
    pub guard: Guard,
}

/// What else decides about requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Guard {
    /// A service that allows or denies.
    Authorization(Box<Authorization>),
    /// JSON web tokens.
    Tokens(Box<JwtValidation>),
}

impl PortGuard {
    /// What these policies say about requests at a port: for each kind of guard the policy that is
    /// attached most closely, and of equals the oldest, then the first by name.
    pub fn of<'a>(
        policies: impl IntoIterator<Item = &'a ServicePolicy>,
        service: &ServiceName,
        port: u16,
    ) -> Vec<Self> {
        let mut guards: Vec<Self> = Vec::new();
        for policy in attached(policies, service, port) {
            let Some(guard) = policy.rule.guard() else { continue };
            let is_same = |it: &Self| std::mem::discriminant(&it.guard) == guard.discriminant();
            if !guards.iter().any(is_same) {
                guards.push(Self { policy: policy.name.clone(), guard: guard.clone() });
            }
        }
        guards
    }
}

impl Guard {
    fn discriminant(&self) -> std::mem::Discriminant<Self> {
        std::mem::discriminant(self)
    }
}

impl ServiceRule {
    /// What it says to servers about requests that others decide.
    #[must_use]
    pub fn guard(&self) -> Option<&Guard> {
        match self {
            Self::Guard(guard) => Some(guard),
            _ => None,
        }
    }

    /// Whether the sidecars of the service's own workloads obey it.
    #[must_use]
    pub fn is_inbound(&self) -> bool {
        self.limits().is_some() || self.guard().is_some()
    }
}
