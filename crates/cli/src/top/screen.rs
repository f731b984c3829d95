//! Renders the screen of `leno top` as text, from the mesh status, the screen size and the style.

use std::cmp::Ordering;

use leno_control::status::{
    NamedRateStatus, RateStatus, RejectionStatus, SidecarTraffic, Status, TrafficStatus,
};

use super::SortOrder;
use crate::figures::{
    DEGRADED_BELOW, FAILING_BELOW, format_cpu, format_latency, format_memory, format_rate,
    format_share, render_sparkline,
};
use crate::get::describe_scope;
use crate::output::{Listing, ListingColumn, OutputFormat, escape_cell};

/// The mesh status that a screen shows.
pub(super) struct ScreenContent {
    pub(super) status: Status,
    pub(super) traffic: TrafficStatus,
    /// The reason why the content is out of date; `None` if it is current.
    pub(super) error: Option<String>,
}

/// The size of the screen, in characters.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScreenSize {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// The sort order and the styling.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScreenStyle {
    pub(super) sort_order: SortOrder,
    /// True unless the environment variable `NO_COLOR` is set.
    pub(super) use_color: bool,
}

impl ScreenContent {
    /// Sorts by the given order; rows without a value come last.
    pub(super) fn sort(&mut self, order: SortOrder) {
        self.traffic.services.sort_by(|first, second| compare_rates(first, second, order));
        self.traffic.routes.sort_by(|first, second| compare_rates(first, second, order));
        let by_name = order == SortOrder::Name;
        self.traffic.sidecars.sort_by(|first, second| {
            let by_cpu = second.cpu_cores.total_cmp(&first.cpu_cores);
            let by_rate = total_per_second(second).total_cmp(&total_per_second(first));
            let by_load = if by_name { Ordering::Equal } else { by_cpu.then(by_rate) };
            by_load.then_with(|| first.workload.cmp(&second.workload))
        });
    }
}

fn total_per_second(sidecar: &SidecarTraffic) -> f64 {
    sidecar.inbound_per_second + sidecar.outbound_per_second
}

fn compare_rates(first: &NamedRateStatus, second: &NamedRateStatus, order: SortOrder) -> Ordering {
    // The order is descending, so the lowest success rate needs the highest value. -1 is below all values.
    let value_in_column = |rates: &RateStatus| match order {
        SortOrder::Rate => Some(rates.per_second),
        SortOrder::Success => rates.success.map(|share| 1.0 - share),
        SortOrder::P50 => rates.p50_ms,
        SortOrder::P99 => rates.p99_ms,
        SortOrder::Name => None,
    };
    let sort_value = |rates: &RateStatus| value_in_column(rates).unwrap_or(-1.0);
    sort_value(&second.rates)
        .total_cmp(&sort_value(&first.rates))
        .then_with(|| first.name.cmp(&second.name))
}

/// Renders all tables completely, for output that is not a terminal.
pub(super) fn render_all(content: &ScreenContent, format: OutputFormat) -> String {
    let tables = [
        (service_table(content), content.traffic.services.len()),
        (rejection_table(content), content.traffic.rejections.len()),
        (route_table(content), content.traffic.routes.len()),
        (sidecar_table(content), content.traffic.sidecars.len()),
    ];
    let non_empty_tables = tables.into_iter().filter(|(_, row_count)| *row_count > 0);
    let table_texts = non_empty_tables.map(|(table, _)| table.render(format));
    let text = table_texts.collect::<Vec<_>>().join("\n");
    match text.is_empty() {
        true => format!("{}\n", no_traffic_text(content)),
        false => text,
    }
}

fn no_traffic_text(content: &ScreenContent) -> &'static str {
    match content.traffic.report_interval_ms {
        Some(_) => "no traffic yet: sidecars report it every few seconds",
        None => {
            "sidecars do not report traffic: start the control plane without --report-interval off"
        }
    }
}

