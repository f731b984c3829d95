//! Renders a report as text for a terminal.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::Value;

use super::figures::format_plain;
use super::report::{CaseReport, FigureTable, PublishedTable, SuiteReport};

/// Renders the report as text.
pub(super) fn render(report: &SuiteReport) -> String {
    let mut text = format!("{}\n", report.title);
    for case in &report.cases {
        let core_note = match (&case.proxy_cores, &case.load_cores) {
            (Some(proxy_cores), Some(load_cores)) => {
                format!(
                    " (proxies on cores {proxy_cores}, load generator and applications on {load_cores})"
                )
            }
            _ => String::new(),
        };
        let table = case_table(report, case);
        write!(text, "\n{}{core_note}\n{table}\n", case.name).expect(INFALLIBLE);
    }
    for figures in &report.tables {
        write!(text, "\n{}\n{}\n", figures.title, figure_table(figures)).expect(INFALLIBLE);
    }
    text.push('\n');
    text.push_str(&render_legend(report));
    for published in &report.published {
        write!(text, "\n{}", published_table(published)).expect(INFALLIBLE);
    }
    text
}

fn case_table(report: &SuiteReport, case: &CaseReport) -> Table {
    let ratio_to = format!("× {}", report.baseline_name());
    let mut table = new_table(&[
        "",
        "CPU µs/request",
        &ratio_to,
        "requests/s",
        &ratio_to,
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "p99.9 ms",
        "idle KiB",
        "load KiB",
        "PSS KiB",
        "",
    ]);
    for contender in &report.contenders {
        let Some(outcome) = case.contenders.get(&contender.name) else {
            continue;
        };
        let format_ratio = |figure: &str| {
            let ratio = outcome.ratio_to_baseline(figure);
            ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"))
        };
        let latency = &outcome.latency_ms;
        let memory = &outcome.memory_kib;
        table.add_row([
            contender.name.clone(),
            format_or_dash(outcome.cpu_us_per_request.sum, 1),
            format_ratio("cpu_us_per_request"),
            format!("{:.0}", outcome.rps),
            format_ratio("rps"),
            format!("{:.2}", latency.p50),
            format!("{:.2}", latency.p90),
            format!("{:.2}", latency.p99),
            format!("{:.2}", latency.p999),
            format_or_dash(memory.idle_private as f64, 0),
            format_or_dash(memory.load_private as f64, 0),
            format_or_dash(memory.load_pss as f64, 0),
            outcome.short_notes().join(", "),
        ]);
    }
    table
}

fn render_legend(report: &SuiteReport) -> String {
    let mut text = String::new();
    let mut write_line = |line: String| writeln!(text, "{line}").expect(INFALLIBLE);
    if let Some(settings) = &report.settings {
        write_line(format!(
            "Medians of {} repeats of {} s, after {} s of warm-up.",
            settings.repeats,
            format_plain(settings.duration_s),
            format_plain(settings.warm_up_s)
        ));
    }
    if let Some(settings) = report.settings.as_ref().filter(|_| !report.cases.is_empty()) {
        write_line(format!("Load by {}.", settings.driver_version));
        write_line(format!(
            "CPU and memory are those of all proxies of a contender. Ratios are medians of ratios \
             within a repeat. noisy: repeats differ by more than {:.0} %, tails by {:.0} %. \
             load-bound: the proxies were not saturated. disturbed: unrelated programs used more than \
             {:.0} % of a core.",
            settings.noisy_above * 100.0,
            settings.tail_noisy_above * 100.0,
            settings.disturbed_above * 100.0
        ));
    }
    if let Some(warning) = report.reliability_warning() {
        write_line(warning);
    }
    let machine = &report.machine;
    write_line(format!(
        "{}, {} cores, {} MiB, Linux {}{}",
        machine.processor,
        machine.cores,
        machine.memory_mib,
        machine.kernel,
        if machine.virtual_machine { ", virtual" } else { "" }
    ));
    for contender in &report.contenders {
        write_line(format!("{} {}: {}", contender.name, contender.version, contender.about));
    }
    for skipped in &report.skipped {
        write_line(format!("skipped {}: {}", skipped.name, skipped.reason));
    }
    for note in &report.notes {
        write_line(format!("note: {note}"));
    }
    for missing in &report.not_shown {
        write_line(format!("not shown: {missing}"));
    }
    text
}

fn figure_table(figures: &FigureTable) -> Table {
    let columns: Vec<&str> = figures.columns.iter().map(String::as_str).collect();
    let mut table = new_table(&columns);
    for row in &figures.rows {
        table.add_row(row.iter().map(format_cell));
    }
    table
}

/// Formats a value of a table.
pub(super) fn format_cell(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => text.clone(),
        other => other.as_f64().map_or_else(|| other.to_string(), format_plain),
    }
}

fn published_table(published: &PublishedTable) -> String {
    let mut table = new_table(published.columns);
    for row in published.rows {
        table.add_row(row.iter().copied());
    }
    format!(
        "Published by others, not measured here: {}\n{table}\n{}\nSource: {}\n",
        published.title, published.diagnostic, published.source
    )
}

/// Creates a table with text in the first column and figures in the others.
pub(super) fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Formats a figure with a number of decimal digits, or `–` for 0: the contender has no proxies.
fn format_or_dash(figure: f64, digits: usize) -> String {
    match figure > 0.0 {
        true => format!("{figure:.digits$}"),
        false => "–".to_owned(),
    }
}

const INFALLIBLE: &str = "writing to a String never fails";
