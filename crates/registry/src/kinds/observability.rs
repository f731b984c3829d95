//! Reads the observability settings of a `MeshConfig`: `tracing`, `metrics` and `accessLog`.

use leno_model::{
    AccessLog, Collector, CollectorProtocol, InvalidTemplate, LOG_FIELDS, LogFormat, LogTemplate,
    MetricsPush, Observability, PropagationFormat, Sampling, Signal, Tracing,
};

use super::request_condition::require_exactly_one_key;
use crate::duration::read_duration_within;
use crate::field::{Field, MapFields};
use crate::hint::Replacement;
use crate::suggest::{closest_word, join_with_or};

/// Reads the observability settings from the fields of a `MeshConfig`.
pub(super) fn read(fields: &MapFields<'_>) -> Option<Observability> {
    let mut observability = Observability::default();
    if let Some(field) = fields.find("tracing") {
        observability.tracing = Some(read_tracing(field)?);
    }
    if let Some(field) = fields.find("accessLog") {
        observability.access_log = Some(read_access_log(field)?);
    }
    if let Some(field) = fields.find("metrics") {
        observability.metrics = Some(Box::new(read_metrics_push(field)?));
    }
    Some(observability)
}

/// Reads `tracing`: which requests are traced, the headers that propagate traces, and the collector of spans.
fn read_tracing(field: &Field<'_>) -> Option<Tracing> {
    let fields = field.read_fields(&["sampling", "errors", "propagation", "export"])?;
    let sampling = read_sampling(&fields, Sampling::DEFAULT);
    let errors = read_boolean_or_true(&fields, "errors");
    let propagation = match fields.find("propagation") {
        Some(field) => field.read_choice(PropagationFormat::ALL),
        None => Some(PropagationFormat::W3c),
    };
    let collector = fields.require("export").and_then(read_collector);
    Some(Tracing {
        sampling: sampling?,
        errors: errors?,
        propagation: propagation?,
        collector: collector?,
    })
}

/// Reads the collector of spans, either an OTLP or a Zipkin collector.
fn read_collector(field: &Field<'_>) -> Option<Collector> {
    let fields = field.read_fields(&["otlp", "zipkin"])?;
    let key = require_exactly_one_key(&fields, &["otlp", "zipkin"])?;
    let collector = fields.find(key)?;
    match key {
        "otlp" => {
            read_otlp_collector(&collector.read_fields(&["endpoint", "protocol"])?, Signal::Traces)
        }
        _ => {
            let zipkin_fields = collector.read_fields(&["endpoint"])?;
            read_endpoint(&zipkin_fields, Signal::Traces, CollectorProtocol::Zipkin)
        }
    }
}

/// Reads `metrics`: the OTLP collector to which sidecars push metrics, and the interval.
fn read_metrics_push(field: &Field<'_>) -> Option<MetricsPush> {
    let export_fields =
        field.read_fields(&["export"])?.require("export")?.read_fields(&["otlp"])?;
    let fields =
        export_fields.require("otlp")?.read_fields(&["endpoint", "protocol", "interval"])?;
    let collector = read_otlp_collector(&fields, Signal::Metrics);
    let interval = match fields.find("interval") {
        Some(field) => {
            read_duration_within(field, MetricsPush::MIN_INTERVAL, MetricsPush::MAX_INTERVAL)
        }
        None => Some(MetricsPush::DEFAULT_INTERVAL),
    };
    Some(MetricsPush { collector: collector?, interval: interval? })
}

/// Reads an OTLP collector: `endpoint`, and `protocol`, which defaults to HTTP.
fn read_otlp_collector(fields: &MapFields<'_>, signal: Signal) -> Option<Collector> {
    const PROTOCOLS: &[(&str, CollectorProtocol)] =
        &[("http", CollectorProtocol::OtlpHttp), ("grpc", CollectorProtocol::OtlpGrpc)];
    let protocol = match fields.find("protocol") {
        Some(field) => field.read_choice(PROTOCOLS)?,
        None => CollectorProtocol::OtlpHttp,
    };
    read_endpoint(fields, signal, protocol)
}

