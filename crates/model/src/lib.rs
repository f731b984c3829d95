//! The data model of the mesh: identities, workloads, services, endpoints, routes, policies, snapshots and changes.
//!
//! The types are plain values without runtime, protocol or serialization. Every other crate depends on them, so they
//! depend on no library that could change them.

pub mod access_policy;
pub mod action;
pub mod address_class;
pub mod address_entry;
pub mod balancing;
pub mod change;
pub mod check_service;
pub mod circuit_breaker;
pub mod client_ranges;
pub mod collector;
pub mod conflict_status;
pub mod conflicts;
pub mod cors;
pub mod definition;
pub mod dns_record;
pub mod egress;
pub mod endpoint;
pub mod external_principal;
pub mod fault;
pub mod fixed_response;
pub mod forwarding;
pub mod gateway;
pub mod grant;
pub mod health_check;
pub mod hedging;
pub mod identity;
pub mod ingress;
pub mod instance;
pub mod ip_range;
pub mod issuer_keys;
pub mod jwt;
pub mod kind_definition;
pub mod literal_path;
pub mod log_template;
pub mod mesh;
pub mod name;
pub mod observability;
pub mod outlier_detection;
mod pattern;
pub mod policy;
pub mod policy_targets;
pub mod rate_limit;
pub mod reason;
pub mod request_match;
pub mod request_need;
pub mod retry_policy;
pub mod revocation;
pub mod route;
mod rule_conditions;
pub mod rule_kind;
pub mod security_floor;
pub mod sermant;
pub mod server;
pub mod service;
pub mod service_policy;
pub mod session_persistence;
pub mod sidecar_facts;
pub mod snapshot;
pub mod suggest;
pub mod tag;
pub mod tap;
pub mod tcp_rule;
pub mod tls_route;
pub mod token;
pub mod traffic_split;
pub mod upgrades;
pub mod workload;

