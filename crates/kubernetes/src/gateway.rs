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

pub use self::provision::provision;
pub use self::resolve::DesiredGateway;

pub(crate) use self::facts::{Address, Fact, Facts, RouteId};
pub(crate) use self::read::{EDGE_KINDS, certificate, deployment, fact, served};
pub(crate) use self::resolve::{Before, Resolved, resolve, secrets_of};
pub(crate) use self::said::{GatewaySaid, ParentSaid, features};
