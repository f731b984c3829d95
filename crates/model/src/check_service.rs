//! External authorization and rate limit services, and the check requests that they receive.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::definition::{
    Definition, HEADER_NAME, LABEL, ManifestBuilder, ManifestValue, Schema, TextProblem,
    TextSchema, normalize_header_name,
};
use crate::fixed_response::FixedResponse;
use crate::jwt::JwtValidation;
use crate::name::{Name, ServiceName};
use crate::request_match::RequestMatch;
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

/// The fields of an address.
#[derive(Definition)]
#[definition(noun = "server", builds = CheckServiceAddress)]
enum AddressFields {
    /// Service of the mesh that decides. Sidecars call it with mutual TLS, and its own policies must allow the callers.
    Service(ServicePortFields),
    /// Server outside the mesh that decides: `http://HOST:PORT`, or `https://HOST:PORT` for TLS, verified by
    /// `--collector-ca` or the roots of the system.
    Url(Server),
}

/// The fields of a port of a mesh service.
#[derive(Definition)]
struct ServicePortFields {
    /// Name of the service.
    #[field(text = LABEL)]
    name: Name,
    /// Namespace of the service.
    #[field(text = LABEL, absent = "the policy's namespace")]
    namespace: Option<Name>,
    /// Port of the service.
    #[field(integer(1, u16::MAX))]
    port: u16,
}

impl AddressFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> CheckServiceAddress {
        match self {
            Self::Service(ServicePortFields { name, namespace, port }) => {
                let namespace = namespace.unwrap_or_else(|| builder.namespace().clone());
                let service = ServiceName { namespace, name };
                CheckServiceAddress::Service { service, port }
            }
            Self::Url(server) => CheckServiceAddress::External(server),
        }
    }
}

/// The handling of a request for which a check service does not respond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Definition)]
pub enum FailureMode {
    /// The request is denied.
    #[field(name = "deny")]
    Deny,
    /// The request is allowed, and a metric counts it.
    #[field(name = "allow")]
    Allow,
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

/// The fields of an `ExternalAuthorization`.
#[derive(Definition)]
#[definition(builds = Authorization)]
struct AuthorizationFields {
    /// The authorization service.
    #[field(include)]
    address: CheckServiceAddress,
    /// Timeout for the check response.
    // The default is that of Envoy.
    #[field(duration(CheckService::MIN_TIMEOUT, CheckService::MAX_TIMEOUT), default = "200ms")]
    timeout: Duration,
    /// Action without a response in time: `deny` answers 403, and `allow` forwards the request and counts the failure. An
    /// unusable response denies the request in any case.
    #[field(default = "deny")]
    failure_mode: FailureMode,
    /// Requests that are checked; one matching entry is enough.
    #[field(list(1, MAX_MATCHES), absent = "all requests")]
    matches: Vec<RequestMatch>,
    /// Request headers that the service receives. Without this list, cookies and `authorization` are included.
    #[field(
        list(0, 64),
        text = HEADER_NAME,
        check = Self::normalize_headers,
        absent = "all headers"
    )]
    headers: Option<Vec<String>>,
    /// Additional names and texts that the service receives as `context_extensions`.
    #[field(entries(0, 32), key = CONTEXT_NAME, text = CONTEXT_VALUE)]
    context_extensions: BTreeMap<String, String>,
    /// Part of the request body that the service receives; `{}` for the defaults.
    #[field(absent = "no body")]
    body: Option<BodyExcerpt>,
}

impl AuthorizationFields {
    /// Returns the names of headers in lower case, if they are different.
    fn normalize_headers(
        names: Option<Vec<String>>,
        builder: &mut ManifestBuilder<'_>,
    ) -> Option<Option<Vec<String>>> {
        let headers: Option<Vec<String>> =
            names.map(|names| names.iter().map(|name| normalize_header_name(name)).collect());
        let names = headers.as_deref().unwrap_or_default();
        let (problem, hint) = ("is listed twice", "remove one of the two");
        builder.check_unique("headers", names, Clone::clone, problem, hint).then_some(headers)
    }

    fn build_type(self, _: &mut ManifestBuilder<'_>) -> Authorization {
        let Self { address, timeout, failure_mode, .. } = self;
        Authorization {
            check_service: CheckService { address, timeout, failure_mode },
            requests: self.matches,
            headers: self.headers,
            context_extensions: self.context_extensions.into_iter().collect(),
            body: self.body,
        }
    }
}

/// The excerpt of a request body that an authorization service receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Definition)]
pub struct BodyExcerpt {
    /// Maximum number of bytes of the body to send.
    // The default is 64 KiB.
    #[field(name = "maxRequestBytes", integer(1, BodyExcerpt::MAX_BYTES), default = "65536")]
    pub max_bytes: u32,
    /// Handling of a longer body: `false` rejects the request with 413, without a check, and `true` sends the beginning of
    /// the body.
    #[field(name = "allowPartialMessage", default = "false")]
    pub long_body: LongBodyAction,
    /// `true` sends the body as `raw_body`, byte for byte, and `false` as `body`, which is text.
    #[field(default = "false")]
    pub pack_as_bytes: bool,
}

