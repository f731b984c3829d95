//! Converts resources to and from the wire, and validates every field.
//!
//! The encoding is canonical: equal values yield equal bytes on every machine, so the hash of the bytes is the
//! resource's version.

mod action;
mod address_entry;
mod balancing;
mod circuit_breaker;
mod cors;
mod dns_record;
mod endpoint;
mod fault;
mod field;
mod gateway;
mod hedging;
mod inbound;
mod ingress_and_egress;
mod jwt;
mod observability;
mod rate_limit;
mod request;
mod request_check;
mod retry;
mod service;
mod session_persistence;
mod tag;
mod traffic_policy;
mod workload_config;

use std::net::IpAddr;

use bytes::Bytes;
use leno_model::{AddressEntry, DnsRecord, Endpoint, ServiceConfig, ServiceName, WorkloadConfig};
use prost::Message;

use crate::key::ResourceKey;
use crate::message::Upsert;

pub(crate) use field::{
    InvalidField, convert_each, ip_address_to_wire, parse_account, parse_ip_address, parse_name,
    parse_port, parse_socket_address, socket_address_to_wire,
};

pub(crate) use dns_record::MAX_ADDRESSES_OF_NAME;

/// One resource, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resource {
    /// The configuration of the stream's workload.
    Workload(Box<WorkloadConfig>),
    /// A service, without endpoints.
    Service(ServiceConfig),
    /// An endpoint.
    Endpoint(Endpoint),
    /// An address entry.
    AddressEntry(IpAddr, AddressEntry),
    /// A DNS record.
    DnsRecord(ServiceName, DnsRecord),
}

impl Resource {
    /// Decodes a resource and validates every field.
    ///
    /// # Errors
    /// [`InvalidResource`] for the first invalid field.
    pub fn decode(upsert: &Upsert) -> Result<Self, InvalidResource> {
        let content = upsert.content.clone();
        match &upsert.key {
            ResourceKey::Workload => decode_content(content, workload_config::from_wire)
                .map(Box::new)
                .map(Self::Workload),
            ResourceKey::Service(name) => {
                decode_content(content, |wire| service::from_wire(name, wire)).map(Self::Service)
            }
            ResourceKey::Endpoint(id) => {
                decode_content(content, |wire| endpoint::from_wire(id, &wire)).map(Self::Endpoint)
            }
            ResourceKey::Address(address) => decode_content(content, address_entry::from_wire)
                .map(|address_entry| Self::AddressEntry(*address, address_entry)),
            ResourceKey::Name(name) => decode_content(content, dns_record::from_wire)
                .map(|dns_record| Self::DnsRecord(name.clone(), dns_record)),
        }
        .map_err(|invalid| InvalidResource {
            key: upsert.key.clone(),
            field: invalid.field.into(),
            reason: invalid.reason.into(),
        })
    }
}

/// Encodes a workload's configuration.
#[must_use]
pub fn encode_workload_config(config: &WorkloadConfig) -> Bytes {
    workload_config::to_wire(config).encode_to_vec().into()
}

/// Encodes a service without its endpoints.
#[must_use]
pub fn encode_service(service_config: &ServiceConfig) -> Bytes {
    service::to_wire(service_config).encode_to_vec().into()
}

/// Encodes an endpoint; its ID is in its key.
#[must_use]
pub fn encode_endpoint(endpoint: &Endpoint) -> Bytes {
    endpoint::to_wire(endpoint).encode_to_vec().into()
}

/// Encodes an address entry; the address is in its key.
#[must_use]
pub fn encode_address_entry(address_entry: &AddressEntry) -> Bytes {
    address_entry::to_wire(address_entry).encode_to_vec().into()
}

/// Encodes a DNS record; the name is in its key.
#[must_use]
pub fn encode_dns_record(dns_record: &DnsRecord) -> Bytes {
    dns_record::to_wire(dns_record).encode_to_vec().into()
}

/// A resource that failed validation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {field}: {reason}")]
pub struct InvalidResource {
    /// The invalid resource.
    pub key: ResourceKey,
    /// The path of the field, such as `ports[0].rules[2].route`.
    pub field: Box<str>,
    /// The reason why the field is invalid.
    pub reason: Box<str>,
}

/// Decodes and validates the content of a resource.
fn decode_content<W, T>(
    content: Bytes,
    convert: impl FnOnce(W) -> Result<T, InvalidField>,
) -> Result<T, InvalidField>
where
    W: Message + Default,
{
    let wire = W::decode(content)
        .map_err(|error| InvalidField::new("content", format!("is not of its type: {error}")))?;
    convert(wire)
}

#[cfg(test)]
mod tests;
