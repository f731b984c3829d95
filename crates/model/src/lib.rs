//! The nouns: identity, workload, service, endpoint, route, policy, snapshot, change.
//!
//! Plain values. No runtime, no protocol, no serialisation: every other crate stands on these,
//! so nothing here may change because a library did.

pub mod action;
pub mod change;
pub mod endpoint;
pub mod grant;
pub mod identity;
pub mod mesh;
pub mod name;
pub mod policy;
pub mod reason;
pub mod route;
pub mod service;
pub mod snapshot;
pub mod workload;

pub use action::{
    Header, HeaderEdits, PathEdit, Redirect, RetryRule, RuleActions, Scheme, UrlRewrite,
};
pub use change::{Change, Object, ObjectKey};
pub use endpoint::{Endpoint, EndpointId};
pub use grant::{GrantedRoutes, ReferenceGrant};
pub use identity::{ServiceAccount, SpiffeId, TrustDomain};
pub use mesh::{MeshConfig, TrafficMode};
pub use name::{
    GrantName, InvalidName, Name, PolicyName, RouteGroupName, RouteName, ServiceName, TcpRouteName,
    WorkloadName,
};
pub use policy::{
    Access, AccessRule, HttpRouteGroup, NamedMatch, PortSet, TargetRule, TcpRoute, TrafficTarget,
};
pub use reason::{Reason, Retry, Side};
pub use route::{
    FieldMatch, HttpRoute, PathMatch, RequestMatch, RouteKind, RouteParent, RouteRule, ValueMatch,
    WeightedBackend,
};
pub use service::{Protocol, Service, ServicePort, TargetPort};
pub use snapshot::{PortView, Reach, ServiceView, Snapshot, WorkloadPlan};
pub use workload::{Door, Workload, WorkloadPort};
