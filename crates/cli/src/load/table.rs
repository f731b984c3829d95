//! Renders the report of a load run as tables for people.

use std::fmt::Write as _;

use super::results::LoadResults;
use super::summary::LoadSummary;
use crate::output::{Listing, ListingColumn, OutputFormat};

/// Renders the targets, the settings and the tables. Omits the errors if there are none, and the statuses and
/// targets unless there are several.
pub(super) fn render(results: &LoadResults, summary: &LoadSummary) -> String {
    let mut text = String::new();
    for target in &results.plan.targets {
        append_line(&mut text, &target.name);
    }
    append_line(&mut text, &results.describe_settings());
    append_section(&mut text, rate_table(summary));
    if !summary.errors_by_kind.is_empty() {
        append_section(&mut text, error_table(summary));
    }
    if summary.statuses.len() > 1 {
        append_section(&mut text, status_table(summary));
    }
    if summary.targets.len() > 1 {
        append_section(&mut text, target_table(summary));
    }
    text
}

/// Formats a time in a suitable unit: `850 µs`, `12.3 ms`, `1.20 s`; a dash for `None`.
pub(super) fn format_time(microseconds: Option<f64>) -> String {
    let Some(microseconds) = microseconds else {
        return "-".to_owned();
    };
    let (number, unit) = match microseconds {
        value if value < 1e3 => (value, "µs"),
        value if value < 1e6 => (value / 1e3, "ms"),
        value => (value / 1e6, "s"),
    };
    // From each bound on, rounding would yield a fourth digit.
    let digits = match number {
        number if number < 9.995 => 2,
        number if number < 99.95 => 1,
        _ => 0,
    };
    format!("{number:.digits$} {unit}")
}

/// Formats the share of `count` in `total` in percent, with two decimals.
pub(super) fn format_share(count: u64, total: u64) -> String {
    format!("{:.2} %", count as f64 * 100.0 / total.max(1) as f64)
}

fn rate_table(summary: &LoadSummary) -> Listing {
    let mut listing =
        Listing::new(if is_open_loop(summary) { OPEN_LOOP_COLUMNS } else { CLOSED_LOOP_COLUMNS });
    let steps =
        if summary.steps.is_empty() { std::slice::from_ref(summary) } else { &summary.steps };
    for step in steps {
        let latency = step.latency_us;
        let latencies =
            [latency.p50, latency.p90, latency.p95, latency.p99, latency.p999, latency.max];
        let rate = step.rate.map(|rate| format!("{rate:.0}/s"));
        let counts =
            [step.requests.to_string(), format!("{:.0}/s", step.rps), step.errors.to_string()];
        let times = latencies.into_iter().chain([step.own_cpu_us_per_request]).map(format_time);
        listing.add_row(rate.into_iter().chain(counts).chain(times));
    }
    listing
}

fn error_table(summary: &LoadSummary) -> Listing {
    let mut listing = Listing::new(ERROR_COLUMNS);
    for (kind, count) in &summary.errors_by_kind {
        listing.add_row([kind.clone(), count.to_string(), format_share(*count, summary.requests)]);
    }
    listing
}

fn status_table(summary: &LoadSummary) -> Listing {
    let mut listing = Listing::new(STATUS_COLUMNS);
    for (status, count) in &summary.statuses {
        listing.add_row([
            status.clone(),
            count.to_string(),
            format_share(*count, summary.requests),
        ]);
    }
    listing
}

fn target_table(summary: &LoadSummary) -> Listing {
    let mut listing = Listing::new(TARGET_COLUMNS);
    for target in &summary.targets {
        let counts = [target.requests, target.errors].map(|count| count.to_string());
        listing.add_row([target.url.clone()].into_iter().chain(counts));
    }
    listing
}

fn is_open_loop(summary: &LoadSummary) -> bool {
    summary.rate.is_some() || !summary.steps.is_empty()
}

fn append_section(text: &mut String, listing: Listing) {
    append_line(text, "");
    text.push_str(&listing.render(OutputFormat::Table));
}

fn append_line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("writing to a String never fails");
}

const OPEN_LOOP_COLUMNS: &[ListingColumn] = &[
    ListingColumn::always("rate"),
    ListingColumn::always("requests"),
    ListingColumn::always("throughput"),
    ListingColumn::always("errors"),
    ListingColumn::always("p50"),
    ListingColumn::always("p90"),
    ListingColumn::always("p95"),
    ListingColumn::always("p99"),
    ListingColumn::always("p99.9"),
    ListingColumn::always("max"),
    ListingColumn::always("own cpu"),
];

const CLOSED_LOOP_COLUMNS: &[ListingColumn] = &[
    ListingColumn::always("requests"),
    ListingColumn::always("throughput"),
    ListingColumn::always("errors"),
    ListingColumn::always("p50"),
    ListingColumn::always("p90"),
    ListingColumn::always("p95"),
    ListingColumn::always("p99"),
    ListingColumn::always("p99.9"),
    ListingColumn::always("max"),
    ListingColumn::always("own cpu"),
];

const ERROR_COLUMNS: &[ListingColumn] = &[
    ListingColumn::always("error"),
    ListingColumn::always("count"),
    ListingColumn::always("share"),
];

const STATUS_COLUMNS: &[ListingColumn] = &[
    ListingColumn::always("status"),
    ListingColumn::always("count"),
    ListingColumn::always("share"),
];

const TARGET_COLUMNS: &[ListingColumn] = &[
    ListingColumn::always("target"),
    ListingColumn::always("requests"),
    ListingColumn::always("errors"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_with_three_digits_and_a_unit() {
        for (microseconds, text) in [
            (Some(0.5), "0.50 µs"),
            (Some(850.0), "850 µs"),
            (Some(9.999), "10.0 µs"),
            (Some(12_345.0), "12.3 ms"),
            (Some(1_200_000.0), "1.20 s"),
            (None, "-"),
        ] {
            assert_eq!(format_time(microseconds), text);
        }
    }
}
