//! Exposition: everything that was counted, in the Prometheus text format 0.0.4 or in OpenMetrics.

mod adopted;
pub(crate) mod alias;
mod form;

use std::fmt::{Display, Write};
use std::time::{Duration, UNIX_EPOCH};

use crate::exemplar::Exemplar;
use crate::names::{
    AUDITED, BUILD, CONNECTIONS_REFUSED, Count, Gauge, Level, Metric, PROCESS_CPU, PROCESS_MEMORY,
    REQUEST_BYTES, REQUEST_DURATION, REQUESTS, RESPONSE_BYTES, RULE_HITS,
};
use crate::series::{RequestLabels, SeriesTotals};
use crate::tally::Ending;
use crate::telemetry::Telemetry;
use crate::usage::{Usage, usage};

pub use adopted::{Unfit, adopted};
pub use alias::Names;
pub use form::Form;

impl Telemetry {
    /// Appends everything, with the figures of this process where the system tells them.
    pub fn expose(&self, form: Form, out: &mut String) {
        write(self, usage(std::process::id()).ok().as_ref(), (form, out));
    }

    /// Appends everything, and what dashboards of another product ask for, in the text format 0.0.4.
    /// `workload`: whose sidecar this is, its namespace and its name.
    pub fn expose_as(&self, names: Names, workload: (&str, &str), out: &mut String) {
        self.expose(Form::Prometheus, out);
        alias::write(self, names, workload, out);
    }
}

/// Appends all metrics.
fn write(telemetry: &Telemetry, usage: Option<&Usage>, (form, out): (Form, &mut String)) {
    let mut page = Page { form, out };
    page.series(telemetry);
    page.header(&RULE_HITS);
    for (rule, hits) in telemetry.rules() {
        page.labelled(&RULE_HITS, &[rule.kind, &rule.namespace, &rule.name, &rule.rule], hits);
    }
    page.header(&CONNECTIONS_REFUSED);
    for (reason, count) in telemetry.refusals() {
        page.labelled(&CONNECTIONS_REFUSED, &[reason], count);
    }
    for metric in Count::METRICS {
        page.header(metric);
        for count in Count::ALL.iter().filter(|c| c.metric() == metric.name) {
            page.labelled(metric, count.label_values(), telemetry.count(*count));
        }
    }
    for metric in Gauge::METRICS {
        page.header(metric);
        for gauge in Gauge::ALL.iter().filter(|g| g.metric() == metric.name) {
            page.labelled(metric, gauge.label_values(), telemetry.gauge(*gauge));
        }
    }
    for metric in Level::METRICS {
        page.header(metric);
        for level in Level::ALL.iter().filter(|l| l.metric() == metric.name) {
            if let Some(value) = telemetry.level(*level) {
                page.labelled(metric, level.label_values(), value);
            }
        }
    }
    page.header(&BUILD);
    page.labelled(&BUILD, &[env!("CARGO_PKG_VERSION")], 1);
    if let Some(usage) = usage {
        page.header(&PROCESS_CPU);
        page.labelled(&PROCESS_CPU, &[], usage.cpu.as_secs_f64());
        page.header(&PROCESS_MEMORY);
        page.labelled(&PROCESS_MEMORY, &[], usage.rss_kib * 1024);
    }
    page.out.push_str(form.end());
}

struct Page<'a> {
    form: Form,
    out: &'a mut String,
}