pub use access_policy::{
    AccessPolicy, AccessPolicySpec, InboundPolicy, InvalidNamePattern, NamePattern, PeerMatch,
    PolicyAction, PolicyRule,
};
pub use action::{
    BackendEdits, EDITABLE_HEADER, HEADER_VALUE, Header, HeaderEdits, PathEdit, Redirect,
    RetryRule, RuleActions, Scheme, UrlRewrite,
};
pub use address_class::AddressClass;
pub use address_entry::{AddressEntry, AddressPort};
pub use balancing::{BalanceAlgorithm, HashKey, LoadBalancing, PortLoadBalancing, SlowStart};
pub use change::{Change, Object, ObjectKey};
pub use check_service::{
    Authorization, BodyExcerpt, CheckService, CheckServiceAddress, Descriptor, DescriptorEntry,
    DescriptorValue, FailureMode, GlobalLimit, LongBodyAction, PortCheck, RequestCheck,
};
pub use circuit_breaker::{
    CircuitBreaker, CircuitLimits, PortCircuitBreaker, RequestThreshold, SlowRequests,
    TripConditions,
};
pub use client_ranges::ClientRanges;
pub use collector::{Collector, CollectorProtocol, Signal};
pub use conflict_status::ConflictStatus;
pub use conflicts::precedence_reason;
pub use cors::{AllowedNames, Cors, InvalidOrigin, OriginPattern};
pub use dns_record::DnsRecord;
pub use egress::{EgressPolicy, EgressPort, EgressRule, MatchedBy};
pub use endpoint::{Endpoint, EndpointId, Weight};
pub use external_principal::{
    AccessCert, ExternalPrincipalId, InvalidSubject, SubjectScope, check_subject, domain_prefix,
};
pub use fault::{FaultAbort, FaultDelay, FaultRule, FaultRules, PortFaults};
pub use fixed_response::FixedResponse;
pub use forwarding::{
    AttachedRoutes, Destinations, NoEffect, NoEffectCause, PolicyContext, PolicySide, TagEffects,
    describe_tcp_only_services,
};
pub use gateway::{
    GATEWAY_ACCOUNT_PREFIX, GATEWAY_LABEL, Gateway, GatewayCertificate, GatewayListener,
    GatewayPort, GatewayPortRules, HostRules, gateway_account, is_proxy_of,
};
pub use grant::{GrantedRoutes, ReferenceGrant};
pub use health_check::{HealthCheck, HealthProbe};
pub use hedging::{HedgeMethod, HedgeRule, PortHedging};
pub use identity::{ServiceAccount, SpiffeId, TrustDomain};
pub use ingress::{
    ClientCertificateMode, IngressBackend, IngressKind, IngressName, IngressPolicy,
    IngressProtocol, IngressRule, IngressSource,
};
pub use instance::{Instance, InvalidInstance, Uid};
pub use ip_range::{InvalidIpRange, IpRange};
pub use issuer_keys::{IssuerKeys, KeyServer, KeySource};
pub use jwt::{
    ClaimHeader, ClaimMatch, JwtAlgorithm, JwtIssuer, JwtLocation, JwtValidation, TokenRequirement,
};
pub use kind_definition::{KIND_DEFINITIONS, KindDefinition, KindScope};
pub use log_template::{InvalidTemplate, LOG_FIELDS, LogPart, LogTemplate, MAX_TEMPLATE_BYTES};
pub use mesh::{AdmissionSettings, DefaultPolicy, Egress, MeshConfig, MtlsMode};
pub use name::{
    GatewayName, GrantName, InvalidName, Name, PolicyName, RouteGroupName, RouteName, SecretName,
    ServiceName, TagRouteName, TcpRouteName, WorkloadName,
};
pub use observability::{
    AccessLog, LogFormat, MetricsPush, Observability, PropagationFormat, Sampling, Tracing,
};
pub use outlier_detection::{
    EjectionTime, FailureClasses, FailureRate, GrpcFailure, OutlierDetection,
};
pub use pattern::check_pattern;
pub use policy::{
    Access, AccessRule, HttpRouteGroup, NamedMatch, PortSet, TargetRule, TcpRoute, TrafficTarget,
};
pub use policy_targets::TargetedRule;
pub use rate_limit::{
    AdaptiveConcurrency, Concurrency, PortLimits, Rate, RateLimitKey, RateLimits, RateRule,
};
pub use reason::{FailureSide, REASON_FIELD, Reason, RetryCondition};
pub use request_match::{
    DecodedPathMatch, FieldMatch, HeaderMatches, PathMatch, RequestMatch, ValueMatch,
};
pub use request_need::RequestNeed;
pub use retry_policy::{RetryPolicy, RetrySpec, ServiceRetry};
pub use revocation::{Revocations, RevokedWorkload};
pub use route::{HttpRoute, RouteKind, RouteParent, RouteRule, WeightedBackend, is_only_parent};
pub use rule_kind::RuleKind;
pub use security_floor::{OverriddenSetting, SecurityFloor, repository_of};
pub use sermant::{SermantKey, SermantRemovalSpec, SermantRouteSpec};
pub use server::{InvalidEndpoint, Server};
pub use service::{IpFamilies, Protocol, Service, ServicePort, TargetPort, is_server_first};
pub use service_policy::{
    OutlierAlgorithm, PolicyScope, PortOutlierDetection, SermantCommon, SermantConfig,
    SermantRemoval, SermantRule, ServicePolicy, ServicePolicyKind, ServicePolicyName, ServiceRule,
    Specificity, TrafficPolicy, UpstreamTrafficSettings,
};
pub use session_persistence::{PersistenceType, SessionPersistence};
pub use sidecar_facts::{
    MAX_DISCONNECTED, MAX_REJECTED_CLIENTS, PlaintextClient, RejectedClient, SidecarConnections,
    SidecarFacts,
};
pub use snapshot::{ClientAuthorization, PortConfig, ServiceConfig, Snapshot, WorkloadConfig};
pub use tag::{
    CallerAttributes, CallerMatch, CallerRule, FallbackPolicy, FieldTest, Lane, LaneHeaders,
    LaneMark, LaneRule, LaneSpec, MAX_STEMS, NumberRelation, Quorum, RepeatedHeader, RuleOrigin,
    SermantRouteRule, SermantRules, StickyKey, TagDialect, TagMatch, TagRoute, TagRouteSpec,
    TagRule, TagRules, TagScope, TagSet, TagSplit, TagTarget, TagValue, TextRelation, ValueTest,
    WeightUnit,
};
pub use tap::{
    MAX_TAP_PER_SECOND, MAX_TAP_TEXT_BYTES, StatusRange, Tap, TapMatcher, TapSide, TappedRequest,
};
pub use tcp_rule::{GatewayTcpRoute, TcpRule};
pub use tls_route::{HostPattern, InvalidHostPattern, TlsRoute, TlsRule};
pub use traffic_split::{SplitBackend, TrafficSplit};
pub use upgrades::Upgrades;
pub use workload::{HttpGet, OutboundListener, RunOptions, RunUser, Workload, WorkloadPort};
