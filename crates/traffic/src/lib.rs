//! Traffic decisions for one request: pure functions of snapshot, request, time and random numbers.
//!
//! No code here waits, reads a clock or draws a number: `leno explain` on a laptop and a sidecar under load
//! call the same functions with the same arguments.

pub mod action;
pub mod authorize;
pub mod backoff;
pub mod balance;
pub mod budget;
pub mod circuit;
pub mod cors;
pub mod egress_rule;
pub mod fault;
pub mod forwarded;
pub mod gateway;
pub mod guard;
pub mod hedge;
pub mod host;
pub mod limit;
pub mod matcher;
pub mod outlier;
pub mod persistence;
pub mod plan;
pub mod request;
pub mod retry;
pub mod route;
pub mod stay;
pub mod tag;
pub mod tcp_rule;
pub mod tls_route;
pub mod traffic_policy;

mod hash;
mod lookup;
mod many;
mod match_slot;
mod pattern;
mod query;
mod ranges;
mod variant;

pub use action::{AttemptLimit, CompiledActions, FieldEdits, Redirection};
pub use authorize::{
    Carrier, ConnectionPermit, Denial, InboundAccess, Origin, Permit, PolicyDecision,
};
pub use backoff::backoff_delay;
pub use balance::{Candidates, pick_candidate};
pub use budget::RetryBudget;
pub use egress_rule::{EgressRules, Way};
pub use forwarded::{Forwarded, ForwardedPort};
pub use gateway::{GatewayChoice, GatewayPlan, GatewayPortPlan, HttpListeners};
pub use guard::Guards;
pub use host::{outside_rejection, service_of};
pub use limit::{Exceeded, Full, Limits, Place};
pub use match_slot::MatchSlot;
pub use matcher::{Mismatch, RequestMatcher};
pub use pattern::{BadPattern, PatternField, check_pattern};
pub use plan::{Plans, PortPlan, ServicePlan};
pub use query::similar_parameters;
pub use request::{Fields, RequestView, is_similar_name};
pub use retry::{Attempt, Sent, Setback, is_idempotent, may_retry, retry_by_rule};
pub use route::{CompiledRule, PortRoutes, Precedence, RouteChoice, goes_before, precedence};
pub use stay::Stay;
pub use tag::{Chance, Draw, Endpoints, Lanes, Marks, Shares, TagDecision, TagOutcome, TagPlan};
pub use tcp_rule::tcp_backend;
pub use tls_route::{TlsChoice, TlsRoutes};
