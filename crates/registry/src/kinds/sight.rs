//! Reader of the observability settings of a `MeshConfig`: `tracing`, `metrics` and `accessLog`.

use leno_model::{
    AccessLog, Collector, CollectorProtocol, ContextForm, InvalidTemplate, LOG_FIELDS, LogForm,
    LogTemplate, MetricsPush, Sampling, Sight, Signal, Tracing,
};

use super::request_test::only_one;
use super::service_policy::time;
use crate::field::{Field, Fields};
use crate::hint::Replacement;
use crate::suggest::{closest, one_of};

pub(super) fn read(fields: &Fields<'_>) -> Option<Sight> {
    let mut sight = Sight::default();
    if let Some(field) = fields.find("tracing") {
        sight.tracing = Some(tracing(field)?);
    }
    if let Some(field) = fields.find("accessLog") {
        sight.access_log = Some(access_log(field)?);
    }
    if let Some(field) = fields.find("metrics") {
        sight.metrics = Some(Box::new(metrics(field)?));
    }
    Some(sight)
}

fn tracing(field: &Field<'_>) -> Option<Tracing> {
    let fields = field.fields(&["sampling", "errors", "propagation", "export"])?;
    let sampling = sampling(&fields, Sampling::DEFAULT);
    let errors = flag(&fields, "errors");
    let begins = match fields.find("propagation") {
        Some(field) => field.word(ContextForm::ALL),
        None => Some(ContextForm::W3c),
    };
    let collector = fields.require("export").and_then(collector);
    Some(Tracing { sampling: sampling?, errors: errors?, begins: begins?, collector: collector? })
}

fn collector(field: &Field<'_>) -> Option<Collector> {
    let fields = field.fields(&["otlp", "zipkin"])?;
    let key = only_one(&fields, &["otlp", "zipkin"])?;
    let inner = fields.find(key)?;
    match key {
        "otlp" => otlp(&inner.fields(&["endpoint", "protocol"])?, Signal::Traces),
        _ => {
            let fields = inner.fields(&["endpoint"])?;
            endpoint(&fields, Signal::Traces, CollectorProtocol::Zipkin)
        }
    }
}

fn metrics(field: &Field<'_>) -> Option<MetricsPush> {
    let export = field.fields(&["export"])?.require("export")?.fields(&["otlp"])?;
    let fields = export.require("otlp")?.fields(&["endpoint", "protocol", "interval"])?;
    let collector = otlp(&fields, Signal::Metrics);
    let interval = match fields.find("interval") {
        Some(field) => time(field, MetricsPush::INTERVAL_MIN, MetricsPush::INTERVAL_MAX),
        None => Some(MetricsPush::INTERVAL),
    };
    Some(MetricsPush { collector: collector?, interval: interval? })
}

/// Reads an OTLP collector.
fn otlp(fields: &Fields<'_>, signal: Signal) -> Option<Collector> {
    const WORDS: &[(&str, CollectorProtocol)] =
        &[("http", CollectorProtocol::OtlpHttp), ("grpc", CollectorProtocol::OtlpGrpc)];
    let protocol = match fields.find("protocol") {
        Some(field) => field.word(WORDS)?,
        None => CollectorProtocol::OtlpHttp,
    };
    endpoint(fields, signal, protocol)
}

fn endpoint(fields: &Fields<'_>, signal: Signal, protocol: CollectorProtocol) -> Option<Collector> {
    let endpoint = fields.require("endpoint")?;
    match Collector::parse(signal, protocol, endpoint.text()?) {
        Ok(collector) => Some(collector),
        Err(why) => {
            let remedy = match protocol {
                CollectorProtocol::OtlpHttp => "correct it, as in `http://127.0.0.1:4318`",
                CollectorProtocol::OtlpGrpc => "correct it, as in `http://127.0.0.1:4317`",
                CollectorProtocol::Zipkin => "correct it, as in `http://127.0.0.1:9411`",
            };
            endpoint
                .refuse(format!("{} is not a valid endpoint: {why}", endpoint.shown_url()), remedy);
            None
        }
    }
}

fn access_log(field: &Field<'_>) -> Option<AccessLog> {
    let fields = field.fields(&["sampling", "errors", "template", "export"])?;
    let sampling = sampling(&fields, Sampling::ALL);
    let errors = flag(&fields, "errors");
    let form = match fields.find("template") {
        Some(field) => template(field).map(LogForm::Template),
        None => Some(LogForm::Json),
    };
    let collector = match fields.find("export") {
        Some(export) => Some(log_collector(export)?),
        None => None,
    };
    Some(AccessLog { sampling: sampling?, errors: errors?, form: form?, collector })
}

fn log_collector(export: &Field<'_>) -> Option<Collector> {
    let export = export.fields(&["otlp"])?;
    otlp(&export.require("otlp")?.fields(&["endpoint", "protocol"])?, Signal::Logs)
}

fn template(field: &Field<'_>) -> Option<LogTemplate> {
    let text = field.text()?;
    let error = match LogTemplate::parse(text) {
        Ok(template) => return Some(template),
        Err(error) => error,
    };
    match &error {
        InvalidTemplate::Unknown(name) => match closest(name, LOG_FIELDS) {
            Some(word) => {
                let corrected = text.replacen(&format!("{{{name}"), &format!("{{{word}"), 1);
                let remedy = format!("did you mean `{word}`?");
                field.propose(error.to_string(), remedy, Replacement::Text(corrected));
            }
            None => field.refuse(error.to_string(), format!("use {}", one_of(LOG_FIELDS))),
        },
        _ => {
            field.refuse(error.to_string(), "correct it, as in `{method} {path} {response_code}`");
        }
    }
    None
}

fn sampling(fields: &Fields<'_>, default: Sampling) -> Option<Sampling> {
    const REMEDY: &str = "use one from `0%` to `100%` with at most four decimals, such as `1%`";
    let Some(field) = fields.find("sampling") else { return Some(default) };
    let text = field.literal()?;
    let sampling = Sampling::parse(&text);
    if sampling.is_none() {
        let (problem, percentage) =
            (format!("{} is not a percentage", field.shown()), format!("{text}%"));
        match Sampling::parse(&percentage) {
            Some(_) => field.propose_word(problem, &percentage),
            None => field.refuse(problem, REMEDY),
        }
    }
    sampling
}

/// Reads a boolean that defaults to true.
fn flag(fields: &Fields<'_>, key: &str) -> Option<bool> {
    match fields.find(key) {
        Some(field) => field.boolean(),
        None => Some(true),
    }
}
