//! Rendering of `leno top`: from the mesh status and the screen size to text.

use std::cmp::Ordering;

use leno_control::status::{
    NamedRateStatus, RateStatus, RejectionStatus, SidecarTraffic, Status, TrafficStatus,
};

use super::Order;
use crate::figures::{
    AILING, FAILING, format_cpu, format_latency, format_memory, format_rate, format_share,
    render_sparkline,
};
use crate::get::describe_scope;
use crate::output::{Column, Format, Listing, escape_cell};

/// The content to show.
pub(super) struct View {
    pub(super) status: Status,
    pub(super) traffic: TrafficStatus,
    /// The reason why the content is out of date.
    pub(super) trouble: Option<String>,
}

/// The size of the screen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// The sort order and the styling.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) order: Order,
    pub(super) colours: bool,
}

impl View {
    /// Sorts by the given order; rows without a figure come last.
    pub(super) fn sort(&mut self, order: Order) {
        self.traffic.services.sort_by(|one, other| compare(one, other, order));
        self.traffic.routes.sort_by(|one, other| compare(one, other, order));
        let by_name = order == Order::Name;
        self.traffic.sidecars.sort_by(|one, other| {
            let by_cpu = other.cpu_cores.total_cmp(&one.cpu_cores);
            let by_rate = total_per_second(other).total_cmp(&total_per_second(one));
            let figures = if by_name { Ordering::Equal } else { by_cpu.then(by_rate) };
            figures.then_with(|| one.workload.cmp(&other.workload))
        });
    }
}

fn total_per_second(sidecar: &SidecarTraffic) -> f64 {
    sidecar.inbound_per_second + sidecar.outbound_per_second
}

fn compare(one: &NamedRateStatus, other: &NamedRateStatus, order: Order) -> Ordering {
    let figure = |rates: &RateStatus| match order {
        Order::Rate => Some(rates.per_second),
        Order::Success => rates.success.map(|share| 1.0 - share),
        Order::P50 => rates.p50_ms,
        Order::P99 => rates.p99_ms,
        Order::Name => None,
    };
    let figure = |rates: &RateStatus| figure(rates).unwrap_or(-1.0);
    figure(&other.rates).total_cmp(&figure(&one.rates)).then_with(|| one.name.cmp(&other.name))
}

/// Renders everything, for a pipe.
pub(super) fn render_all(view: &View, format: Format) -> String {
    let tables =
        [service_table(view), rejection_table(view), route_table(view), sidecar_table(view)]
            .map(|it| it.render(format));
    let tables = tables.into_iter().zip([
        view.traffic.services.len(),
        view.traffic.rejections.len(),
        view.traffic.routes.len(),
        view.traffic.sidecars.len(),
    ]);
    let parts = tables.filter(|(_, rows)| *rows > 0).map(|(table, _)| table);
    let text = parts.collect::<Vec<_>>().join("\n");
    match text.is_empty() {
        true => format!("{}\n", no_traffic_text(view)),
        false => text,
    }
}

fn no_traffic_text(view: &View) -> &'static str {
    match view.traffic.report_interval_ms {
        Some(_) => "no traffic yet: sidecars report it every few seconds",
        None => {
            "sidecars do not report traffic: start the control plane without --report-interval off"
        }
    }
}

/// Renders one screen; every line but the last ends with a newline.
pub(super) fn render_screen(view: &View, size: Size, look: Look) -> String {
    let mut lines = vec![render_header(view, size, look), String::new()];
    let tables = [
        (service_table(view).render(Format::Table), rate_verdicts(&view.traffic.services)),
        (rejection_table(view).render(Format::Table), rejection_verdicts(&view.traffic.rejections)),
        (route_table(view).render(Format::Table), rate_verdicts(&view.traffic.routes)),
        (sidecar_table(view).render(Format::Table), Vec::new()),
    ];
    let tables: Vec<_> =
        tables.into_iter().filter(|(table, _)| table.lines().count() > 1).collect();
    if tables.is_empty() {
        lines.push(truncate_line(no_traffic_text(view), size.columns));
    }
    // The header, a blank line after each table, and the line with the keys.
    let room = size.rows.saturating_sub(3 + tables.len());
    for ((table, verdicts), rows) in tables.iter().zip(distribute_lines(&tables, room)) {
        let all: Vec<&str> = table.lines().collect();
        let shown = match all.len() <= rows {
            true => all.len(),
            false => rows.saturating_sub(1),
        };
        for (index, line) in all.iter().take(shown).enumerate() {
            let verdict = match index.checked_sub(1) {
                None => Verdict::Header,
                Some(row) => verdicts.get(row).copied().unwrap_or(Verdict::Well),
            };
            lines.push(look.paint(&truncate_line(line, size.columns), verdict));
        }
        if shown < all.len() && rows > 0 {
            let more = format!("… {} more", all.len() - shown);
            lines.push(look.paint(&truncate_line(&more, size.columns), Verdict::Quiet));
        }
        lines.push(String::new());
    }
    lines.truncate(size.rows.saturating_sub(1));
    lines.resize(size.rows.saturating_sub(1), String::new());
    lines
        .push(look.paint(&truncate_line(&describe_keys(look.order), size.columns), Verdict::Quiet));
    lines.join("\n")
}

