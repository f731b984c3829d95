//! Traffic decisions for requests and connections: routing, authorization, load balancing, rate limits, retries and
//! fault injection. The decisions are functions of the snapshot, the request, the time and random numbers.
//!
//! This crate does not wait, read a clock or generate random numbers, so that sidecars and `leno explain` make the same
//! decisions with the same functions.

pub mod action;
pub mod authorize;
pub mod backoff;
pub mod balance;
pub mod budget;
pub mod circuit_breaker;
pub mod compiled_snapshot;
pub mod cors;
pub mod egress_rule;
pub mod fault;
pub mod forwarded;
pub mod gateway;
pub mod hedge;
pub mod host;
pub mod matcher;
pub mod outlier;
pub mod rate_limit;
pub mod request;
pub mod request_checks;
pub mod retry;
pub mod route;
pub mod session_affinity;
pub mod session_persistence;
pub mod tag;
pub mod tcp_rule;
pub mod tls_route;
pub mod traffic_policy;

mod address_ranges;
mod hash;
mod match_index;
mod match_slot;
mod pattern;
mod query;
mod rule_index;
mod variant;

pub use action::{AttemptLimit, CompiledActions, FieldEdits, Redirection};
pub use authorize::{
    ConnectionOrigin, ConnectionPermit, Denial, InboundAccess, PolicyDecision, RequestPermit,
    SessionTransport,
};
pub use backoff::backoff_delay;
pub use balance::{Candidates, pick_candidate};
pub use budget::RetryBudget;
pub use compiled_snapshot::{CompiledPort, CompiledService, CompiledSnapshot};
pub use egress_rule::{EgressDecision, EgressRules};
pub use forwarded::{ForwardedPort, ForwardedPorts};
pub use gateway::{CompiledGateway, CompiledGatewayPort, GatewayChoice, HttpListeners};
pub use host::{external_rejection, service_of};
pub use match_slot::MatchSlot;
pub use matcher::{Mismatch, RequestMatcher};
pub use pattern::{InvalidPattern, PatternField, check_pattern};
pub use query::similar_parameters;
pub use rate_limit::{CompiledLimits, ConcurrencyExceeded, ConcurrencySlot, RateLimitExceeded};
pub use request::{HeaderLookup, RequestView, is_similar_name};
pub use request_checks::CompiledChecks;
pub use retry::{
    AttemptFailure, FailedAttempt, SentPart, is_idempotent, may_retry, may_retry_by_rule,
};
pub use route::{
    CompiledRouteRule, PortRoutes, Precedence, RouteChoice, precedence, takes_precedence,
};
pub use session_affinity::SessionAffinity;
pub use tag::{
    ChoicePurpose, CompiledTagRules, Endpoints, LaneHeaders, Lanes, RandomChoice, TagDecision,
    TagOutcome, WeightedTargets,
};
pub use tcp_rule::select_tcp_backend;
pub use tls_route::{TlsChoice, TlsRoutes};