impl Page<'_> {
    /// The metrics about requests. One family after the other, as the format demands.
    fn series(&mut self, telemetry: &Telemetry) {
        let totals: Vec<_> = telemetry
            .series()
            .into_iter()
            .map(|(labels, cells)| (label_text(&labels), SeriesTotals::sum(labels, &cells)))
            .collect();
        self.header(&REQUESTS);
        for (labels, series) in &totals {
            for (Ending { class, reason, grpc }, count) in &series.requests {
                let (name, code) = (REQUESTS.name, class.label());
                self.out.push_str(name);
                self.out.push_str(&format!("{{{labels},code=\"{code}\",reason=\"{reason}\""));
                if let Some(status) = grpc {
                    self.out.push_str(&format!(",grpc_status=\"{}\"", status.label()));
                }
                self.line(format_args!("}} {count}"));
            }
        }
        self.header(&REQUEST_DURATION);
        for (labels, series) in &totals {
            self.durations(labels, series);
        }
        for (metric, bytes) in [
            (&REQUEST_BYTES, (|s| s.bytes_in) as fn(&SeriesTotals) -> u64),
            (&RESPONSE_BYTES, |s| s.bytes_out),
        ] {
            self.header(metric);
            for (labels, series) in &totals {
                let (name, bytes) = (metric.name, bytes(series));
                self.line(format_args!("{name}{{{labels}}} {bytes}"));
            }
        }
        self.header(&AUDITED);
        for (labels, series) in &totals {
            for (reason, count) in &series.audited {
                let name = AUDITED.name;
                self.line(format_args!("{name}{{{labels},reason=\"{reason}\"}} {count}"));
            }
        }
    }

    fn durations(&mut self, labels: &str, series: &SeriesTotals) {
        let name = REQUEST_DURATION.name;
        let durations = &series.durations;
        for ((limit, below), exemplar) in durations.cumulative(&LIMITS).zip(&series.exemplars) {
            let limit = limit.as_secs_f64();
            let exemplar = self.exemplar(exemplar.as_ref());
            self.line(format_args!("{name}_bucket{{{labels},le=\"{limit}\"}} {below}{exemplar}"));
        }
        let (count, sum) = (durations.count(), durations.sum().as_secs_f64());
        let slow = self.exemplar(series.exemplars.last().and_then(Option::as_ref));
        self.line(format_args!("{name}_bucket{{{labels},le=\"+Inf\"}} {count}{slow}"));
        self.line(format_args!("{name}_sum{{{labels}}} {sum}"));
        self.line(format_args!("{name}_count{{{labels}}} {count}"));
    }

    fn header(&mut self, metric: &Metric) {
        self.out.push_str(&self.form.header(metric));
    }

    /// What stands behind the count of a bucket; only OpenMetrics has a place for it.
    fn exemplar(&self, exemplar: Option<&Exemplar>) -> String {
        let Some(Exemplar { trace, duration, ended }) = exemplar else { return String::new() };
        if self.form == Form::Prometheus {
            return String::new();
        }
        let ended = ended.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (duration, ended) = (duration.as_secs_f64(), ended.as_secs_f64());
        format!(" # {{trace_id=\"{trace}\"}} {duration} {ended:.3}")
    }

    fn labelled(&mut self, metric: &Metric, values: &[&str], number: impl Display) {
        self.out.push_str(metric.name);
        for (index, (label, value)) in metric.labels.iter().zip(values).enumerate() {
            self.out.push(if index == 0 { '{' } else { ',' });
            write_label(self.out, label, value);
        }
        if !metric.labels.is_empty() {
            self.out.push('}');
        }
        self.line(format_args!(" {number}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a `String` cannot fail.
        self.out.write_fmt(line).unwrap_or_default();
        self.out.push('\n');
    }
}

/// The labels of a series as they stand between braces.
fn label_text(labels: &RequestLabels) -> String {
    let RequestLabels { direction, service, port, route, peer, protocol } = labels;
    let port = port.to_string();
    let values = [*direction, service, &port, route, peer, *protocol];
    let mut out = String::new();
    for (label, value) in REQUEST_BYTES.labels.iter().zip(values) {
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
    out.push_str(&escaped(value));
    out.push('"');
}

/// A value of a label as it stands between its quotes.
fn escaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
    out
}

/// The bucket of the exposed histogram that a duration is in; the last has no limit.
pub(crate) fn bucket(duration: Duration) -> usize {
    LIMITS.iter().position(|limit| duration <= *limit).unwrap_or(LIMITS.len())
}

/// The buckets of the exposed histogram.
pub(crate) const BUCKETS: usize = LIMITS.len() + 1;

/// The limits of the exposed histogram: two or three to a decade, closest where sidecars live.
const LIMITS: [Duration; 20] = [
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(3),
    Duration::from_millis(5),
    Duration::from_micros(7_500),
    Duration::from_millis(10),
    Duration::from_millis(15),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(75),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
];

#[cfg(test)]
mod tests;
