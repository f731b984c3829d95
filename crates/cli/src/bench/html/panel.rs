//! Renders plots: those of one case, which are side by side in a panel, and those of a suite.

use super::axis::AxisScale;
use super::bars::{Bar, BarChart};
use super::groups::{BarGroup, GroupBar, GroupedBarChart};
use super::lines::{ChartLine, LineChart};
use crate::bench::figures::escape;
use crate::bench::outcome::ContenderOutcome;
use crate::bench::report::{CaseReport, PlotData, PlotKind, SuiteReport};

/// Renders the plots of a case, side by side.
pub(super) fn render_case(report: &SuiteReport, case: &CaseReport) -> String {
    let contenders = panel_contenders(report, case);
    let plots = [
        render_captioned_plot(
            "CPU per request",
            "µs of CPU time, all proxies of a contender together; shades: one proxy each; fine lines: \
             minimum to maximum of the repeats. Less is better",
            &cpu_bars(&contenders).to_svg("CPU per request"),
        ),
        render_captioned_plot(
            "Throughput",
            "requests per second. More is better",
            &throughput_bars(&contenders).to_svg("Throughput"),
        ),
        render_captioned_plot(
            "Latency",
            "milliseconds, measured at the client, by percentile; logarithmic. Lower is better",
            &latency_lines(&contenders).to_svg("Latency"),
        ),
        render_captioned_plot(
            "Memory under load",
            "private MiB of the proxies of a contender; shades: one proxy each. Less is better",
            &memory_bars(&contenders).to_svg("Memory under load"),
        ),
    ];
    format!("<div class=\"grid\">{}</div>", plots.concat())
}

/// Renders a plot of a suite.
pub(super) fn render_plot(report: &SuiteReport, plot: &PlotData) -> String {
    let svg = match plot.kind {
        PlotKind::Lines(scale) => {
            let lines = plot.series.iter().map(|(label, points)| ChartLine {
                label,
                color_index: find_color_index(report, label),
                points: points.clone(),
            });
            let x_labels = plot.x_labels.iter().map(String::as_str).collect();
            LineChart { x_labels, lines: lines.collect(), scale }.to_svg(&plot.title)
        }
        PlotKind::Bars => {
            let build_group = |(index, label): (usize, &'_ String)| {
                let bars = plot.series.iter().filter_map(|(name, points)| {
                    let value = points.get(index).copied().flatten()?;
                    let color_index = find_color_index(report, name);
                    Some(GroupBar { label: name.clone(), color_index, value })
                });
                BarGroup { label: label.clone(), bars: bars.collect() }
            };
            GroupedBarChart(plot.x_labels.iter().enumerate().map(build_group).collect())
                .to_svg(&plot.title)
        }
    };
    render_captioned_plot(&plot.title, &plot.caption, &svg)
}

/// Returns the color index of a contender or a default policy. Well-known contenders have the same color in all reports.
pub(super) fn find_color_index(report: &SuiteReport, name: &str) -> usize {
    if let Some(index) = CONTENDERS_BY_COLOR.iter().position(|known_name| *known_name == name) {
        return index;
    }
    if let Some(index) = POLICIES_BY_COLOR.iter().position(|policy| *policy == name) {
        return index;
    }
    let other_contenders = report
        .contenders
        .iter()
        .filter(|contender| !CONTENDERS_BY_COLOR.contains(&contender.name.as_str()));
    let position = other_contenders.into_iter().position(|contender| contender.name == name);
    // Every name in a plot is a contender of the report or a default policy.
    CONTENDERS_BY_COLOR.len() + position.unwrap_or(0)
}

/// A contender with its results in a case.
struct PanelContender<'a> {
    name: &'a str,
    color_index: usize,
    outcome: &'a ContenderOutcome,
}

fn panel_contenders<'a>(report: &'a SuiteReport, case: &'a CaseReport) -> Vec<PanelContender<'a>> {
    let panel_contender = |name: &'a str| {
        let outcome = case.contenders.get(name)?;
        Some(PanelContender { name, color_index: find_color_index(report, name), outcome })
    };
    report.contenders.iter().filter_map(|contender| panel_contender(&contender.name)).collect()
}

