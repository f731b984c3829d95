//! Exposition: everything that was counted, in the Prometheus text format 0.0.4.

use std::fmt::{Display, Write};
use std::time::Duration;

use crate::names::{
    AUDITED, BUILD, CONNECTIONS_REFUSED, Count, Gauge, Level, Metric, PROCESS_CPU, PROCESS_MEMORY,
    REQUEST_BYTES, REQUEST_DURATION, REQUESTS, RESPONSE_BYTES,
};
use crate::series::{RequestLabels, SeriesTotals};
use crate::tally::Ending;
use crate::telemetry::Telemetry;
use crate::usage::{Usage, usage};

impl Telemetry {
    /// Appends everything in the Prometheus text format 0.0.4, with the figures of this process
    /// where the system tells them.
    pub fn expose(&self, out: &mut String) {
        write(self, usage(std::process::id()).ok().as_ref(), out);
    }
}

/// Appends all metrics.
fn write(telemetry: &Telemetry, usage: Option<&Usage>, out: &mut String) {
    let mut page = Page { out };
    page.series(telemetry);
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
}

struct Page<'a> {
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
        for (limit, below) in durations.cumulative(&LIMITS) {
            let limit = limit.as_secs_f64();
            self.line(format_args!("{name}_bucket{{{labels},le=\"{limit}\"}} {below}"));
        }
        let (count, sum) = (durations.count(), durations.sum().as_secs_f64());
        self.line(format_args!("{name}_bucket{{{labels},le=\"+Inf\"}} {count}"));
        self.line(format_args!("{name}_sum{{{labels}}} {sum}"));
        self.line(format_args!("{name}_count{{{labels}}} {count}"));
    }

    fn header(&mut self, metric: &Metric) {
        let Metric { name, kind, help, .. } = metric;
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {}", kind.as_str()));
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
    for character in value.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
    out.push('"');
}

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
