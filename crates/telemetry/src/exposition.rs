//! Exposition: everything that was counted, in the Prometheus text format 0.0.4 or in OpenMetrics.

mod adopted;
pub(crate) mod alias;
mod form;

use std::borrow::Cow;
use std::fmt::Write;
use std::time::UNIX_EPOCH;

use crate::exemplar::Exemplar;
use crate::names::{Kind, Metric};
use crate::reading::{Durations, Number, Reader};
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
    let mut page = Page::new(form, out);
    telemetry.read_with(usage, &mut page);
    page.finish();
}

/// Writes down what it is told, in one of the forms.
#[derive(Debug)]
pub struct Page<'a> {
    form: Form,
    /// Of the metric whose numbers are written now.
    name: Cow<'static, str>,
    out: &'a mut String,
}

impl<'a> Page<'a> {
    /// Appends to `out`.
    pub fn new(form: Form, out: &'a mut String) -> Self {
        Self { form, name: Cow::Borrowed(""), out }
    }

    /// The numbers that follow are told by a name of another product.
    pub fn alias(&mut self, name: String, kind: Kind) {
        alias::family(&name, kind.as_str(), self.out);
        self.name = Cow::Owned(name);
    }

    /// That was all.
    pub fn finish(self) {
        self.out.push_str(self.form.end());
    }
}

impl Reader for Page<'_> {
    fn metric(&mut self, metric: &'static Metric) {
        self.name = Cow::Borrowed(metric.name);
        self.out.push_str(&self.form.header(metric));
    }

    fn number(&mut self, labels: &[(&'static str, &str)], number: Number) {
        let Self { name, out, .. } = self;
        match labels {
            [] => line(out, format_args!("{name} {number}")),
            labels => line(out, format_args!("{name}{{{}}} {number}", label_text(labels))),
        }
    }

    fn durations(&mut self, labels: &[(&'static str, &str)], durations: &Durations<'_>) {
        let Self { form, name, out } = self;
        let (mut of_bucket, mut of_all) = (label_text(labels), String::new());
        if !of_bucket.is_empty() {
            of_all = format!("{{{of_bucket}}}");
            of_bucket.push(',');
        }
        let mut below = 0;
        for (limit, count, exemplar) in durations.buckets() {
            below += count;
            let limit = limit.map_or("+Inf".to_owned(), |limit| limit.as_secs_f64().to_string());
            let exemplar = exemplar.map(|exemplar| behind(exemplar, *form)).unwrap_or_default();
            let bucket =
                format_args!("{name}_bucket{{{of_bucket}le=\"{limit}\"}} {below}{exemplar}");
            line(out, bucket);
        }
        line(out, format_args!("{name}_sum{of_all} {}", durations.sum().as_secs_f64()));
        line(out, format_args!("{name}_count{of_all} {below}"));
    }
}

/// What stands behind the count of a bucket; only OpenMetrics has a place for it.
fn behind(Exemplar { trace, duration, ended, .. }: &Exemplar, form: Form) -> String {
    if form == Form::Prometheus {
        return String::new();
    }
    let ended = ended.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (duration, ended) = (duration.as_secs_f64(), ended.as_secs_f64());
    format!(" # {{trace_id=\"{trace}\"}} {duration} {ended:.3}")
}

fn line(out: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a `String` cannot fail.
    out.write_fmt(line).unwrap_or_default();
    out.push('\n');
}

/// Labels as they stand between braces.
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

#[cfg(test)]
mod tests;
