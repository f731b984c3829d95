//! Tables of a page.

use serde_json::Value;

use super::panel::contender_color;
use crate::bench::figures::{escape, format_figure};
use crate::bench::outcome::ContenderOutcome;
use crate::bench::report::{CaseReport, FigureTable, PublishedTable, SuiteReport};
use crate::bench::table::format_cell;

/// Renders the figures of a case.
pub(super) fn of_case(report: &SuiteReport, case: &CaseReport) -> String {
    let rows = report.contenders.iter().filter_map(|facts| {
        let outcome = case.contenders.get(&facts.name)?;
        Some(render_row(&facts.name, contender_color(report, &facts.name), outcome))
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

fn render_row(name: &str, colour: usize, outcome: &ContenderOutcome) -> String {
    let ratio = |of: &str| {
        outcome.ratio_to_baseline(of).map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"))
    };
    let l = &outcome.latency_ms;
    let mib = |kib: u64| or_dash(kib as f64 / 1024.0);
    let cells = [
        or_dash(outcome.cpu_us_per_request.sum),
        ratio("cpu_us_per_request"),
        format_figure(outcome.rps),
        ratio("rps"),
        format_figure(l.p50),
        format_figure(l.p90),
        format_figure(l.p95),
        format_figure(l.p99),
        format_figure(l.p999),
        mib(outcome.memory_kib.idle_private),
        mib(outcome.memory_kib.load_private),
        mib(outcome.memory_kib.load_pss),
    ];
    let cells: String = cells.iter().map(|text| format!("<td>{}</td>", escape(text))).collect();
    let marks = outcome.reader_notes().into_iter().map(|mark| {
        let class = if mark.ends_with("failed") { "mark-failed" } else { "mark-noisy" };
        format!("<span class=\"{class}\">{}</span>", escape(&mark))
    });
    format!(
        "<tr><td><span class=\"swatch b{}\"></span>{}</td>{cells}<td class=\"words\">{}</td></tr>",
        colour % super::bars::COLOURS,
        escape(name),
        marks.collect::<Vec<_>>().join(", ")
    )
}

/// Renders a table of a suite.
pub(super) fn of_figures(figures: &FigureTable) -> String {
    let rows = figures.rows.iter().map(|row| {
        let cells = row.iter().map(|value| {
            let text = value.as_f64().map_or_else(|| format_cell(value), format_figure);
            format!("<td{}>{}</td>", if is_words(value) { WORDS } else { "" }, escape(&text))
        });
        format!("<tr>{}</tr>", cells.collect::<String>())
    });
    let rows: String = rows.collect();
    let first = figures.rows.first().map(Vec::as_slice).unwrap_or_default();
    let head = figures.columns.iter().enumerate().map(|(index, name)| {
        let words = first.get(index).is_some_and(is_words);
        format!("<th{}>{}</th>", if words { WORDS } else { "" }, escape(name))
    });
    render_table(&figures.title, &head.collect::<String>(), &rows)
}

/// Renders a published table of another project.
pub(super) fn of_published(published: &PublishedTable) -> String {
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

/// True for text, which is left-aligned; figures, also two in a cell, are right-aligned.
fn is_words(value: &Value) -> bool {
    value
        .as_str()
        .is_some_and(|text| !text.starts_with(|c: char| c.is_ascii_digit()) || text.contains(", "))
}

fn render_text_table(caption: &str, head: &[&str], rows: &str) -> String {
    let head: String = head.iter().map(|text| format!("<th>{}</th>", escape(text))).collect();
    render_table(caption, &head, rows)
}

fn render_table(caption: &str, head: &str, rows: &str) -> String {
    format!(
        "<div class=\"scroll\"><table><caption>{}</caption><thead><tr>{head}</tr></thead>\
         <tbody>{rows}</tbody></table></div>",
        escape(caption)
    )
}

const WORDS: &str = " class=\"words\"";

fn or_dash(value: f64) -> String {
    match value > 0.0 {
        true => format_figure(value),
        false => "–".to_owned(),
    }
}
