//! Reads what operators see of single requests: `tracing` and `accessLog` of a `MeshConfig`.

use leno_model::{
    AccessLog, Collector, CollectorProtocol, ContextForm, InvalidTemplate, LOG_FIELDS, LogForm,
    LogTemplate, Sampling, Sight, Tracing,
};

use super::request_test::only_one;
use crate::field::{Field, Fields};
use crate::suggest::{closest, one_of};

pub(super) fn read(fields: &Fields<'_>) -> Option<Sight> {
    let mut sight = Sight::default();
    if let Some(field) = fields.find("tracing") {
        sight.tracing = Some(tracing(field)?);
    }
    if let Some(field) = fields.find("accessLog") {
        sight.access_log = Some(access_log(field)?);
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
    let (protocol, fields) = if key == "otlp" {
        let fields = inner.fields(&["endpoint", "protocol"])?;
        const WORDS: &[(&str, CollectorProtocol)] =
            &[("http", CollectorProtocol::OtlpHttp), ("grpc", CollectorProtocol::OtlpGrpc)];
        let protocol = match fields.find("protocol") {
            Some(field) => field.word(WORDS)?,
            None => CollectorProtocol::OtlpHttp,
        };
        (protocol, fields)
    } else {
        (CollectorProtocol::Zipkin, inner.fields(&["endpoint"])?)
    };
    let endpoint = fields.require("endpoint")?;
    match Collector::parse(protocol, endpoint.text()?) {
        Ok(collector) => Some(collector),
        Err(why) => {
            let remedy = match protocol {
                CollectorProtocol::OtlpHttp => "correct it, as in `http://127.0.0.1:4318`",
                CollectorProtocol::OtlpGrpc => "correct it, as in `http://127.0.0.1:4317`",
                CollectorProtocol::Zipkin => "correct it, as in `http://127.0.0.1:9411`",
            };
            endpoint.refuse(format!("{} is no endpoint to use: {why}", endpoint.shown()), remedy);
            None
        }
    }
}

fn access_log(field: &Field<'_>) -> Option<AccessLog> {
    let fields = field.fields(&["sampling", "errors", "template"])?;
    let sampling = sampling(&fields, Sampling::ALL);
    let errors = flag(&fields, "errors");
    let form = match fields.find("template") {
        Some(field) => template(field).map(LogForm::Template),
        None => Some(LogForm::Json),
    };
    Some(AccessLog { sampling: sampling?, errors: errors?, form: form? })
}

fn template(field: &Field<'_>) -> Option<LogTemplate> {
    let error = match LogTemplate::parse(field.text()?) {
        Ok(template) => return Some(template),
        Err(error) => error,
    };
    let remedy = match &error {
        InvalidTemplate::Unknown(name) => match closest(name, LOG_FIELDS) {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!("use {}", one_of(LOG_FIELDS)),
        },
        _ => "correct it, as in `{method} {path} {response_code}`".to_owned(),
    };
    field.refuse(error.to_string(), remedy);
    None
}

fn sampling(fields: &Fields<'_>, default: Sampling) -> Option<Sampling> {
    const REMEDY: &str = "use one from `0%` to `100%` with at most four decimals, such as `1%`";
    let Some(field) = fields.find("sampling") else { return Some(default) };
    let sampling = Sampling::parse(&field.spelling()?);
    if sampling.is_none() {
        field.refuse(format!("{} is not a percentage", field.shown()), REMEDY);
    }
    sampling
}

/// True unless it says otherwise.
fn flag(fields: &Fields<'_>, key: &str) -> Option<bool> {
    match fields.find(key) {
        Some(field) => field.boolean(),
        None => Some(true),
    }
}
