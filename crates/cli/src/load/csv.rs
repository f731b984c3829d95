//! Renders the report of a load run as comma-separated values.

use std::fmt::Write as _;

use super::summary::LoadSummary;

/// Renders a header line, and one line per rate. A closed loop has a single line, without a rate.
pub(super) fn render(summary: &LoadSummary) -> String {
    let steps =
        if summary.steps.is_empty() { std::slice::from_ref(summary) } else { &summary.steps };
    let mut text = format!("{}\n", FIELD_NAMES.join(","));
    for step in steps {
        let line = format_fields(step).join(",");
        writeln!(text, "{line}").expect("writing to a String never fails");
    }
    text
}

/// Formats the fields of one rate, in the order of `FIELD_NAMES`.
fn format_fields(step: &LoadSummary) -> [String; FIELD_NAMES.len()] {
    let format_number =
        |value: Option<f64>| value.map(|number| format!("{number:.3}")).unwrap_or_default();
    let latency = step.latency_us;
    [
        step.rate.map(|rate| format!("{rate:.0}")).unwrap_or_default(),
        step.requests.to_string(),
        step.errors.to_string(),
        format_number(Some(step.rps)),
        format_number(Some(step.duration_s)),
        format_number(latency.min),
        format_number(latency.mean),
        format_number(latency.p50),
        format_number(latency.p90),
        format_number(latency.p95),
        format_number(latency.p99),
        format_number(latency.p999),
        format_number(latency.max),
        step.bytes_in.to_string(),
        step.bytes_out.to_string(),
        step.connections.to_string(),
        format_number(step.own_cpu_us_per_request),
        // Labels contain neither commas nor quotes.
        step.errors_by_kind
            .iter()
            .map(|(kind, count)| format!("{kind}={count}"))
            .collect::<Vec<_>>()
            .join(" "),
    ]
}

const FIELD_NAMES: [&str; 18] = [
    "rate",
    "requests",
    "errors",
    "rps",
    "duration_s",
    "min_us",
    "mean_us",
    "p50_us",
    "p90_us",
    "p95_us",
    "p99_us",
    "p999_us",
    "max_us",
    "bytes_in",
    "bytes_out",
    "connections",
    "own_cpu_us_per_request",
    "errors_by_kind",
];
