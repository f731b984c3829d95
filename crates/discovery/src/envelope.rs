//! Converts messages between the generated protobuf types and the types of [`crate::message`], and validates
//! them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use leno_model::{EndpointId, ServiceName};

use crate::condition::{self, ProxyReport, conditions_to_wire, report_from_wire};
use crate::key::{ChangeId, ResourceKey, ResourceVersion};
use crate::message::{Delta, Hello, InboundListener, IssuedCertificate, ResourceRejection, Upsert};
use crate::proto;
use crate::proto::key::Resource;
use crate::resource::{
    InvalidField, convert_each, ip_address_to_wire, parse_ip_address, parse_name, parse_port,
    parse_socket_address, socket_address_to_wire,
};

pub(crate) fn key_to_wire(key: &ResourceKey) -> proto::Key {
    let resource = match key {
        // The protocol calls the workload configuration `plan`.
        ResourceKey::Workload => Resource::Plan(proto::Nothing {}),
        ResourceKey::Service(name) => Resource::Service(name.to_string()),
        ResourceKey::Address(address) => Resource::Address(ip_address_to_wire(*address)),
        ResourceKey::Name(name) => Resource::Name(name.to_string()),
        ResourceKey::Endpoint(id) => Resource::Endpoint(proto::EndpointKey {
            service: id.service.to_string(),
            port: id.port.into(),
            workload: id.workload.to_string(),
        }),
    };
    proto::Key { resource: Some(resource) }
}

pub(crate) fn key_from_wire(wire: Option<proto::Key>) -> Result<ResourceKey, InvalidField> {
    match wire.and_then(|key| key.resource) {
        None => Err(InvalidField::new("key", "is missing, or unknown to this version")),
        Some(Resource::Plan(proto::Nothing {})) => Ok(ResourceKey::Workload),
        Some(Resource::Service(name)) => parse_name("key.service", &name).map(ResourceKey::Service),
        Some(Resource::Address(bytes)) => {
            parse_ip_address("key.address", &bytes).map(ResourceKey::Address)
        }
        Some(Resource::Name(name)) => parse_name("key.name", &name).map(ResourceKey::Name),
        Some(Resource::Endpoint(key)) => Ok(ResourceKey::Endpoint(EndpointId {
            service: parse_name("key.endpoint.service", &key.service)?,
            port: parse_port("key.endpoint.port", key.port)?,
            workload: parse_name("key.endpoint.workload", &key.workload)?,
        })),
    }
}

pub(crate) fn hello_to_wire(
    hello: &Hello,
    held_versions: &[(ResourceKey, ResourceVersion)],
) -> proto::Hello {
    let held_addresses = held_versions.iter().filter_map(|(key, version)| match key {
        ResourceKey::Address(address) => {
            Some(proto::HeldAddress { address: ip_address_to_wire(*address), version: version.0 })
        }
        ResourceKey::Workload
        | ResourceKey::Service(_)
        | ResourceKey::Endpoint(_)
        | ResourceKey::Name(_) => None,
    });
    let held_names = held_versions.iter().filter_map(|(key, version)| match key {
        ResourceKey::Name(name) => {
            Some(proto::HeldName { name: name.to_string(), version: version.0 })
        }
        ResourceKey::Workload
        | ResourceKey::Service(_)
        | ResourceKey::Endpoint(_)
        | ResourceKey::Address(_) => None,
    });
    let held_resources = held_versions
        .iter()
        .filter(|(key, _)| !matches!(key, ResourceKey::Address(_) | ResourceKey::Name(_)))
        .map(|(key, version)| proto::Held { key: Some(key_to_wire(key)), version: version.0 });
    proto::Hello {
        protocol: crate::PROTOCOL,
        workload: hello.workload.to_string(),
        listeners: hello.listeners.iter().map(listener_to_wire).collect(),
        admin: hello.admin.map(socket_address_to_wire),
        pid: hello.pid,
        version: hello.version.clone(),
        services: hello.services.iter().map(ToString::to_string).collect(),
        held: held_resources.collect(),
        session: hello.session,
        process: hello.process,
        ca_generation: hello.ca_generation,
        addresses: hello.addresses.iter().copied().map(ip_address_to_wire).collect(),
        held_addresses: held_addresses.collect(),
        dns_names: hello.dns_names.iter().map(ToString::to_string).collect(),
        held_names: held_names.collect(),
        conditions: conditions_to_wire(&hello.report.conditions),
        named_addresses: condition::addresses_to_wire(&hello.report),
        answers_queries: hello.answers_queries,
    }
}