fn cpu_bars<'a>(contenders: &[PanelContender<'a>]) -> BarChart<'a> {
    build_bars(contenders.iter().filter(|contender| contender.has_proxies()), |contender| {
        let cost = &contender.outcome.cpu_us_per_request;
        let segments = cost.processes.iter().map(|(name, value)| (name.clone(), *value)).collect();
        (segments, "cpu_us_per_request")
    })
}

fn throughput_bars<'a>(contenders: &[PanelContender<'a>]) -> BarChart<'a> {
    build_bars(contenders.iter(), |contender| {
        (vec![("requests per second".to_owned(), contender.outcome.rps)], "rps")
    })
}

fn memory_bars<'a>(contenders: &[PanelContender<'a>]) -> BarChart<'a> {
    let mut chart =
        build_bars(contenders.iter().filter(|contender| contender.has_proxies()), |contender| {
            let memory = &contender.outcome.memory_kib;
            let kib_to_mib = |kib: u64| kib as f64 / 1024.0;
            let segments =
                memory.processes.iter().map(|(name, kib)| (name.clone(), kib_to_mib(*kib)));
            (segments.collect(), "load_private")
        });
    // The ranges of `load_private` are in KiB and the bars in MiB, so that the ranges are not drawn.
    for bar in &mut chart.bars {
        bar.repeat_range = None;
    }
    chart
}

/// Builds the bar of each contender. `read_segments` returns the segments of a bar, and the name of the figure that they add
/// up to.
fn build_bars<'a, 'm>(
    contenders: impl Iterator<Item = &'m PanelContender<'a>>,
    read_segments: impl Fn(&PanelContender<'a>) -> (Vec<(String, f64)>, &'static str),
) -> BarChart<'a>
where
    'a: 'm,
{
    let build_bar = |contender: &PanelContender<'a>| {
        let (segments, figure_name) = read_segments(contender);
        let outcome = contender.outcome;
        // The baseline itself has the ratio 1.
        let ratio = outcome.ratio_to_baseline(figure_name).filter(|ratio| *ratio != 1.0);
        let repeat_range = outcome.range.get(figure_name).map(|range| (range.min, range.max));
        Bar {
            label: contender.name,
            color_index: contender.color_index,
            segments,
            repeat_range,
            note: ratio.map(|ratio| format!("× {ratio:.2}")).unwrap_or_default(),
        }
    };
    BarChart { bars: contenders.map(build_bar).collect() }
}

fn latency_lines<'a>(contenders: &[PanelContender<'a>]) -> LineChart<'a> {
    let build_line = |contender: &PanelContender<'a>| {
        let latency = &contender.outcome.latency_ms;
        let points = [latency.p50, latency.p90, latency.p95, latency.p99, latency.p999];
        ChartLine {
            label: contender.name,
            color_index: contender.color_index,
            // A logarithmic axis has no position for 0.
            points: points.map(|ms| (ms > 0.0).then_some(ms)).to_vec(),
        }
    };
    LineChart {
        x_labels: vec!["p50", "p90", "p95", "p99", "p99.9"],
        lines: contenders.iter().map(build_line).collect(),
        scale: AxisScale::Logarithmic,
    }
}

impl PanelContender<'_> {
    /// False for a contender such as `none`, which has no cost to draw.
    fn has_proxies(&self) -> bool {
        !self.outcome.cpu_us_per_request.processes.is_empty()
    }
}

/// Renders a plot with its title and caption.
fn render_captioned_plot(title: &str, caption: &str, svg: &str) -> String {
    format!(
        "<figure><h3>{}</h3><p class=\"soft\">{}</p>{svg}</figure>",
        escape(title),
        escape(caption)
    )
}

/// The well-known contenders. The position of a name is its color index.
const CONTENDERS_BY_COLOR: [&str; 6] = ["leno", "envoy", "haproxy", "nginx", "none", "floor"];
/// The default policies. The position of a name is its color index, which a contender also has: the plots of the suite
/// `scale` have a line per default policy, and no contenders.
const POLICIES_BY_COLOR: [&str; 2] = ["deny", "allow"];
