//! Exposition of all metrics in the Prometheus text format 0.0.4 or in OpenMetrics.

pub(crate) mod alias;
mod application;
mod format;

use std::borrow::Cow;
use std::fmt::Write;
use std::time::UNIX_EPOCH;

use crate::exemplar::Exemplar;
use crate::metric_visitor::{DurationBuckets, MetricValue, MetricVisitor};
use crate::names::{MetricFamily, MetricKind};
use crate::telemetry::Telemetry;
use crate::usage::{ProcessUsage, read_usage};

pub use alias::AliasNames;
pub use application::{InvalidExposition, adopt_page};
pub use format::ExpositionFormat;

impl Telemetry {
    /// Appends all metrics, and the resource usage of this process if the system reports it.
    pub fn expose(&self, format: ExpositionFormat, out: &mut String) {
        write_page(self, read_usage(std::process::id()).ok().as_ref(), format, out);
    }

    /// Appends all metrics, and the aliases that dashboards of another product query, in the text format 0.0.4.
    /// `namespace` and `name` are those of the sidecar's workload.
    pub fn expose_as(&self, names: AliasNames, namespace: &str, name: &str, out: &mut String) {
        self.expose(ExpositionFormat::Prometheus, out);
        alias::write_aliases(self, names, namespace, name, out);
    }
}

/// Appends all metrics, with this resource usage of the process.
fn write_page(
    telemetry: &Telemetry,
    usage: Option<&ProcessUsage>,
    format: ExpositionFormat,
    out: &mut String,
) {
    let mut page = ExpositionWriter::new(format, out);
    telemetry.read_with(usage, &mut page);
    page.finish();
}

/// A writer of metrics in one of the formats.
#[derive(Debug)]
pub struct ExpositionWriter<'a> {
    format: ExpositionFormat,
    /// The name of the current metric.
    name: Cow<'static, str>,
    out: &'a mut String,
}

impl<'a> ExpositionWriter<'a> {
    /// Creates a writer that appends to `out`.
    pub fn new(format: ExpositionFormat, out: &'a mut String) -> Self {
        Self { format, name: Cow::Borrowed(""), out }
    }

    /// Starts an alias: the numbers that follow get another product's name.
    pub fn start_alias(&mut self, name: String, kind: MetricKind) {
        alias::write_family_header(&name, kind.as_str(), self.out);
        self.name = Cow::Owned(name);
    }

    /// Appends the end of the page, if the format has one.
    pub fn finish(self) {
        self.out.push_str(self.format.end_line());
    }
}

impl MetricVisitor for ExpositionWriter<'_> {
    fn begin_metric(&mut self, metric: &'static MetricFamily) {
        self.name = Cow::Borrowed(metric.name);
        self.out.push_str(&self.format.metric_header(metric));
    }

    fn record_number(&mut self, labels: &[(&'static str, &str)], number: MetricValue) {
        let Self { name, out, .. } = self;
        match labels {
            [] => write_line(out, format_args!("{name} {number}")),
            labels => write_line(out, format_args!("{name}{{{}}} {number}", label_text(labels))),
        }
    }

    fn record_durations(
        &mut self,
        labels: &[(&'static str, &str)],
        durations: &DurationBuckets<'_>,
    ) {
        let Self { format, name, out } = self;
        let (mut bucket_labels, mut series_labels) = (label_text(labels), String::new());
        if !bucket_labels.is_empty() {
            series_labels = format!("{{{bucket_labels}}}");
            bucket_labels.push(',');
        }
        let mut cumulative_count = 0;
        for (limit, count, exemplar) in durations.buckets() {
            cumulative_count += count;
            let limit = limit.map_or("+Inf".to_owned(), |limit| limit.as_secs_f64().to_string());
            let exemplar =
                exemplar.map(|exemplar| exemplar_suffix(exemplar, *format)).unwrap_or_default();
            let bucket = format_args!(
                "{name}_bucket{{{bucket_labels}le=\"{limit}\"}} {cumulative_count}{exemplar}"
            );
            write_line(out, bucket);
        }
        write_line(
            out,
            format_args!("{name}_sum{series_labels} {}", durations.sum().as_secs_f64()),
        );
        write_line(out, format_args!("{name}_count{series_labels} {cumulative_count}"));
    }
}

/// Returns the exemplar after the count of a bucket; empty except in OpenMetrics.
fn exemplar_suffix(
    Exemplar { trace, duration, ended, .. }: &Exemplar,
    format: ExpositionFormat,
) -> String {
    if format == ExpositionFormat::Prometheus {
        return String::new();
    }
    let ended = ended.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (duration, ended) = (duration.as_secs_f64(), ended.as_secs_f64());
    format!(" # {{trace_id=\"{trace}\"}} {duration} {ended:.3}")
}

/// Appends a line with its line break.
fn write_line(out: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a `String` cannot fail.
    out.write_fmt(line).unwrap_or_default();
    out.push('\n');
}

/// Returns the labels in exposition format, without the braces.
fn label_text(labels: &[(&'static str, &str)]) -> String {
    let mut out = String::new();
    for (label, value) in labels {
        if !out.is_empty() {
            out.push(',');
        }
        write_label(&mut out, label, value);
    }
    out
}

fn write_label(out: &mut String, label: &str, value: &str) {
    out.push_str(label);
    out.push_str("=\"");
    out.push_str(&escape_label(value));
    out.push('"');
}

/// Escapes a label value for the exposition formats.
fn escape_label(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            character => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests;