/// Parses the first message of a proxy. Returns it together with the proxy's held resource versions.
pub(crate) fn hello_from_wire(
    wire: proto::Hello,
) -> Result<(Hello, Vec<(ResourceKey, ResourceVersion)>), InvalidField> {
    if wire.version.len() > MAX_SOFTWARE_VERSION_BYTES {
        return Err(InvalidField::new("version", "is longer than 64 bytes"));
    }
    let admin = wire.admin.as_ref().map(|address| parse_socket_address("admin", Some(address)));
    let hello = Hello {
        workload: parse_name("workload", &wire.workload)?,
        listeners: listeners_from_wire(&wire.listeners)?,
        admin: admin.transpose()?,
        pid: wire.pid,
        version: wire.version,
        services: services_from_wire(&wire.services)?,
        session: wire.session,
        process: wire.process,
        answers_queries: wire.answers_queries,
        ca_generation: wire.ca_generation,
        addresses: addresses_from_wire(wire.addresses)?,
        dns_names: services_from_wire(&wire.dns_names)?,
        report: report_from_wire(wire.conditions, wire.named_addresses)?,
    };
    let held_resources = wire
        .held
        .into_iter()
        .map(|held| Ok((key_from_wire(held.key)?, ResourceVersion(held.version))));
    let held_addresses = wire.held_addresses.into_iter().map(|held| {
        let address = parse_ip_address("held_addresses.address", &held.address)?;
        Ok((ResourceKey::Address(address), ResourceVersion(held.version)))
    });
    let held_names = wire.held_names.into_iter().map(|held| {
        let name = parse_name("held_names.name", &held.name)?;
        Ok((ResourceKey::Name(name), ResourceVersion(held.version)))
    });
    let held_versions = held_resources.chain(held_addresses).chain(held_names);
    Ok((hello, held_versions.collect::<Result<_, _>>()?))
}

pub(crate) fn listener_to_wire(listener: &InboundListener) -> proto::Listener {
    proto::Listener {
        port: listener.port.into(),
        address: Some(socket_address_to_wire(listener.address)),
    }
}

pub(crate) fn listeners_to_wire(
    listeners: &[InboundListener],
    report: &ProxyReport,
) -> proto::Listeners {
    proto::Listeners {
        listeners: listeners.iter().map(listener_to_wire).collect(),
        conditions: conditions_to_wire(&report.conditions),
        named_addresses: condition::addresses_to_wire(report),
    }
}

pub(crate) fn listeners_from_wire(
    wire: &[proto::Listener],
) -> Result<Vec<InboundListener>, InvalidField> {
    let parse_listener = |wire: &proto::Listener| {
        let address = parse_socket_address("listener.address", wire.address.as_ref())?;
        if address.port() == 0 {
            return Err(InvalidField::new("listener.address", "0 is not a port"));
        }
        Ok(InboundListener { port: parse_port("listener.port", wire.port)?, address })
    };
    if wire.len() > MAX_LISTENERS {
        let reason = format!("has {} elements; at most {MAX_LISTENERS} are allowed", wire.len());
        return Err(InvalidField::new("listeners", reason));
    }
    wire.iter().map(parse_listener).collect()
}

pub(crate) fn services_to_wire<'a>(
    services: impl IntoIterator<Item = &'a ServiceName>,
) -> proto::Services {
    let names = services.into_iter().map(ToString::to_string).collect();
    proto::Services { names, ..proto::Services::default() }
}

pub(crate) fn addresses_to_wire(addresses: &[IpAddr]) -> proto::Services {
    let addresses = addresses.iter().copied().map(ip_address_to_wire).collect();
    proto::Services { addresses, ..proto::Services::default() }
}

pub(crate) fn dns_names_to_wire(names: &[ServiceName]) -> proto::Services {
    let dns_names = names.iter().map(ToString::to_string).collect();
    proto::Services { dns_names, ..proto::Services::default() }
}