/// Reads the URL of a collector from the field `endpoint`.
fn read_endpoint(
    fields: &MapFields<'_>,
    signal: Signal,
    protocol: CollectorProtocol,
) -> Option<Collector> {
    let endpoint = fields.require("endpoint")?;
    match Collector::parse(signal, protocol, endpoint.read_text()?) {
        Ok(collector) => Some(collector),
        Err(reason) => {
            let hint = match protocol {
                CollectorProtocol::OtlpHttp => "correct it, as in `http://127.0.0.1:4318`",
                CollectorProtocol::OtlpGrpc => "correct it, as in `http://127.0.0.1:4317`",
                CollectorProtocol::Zipkin => "correct it, as in `http://127.0.0.1:9411`",
            };
            endpoint.reject(
                format!("{} is not a valid endpoint: {reason}", endpoint.quoted_url()),
                hint,
            );
            None
        }
    }
}

/// Reads `accessLog`: which requests are logged, the format, and optionally an OTLP collector.
fn read_access_log(field: &Field<'_>) -> Option<AccessLog> {
    let fields = field.read_fields(&["sampling", "errors", "template", "export"])?;
    let sampling = read_sampling(&fields, Sampling::ALL);
    let errors = read_boolean_or_true(&fields, "errors");
    let format = match fields.find("template") {
        Some(field) => read_template(field).map(LogFormat::Template),
        None => Some(LogFormat::Json),
    };
    let collector = match fields.find("export") {
        Some(export) => Some(read_log_collector(export)?),
        None => None,
    };
    Some(AccessLog { sampling: sampling?, errors: errors?, format: format?, collector })
}

/// Reads the OTLP collector of access logs.
fn read_log_collector(export: &Field<'_>) -> Option<Collector> {
    let export_fields = export.read_fields(&["otlp"])?;
    read_otlp_collector(
        &export_fields.require("otlp")?.read_fields(&["endpoint", "protocol"])?,
        Signal::Logs,
    )
}

/// Reads the template of log lines. For an unknown field name, a similar name is proposed.
fn read_template(field: &Field<'_>) -> Option<LogTemplate> {
    let text = field.read_text()?;
    let error = match LogTemplate::parse(text) {
        Ok(template) => return Some(template),
        Err(error) => error,
    };
    match &error {
        InvalidTemplate::UnknownField(name) => match closest_word(name, LOG_FIELDS) {
            Some(word) => {
                let corrected = text.replacen(&format!("{{{name}"), &format!("{{{word}"), 1);
                let hint = format!("did you mean `{word}`?");
                field.reject_with_replacement(
                    error.to_string(),
                    hint,
                    Replacement::Text(corrected),
                );
            }
            None => field.reject(error.to_string(), format!("use {}", join_with_or(LOG_FIELDS))),
        },
        _ => {
            field.reject(error.to_string(), "correct it, as in `{method} {path} {response_code}`");
        }
    }
    None
}

/// Reads `sampling`, a percentage of the requests. For a number without `%`, the percentage is proposed.
fn read_sampling(fields: &MapFields<'_>, default: Sampling) -> Option<Sampling> {
    const HINT: &str = "use one from `0%` to `100%` with at most four decimals, such as `1%`";
    let Some(field) = fields.find("sampling") else { return Some(default) };
    let text = field.read_literal()?;
    let sampling = Sampling::parse(&text);
    if sampling.is_none() {
        let (problem, percentage) =
            (format!("{} is not a percentage", field.quoted_value()), format!("{text}%"));
        match Sampling::parse(&percentage) {
            Some(_) => field.propose_word(problem, &percentage),
            None => field.reject(problem, HINT),
        }
    }
    sampling
}

/// Reads a boolean that defaults to true.
fn read_boolean_or_true(fields: &MapFields<'_>, key: &str) -> Option<bool> {
    match fields.find(key) {
        Some(field) => field.read_boolean(),
        None => Some(true),
    }
}
