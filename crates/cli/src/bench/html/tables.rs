//! Renders the HTML tables of a report page.

use serde_json::Value;

use super::panel::find_color_index;
use crate::bench::figures::{escape, format_figure};
use crate::bench::outcome::ContenderOutcome;
use crate::bench::report::{CaseReport, FigureTable, PublishedTable, SuiteReport};
use crate::bench::table::format_cell;

/// Renders the figures of a case.
pub(super) fn render_case(report: &SuiteReport, case: &CaseReport) -> String {
    let rows = report.contenders.iter().filter_map(|contender| {
        let outcome = case.contenders.get(&contender.name)?;
        Some(render_row(&contender.name, find_color_index(report, &contender.name), outcome))
    });
    let ratio_to = format!("× {}", report.baseline_name());
    let head = [
        "contender",
        "CPU µs/request",
        &ratio_to,
        "requests/s",
        &ratio_to,
        "p50 ms",
        "p90",
        "p95",
        "p99",
        "p99.9",
        "idle MiB",
        "load MiB",
        "PSS MiB",
        "",
    ];
    render_text_table(&case.name, &head, &rows.collect::<String>())
}

fn render_row(name: &str, color_index: usize, outcome: &ContenderOutcome) -> String {
    let format_ratio = |figure: &str| {
        outcome
            .ratio_to_baseline(figure)
            .map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"))
    };
    let latency = &outcome.latency_ms;
    let format_mib = |kib: u64| format_or_dash(kib as f64 / 1024.0);
    let cells = [
        format_or_dash(outcome.cpu_us_per_request.sum),
        format_ratio("cpu_us_per_request"),
        format_figure(outcome.rps),
        format_ratio("rps"),
        format_figure(latency.p50),
        format_figure(latency.p90),
        format_figure(latency.p95),
        format_figure(latency.p99),
        format_figure(latency.p999),
        format_mib(outcome.memory_kib.idle_private),
        format_mib(outcome.memory_kib.load_private),
        format_mib(outcome.memory_kib.load_pss),
    ];
    let figure_cells: String =
        cells.iter().map(|text| format!("<td>{}</td>", escape(text))).collect();
    let notes = outcome.short_notes().into_iter().map(|note| {
        let class = if note.ends_with("failed") { "mark-failed" } else { "mark-noisy" };
        format!("<span class=\"{class}\">{}</span>", escape(&note))
    });
    format!(
        "<tr><td><span class=\"swatch b{}\"></span>{}</td>{figure_cells}<td class=\"words\">{}</td></tr>",
        color_index % super::bars::COLOR_COUNT,
        escape(name),
        notes.collect::<Vec<_>>().join(", ")
    )
}

/// Renders a table of a suite.
pub(super) fn render_figure_table(figures: &FigureTable) -> String {
    let rows = figures.rows.iter().map(|row| {
        let cells = row.iter().map(|value| {
            let text = value.as_f64().map_or_else(|| format_cell(value), format_figure);
            format!("<td{}>{}</td>", if is_text(value) { TEXT_CLASS } else { "" }, escape(&text))
        });
        format!("<tr>{}</tr>", cells.collect::<String>())
    });
    let rows: String = rows.collect();
    let first_row = figures.rows.first().map(Vec::as_slice).unwrap_or_default();
    let head = figures.columns.iter().enumerate().map(|(index, name)| {
        let is_text_column = first_row.get(index).is_some_and(is_text);
        format!("<th{}>{}</th>", if is_text_column { TEXT_CLASS } else { "" }, escape(name))
    });
    render_table(&figures.title, &head.collect::<String>(), &rows)
}

/// Renders a published table of another project.
pub(super) fn render_published_table(published: &PublishedTable) -> String {
    let rows = published.rows.iter().map(|row| {
        let cells = row.iter().map(|text| format!("<td>{}</td>", escape(text)));
        format!("<tr>{}</tr>", cells.collect::<String>())
    });
    format!(
        "<div class=\"published\">{}<p class=\"soft small\">{}<br>Source: {}</p></div>",
        render_text_table(
            &format!("Published, not measured here: {}", published.title),
            published.columns,
            &rows.collect::<String>()
        ),
        escape(published.diagnostic),
        escape(published.source)
    )
}

/// True for text, which is left-aligned. Text that begins with a digit counts as a figure, which is right-aligned, unless
/// it contains a comma, as the names of cases do.
fn is_text(value: &Value) -> bool {
    value
        .as_str()
        .is_some_and(|text| !text.starts_with(|c: char| c.is_ascii_digit()) || text.contains(", "))
}

fn render_text_table(caption: &str, head: &[&str], rows: &str) -> String {
    let head_cells: String = head.iter().map(|text| format!("<th>{}</th>", escape(text))).collect();
    render_table(caption, &head_cells, rows)
}

fn render_table(caption: &str, head: &str, rows: &str) -> String {
    format!(
        "<div class=\"scroll\"><table><caption>{}</caption><thead><tr>{head}</tr></thead>\
         <tbody>{rows}</tbody></table></div>",
        escape(caption)
    )
}

/// The HTML attribute of cells that contain text: the style sheet aligns them to the left.
const TEXT_CLASS: &str = " class=\"words\"";

/// Formats a figure, or `–` for 0: the contender has no proxies.
fn format_or_dash(value: f64) -> String {
    match value > 0.0 {
        true => format_figure(value),
        false => "–".to_owned(),
    }
}