pub(crate) fn addresses_from_wire(wire: Vec<Vec<u8>>) -> Result<Vec<IpAddr>, InvalidField> {
    convert_each("addresses", wire, |bytes| parse_ip_address("", &bytes))
}

/// Parses service names into a collection.
pub(crate) fn services_from_wire<C>(names: &[String]) -> Result<C, InvalidField>
where
    C: FromIterator<ServiceName>,
{
    names.iter().map(|name| parse_name("services", name)).collect()
}

pub(crate) fn delta_to_wire(delta: Delta) -> proto::Delta {
    proto::Delta {
        nonce: delta.nonce,
        change: delta.change.0,
        whole: delta.whole,
        upserts: delta.upserts.into_iter().map(upsert_to_wire).collect(),
        removed: delta.removed.iter().map(key_to_wire).collect(),
        absent: delta.absent.as_ref().map(services_to_wire),
    }
}

pub(crate) fn delta_from_wire(wire: proto::Delta) -> Result<Delta, InvalidField> {
    let removed = wire.removed.into_iter().map(|key| key_from_wire(Some(key)));
    let absent: Option<Result<BTreeSet<_>, _>> =
        wire.absent.map(|services| services_from_wire(&services.names));
    Ok(Delta {
        nonce: wire.nonce,
        change: ChangeId(wire.change),
        whole: wire.whole,
        upserts: upserts_from_wire(wire.upserts)?,
        removed: removed.collect::<Result<_, _>>()?,
        absent: absent.transpose()?,
    })
}

pub(crate) fn upsert_to_wire(upsert: Upsert) -> proto::Upsert {
    proto::Upsert { key: Some(key_to_wire(&upsert.key)), content: upsert.content }
}

pub(crate) fn upserts_from_wire(wire: Vec<proto::Upsert>) -> Result<Vec<Upsert>, InvalidField> {
    let parse_upsert =
        |wire: proto::Upsert| Ok(Upsert { key: key_from_wire(wire.key)?, content: wire.content });
    wire.into_iter().map(parse_upsert).collect()
}

pub(crate) fn nack_to_wire(nonce: u64, rejections: &[ResourceRejection]) -> proto::Nack {
    let rejection_to_wire = |rejection: &ResourceRejection| proto::Rejection {
        key: Some(key_to_wire(&rejection.key)),
        reason: truncate_text(&rejection.reason, MAX_REASON_BYTES).to_owned(),
        because: rejection.because.as_ref().map(key_to_wire),
    };
    let rejections = rejections.iter().take(MAX_REJECTIONS).map(rejection_to_wire).collect();
    proto::Nack { nonce, rejections }
}

pub(crate) fn rejections_from_wire(
    wire: Vec<proto::Rejection>,
) -> Result<Vec<ResourceRejection>, InvalidField> {
    let parse_rejection = |wire: proto::Rejection| {
        let because = wire.because.map(|key| key_from_wire(Some(key))).transpose()?;
        let reason = truncate_text(&wire.reason, MAX_REASON_BYTES).to_owned();
        Ok(ResourceRejection { key: key_from_wire(wire.key)?, reason, because })
    };
    wire.into_iter().take(MAX_REJECTIONS).map(parse_rejection).collect()
}

pub(crate) fn issued_to_wire(issued: IssuedCertificate) -> proto::Issued {
    proto::Issued { chain: issued.chain, roots: issued.roots }
}

pub(crate) fn issued_from_wire(wire: proto::Issued) -> IssuedCertificate {
    IssuedCertificate { chain: wire.chain, roots: wire.roots }
}

/// Truncates a text at a character boundary.
pub(crate) fn truncate_text(text: &str, max_bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(max_bytes)).unwrap_or(text)
}

/// The maximum number of rejections in a NACK; the rest are repeated in the next one.
pub(crate) const MAX_REJECTIONS: usize = 256;

/// The maximum length of a sent reason: it is for a status page, not for a log.
pub(crate) const MAX_REASON_BYTES: usize = 512;

/// The maximum number of listeners of a proxy: one for each port of its application.
pub(crate) const MAX_LISTENERS: usize = 4096;

/// The maximum length of a proxy's software version.
const MAX_SOFTWARE_VERSION_BYTES: usize = 64;
