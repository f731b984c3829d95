//! Renders the report of a load run as a self-contained HTML page with plots.

use super::plot::{PlotAxis, PlotLine, PlotMark, PlotTick, SvgPlot, escape_html};
use super::results::{LoadResults, RateResult};
use super::summary::{IntervalSummary, LoadSummary};
use super::table::{format_share, format_time};

/// Renders the report as a self-contained page: no scripts, fonts or images.
pub(super) fn render(results: &LoadResults, summary: &LoadSummary) -> String {
    let urls: Vec<&str> = results.plan.targets.iter().map(|target| target.name.as_str()).collect();
    let mut page = HtmlPage::default();
    page.push_text("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.push_text("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.push_text(&format!("<title>leno load {}</title>\n", escape_html(&urls.join(" "))));
    page.push_text(&format!("<style>\n{STYLE}</style>\n</head>\n<body>\n"));
    page.push_text(&format!("<h1>Load on {}</h1>\n", escape_html(&describe_targets(&urls))));
    page.push_text(&format!(
        "<p class=\"setting\">{}</p>\n",
        escape_html(&results.describe_settings())
    ));
    page.write_figures(summary);
    page.push_text("<h2>Latency by percentile</h2>\n");
    page.push_text(&percentile_plot(results).to_svg());
    page.push_text("<h2>Throughput and errors over time</h2>\n");
    page.push_text(&throughput_plot(summary).to_svg());
    page.push_text("<h2>Latency over time</h2>\n");
    page.push_text(&latency_plot(summary).to_svg());
    page.write_rates(summary);
    page.write_counts("Errors", "kind", &summary.errors_by_kind, summary.requests);
    page.write_counts("Statuses", "status", &summary.statuses, summary.requests);
    page.write_targets(summary);
    page.push_text(&format!("<footer>{CAVEATS}</footer>\n</body>\n</html>\n"));
    page.text
}

/// Returns the URL of a single target, or the number of targets.
fn describe_targets(urls: &[&str]) -> String {
    match urls {
        [url] => (*url).to_owned(),
        urls => format!("{} targets", urls.len()),
    }
}

/// The text of a page, to which the methods append sections.
#[derive(Default)]
struct HtmlPage {
    text: String,
}

impl HtmlPage {
    fn push_text(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Writes the summary figures: throughput, requests, errors and latency percentiles.
    fn write_figures(&mut self, summary: &LoadSummary) {
        let latency = summary.latency_us;
        let figures = [
            ("requests per second", format!("{:.0}", summary.rps)),
            ("requests", summary.requests.to_string()),
            ("errors", format_share(summary.errors, summary.requests)),
            ("p50", format_time(latency.p50)),
            ("p99", format_time(latency.p99)),
            ("p99.9", format_time(latency.p999)),
            ("longest", format_time(latency.max)),
        ];
        self.push_text("<dl class=\"figures\">\n");
        for (name, value) in figures {
            let class =
                if name == "errors" && summary.errors > 0 { " class=\"wrong\"" } else { "" };
            self.push_text(&format!("<div{class}><dt>{name}</dt><dd>{value}</dd></div>\n"));
        }
        self.push_text("</dl>\n");
    }

    fn write_rates(&mut self, summary: &LoadSummary) {
        let steps = match summary.steps.as_slice() {
            [] => std::slice::from_ref(summary),
            steps => steps,
        };
        self.push_text("<h2>In numbers</h2>\n<div class=\"wide\"><table>\n<tr>");
        for name in RATE_COLUMNS {
            self.push_text(&format!("<th>{name}</th>"));
        }
        self.push_text("</tr>\n");
        for step in steps {
            let latency = step.latency_us;
            let rate = step.rate.map_or("unlimited".to_owned(), |rate| format!("{rate:.0}/s"));
            let counts = [rate, step.requests.to_string(), format!("{:.0}/s", step.rps)];
            let times = [
                latency.min,
                latency.mean,
                latency.p50,
                latency.p90,
                latency.p95,
                latency.p99,
                latency.p999,
                latency.max,
                step.own_cpu_us_per_request,
            ];
            let errors = [step.errors.to_string()];
            let cells = counts.into_iter().chain(errors).chain(times.map(format_time));
            self.write_row(cells);
        }
        self.push_text("</table></div>\n");
    }

    fn write_counts<'a>(
        &mut self,
        title: &str,
        name: &str,
        counts: impl IntoIterator<Item = (&'a String, &'a u64)>,
        total: u64,
    ) {
        let mut counts = counts.into_iter().peekable();
        if counts.peek().is_none() {
            return;
        }
        self.push_text(&format!("<h2>{title}</h2>\n<table>\n<tr><th>{name}</th>"));
        self.push_text("<th>count</th><th>share</th></tr>\n");
        for (name, count) in counts {
            self.write_row([name.clone(), count.to_string(), format_share(*count, total)]);
        }
        self.push_text("</table>\n");
    }

    fn write_targets(&mut self, summary: &LoadSummary) {
        if summary.targets.len() < 2 {
            return;
        }
        self.push_text("<h2>Targets</h2>\n<div class=\"wide\"><table>\n");
        self.push_text("<tr><th>URL</th><th>requests</th><th>errors</th></tr>\n");
        for target in &summary.targets {
            let [requests, errors] =
                [target.requests, target.errors].map(|count| count.to_string());
            self.write_row([target.url.clone(), requests, errors]);
        }
        self.push_text("</table></div>\n");
    }

    fn write_row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.push_text("<tr>");
        for cell in cells {
            self.push_text(&format!("<td>{}</td>", escape_html(&cell)));
        }
        self.push_text("</tr>\n");
    }
}

