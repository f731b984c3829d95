//! Supports the Gateway API: reads Gateways and routes, attaches routes to listeners, computes statuses, and
//! provisions the gateways' proxies.

mod attach;
mod backends;
mod certificate;
mod inputs;
mod isolated;
mod listener;
mod manifests;
mod provision;
mod read;
mod resolve;
mod served;
mod status;
#[cfg(test)]
mod tests;

pub use self::provision::provision_gateways;
pub use self::resolve::DesiredGateway;

pub(crate) use self::inputs::{GatewayAddress, GatewayInput, GatewayInputs, RouteId};
pub(crate) use self::read::{
    GATEWAY_KINDS, read_certificate, read_deployment, read_gateway_input, read_service,
};
pub(crate) use self::resolve::{
    PreviousResult, ResolvedGateways, collect_secrets, resolve_gateways,
};
pub(crate) use self::status::{GatewayStatus, RouteParentStatus, supported_features};