/// Distributes the lines among the tables: each gets a few, and the rest goes to the first tables.
fn distribute_lines(tables: &[(String, Vec<Verdict>)], room: usize) -> Vec<usize> {
    let wanted: Vec<usize> = tables.iter().map(|(table, _)| table.lines().count()).collect();
    let mut given: Vec<usize> = wanted.iter().map(|lines| (*lines).min(FEW_LINES)).collect();
    let mut left = room.saturating_sub(given.iter().sum());
    for (given, wanted) in given.iter_mut().zip(&wanted) {
        let more = (wanted - *given).min(left);
        *given += more;
        left -= more;
    }
    given
}

fn render_header(view: &View, size: Size, look: Look) -> String {
    let Status { trust_domain, default_policy, proxies, out_of_sync, workloads, .. } = &view.status;
    // Every request enters the mesh once, from a workload to a service.
    let edges = view.traffic.edges.iter().filter(|edge| edge.kind != "route");
    let total: f64 = edges.map(|edge| edge.rates.per_second).sum();
    let text = format!(
        "leno top · {trust_domain} · default policy {default_policy} · {proxies} of {workloads} sidecars, {out_of_sync} \
         out of sync · {}",
        format_rate(total)
    );
    let line = |text: &str| truncate_line(&escape_cell(text), size.columns);
    let text = match describe_scope(&view.status) {
        Some(scope) => format!("{text} · {scope}"),
        None => text,
    };
    match &view.trouble {
        Some(trouble) => {
            look.paint(&line(&format!("{text} · not updated: {trouble}")), Verdict::Failing)
        }
        None => look.paint(&line(&text), Verdict::Header),
    }
}

fn describe_keys(order: Order) -> String {
    let by = match order {
        Order::Rate => "rate",
        Order::Success => "success",
        Order::P50 => "p50",
        Order::P99 => "p99",
        Order::Name => "name",
    };
    format!("by {by} · r rate  s success  5 p50  9 p99  n name  q quit")
}

fn service_table(view: &View) -> Listing {
    const COLUMNS: &[Column] = &[
        Column::always("service"),
        Column::always("rate"),
        Column::always("success"),
        Column::always("p50"),
        Column::always("p99"),
        Column::always("last minutes"),
        Column::wide("requests"),
        Column::wide("failed"),
    ];
    rate_table(COLUMNS, &view.traffic.services)
}

fn route_table(view: &View) -> Listing {
    const COLUMNS: &[Column] = &[
        Column::always("route"),
        Column::always("rate"),
        Column::always("success"),
        Column::always("p50"),
        Column::always("p99"),
        Column::always("last minutes"),
        Column::wide("requests"),
        Column::wide("failed"),
    ];
    rate_table(COLUMNS, &view.traffic.routes)
}

fn rate_table(columns: &'static [Column], rated: &[NamedRateStatus]) -> Listing {
    let mut listing = Listing::new(columns);
    for NamedRateStatus { name, rates } in rated {
        listing.add_row([
            name.clone(),
            format_rate(rates.per_second),
            format_share(rates.success),
            format_latency(rates.p50_ms),
            format_latency(rates.p99_ms),
            // The last interval is still incomplete.
            render_sparkline(rates.recent.split_last().map_or(&[], |(_, past)| past)),
            rates.requests.to_string(),
            rates.failed.to_string(),
        ]);
    }
    listing
}

/// Lists requests that the mesh rejected within the last 30 seconds.
fn rejection_table(view: &View) -> Listing {
    const COLUMNS: &[Column] = &[
        Column::always("rejected"),
        Column::always("reason"),
        Column::always("share"),
        Column::always("requests"),
        Column::always("side"),
        Column::wide("sidecars"),
        Column::wide("policies"),
    ];
    let mut listing = Listing::new(COLUMNS);
    for rejection in &view.traffic.rejections {
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

fn sidecar_table(view: &View) -> Listing {
    const COLUMNS: &[Column] = &[
        Column::always("sidecar"),
        Column::always("cpu"),
        Column::always("memory"),
        Column::always("in"),
        Column::always("out"),
    ];
    let mut listing = Listing::new(COLUMNS);
    for sidecar in &view.traffic.sidecars {
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

/// The styling of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Header,
    Well,
    Ailing,
    Failing,
    /// No traffic.
    Quiet,
}

fn rate_verdicts(rated: &[NamedRateStatus]) -> Vec<Verdict> {
    let verdict = |rated: &NamedRateStatus| match rated.rates.success {
        None => Verdict::Quiet,
        Some(share) if share < FAILING => Verdict::Failing,
        Some(share) if share < AILING => Verdict::Ailing,
        Some(_) => Verdict::Well,
    };
    rated.iter().map(verdict).collect()
}

fn rejection_verdicts(rejections: &[RejectionStatus]) -> Vec<Verdict> {
    let verdict = |rejection: &RejectionStatus| match 1.0 - rejection.share {
        rest if rest < FAILING => Verdict::Failing,
        rest if rest < AILING => Verdict::Ailing,
        _ => Verdict::Well,
    };
    rejections.iter().map(verdict).collect()
}

impl Look {
    fn paint(self, text: &str, verdict: Verdict) -> String {
        let code = match verdict {
            Verdict::Well => return text.to_owned(),
            Verdict::Header => "1",
            Verdict::Ailing => "33",
            Verdict::Failing => "31",
            Verdict::Quiet => "2",
        };
        match self.colours {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

/// Truncates a line to the screen width.
fn truncate_line(line: &str, columns: usize) -> String {
    line.chars().take(columns).collect()
}

/// Minimum lines of a table, even on a small screen: its name and a few rows.
const FEW_LINES: usize = 4;

#[cfg(test)]
mod tests;
