//! Converts request checks (external authorization and JWT validation) and global rate limits to and from the
//! wire.

use std::time::Duration;

use leno_model::{
    Authorization, BodyExcerpt, CheckService, CheckServiceAddress, Descriptor, DescriptorEntry,
    DescriptorValue, FailureMode, GlobalLimit, LongBodyAction, PortCheck, RequestCheck, Server,
};

use super::circuit_breaker::{response_from_wire, response_to_wire};
use super::field::{InvalidField, convert_each, parse_name, parse_port, to_nanoseconds};
use super::traffic_policy::{policy_from_wire, policy_to_wire};
use super::{jwt, request};
use crate::proto;

pub(super) fn to_wire((port, checks): (&u16, &Vec<PortCheck>)) -> proto::CheckedPort {
    proto::CheckedPort {
        port: u32::from(*port),
        guards: checks.iter().map(check_to_wire).collect(),
    }
}

pub(super) fn from_wire(wire: proto::CheckedPort) -> Result<(u16, Vec<PortCheck>), InvalidField> {
    let checks = convert_each("guards", wire.guards, check_from_wire)?;
    if checks.is_empty() {
        return Err(InvalidField::new("guards", "is empty"));
    }
    Ok((parse_port("port", wire.port)?, checks))
}

fn check_to_wire(port_check: &PortCheck) -> proto::RequestCheck {
    use proto::request_check::Guard as Wire;
    let policy = Some(policy_to_wire(&port_check.policy));
    let guard = match &port_check.check {
        RequestCheck::Authorization(rule) => Wire::Authorization(authorization_to_wire(rule)),
        RequestCheck::Tokens(rule) => Wire::Tokens(jwt::to_wire(rule)),
    };
    proto::RequestCheck { policy, guard: Some(guard) }
}

/// Parses a check. An unknown policy is rejected, because it must not allow any request.
fn check_from_wire(wire: proto::RequestCheck) -> Result<PortCheck, InvalidField> {
    use proto::request_check::Guard as Wire;
    let check = match wire.guard {
        None => return Err(InvalidField::new("guard", "is missing, or unknown to this version")),
        Some(Wire::Authorization(rule)) => authorization_from_wire(rule)
            .map(|rule| RequestCheck::Authorization(Box::new(rule)))
            .map_err(|invalid| invalid.with_parent("authorization"))?,
        Some(Wire::Tokens(rule)) => jwt::from_wire(rule)
            .map(|rule| RequestCheck::Tokens(Box::new(rule)))
            .map_err(|invalid| invalid.with_parent("tokens"))?,
    };
    Ok(PortCheck { policy: policy_from_wire(wire.policy)?, check })
}

fn authorization_to_wire(rule: &Authorization) -> proto::Authorization {
    let headers = rule.headers.clone().map(|names| proto::HeaderNames { names });
    proto::Authorization {
        check_service: Some(check_service_to_wire(&rule.check_service)),
        requests: rule.requests.iter().map(request::to_wire).collect(),
        headers,
        context_extensions: rule.context_extensions.iter().map(context_entry_to_wire).collect(),
        body: rule.body.map(|body| proto::BodyExcerpt {
            max_bytes: body.max_bytes,
            allow_partial_message: body.long_body == LongBodyAction::SendPrefix,
            pack_as_bytes: body.pack_as_bytes,
        }),
    }
}

fn context_entry_to_wire((name, text): &(String, String)) -> proto::ContextEntry {
    proto::ContextEntry { name: name.clone(), text: text.clone() }
}

fn authorization_from_wire(wire: proto::Authorization) -> Result<Authorization, InvalidField> {
    let headers =
        wire.headers.map(|headers| convert_each("names", headers.names, parse_header_name));
    Ok(Authorization {
        check_service: check_service_from_wire(wire.check_service)?,
        requests: convert_each("requests", wire.requests, request::from_wire)?,
        headers: headers.transpose().map_err(|invalid| invalid.with_parent("headers"))?,
        context_extensions: wire
            .context_extensions
            .into_iter()
            .map(|entry| (entry.name, entry.text))
            .collect(),
        body: wire.body.map(body_from_wire).transpose()?,
    })
}

fn body_from_wire(wire: proto::BodyExcerpt) -> Result<BodyExcerpt, InvalidField> {
    let proto::BodyExcerpt { max_bytes, allow_partial_message, pack_as_bytes } = wire;
    if !(1..=BodyExcerpt::MAX_BYTES).contains(&max_bytes) {
        return Err(InvalidField::new("body.max_bytes", format!("{max_bytes} is out of range")));
    }
    let long_body =
        if allow_partial_message { LongBodyAction::SendPrefix } else { LongBodyAction::Reject };
    Ok(BodyExcerpt { max_bytes, long_body, pack_as_bytes })
}

pub(super) fn limit_to_wire(limit: &GlobalLimit) -> proto::GlobalLimit {
    let descriptor_to_wire = |descriptor: &Descriptor| proto::Descriptor {
        requests: descriptor.requests.iter().map(request::to_wire).collect(),
        entries: descriptor.entries.iter().map(entry_to_wire).collect(),
        hits_addend: descriptor.hits_addend,
    };
    proto::GlobalLimit {
        check_service: Some(check_service_to_wire(&limit.check_service)),
        domain: limit.domain.clone(),
        descriptors: limit.descriptors.iter().map(descriptor_to_wire).collect(),
        response: response_to_wire(&limit.response),
        rate_limit_headers: limit.rate_limit_headers,
    }
}