/// Renders one screen of `size`; every line except the last ends with a newline.
pub(super) fn render_screen(
    content: &ScreenContent,
    size: ScreenSize,
    style: ScreenStyle,
) -> String {
    let mut lines = vec![render_header(content, size, style), String::new()];
    let tables: Vec<_> = [
        (
            service_table(content).render(OutputFormat::Table),
            rate_styles(&content.traffic.services),
        ),
        (
            rejection_table(content).render(OutputFormat::Table),
            rejection_styles(&content.traffic.rejections),
        ),
        (route_table(content).render(OutputFormat::Table), rate_styles(&content.traffic.routes)),
        (sidecar_table(content).render(OutputFormat::Table), Vec::new()),
    ]
    .into_iter()
    .filter(|(table, _)| table.lines().count() > 1)
    .collect();
    if tables.is_empty() {
        lines.push(truncate_line(no_traffic_text(content), size.columns));
    }
    // The header, a blank line after each table, and the line with the keys.
    let available_lines = size.rows.saturating_sub(3 + tables.len());
    for ((table, line_styles), rows) in
        tables.iter().zip(distribute_lines(&tables, available_lines))
    {
        let table_lines: Vec<&str> = table.lines().collect();
        let visible_count = match table_lines.len() <= rows {
            true => table_lines.len(),
            // The last line is for the number of omitted rows.
            false => rows.saturating_sub(1),
        };
        for (index, line) in table_lines.iter().take(visible_count).enumerate() {
            let line_style = match index.checked_sub(1) {
                None => LineStyle::Header,
                Some(row) => line_styles.get(row).copied().unwrap_or(LineStyle::Healthy),
            };
            lines.push(style.paint(&truncate_line(line, size.columns), line_style));
        }
        if visible_count < table_lines.len() && rows > 0 {
            let notice = format!("… {} more", table_lines.len() - visible_count);
            lines.push(style.paint(&truncate_line(&notice, size.columns), LineStyle::Dimmed));
        }
        lines.push(String::new());
    }
    lines.truncate(size.rows.saturating_sub(1));
    lines.resize(size.rows.saturating_sub(1), String::new());
    lines.push(
        style.paint(
            &truncate_line(&describe_keys(style.sort_order), size.columns),
            LineStyle::Dimmed,
        ),
    );
    lines.join("\n")
}

/// Distributes the available lines among the tables: each table gets up to `MIN_TABLE_LINES`, and the first
/// tables get the remaining lines. Returns the number of lines per table.
fn distribute_lines(tables: &[(String, Vec<LineStyle>)], available_lines: usize) -> Vec<usize> {
    let needed_lines: Vec<usize> = tables.iter().map(|(table, _)| table.lines().count()).collect();
    let mut assigned_lines: Vec<usize> =
        needed_lines.iter().map(|lines| (*lines).min(MIN_TABLE_LINES)).collect();
    let mut remaining_lines = available_lines.saturating_sub(assigned_lines.iter().sum());
    for (assigned_lines, needed_lines) in assigned_lines.iter_mut().zip(&needed_lines) {
        let added_lines = (needed_lines - *assigned_lines).min(remaining_lines);
        *assigned_lines += added_lines;
        remaining_lines -= added_lines;
    }
    assigned_lines
}

fn render_header(content: &ScreenContent, size: ScreenSize, style: ScreenStyle) -> String {
    let Status { trust_domain, default_policy, proxies, out_of_sync, workloads, .. } =
        &content.status;
    // Every request enters the mesh once, from a workload to a service.
    let edges = content.traffic.edges.iter().filter(|edge| edge.kind != "route");
    let total_rate: f64 = edges.map(|edge| edge.rates.per_second).sum();
    let text = format!(
        "leno top · {trust_domain} · default policy {default_policy} · {proxies} of {workloads} sidecars, {out_of_sync} \
         out of sync · {}",
        format_rate(total_rate)
    );
    let to_screen_line = |text: &str| truncate_line(&escape_cell(text), size.columns);
    let scoped_text = match describe_scope(&content.status) {
        Some(scope) => format!("{text} · {scope}"),
        None => text,
    };
    match &content.error {
        Some(error) => style.paint(
            &to_screen_line(&format!("{scoped_text} · not updated: {error}")),
            LineStyle::Failing,
        ),
        None => style.paint(&to_screen_line(&scoped_text), LineStyle::Header),
    }
}

fn describe_keys(order: SortOrder) -> String {
    let column = match order {
        SortOrder::Rate => "rate",
        SortOrder::Success => "success",
        SortOrder::P50 => "p50",
        SortOrder::P99 => "p99",
        SortOrder::Name => "name",
    };
    format!("by {column} · r rate  s success  5 p50  9 p99  n name  q quit")
}

fn service_table(content: &ScreenContent) -> Listing {
    const COLUMNS: &[ListingColumn] = &[
        ListingColumn::always("service"),
        ListingColumn::always("rate"),
        ListingColumn::always("success"),
        ListingColumn::always("p50"),
        ListingColumn::always("p99"),
        ListingColumn::always("last minutes"),
        ListingColumn::wide("requests"),
        ListingColumn::wide("failed"),
    ];
    rate_table(COLUMNS, &content.traffic.services)
}