/// Plots latency over percentiles. The horizontal axis is logarithmic, so that it spreads out the tail: the
/// position is the number of nines, with 90 % at 1, 99 % at 2 and 99.9 % at 3.
fn percentile_plot(results: &LoadResults) -> SvgPlot {
    let rate_count = results.steps.len();
    let mut most_nines: f64 = 1.0;
    let (mut lowest_us, mut highest_us) = (f64::MAX, 1.0_f64);
    for RateResult { report, .. } in &results.steps {
        let latency = report.sum_targets().latency;
        let (Some(min), Some(max)) = (latency.min(), latency.max()) else {
            continue;
        };
        most_nines = most_nines.max((latency.count() as f64).log10().ceil().min(MAX_NINES));
        lowest_us = lowest_us.min(min.as_nanos() as f64 / 1e3);
        highest_us = highest_us.max(max.as_nanos() as f64 / 1e3);
    }
    let lines = results.steps.iter().enumerate().map(|(index, RateResult { rate, report })| {
        let latency = report.sum_targets().latency;
        let point_at = |nines: f64| {
            let share = 1.0 - 10_f64.powf(-nines);
            latency.quantile(share).map(|latency| (share, latency.as_nanos() as f64 / 1e3))
        };
        // Forty points per nine make a smooth line.
        let points = (0..=(most_nines * 40.0) as u32).map(|step| {
            let x = f64::from(step) / 40.0;
            point_at(x).map(|(_, us)| (x, us.max(1.0).log10()))
        });
        let marks = PERCENTILES.iter().filter_map(|(label, share)| {
            let x = -(1.0 - share).log10();
            let (_, us) = point_at(x).filter(|_| x <= most_nines)?;
            let text = format!("{label}: {}", format_time(Some(us)));
            Some(PlotMark { x, y: us.max(1.0).log10(), text })
        });
        PlotLine {
            name: rate.map_or(String::new(), |rate| format!("{rate}/s")),
            class: "one",
            // The line of the last rate is opaque. Those of earlier rates are fainter, down to an opacity of 0.3.
            opacity: 1.0 - 0.7 * (rate_count - 1 - index) as f64 / rate_count as f64,
            points: points.collect(),
            marks: marks.collect(),
        }
    });
    let ticks = (0..=most_nines as usize).filter_map(|nines| {
        let label = (*NINES_LABELS.get(nines)?).to_owned();
        Some(PlotTick { position: nines as f64, label })
    });
    SvgPlot {
        title: "Latency by percentile",
        x_axis: PlotAxis {
            label: "share of the requests",
            low: 0.0,
            high: most_nines,
            ticks: ticks.collect(),
        },
        y_axis: PlotAxis {
            label: "at most",
            ..PlotAxis::latency_axis(lowest_us.min(highest_us), highest_us)
        },
        lines: lines.collect(),
    }
}