/// Parses a global rate limit: a domain, and at least one descriptor with at least one entry each.
pub(super) fn limit_from_wire(wire: proto::GlobalLimit) -> Result<GlobalLimit, InvalidField> {
    let descriptors = convert_each("descriptors", wire.descriptors, |wire| {
        let entries = convert_each("entries", wire.entries, entry_from_wire)?;
        if entries.is_empty() {
            return Err(InvalidField::new("entries", "is empty"));
        }
        if wire.hits_addend == 0 {
            return Err(InvalidField::new("hits_addend", "is 0"));
        }
        let requests = convert_each("requests", wire.requests, request::from_wire)?;
        Ok(Descriptor { requests, entries, hits_addend: wire.hits_addend })
    })?;
    if descriptors.is_empty() {
        return Err(InvalidField::new("descriptors", "is empty"));
    }
    if wire.domain.is_empty() {
        return Err(InvalidField::new("domain", "is empty"));
    }
    Ok(GlobalLimit {
        check_service: check_service_from_wire(wire.check_service)?,
        domain: wire.domain,
        descriptors,
        response: response_from_wire(wire.response)
            .map_err(|invalid| invalid.with_parent("response"))?,
        rate_limit_headers: wire.rate_limit_headers,
    })
}

fn entry_to_wire(entry: &DescriptorEntry) -> proto::DescriptorEntry {
    use proto::descriptor_entry::Value as Wire;
    let nothing = proto::Nothing {};
    let value = match &entry.value {
        DescriptorValue::Text(text) => Wire::Text(text.clone()),
        DescriptorValue::Header(name) => Wire::Header(name.clone()),
        DescriptorValue::Path => Wire::Path(nothing),
        DescriptorValue::Method => Wire::Method(nothing),
        DescriptorValue::Client => Wire::Client(nothing),
        DescriptorValue::Address => Wire::Address(nothing),
    };
    proto::DescriptorEntry { key: entry.key.clone(), value: Some(value) }
}

fn entry_from_wire(wire: proto::DescriptorEntry) -> Result<DescriptorEntry, InvalidField> {
    use proto::descriptor_entry::Value as Wire;
    if wire.key.is_empty() {
        return Err(InvalidField::new("key", "is empty"));
    }
    let value = match wire.value {
        None => return Err(InvalidField::new("value", "is missing, or unknown to this version")),
        Some(Wire::Text(text)) => DescriptorValue::Text(text),
        Some(Wire::Header(name)) => DescriptorValue::Header(parse_header_name(name)?),
        Some(Wire::Path(proto::Nothing {})) => DescriptorValue::Path,
        Some(Wire::Method(proto::Nothing {})) => DescriptorValue::Method,
        Some(Wire::Client(proto::Nothing {})) => DescriptorValue::Client,
        Some(Wire::Address(proto::Nothing {})) => DescriptorValue::Address,
    };
    Ok(DescriptorEntry { key: wire.key, value })
}

fn check_service_to_wire(check_service: &CheckService) -> proto::CheckService {
    use proto::check_service::At;
    let address = match &check_service.address {
        CheckServiceAddress::Service { service, port } => {
            At::Service(proto::CheckServiceName { name: service.to_string(), port: (*port).into() })
        }
        CheckServiceAddress::External(server) => At::Url(server.to_string()),
    };
    proto::CheckService {
        at: Some(address),
        timeout_nanoseconds: to_nanoseconds(check_service.timeout),
        failure_mode_allow: check_service.failure_mode == FailureMode::Allow,
    }
}

fn check_service_from_wire(
    wire: Option<proto::CheckService>,
) -> Result<CheckService, InvalidField> {
    use proto::check_service::At;
    let wire = wire.ok_or_else(|| InvalidField::new("check_service", "is missing"))?;
    let address = match wire.at {
        None => {
            return Err(InvalidField::new(
                "check_service.at",
                "is missing, or unknown to this version",
            ));
        }
        Some(At::Service(wire)) => CheckServiceAddress::Service {
            service: parse_name("check_service.service.name", &wire.name)?,
            port: parse_port("check_service.service.port", wire.port)?,
        },
        Some(At::Url(url)) => {
            let server = Server::parse(&url);
            CheckServiceAddress::External(
                server.map_err(|error| InvalidField::new("check_service.url", error))?,
            )
        }
    };
    let timeout = Duration::from_nanos(wire.timeout_nanoseconds);
    if !(CheckService::MIN_TIMEOUT..=CheckService::MAX_TIMEOUT).contains(&timeout) {
        let reason = format!("{timeout:?} is out of range");
        return Err(InvalidField::new("check_service.timeout_nanoseconds", reason));
    }
    let failure_mode = match wire.failure_mode_allow {
        true => FailureMode::Allow,
        false => FailureMode::Deny,
    };
    Ok(CheckService { address, timeout, failure_mode })
}

pub(super) fn parse_header_name(name: String) -> Result<String, InvalidField> {
    match name.is_empty() || name.contains(char::is_uppercase) {
        true => Err(InvalidField::new("header", "is not a lowercase header name")),
        false => Ok(name),
    }
}