fn route_table(content: &ScreenContent) -> Listing {
    const COLUMNS: &[ListingColumn] = &[
        ListingColumn::always("route"),
        ListingColumn::always("rate"),
        ListingColumn::always("success"),
        ListingColumn::always("p50"),
        ListingColumn::always("p99"),
        ListingColumn::always("last minutes"),
        ListingColumn::wide("requests"),
        ListingColumn::wide("failed"),
    ];
    rate_table(COLUMNS, &content.traffic.routes)
}

fn rate_table(columns: &'static [ListingColumn], named_rates: &[NamedRateStatus]) -> Listing {
    let mut listing = Listing::new(columns);
    for NamedRateStatus { name, rates } in named_rates {
        listing.add_row([
            name.clone(),
            format_rate(rates.per_second),
            format_share(rates.success),
            format_latency(rates.p50_ms),
            format_latency(rates.p99_ms),
            // The last interval is still incomplete.
            render_sparkline(
                rates.recent.split_last().map_or(&[], |(_, complete_intervals)| complete_intervals),
            ),
            rates.requests.to_string(),
            rates.failed.to_string(),
        ]);
    }
    listing
}

/// Lists requests that the mesh rejected within the last 30 seconds.
fn rejection_table(content: &ScreenContent) -> Listing {
    const COLUMNS: &[ListingColumn] = &[
        ListingColumn::always("rejected"),
        ListingColumn::always("reason"),
        ListingColumn::always("share"),
        ListingColumn::always("requests"),
        ListingColumn::always("side"),
        ListingColumn::wide("sidecars"),
        ListingColumn::wide("policies"),
    ];
    let mut listing = Listing::new(COLUMNS);
    for rejection in &content.traffic.rejections {
        listing.add_row([
            rejection.destination().to_owned(),
            rejection.reason.clone(),
            format_share(Some(rejection.share)),
            rejection.requests.to_string(),
            rejection.side.clone(),
            rejection.sidecars.join(", "),
            rejection.policies.join(", "),
        ]);
    }
    listing
}

fn sidecar_table(content: &ScreenContent) -> Listing {
    const COLUMNS: &[ListingColumn] = &[
        ListingColumn::always("sidecar"),
        ListingColumn::always("cpu"),
        ListingColumn::always("memory"),
        ListingColumn::always("in"),
        ListingColumn::always("out"),
    ];
    let mut listing = Listing::new(COLUMNS);
    for sidecar in &content.traffic.sidecars {
        listing.add_row([
            sidecar.workload.clone(),
            format_cpu(sidecar.cpu_cores),
            format_memory(sidecar.memory_kib),
            format_rate(sidecar.inbound_per_second),
            format_rate(sidecar.outbound_per_second),
        ]);
    }
    listing
}

/// The styling of a line: by the health of the traffic in a row, or by the role of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineStyle {
    Header,
    Healthy,
    Degraded,
    Failing,
    /// Rows without traffic, and notices.
    Dimmed,
}

fn rate_styles(rates: &[NamedRateStatus]) -> Vec<LineStyle> {
    let line_style = |rates: &NamedRateStatus| match rates.rates.success {
        None => LineStyle::Dimmed,
        Some(share) if share < FAILING_BELOW => LineStyle::Failing,
        Some(share) if share < DEGRADED_BELOW => LineStyle::Degraded,
        Some(_) => LineStyle::Healthy,
    };
    rates.iter().map(line_style).collect()
}

fn rejection_styles(rejections: &[RejectionStatus]) -> Vec<LineStyle> {
    let line_style = |rejection: &RejectionStatus| match 1.0 - rejection.share {
        success if success < FAILING_BELOW => LineStyle::Failing,
        success if success < DEGRADED_BELOW => LineStyle::Degraded,
        _ => LineStyle::Healthy,
    };
    rejections.iter().map(line_style).collect()
}

impl ScreenStyle {
    fn paint(self, text: &str, line_style: LineStyle) -> String {
        let color_code = match line_style {
            LineStyle::Healthy => return text.to_owned(),
            LineStyle::Header => "1",
            LineStyle::Degraded => "33",
            LineStyle::Failing => "31",
            LineStyle::Dimmed => "2",
        };
        match self.use_color {
            true => format!("\x1b[{color_code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

/// Truncates a line to the screen width.
fn truncate_line(line: &str, columns: usize) -> String {
    line.chars().take(columns).collect()
}

/// The minimum number of lines of a table, even on a small screen: its header and a few rows.
const MIN_TABLE_LINES: usize = 4;

#[cfg(test)]
mod tests;
