//! The data model: identity, workload, service, endpoint, route, policy, snapshot, change.
//!
//! Plain values without runtime, protocol or serialization. Every other crate depends on them, so no change of
//! a library may change them.

pub mod access_policy;
pub mod action;
pub mod address_class;
pub mod address_entry;
pub mod balancing;
pub mod breaker;
pub mod change;
pub mod check_service;
pub mod client_ranges;
pub mod collector;
pub mod conflicts;
pub mod cors;
pub mod dns_record;
pub mod egress;
pub mod endpoint;
pub mod external_principal;
pub mod fault;
pub mod floor;
pub mod forwarding;
pub mod gateway;
pub mod grant;
pub mod health_check;
pub mod hedging;
pub mod identity;
pub mod ingress;
pub mod instance;
pub mod ip_range;
pub mod jwt;
pub mod log_template;
pub mod mesh;
pub mod name;
pub mod persistence;
pub mod policy;
pub mod rate_limit;
pub mod reason;
pub mod request_need;
pub mod retry_policy;
pub mod revocation;
pub mod route;
pub mod rule_kind;
pub mod server;
pub mod service;
pub mod service_policy;
pub mod sidecar_facts;
pub mod sight;
pub mod snapshot;
pub mod standing;
pub mod tag;
pub mod tap;
pub mod tcp_rule;
pub mod tls_route;
pub mod traffic_split;
pub mod upgrades;
pub mod workload;

pub use access_policy::{
    AccessPolicy, InboundPolicy, InvalidNamePattern, NamePattern, PeerMatch, PolicyAction,
    PolicyRule,
};
pub use action::{
    BackendEdits, Header, HeaderEdits, PathEdit, Redirect, RetryRule, RuleActions, Scheme,
    UrlRewrite,
};
pub use address_class::AddressClass;
pub use address_entry::{AddressEntry, AddressPort};
pub use balancing::{BalanceAlgorithm, Balancing, HashKey, LoadBalancing, WarmUp};
pub use breaker::{Breaker, CircuitBreaker, CircuitLimits, FixedResponse, Slow, TooMany, Trip};
pub use change::{Change, Object, ObjectKey};
pub use check_service::{
    Authorization, CheckService, CheckServiceAddress, Descriptor, DescriptorEntry, DescriptorValue,
    FailureMode, GlobalLimit, Guard, LongerBody, PortGuard, ShownBody,
};
pub use client_ranges::ClientRanges;
pub use collector::{Collector, CollectorProtocol, Signal};
pub use conflicts::first_because;
pub use cors::{AnyOf, Cors, InvalidOrigin, OriginPattern};
pub use dns_record::DnsRecord;
pub use egress::{EgressPolicy, EgressPort, EgressRule, MatchedBy};
pub use endpoint::{Endpoint, EndpointId, Weight};
pub use external_principal::{
    AccessCert, BadSubject, ExternalPrincipalId, Sponsor, check_subject, domain_prefix,
};
pub use fault::{Abort, Delay, FaultRule, Faults};
pub use floor::{Floor, Overruled, repository_of};
pub use forwarding::{
    AttachedRoutes, Destinations, Idle, IdleCause, PolicySide, Surroundings, TagEffects,
    no_requests,
};
pub use gateway::{
    GATEWAY_ACCOUNT_PREFIX, GATEWAY_LABEL, Gateway, GatewayCertificate, GatewayListener,
    GatewayPort, HostRules, Serves, gateway_account, is_proxy_of,
};
pub use grant::{GrantedRoutes, ReferenceGrant};
pub use health_check::{HealthCheck, HealthProbe};
pub use hedging::{HedgeRule, Hedging};
pub use identity::{ServiceAccount, SpiffeId, TrustDomain};
pub use ingress::{
    Entry, IngressBackend, IngressKind, IngressName, IngressPolicy, IngressSource, Opening, Proof,
};
pub use instance::{Instance, InvalidInstance, Uid};
pub use ip_range::{InvalidIpRange, IpRange};
pub use jwt::{
    ClaimHeader, ClaimMatch, IssuerKeys, JwtIssuer, JwtPlace, JwtValidation, KeyServer, KeySource,
    Required,
};
pub use log_template::{InvalidTemplate, LOG_FIELDS, LogPart, LogTemplate, TEMPLATE_BYTES_MAX};
pub use mesh::{Admission, DefaultPolicy, Egress, MeshConfig, MtlsMode};
pub use name::{
    GatewayName, GrantName, InvalidName, Name, PolicyName, RouteGroupName, RouteName, SecretName,
    ServiceName, TagRouteName, TcpRouteName, WorkloadName,
};
pub use persistence::{Carries, Persistence};
pub use policy::{
    Access, AccessRule, HttpRouteGroup, NamedMatch, PortSet, TargetRule, TcpRoute, TrafficTarget,
};
pub use rate_limit::{
    AdaptiveConcurrency, Concurrency, PortLimits, Rate, RateLimitKey, RateLimits, RateRule,
};
pub use reason::{REASON_FIELD, Reason, Retry, Side};
pub use request_need::RequestNeed;
pub use retry_policy::{RetryPolicy, ServiceRetry};
pub use revocation::{Revocations, RevokedWorkload};
pub use route::{
    FieldMatch, HttpRoute, PathMatch, RequestMatch, RouteKind, RouteParent, RouteRule, ValueMatch,
    WeightedBackend, leads_back,
};
pub use rule_kind::RuleKind;
pub use server::{InvalidEndpoint, Server};
pub use service::{Families, Protocol, Service, ServicePort, TargetPort, is_server_first};
pub use service_policy::{
    Closeness, EjectionTime, FailureClasses, FailureRate, OutlierAlgorithm, OutlierDetection,
    PolicyScope, PortOutlierDetection, SermantCommon, SermantConfig, SermantRemoval, SermantRule,
    ServicePolicy, ServicePolicyKind, ServicePolicyName, ServiceRule, TrafficPolicy,
};
pub use sidecar_facts::{
    DISCONNECTED_MAX, PlaintextClient, REJECTED_CLIENTS_MAX, RejectedClient, SidecarConnections,
    SidecarFacts,
};
pub use sight::{AccessLog, ContextForm, LogForm, MetricsPush, Sampling, Sight, Tracing};
pub use snapshot::{PortView, Reach, ServiceView, Snapshot, WorkloadPlan};
pub use standing::Standing;
pub use tag::{
    Caller, CallerRule, Callers, FallbackPolicy, FieldTest, Lane, LaneMark, LaneRule,
    NumberRelation, Quorum, Repeated, RuleOrigin, STEMS_MAX, SermantRouteRule, SermantRules,
    Sticky, TagDialect, TagMatch, TagRoute, TagRule, TagRules, TagScope, TagSet, TagSplit,
    TagTarget, TagValue, TextRelation, ValueTest, Weights,
};
pub use tap::{
    StatusRange, TAP_PER_SECOND_MAX, TAP_TEXT_BYTES_MAX, Tap, TapMatcher, TapSide, Tappable,
};
pub use tcp_rule::{GatewayTcpRoute, TcpRule};
pub use tls_route::{HostPattern, InvalidHostPattern, TlsRoute, TlsRule};
pub use traffic_split::{SplitBackend, TrafficSplit};
pub use upgrades::Upgrades;
pub use workload::{HttpGet, OutboundListener, RunOptions, RunUser, Workload, WorkloadPort};
