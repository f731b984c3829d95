//! Panels: the plots of one case.

use super::axis::AxisScale;
use super::bars::{Bar, BarChart};
use super::groups::{BarGroup, GroupedBarChart};
use super::lines::{ChartLine, LineChart};
use crate::bench::figures::escape;
use crate::bench::outcome::ContenderOutcome;
use crate::bench::report::{CaseReport, PlotData, PlotKind, SuiteReport};

/// Renders the plots of a case, side by side.
pub(super) fn of_case(report: &SuiteReport, case: &CaseReport) -> String {
    let members = panel_members(report, case);
    let plots = [
        render_figure(
            "CPU per request",
            "µs of CPU time, all proxies of a contender together; shades: one proxy each; fine lines: \
             minimum to maximum of the repeats. Less is better",
            &cpu_bars(&members).to_svg("CPU per request"),
        ),
        render_figure(
            "Throughput",
            "requests per second. More is better",
            &throughput_bars(&members).to_svg("Throughput"),
        ),
        render_figure(
            "Latency",
            "milliseconds, measured at the client, by percentile; logarithmic. Lower is better",
            &latency_lines(&members).to_svg("Latency"),
        ),
        render_figure(
            "Memory under load",
            "private MiB of the proxies of a contender; shades: one proxy each. Less is better",
            &memory_bars(&members).to_svg("Memory under load"),
        ),
    ];
    format!("<div class=\"grid\">{}</div>", plots.concat())
}

/// Renders a plot of a suite.
pub(super) fn of_plot(report: &SuiteReport, plot: &PlotData) -> String {
    let svg = match plot.form {
        PlotKind::Lines(scale) => {
            let lines = plot.series.iter().map(|(label, points)| ChartLine {
                label,
                colour: contender_color(report, label),
                points: points.clone(),
            });
            let x = plot.x.iter().map(String::as_str).collect();
            LineChart { x, lines: lines.collect(), scale }.to_svg(&plot.title)
        }
        PlotKind::Bars => {
            let group = |(index, label): (usize, &'_ String)| {
                let bars = plot.series.iter().filter_map(|(name, points)| {
                    let value = points.get(index).copied().flatten()?;
                    Some((name.clone(), contender_color(report, name), value))
                });
                BarGroup { label: label.clone(), bars: bars.collect() }
            };
            GroupedBarChart(plot.x.iter().enumerate().map(group).collect()).to_svg(&plot.title)
        }
    };
    render_figure(&plot.title, &plot.about, &svg)
}

/// Returns the color index of a contender: ours is always the same.
pub(super) fn contender_color(report: &SuiteReport, name: &str) -> usize {
    if let Some(own) = COLOURS_OF.iter().position(|known| *known == name) {
        return own;
    }
    if let Some(mode) = COLOURS_OF_MODES.iter().position(|known| *known == name) {
        return mode;
    }
    let others =
        report.contenders.iter().filter(|facts| !COLOURS_OF.contains(&facts.name.as_str()));
    let place = others.into_iter().position(|facts| facts.name == name);
    COLOURS_OF.len() + place.unwrap_or(0)
}

/// A contender in a case.
struct PanelContender<'a> {
    name: &'a str,
    colour: usize,
    outcome: &'a ContenderOutcome,
}

fn panel_members<'a>(report: &'a SuiteReport, case: &'a CaseReport) -> Vec<PanelContender<'a>> {
    let member = |name: &'a str| {
        let outcome = case.contenders.get(name)?;
        Some(PanelContender { name, colour: contender_color(report, name), outcome })
    };
    report.contenders.iter().filter_map(|facts| member(&facts.name)).collect()
}

fn cpu_bars<'a>(members: &[PanelContender<'a>]) -> BarChart<'a> {
    build_bars(members.iter().filter(|member| member.has_proxies()), |member| {
        let cost = &member.outcome.cpu_us_per_request;
        let parts = cost.processes.iter().map(|(name, value)| (name.clone(), *value)).collect();
        (parts, "cpu_us_per_request")
    })
}

fn throughput_bars<'a>(members: &[PanelContender<'a>]) -> BarChart<'a> {
    build_bars(members.iter(), |member| {
        (vec![("requests per second".to_owned(), member.outcome.rps)], "rps")
    })
}

fn memory_bars<'a>(members: &[PanelContender<'a>]) -> BarChart<'a> {
    let mut all = build_bars(members.iter().filter(|member| member.has_proxies()), |member| {
        let memory = &member.outcome.memory_kib;
        let mib = |kib: u64| kib as f64 / 1024.0;
        let parts = memory.processes.iter().map(|(name, kib)| (name.clone(), mib(*kib)));
        (parts.collect(), "load_private")
    });
    for bar in &mut all.bars {
        bar.range = None;
    }
    all
}

fn build_bars<'a, 'm>(
    members: impl Iterator<Item = &'m PanelContender<'a>>,
    of: impl Fn(&PanelContender<'a>) -> (Vec<(String, f64)>, &'static str),
) -> BarChart<'a>
where
    'a: 'm,
{
    let bar = |member: &PanelContender<'a>| {
        let (parts, figure) = of(member);
        let outcome = member.outcome;
        let ratio = outcome.ratio_to_baseline(figure).filter(|ratio| *ratio != 1.0);
        let range = outcome.range.get(figure).map(|range| (range.min, range.max));
        Bar {
            label: member.name,
            colour: member.colour,
            parts,
            range,
            diagnostic: ratio.map(|ratio| format!("× {ratio:.2}")).unwrap_or_default(),
        }
    };
    BarChart { bars: members.map(bar).collect() }
}

fn latency_lines<'a>(members: &[PanelContender<'a>]) -> LineChart<'a> {
    let line = |member: &PanelContender<'a>| {
        let l = &member.outcome.latency_ms;
        let points = [l.p50, l.p90, l.p95, l.p99, l.p999];
        ChartLine {
            label: member.name,
            colour: member.colour,
            points: points.map(|ms| (ms > 0.0).then_some(ms)).to_vec(),
        }
    };
    LineChart {
        x: vec!["p50", "p90", "p95", "p99", "p99.9"],
        lines: members.iter().map(line).collect(),
        scale: AxisScale::Logarithmic,
    }
}

impl PanelContender<'_> {
    fn has_proxies(&self) -> bool {
        !self.outcome.cpu_us_per_request.processes.is_empty()
    }
}

fn render_figure(title: &str, about: &str, svg: &str) -> String {
    format!(
        "<figure><h3>{}</h3><p class=\"soft\">{}</p>{svg}</figure>",
        escape(title),
        escape(about)
    )
}

/// Well-known contenders have the same colors in all reports.
const COLOURS_OF: [&str; 6] = ["leno", "envoy", "haproxy", "nginx", "none", "floor"];
/// Names of lines other than contenders.
const COLOURS_OF_MODES: [&str; 2] = ["deny", "allow"];
