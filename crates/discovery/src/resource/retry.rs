//! Converts the retry settings of rules and services to and from the wire.

use std::collections::BTreeMap;
use std::time::Duration;

use leno_model::{RetryRule, ServiceName, ServiceRetry};

use super::field::{InvalidField, convert_each, parse_name, to_nanoseconds};
use crate::proto;

pub(super) fn rule_to_wire(rule: &RetryRule) -> proto::RetryRule {
    proto::RetryRule {
        codes: rule.codes.iter().map(|code| u32::from(*code)).collect(),
        attempts: rule.attempts.into(),
        backoff_nanoseconds: to_nanoseconds(rule.backoff),
    }
}

pub(super) fn rule_from_wire(wire: &proto::RetryRule) -> Result<RetryRule, InvalidField> {
    let codes = wire.codes.iter().map(|code| {
        let code = u16::try_from(*code).ok().filter(|code| RetryRule::CODES.contains(code));
        code.ok_or_else(|| InvalidField::new("codes", "has a status that is not from 400 to 599"))
    });
    let attempts = u8::try_from(wire.attempts).ok();
    let attempts = attempts.filter(|attempts| *attempts <= RetryRule::MAX_ATTEMPTS);
    Ok(RetryRule {
        codes: codes.collect::<Result<_, _>>()?,
        attempts: attempts.ok_or_else(|| InvalidField::new("attempts", "is more than 10"))?,
        backoff: Duration::from_nanos(wire.backoff_nanoseconds),
    })
}

pub(super) fn to_wire((service, retry): (&ServiceName, &ServiceRetry)) -> proto::ServiceRetry {
    proto::ServiceRetry {
        service: service.to_string(),
        policy: retry.policy.to_string(),
        rule: Some(rule_to_wire(&retry.rule)),
        response_timeout_nanoseconds: retry.response_timeout.map(to_nanoseconds),
    }
}

pub(super) fn from_wire(
    wire: Vec<proto::ServiceRetry>,
) -> Result<BTreeMap<ServiceName, ServiceRetry>, InvalidField> {
    let mut retries = BTreeMap::new();
    for (service, retry) in convert_each("retries", wire, service_retry_from_wire)? {
        if let Some(_previous) = retries.insert(service, retry) {
            return Err(InvalidField::new("retries", "has a service twice"));
        }
    }
    Ok(retries)
}

fn service_retry_from_wire(
    wire: proto::ServiceRetry,
) -> Result<(ServiceName, ServiceRetry), InvalidField> {
    let rule = wire.rule.ok_or_else(|| InvalidField::new("rule", "is missing"))?;
    let retry = ServiceRetry {
        policy: parse_name("policy", &wire.policy)?,
        rule: rule_from_wire(&rule).map_err(|invalid| invalid.with_parent("rule"))?,
        response_timeout: wire.response_timeout_nanoseconds.map(Duration::from_nanos),
    };
    Ok((parse_name("service", &wire.service)?, retry))
}
