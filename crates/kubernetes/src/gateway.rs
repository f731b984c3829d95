//! Gateway API: attachment of routes, statuses, and the proxies of gateways.

mod attach;
mod backends;
mod certificate;
mod facts;
mod isolated;
mod listener;
mod manifests;
mod provision;
mod read;
mod resolve;
mod said;
mod served;
#[cfg(test)]
mod tests;

pub use self::provision::provision_gateways;
pub use self::resolve::DesiredGateway;

pub(crate) use self::facts::{Address, Fact, Facts, RouteId};
pub(crate) use self::read::{
    EDGE_KINDS, read_certificate, read_deployment, read_fact, read_service,
};
pub(crate) use self::resolve::{Before, Resolved, resolve_gateways, secrets_of};
pub(crate) use self::said::{GatewaySaid, ParentSaid, supported_features};
