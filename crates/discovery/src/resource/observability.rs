//! Converts observability settings to and from the wire: tracing, access log and pushed metrics.

use std::time::Duration;

use leno_model::{
    AccessLog, Collector, CollectorProtocol, LogFormat, LogTemplate, MetricsPush, Observability,
    PropagationFormat, Sampling, Signal, Tracing,
};

use super::field::InvalidField;
use crate::proto;

/// Encodes settings; `None` for the default settings.
pub(super) fn to_wire(observability: &Observability) -> Option<proto::Observability> {
    let tracing = observability.tracing.as_ref().map(tracing_to_wire);
    let access_log = observability.access_log.as_ref().map(access_log_to_wire);
    let metrics = observability.metrics.as_deref().map(metrics_to_wire);
    let wire = proto::Observability { tracing, access_log, metrics };
    (*observability != Observability::default()).then_some(wire)
}

pub(super) fn from_wire(wire: Option<proto::Observability>) -> Result<Observability, InvalidField> {
    let Some(wire) = wire else { return Ok(Observability::default()) };
    let tracing = wire.tracing.map(tracing_from_wire).transpose();
    let access_log = wire.access_log.map(access_log_from_wire).transpose();
    let metrics = wire.metrics.map(metrics_from_wire).transpose();
    Ok(Observability {
        tracing: tracing.map_err(|invalid| invalid.with_parent("tracing"))?,
        access_log: access_log.map_err(|invalid| invalid.with_parent("access_log"))?,
        metrics: metrics.map_err(|invalid| invalid.with_parent("metrics"))?.map(Box::new),
    })
}

fn tracing_to_wire(tracing: &Tracing) -> proto::Tracing {
    let propagation = match tracing.propagation {
        PropagationFormat::W3c => proto::ContextForm::W3c,
        PropagationFormat::B3 => proto::ContextForm::B3,
        PropagationFormat::B3Multi => proto::ContextForm::B3Multi,
    };
    proto::Tracing {
        sampling: tracing.sampling.millionths(),
        errors: tracing.errors,
        begins: propagation.into(),
        protocol: protocol_to_wire(tracing.collector.protocol).into(),
        endpoint: tracing.collector.to_string(),
    }
}

fn tracing_from_wire(wire: proto::Tracing) -> Result<Tracing, InvalidField> {
    let propagation = match proto::ContextForm::try_from(wire.begins) {
        Ok(proto::ContextForm::W3c) => PropagationFormat::W3c,
        Ok(proto::ContextForm::B3) => PropagationFormat::B3,
        Ok(proto::ContextForm::B3Multi) => PropagationFormat::B3Multi,
        Ok(proto::ContextForm::Unspecified) | Err(_) => {
            return Err(unknown_value_error("begins", wire.begins));
        }
    };
    let protocol = protocol_from_wire(wire.protocol)?;
    let collector = Collector::parse(Signal::Traces, protocol, &wire.endpoint);
    Ok(Tracing {
        sampling: parse_sampling(wire.sampling)?,
        errors: wire.errors,
        propagation,
        collector: collector.map_err(|error| InvalidField::new("endpoint", error))?,
    })
}

fn metrics_to_wire(metrics: &MetricsPush) -> proto::MetricsPush {
    proto::MetricsPush {
        otlp: Some(otlp_to_wire(&metrics.collector)),
        interval_ms: u32::try_from(metrics.interval.as_millis()).unwrap_or(u32::MAX),
    }
}

fn metrics_from_wire(wire: proto::MetricsPush) -> Result<MetricsPush, InvalidField> {
    let otlp = wire.otlp.ok_or_else(|| InvalidField::new("otlp", "is missing"))?;
    let interval = Duration::from_millis(wire.interval_ms.into());
    if !(MetricsPush::MIN_INTERVAL..=MetricsPush::MAX_INTERVAL).contains(&interval) {
        return Err(InvalidField::new("interval_ms", format!("{interval:?} is out of range")));
    }
    let collector = otlp_from_wire(&otlp, Signal::Metrics);
    Ok(MetricsPush {
        collector: collector.map_err(|invalid| invalid.with_parent("otlp"))?,
        interval,
    })
}

fn otlp_to_wire(collector: &Collector) -> proto::Otlp {
    proto::Otlp {
        protocol: protocol_to_wire(collector.protocol).into(),
        endpoint: collector.to_string(),
    }
}

fn otlp_from_wire(wire: &proto::Otlp, signal: Signal) -> Result<Collector, InvalidField> {
    let protocol = match protocol_from_wire(wire.protocol)? {
        // Zipkin supports spans only.
        CollectorProtocol::Zipkin => return Err(unknown_value_error("protocol", wire.protocol)),
        protocol => protocol,
    };
    let collector = Collector::parse(signal, protocol, &wire.endpoint);
    collector.map_err(|error| InvalidField::new("endpoint", error))
}

fn protocol_to_wire(protocol: CollectorProtocol) -> proto::CollectorProtocol {
    match protocol {
        CollectorProtocol::OtlpHttp => proto::CollectorProtocol::OtlpHttp,
        CollectorProtocol::OtlpGrpc => proto::CollectorProtocol::OtlpGrpc,
        CollectorProtocol::Zipkin => proto::CollectorProtocol::Zipkin,
    }
}

fn protocol_from_wire(number: i32) -> Result<CollectorProtocol, InvalidField> {
    match proto::CollectorProtocol::try_from(number) {
        Ok(proto::CollectorProtocol::OtlpHttp) => Ok(CollectorProtocol::OtlpHttp),
        Ok(proto::CollectorProtocol::OtlpGrpc) => Ok(CollectorProtocol::OtlpGrpc),
        Ok(proto::CollectorProtocol::Zipkin) => Ok(CollectorProtocol::Zipkin),
        Ok(proto::CollectorProtocol::Unspecified) | Err(_) => {
            Err(unknown_value_error("protocol", number))
        }
    }
}

fn access_log_to_wire(log: &AccessLog) -> proto::AccessLog {
    proto::AccessLog {
        sampling: log.sampling.millionths(),
        errors: log.errors,
        template: match &log.format {
            LogFormat::Json => String::new(),
            LogFormat::Template(template) => template.to_string(),
        },
        otlp: log.collector.as_ref().map(otlp_to_wire),
    }
}

fn access_log_from_wire(wire: proto::AccessLog) -> Result<AccessLog, InvalidField> {
    let format = match wire.template.as_str() {
        "" => LogFormat::Json,
        text => LogFormat::Template(
            LogTemplate::parse(text).map_err(|error| InvalidField::new("template", error))?,
        ),
    };
    let collector = wire.otlp.map(|otlp| otlp_from_wire(&otlp, Signal::Logs)).transpose();
    Ok(AccessLog {
        sampling: parse_sampling(wire.sampling)?,
        errors: wire.errors,
        format,
        collector: collector.map_err(|invalid| invalid.with_parent("otlp"))?,
    })
}

fn parse_sampling(millionths: u32) -> Result<Sampling, InvalidField> {
    let max = Sampling::ALL.millionths();
    let to_error = || InvalidField::new("sampling", format!("{millionths} is more than {max}"));
    Sampling::from_millionths(millionths).ok_or_else(to_error)
}

fn unknown_value_error(field: &str, number: i32) -> InvalidField {
    InvalidField::new(field, format!("{number} is unknown to this version"))
}
