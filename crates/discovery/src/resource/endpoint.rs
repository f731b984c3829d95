//! Converts endpoints to and from the wire. The ID of an endpoint is in its resource key.

use leno_model::{Endpoint, EndpointId, Weight};

use super::field::{InvalidField, parse_account, parse_socket_address, socket_address_to_wire};
use super::tag::{labels_from_wire, labels_to_wire};
use crate::proto;

pub(super) fn to_wire(endpoint: &Endpoint) -> proto::Endpoint {
    proto::Endpoint {
        address: Some(socket_address_to_wire(endpoint.address)),
        account: endpoint.account.as_ref().map(ToString::to_string).unwrap_or_default(),
        tags: labels_to_wire(&endpoint.tags),
        weight: endpoint.weight.map(|weight| weight.as_u16().into()).unwrap_or_default(),
    }
}

/// Parses the endpoint with this ID. An empty account means that the endpoint has no sidecar; weight 0 means no
/// weight.
pub(super) fn from_wire(id: &EndpointId, wire: &proto::Endpoint) -> Result<Endpoint, InvalidField> {
    let address = parse_socket_address("address", wire.address.as_ref())?;
    if address.port() == 0 {
        return Err(InvalidField::new("address", "0 is not a port: use 1 to 65535"));
    }
    Ok(Endpoint {
        id: id.clone(),
        address,
        account: match wire.account.as_str() {
            "" => None,
            name => Some(parse_account("account", name)?),
        },
        tags: labels_from_wire("tags", &wire.tags)?,
        weight: match wire.weight {
            0 => None,
            weight => {
                let weight = u16::try_from(weight).ok().and_then(Weight::new);
                Some(weight.ok_or(InvalidField::new("weight", "is above 1000"))?)
            }
        },
    })
}