impl BodyExcerpt {
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

/// `true` is [`LongBodyAction::SendPrefix`].
impl Definition for LongBodyAction {
    const SCHEMA: Schema = Schema::Boolean;

    fn build(value: ManifestValue, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        let allows_partial_body = bool::build(value, builder)?;
        Some(if allows_partial_body { Self::SendPrefix } else { Self::Reject })
    }
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

/// The fields of a global rate limit.
#[derive(Definition)]
#[definition(builds = GlobalLimit)]
struct GlobalLimitFields {
    /// The rate limit service.
    #[field(include)]
    address: CheckServiceAddress,
    /// Domain of the limits in the rate limit service.
    #[field(text = DESCRIPTOR_TEXT)]
    domain: String,
    /// Timeout for the check response.
    // The default is that of Envoy.
    #[field(duration(CheckService::MIN_TIMEOUT, CheckService::MAX_TIMEOUT), default = "20ms")]
    timeout: Duration,
    /// Action without a response in time: `deny` answers 500, and `allow` forwards the request and counts the failure. An
    /// unusable response results in 500 in any case.
    #[field(default = "allow")]
    failure_mode: FailureMode,
    /// Descriptors of requests. All that match a request are sent in one check request.
    #[field(list(1, 16), required)]
    descriptors: Vec<Descriptor>,
    /// Response to requests over the limit.
    #[field(absent = "429 with a sentence about the reason")]
    response: Option<FixedResponse>,
    /// `true` adds `x-ratelimit-limit`, `x-ratelimit-remaining` and `x-ratelimit-reset` of the limit with the fewest
    /// remaining requests to responses.
    #[field(default = "false")]
    rate_limit_headers: bool,
}

impl GlobalLimitFields {
    fn build_type(self, _: &mut ManifestBuilder<'_>) -> GlobalLimit {
        let Self { address, timeout, failure_mode, .. } = self;
        GlobalLimit {
            check_service: CheckService { address, timeout, failure_mode },
            domain: self.domain,
            descriptors: self.descriptors,
            response: self.response.unwrap_or_default(),
            rate_limit_headers: self.rate_limit_headers,
        }
    }
}

/// A descriptor: the keys and values by which the rate limit service selects the limit of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Definition)]
pub struct Descriptor {
    /// Requests that the descriptor applies to; one matching entry is enough.
    #[field(name = "matches", list(1, MAX_MATCHES), absent = "all requests")]
    pub requests: Vec<RequestMatch>,
    /// Entries, in the order of the service's configuration.
    #[field(list(1, 16), required)]
    pub entries: Vec<DescriptorEntry>,
    /// Number of hits that a request counts as.
    #[field(integer(1, 1_000_000), default = "1")]
    pub hits_addend: u32,
}

/// A key and the source of its value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Definition)]
pub struct DescriptorEntry {
    /// Key of the entry.
    #[field(text = DESCRIPTOR_TEXT)]
    pub key: String,
    /// Source of the entry's value.
    #[field(include)]
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

/// The fields of the source of an entry's value.
#[derive(Definition)]
#[definition(noun = "value", builds = DescriptorValue)]
enum DescriptorValueFields {
    /// Fixed value.
    #[field(text = DESCRIPTOR_TEXT)]
    Value(String),
    /// Name of the header with the value, which is sent as received. Without the header, the descriptor is not sent.
    #[field(text = HEADER_NAME)]
    Header(String),
    /// Property of the request with the value. `client` is the calling account, `NAMESPACE/NAME`; without an account, the
    /// descriptor is not sent. `path` is the path as sent, without the query; `/Login` is another value than `/login`.
    /// `method` is the method as sent. `address` is the address of the peer.
    From(RequestProperty),
}

/// A property of a request.
#[derive(Definition)]
enum RequestProperty {
    #[field(name = "client")]
    Client,
    #[field(name = "path")]
    Path,
    #[field(name = "method")]
    Method,
    #[field(name = "address")]
    Address,
}

impl DescriptorValueFields {
    fn build_type(self, _: &mut ManifestBuilder<'_>) -> DescriptorValue {
        match self {
            Self::Value(text) => DescriptorValue::Text(text),
            Self::Header(name) => DescriptorValue::Header(normalize_header_name(&name)),
            Self::From(RequestProperty::Client) => DescriptorValue::Client,
            Self::From(RequestProperty::Path) => DescriptorValue::Path,
            Self::From(RequestProperty::Method) => DescriptorValue::Method,
            Self::From(RequestProperty::Address) => DescriptorValue::Address,
        }
    }
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

/// A text that a rate limit service receives.
const DESCRIPTOR_TEXT: TextSchema =
    TextSchema::new(256, |text| match !text.is_empty() && !text.contains(char::is_control) {
        true => Ok(()),
        false => {
            let hint = "use 1 to 256 bytes without control characters";
            Err(TextProblem::new("is not a text to send", hint))
        }
    });
/// A name of a context extension.
const CONTEXT_NAME: TextSchema = TextSchema::bounded(256);
/// A text of a context extension.
const CONTEXT_VALUE: TextSchema = TextSchema::bounded(4096);
/// Maximum number of matches per policy or descriptor.
const MAX_MATCHES: usize = 256;
