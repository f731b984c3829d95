//! Writes all metrics of a sidecar in the Prometheus text format 0.0.4 or in OpenMetrics.

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
pub use application::{InvalidExposition, sanitize_exposition};
pub use format::ExpositionFormat;

impl Telemetry {
    /// Appends all metrics, and the resource usage of this process if the system reports it.
    pub fn expose(&self, format: ExpositionFormat, output: &mut String) {
        write_exposition(self, read_usage(std::process::id()).ok().as_ref(), format, output);
    }

    /// Appends all metrics, and the aliases that dashboards of another product query, in the text format 0.0.4.
    /// `namespace` and `name` are the namespace and name of the sidecar's workload.
    pub fn expose_as(&self, names: AliasNames, namespace: &str, name: &str, output: &mut String) {
        self.expose(ExpositionFormat::Prometheus, output);
        alias::write_aliases(self, names, namespace, name, output);
    }
}

/// Appends all metrics, with this resource usage of the process.
fn write_exposition(
    telemetry: &Telemetry,
    usage: Option<&ProcessUsage>,
    format: ExpositionFormat,
    output: &mut String,
) {
    let mut writer = ExpositionWriter::new(format, output);
    telemetry.visit_metrics_with_usage(usage, &mut writer);
    writer.finish();
}

/// A writer of metrics in one of the formats.
#[derive(Debug)]
pub struct ExpositionWriter<'a> {
    format: ExpositionFormat,
    /// The name of the metric of the following values.
    name: Cow<'static, str>,
    output: &'a mut String,
}

impl<'a> ExpositionWriter<'a> {
    /// Creates a writer that appends to `output`.
    pub fn new(format: ExpositionFormat, output: &'a mut String) -> Self {
        Self { format, name: Cow::Borrowed(""), output }
    }

    /// Starts an alias: the values that follow are written under another product's metric name.
    pub fn start_alias(&mut self, name: String, kind: MetricKind) {
        alias::write_family_header(&name, kind.as_str(), self.output);
        self.name = Cow::Owned(name);
    }

    /// Appends the end line of the exposition, if the format has one.
    pub fn finish(self) {
        self.output.push_str(self.format.end_line());
    }
}

impl MetricVisitor for ExpositionWriter<'_> {
    fn begin_metric(&mut self, metric: &'static MetricFamily) {
        self.name = Cow::Borrowed(metric.name);
        self.output.push_str(&self.format.metric_header(metric));
    }

    fn record_number(&mut self, labels: &[(&'static str, &str)], number: MetricValue) {
        let Self { name, output, .. } = self;
        match labels {
            [] => write_line(output, format_args!("{name} {number}")),
            labels => write_line(output, format_args!("{name}{{{}}} {number}", label_text(labels))),
        }
    }

    fn record_durations(
        &mut self,
        labels: &[(&'static str, &str)],
        durations: &DurationBuckets<'_>,
    ) {
        let Self { format, name, output } = self;
        let (mut bucket_labels, mut series_labels) = (label_text(labels), String::new());
        if !bucket_labels.is_empty() {
            series_labels = format!("{{{bucket_labels}}}");
            bucket_labels.push(',');
        }
        let mut cumulative_count = 0;
        for (limit, count, exemplar) in durations.buckets() {
            cumulative_count += count;
            let limit_label =
                limit.map_or("+Inf".to_owned(), |limit| limit.as_secs_f64().to_string());
            let suffix =
                exemplar.map(|exemplar| exemplar_suffix(exemplar, *format)).unwrap_or_default();
            let line = format_args!(
                "{name}_bucket{{{bucket_labels}le=\"{limit_label}\"}} {cumulative_count}{suffix}"
            );
            write_line(output, line);
        }
        write_line(
            output,
            format_args!("{name}_sum{series_labels} {}", durations.sum().as_secs_f64()),
        );
        write_line(output, format_args!("{name}_count{series_labels} {cumulative_count}"));
    }
}

/// Returns the exemplar text after the count of a bucket; empty in the Prometheus format.
fn exemplar_suffix(
    Exemplar { trace, duration, ended, .. }: &Exemplar,
    format: ExpositionFormat,
) -> String {
    if format == ExpositionFormat::Prometheus {
        return String::new();
    }
    let since_epoch = ended.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, timestamp) = (duration.as_secs_f64(), since_epoch.as_secs_f64());
    format!(" # {{trace_id=\"{trace}\"}} {seconds} {timestamp:.3}")
}

/// Appends a line with its line break.
fn write_line(output: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a `String` cannot fail.
    output.write_fmt(line).unwrap_or_default();
    output.push('\n');
}

/// Returns the labels in exposition format, without the braces.
fn label_text(labels: &[(&'static str, &str)]) -> String {
    let mut output = String::new();
    for (label, value) in labels {
        if !output.is_empty() {
            output.push(',');
        }
        write_label(&mut output, label, value);
    }
    output
}

/// Appends a label with its escaped value.
fn write_label(output: &mut String, label: &str, value: &str) {
    output.push_str(label);
    output.push_str("=\"");
    output.push_str(&escape_label(value));
    output.push('"');
}

/// Escapes a label value for the exposition formats.
fn escape_label(value: &str) -> String {
    let mut output = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '\\' => output.push_str("\\\\"),
            '"' => output.push_str("\\\""),
            '\n' => output.push_str("\\n"),
            character => output.push(character),
        }
    }
    output
}

#[cfg(test)]
mod tests;
