//! Parses and encodes single fields: names, ports, protocols and addresses. An error contains the path of the
//! invalid field.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::str::FromStr;
use std::time::Duration;

use leno_model::{Name, Protocol, ServiceAccount};

use crate::proto;

/// An invalid field.
#[derive(Debug)]
pub(crate) struct InvalidField {
    pub(crate) field: String,
    pub(crate) reason: String,
}

impl InvalidField {
    pub(crate) fn new(field: &str, reason: impl Display) -> Self {
        Self { field: field.to_owned(), reason: reason.to_string() }
    }

    /// Prefixes the path with the field of the enclosing message. A list of plain values has no field of its
    /// own.
    pub(crate) fn with_parent(self, parent: impl Display) -> Self {
        let field = match self.field.as_str() {
            "" => parent.to_string(),
            field => format!("{parent}.{field}"),
        };
        Self { field, reason: self.reason }
    }
}

/// Encodes a duration in nanoseconds, at most 2^64 (584 years).
pub(super) fn to_nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Converts each element; an error contains the index of the element.
pub(crate) fn convert_each<W, T>(
    field: &str,
    wire: Vec<W>,
    convert: impl Fn(W) -> Result<T, InvalidField>,
) -> Result<Vec<T>, InvalidField> {
    let convert_at = |(index, element)| {
        convert(element).map_err(|invalid| invalid.with_parent(format_args!("{field}[{index}]")))
    };
    wire.into_iter().enumerate().map(convert_at).collect()
}

/// Collects a list into a map by port; a port that appears twice is an error.
pub(crate) fn collect_by_port<T>(
    field: &str,
    port_values: Vec<(u16, T)>,
) -> Result<BTreeMap<u16, T>, InvalidField> {
    let mut values_by_port = BTreeMap::new();
    for (port, value) in port_values {
        if values_by_port.insert(port, value).is_some() {
            return Err(InvalidField::new(field, format!("port {port} appears twice")));
        }
    }
    Ok(values_by_port)
}

/// Parses a name of any kind.
pub(crate) fn parse_name<T>(field: &str, text: &str) -> Result<T, InvalidField>
where
    T: FromStr<Err: Display>,
{
    text.parse().map_err(|error| InvalidField::new(field, error))
}

pub(crate) fn parse_optional_name(
    field: &str,
    text: Option<&str>,
) -> Result<Option<Name>, InvalidField> {
    text.map(|text| parse_name(field, text)).transpose()
}

/// Parses `namespace/name`.
pub(crate) fn parse_account(field: &str, text: &str) -> Result<ServiceAccount, InvalidField> {
    let (namespace, name) = text
        .split_once('/')
        .ok_or_else(|| InvalidField::new(field, "an account is written `namespace/name`"))?;
    ServiceAccount::new(namespace, name).map_err(|error| InvalidField::new(field, error))
}

pub(crate) fn parse_port(field: &str, number: u32) -> Result<u16, InvalidField> {
    match u16::try_from(number) {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(InvalidField::new(field, format!("{number} is not a port: use 1 to 65535"))),
    }
}

pub(crate) fn parse_protocol(field: &str, number: i32) -> Result<Protocol, InvalidField> {
    match proto::Protocol::try_from(number) {
        Ok(proto::Protocol::Http) => Ok(Protocol::Http),
        Ok(proto::Protocol::Http2) => Ok(Protocol::Http2),
        Ok(proto::Protocol::Grpc) => Ok(Protocol::Grpc),
        Ok(proto::Protocol::Tcp) => Ok(Protocol::Tcp),
        Ok(proto::Protocol::Detect) => Ok(Protocol::Detect),
        Ok(proto::Protocol::Unspecified) | Err(_) => {
            Err(InvalidField::new(field, format!("{number} is not a protocol of this version")))
        }
    }
}

pub(crate) fn protocol_to_wire(protocol: Protocol) -> i32 {
    let wire = match protocol {
        Protocol::Http => proto::Protocol::Http,
        Protocol::Http2 => proto::Protocol::Http2,
        Protocol::Grpc => proto::Protocol::Grpc,
        Protocol::Tcp => proto::Protocol::Tcp,
        Protocol::Detect => proto::Protocol::Detect,
    };
    wire.into()
}

pub(crate) fn parse_ip_address(field: &str, bytes: &[u8]) -> Result<IpAddr, InvalidField> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Ok(IpAddr::from(v4));
    }
    <[u8; 16]>::try_from(bytes).map(IpAddr::from).map_err(|_| {
        InvalidField::new(field, format!("an IP address has 4 or 16 bytes, not {}", bytes.len()))
    })
}

pub(crate) fn ip_address_to_wire(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// Parses a socket address. Port 0, which means any free port, is accepted; the caller rejects it where
/// necessary.
pub(crate) fn parse_socket_address(
    field: &str,
    wire: Option<&proto::SocketAddress>,
) -> Result<SocketAddr, InvalidField> {
    let wire = wire.ok_or_else(|| InvalidField::new(field, "is missing"))?;
    let ip =
        parse_ip_address("address", &wire.address).map_err(|invalid| invalid.with_parent(field))?;
    let port = u16::try_from(wire.port)
        .map_err(|_| InvalidField::new(field, format!("{} is not a port", wire.port)))?;
    match ip {
        IpAddr::V6(v6) => Ok(SocketAddrV6::new(v6, port, wire.flow, wire.scope).into()),
        IpAddr::V4(_) if wire.flow != 0 || wire.scope != 0 => {
            Err(InvalidField::new(field, "an IPv4 address has neither flow nor scope"))
        }
        IpAddr::V4(_) => Ok(SocketAddr::new(ip, port)),
    }
}

pub(crate) fn socket_address_to_wire(address: SocketAddr) -> proto::SocketAddress {
    let (flow, scope) = match address {
        SocketAddr::V4(_) => (0, 0),
        SocketAddr::V6(v6) => (v6.flowinfo(), v6.scope_id()),
    };
    proto::SocketAddress {
        address: ip_address_to_wire(address.ip()),
        port: address.port().into(),
        flow,
        scope,
    }
}