fn throughput_plot(summary: &LoadSummary) -> SvgPlot {
    let per_second = |interval: &IntervalSummary, count: u64| count as f64 / interval.length_s;
    let intervals = || plotted_intervals(summary);
    let build_line = |name: &str, class, count: fn(&IntervalSummary) -> u64| PlotLine {
        name: name.to_owned(),
        class,
        opacity: 1.0,
        points: intervals()
            .map(|interval| {
                Some((interval_middle(interval), per_second(interval, count(interval))))
            })
            .collect(),
        // Marks of intervals without errors would hide the axis.
        marks: intervals()
            .filter(|interval| class != "wrong" || count(interval) > 0)
            .map(|interval| PlotMark {
                x: interval_middle(interval),
                y: per_second(interval, count(interval)),
                text: format!(
                    "{:.1} s: {:.0} {name} per second",
                    interval.at_s,
                    per_second(interval, count(interval))
                ),
            })
            .collect(),
    };
    let lines = vec![
        build_line("requests", "one", |interval| interval.requests),
        build_line("errors", "wrong", |interval| interval.errors),
    ];
    let highest_rate =
        intervals().map(|interval| per_second(interval, interval.requests)).fold(1.0, f64::max);
    SvgPlot {
        title: "Requests and errors per second over time",
        x_axis: PlotAxis::from_zero("seconds after the warm-up", summary.duration_s),
        // A little space above the highest point.
        y_axis: PlotAxis::from_zero("per second", highest_rate * 1.05),
        lines,
    }
}

fn latency_plot(summary: &LoadSummary) -> SvgPlot {
    let build_line = |name: &str, class, quantile: fn(&IntervalSummary) -> Option<f64>| PlotLine {
        name: name.to_owned(),
        class,
        opacity: 1.0,
        points: plotted_intervals(summary)
            .map(|interval| {
                quantile(interval).map(|us| (interval_middle(interval), us.max(1.0).log10()))
            })
            .collect(),
        marks: plotted_intervals(summary)
            .filter_map(|interval| {
                let us = quantile(interval)?;
                let text = format!("{:.1} s: {name} {}", interval.at_s, format_time(Some(us)));
                Some(PlotMark { x: interval_middle(interval), y: us.max(1.0).log10(), text })
            })
            .collect(),
    };
    let lines = vec![
        build_line("p50", "one", |interval| interval.p50),
        build_line("p99", "two", |interval| interval.p99),
    ];
    let latencies =
        || plotted_intervals(summary).flat_map(|interval| [interval.p50, interval.p99]).flatten();
    let (lowest_us, highest_us) =
        (latencies().fold(f64::MAX, f64::min), latencies().fold(1.0, f64::max));
    SvgPlot {
        title: "Latency over time",
        x_axis: PlotAxis::from_zero("seconds after the warm-up", summary.duration_s),
        y_axis: PlotAxis {
            label: "at most",
            ..PlotAxis::latency_axis(lowest_us.min(highest_us), highest_us)
        },
        lines,
    }
}

/// Returns the intervals that are longer than half of the longest one. Rates over shorter intervals are inaccurate.
fn plotted_intervals(summary: &LoadSummary) -> impl Iterator<Item = &IntervalSummary> {
    let longest = summary.timeline.iter().map(|interval| interval.length_s).fold(0.0, f64::max);
    summary.timeline.iter().filter(move |interval| interval.length_s > longest / 2.0)
}

fn interval_middle(interval: &IntervalSummary) -> f64 {
    interval.at_s + interval.length_s / 2.0
}

/// The maximum number of nines on the percentile axis: 99.9999 %.
const MAX_NINES: f64 = 6.0;

/// The labels of the percentile axis, by the number of nines.
const NINES_LABELS: [&str; 7] = ["0", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %", "99.9999 %"];

/// The percentiles that have a mark on each line, with their shares of the requests.
const PERCENTILES: [(&str, f64); 8] = [
    ("p25", 0.25),
    ("p50", 0.5),
    ("p75", 0.75),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
];

const RATE_COLUMNS: [&str; 13] = [
    "rate",
    "requests",
    "throughput",
    "errors",
    "min",
    "mean",
    "p50",
    "p90",
    "p95",
    "p99",
    "p99.9",
    "max",
    "own CPU",
];

const CAVEATS: &str = "Latencies cover successful requests; all others are counted as errors, \
    by kind. In a closed loop a stalled server receives no further requests, so few requests show \
    the stall; an open loop counts every scheduled request. Responses after the end are included \
    in counts and latencies, but not in rates. All figures are measured at the load generator and \
    include its own delays.";

const STYLE: &str = include_str!("load.css");
