//! What operators see of single requests, as it travels.

use leno_model::{
    AccessLog, Collector, CollectorProtocol, ContextForm, LogForm, LogTemplate, Sampling, Sight,
    Tracing,
};

use super::field::Invalid;
use crate::proto;

/// Absent when it says nothing.
pub(super) fn to_wire(sight: &Sight) -> Option<proto::Sight> {
    let tracing = sight.tracing.as_ref().map(tracing_to_wire);
    let access_log = sight.access_log.as_ref().map(access_log_to_wire);
    let wire = proto::Sight { tracing, access_log };
    (*sight != Sight::default()).then_some(wire)
}

pub(super) fn from_wire(wire: Option<proto::Sight>) -> Result<Sight, Invalid> {
    let Some(wire) = wire else { return Ok(Sight::default()) };
    let tracing = wire.tracing.map(tracing_from_wire).transpose();
    let access_log = wire.access_log.map(access_log_from_wire).transpose();
    Ok(Sight {
        tracing: tracing.map_err(|invalid| invalid.under("tracing"))?,
        access_log: access_log.map_err(|invalid| invalid.under("access_log"))?,
    })
}

fn tracing_to_wire(tracing: &Tracing) -> proto::Tracing {
    let begins = match tracing.begins {
        ContextForm::W3c => proto::ContextForm::W3c,
        ContextForm::B3 => proto::ContextForm::B3,
        ContextForm::B3Multi => proto::ContextForm::B3Multi,
    };
    let protocol = match tracing.collector.protocol {
        CollectorProtocol::OtlpHttp => proto::CollectorProtocol::OtlpHttp,
        CollectorProtocol::OtlpGrpc => proto::CollectorProtocol::OtlpGrpc,
        CollectorProtocol::Zipkin => proto::CollectorProtocol::Zipkin,
    };
    proto::Tracing {
        sampling: tracing.sampling.millionths(),
        errors: tracing.errors,
        begins: begins.into(),
        protocol: protocol.into(),
        endpoint: tracing.collector.to_string(),
    }
}

fn tracing_from_wire(wire: proto::Tracing) -> Result<Tracing, Invalid> {
    let begins = match proto::ContextForm::try_from(wire.begins) {
        Ok(proto::ContextForm::W3c) => ContextForm::W3c,
        Ok(proto::ContextForm::B3) => ContextForm::B3,
        Ok(proto::ContextForm::B3Multi) => ContextForm::B3Multi,
        Ok(proto::ContextForm::Unspecified) | Err(_) => {
            return Err(unknown("begins", wire.begins));
        }
    };
    let protocol = match proto::CollectorProtocol::try_from(wire.protocol) {
        Ok(proto::CollectorProtocol::OtlpHttp) => CollectorProtocol::OtlpHttp,
        Ok(proto::CollectorProtocol::OtlpGrpc) => CollectorProtocol::OtlpGrpc,
        Ok(proto::CollectorProtocol::Zipkin) => CollectorProtocol::Zipkin,
        Ok(proto::CollectorProtocol::Unspecified) | Err(_) => {
            return Err(unknown("protocol", wire.protocol));
        }
    };
    let collector = Collector::parse(protocol, &wire.endpoint);
    Ok(Tracing {
        sampling: sampling(wire.sampling)?,
        errors: wire.errors,
        begins,
        collector: collector.map_err(|error| Invalid::new("endpoint", error))?,
    })
}

fn access_log_to_wire(log: &AccessLog) -> proto::AccessLog {
    proto::AccessLog {
        sampling: log.sampling.millionths(),
        errors: log.errors,
        template: match &log.form {
            LogForm::Json => String::new(),
            LogForm::Template(template) => template.to_string(),
        },
    }
}

fn access_log_from_wire(wire: proto::AccessLog) -> Result<AccessLog, Invalid> {
    let form = match wire.template.as_str() {
        "" => LogForm::Json,
        text => LogForm::Template(
            LogTemplate::parse(text).map_err(|error| Invalid::new("template", error))?,
        ),
    };
    Ok(AccessLog { sampling: sampling(wire.sampling)?, errors: wire.errors, form })
}

fn sampling(millionths: u32) -> Result<Sampling, Invalid> {
    let most = Sampling::ALL.millionths();
    let message = || Invalid::new("sampling", format!("{millionths} is more than {most}"));
    Sampling::of_millionths(millionths).ok_or_else(message)
}

fn unknown(field: &str, number: i32) -> Invalid {
    Invalid::new(field, format!("{number} is nothing that this version knows"))
}
