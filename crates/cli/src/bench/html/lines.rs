//! Draws line charts: one line per contender, over cases or percentiles.

use std::fmt::Write as _;

use super::axis::{AxisScale, ChartAxis};
use super::bars::COLOR_COUNT;
use crate::bench::figures::{escape, format_figure, format_tick};

/// A line chart with one line per contender.
pub(super) struct LineChart<'a> {
    /// The labels of the x axis, from left to right.
    pub(super) x_labels: Vec<&'a str>,
    pub(super) lines: Vec<ChartLine<'a>>,
    pub(super) scale: AxisScale,
}

/// The line of one contender.
pub(super) struct ChartLine<'a> {
    pub(super) label: &'a str,
    /// The index of the line's color in the style sheet.
    pub(super) color_index: usize,
    /// One figure per label of the x axis; `None` leaves a gap in the line.
    pub(super) points: Vec<Option<f64>>,
}

impl LineChart<'_> {
    /// Renders the plot as SVG.
    pub(super) fn to_svg(&self, title: &str) -> String {
        let values = self.lines.iter().flat_map(|line| line.points.iter().flatten().copied());
        let axis =
            ChartAxis::from_values(values, self.scale, CHART_HEIGHT - MARGIN_TOP - MARGIN_BOTTOM);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {CHART_WIDTH} {CHART_HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(title)
        );
        for value in &axis.ticks {
            let y = y_position(&axis, *value);
            write_svg(
                &mut svg,
                format_args!(
                    "<line class=\"grid-line\" x1=\"{MARGIN_LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" \
                     y2=\"{y:.1}\"/><text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" \
                     text-anchor=\"end\">{}</text>",
                    CHART_WIDTH - MARGIN_RIGHT,
                    MARGIN_LEFT - 8.0,
                    y + 4.0,
                    format_tick(*value)
                ),
            );
        }
        for (index, label) in self.x_labels.iter().enumerate() {
            write_svg(
                &mut svg,
                format_args!(
                    "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                    self.x_position(index),
                    CHART_HEIGHT - MARGIN_BOTTOM + 18.0,
                    escape(label)
                ),
            );
        }
        for line in &self.lines {
            self.draw_line(&mut svg, line, &axis);
        }
        self.draw_labels(&mut svg, &axis);
        svg.push_str("</svg>");
        svg
    }

    fn x_position(&self, index: usize) -> f64 {
        let width = CHART_WIDTH - MARGIN_LEFT - MARGIN_RIGHT - 2.0 * POINT_INSET;
        match self.x_labels.len() {
            0 | 1 => MARGIN_LEFT + POINT_INSET + width / 2.0,
            count => MARGIN_LEFT + POINT_INSET + width * index as f64 / (count - 1) as f64,
        }
    }

    fn draw_line(&self, svg: &mut String, line: &ChartLine<'_>, axis: &ChartAxis) {
        let color = line.color_index % COLOR_COUNT;
        let mut path = String::new();
        let mut is_connected = false;
        for (index, point) in line.points.iter().enumerate() {
            let Some(value) = point else {
                is_connected = false;
                continue;
            };
            let command = if is_connected { 'L' } else { 'M' };
            is_connected = true;
            write_svg(
                &mut path,
                format_args!(
                    "{command}{:.1} {:.1}",
                    self.x_position(index),
                    y_position(axis, *value)
                ),
            );
        }
        write_svg(svg, format_args!("<path class=\"line s{color}\" d=\"{path}\"/>"));
        for (index, value) in line.points.iter().enumerate() {
            let Some(value) = value else {
                continue;
            };
            write_svg(
                svg,
                format_args!(
                    "<circle class=\"dot f{color}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\">\
                     <title>{}, {}: {}</title></circle>",
                    self.x_position(index),
                    y_position(axis, *value),
                    escape(line.label),
                    escape(self.x_labels.get(index).copied().unwrap_or_default()),
                    format_figure(*value)
                ),
            );
        }
    }

    /// Draws the labels at the ends of lines, moved apart where they overlap.
    fn draw_labels(&self, svg: &mut String, axis: &ChartAxis) {
        let last_value = |line: &ChartLine<'_>| line.points.iter().rev().flatten().next().copied();
        let mut line_ends: Vec<(f64, &ChartLine<'_>)> = self
            .lines
            .iter()
            .filter_map(|line| Some((y_position(axis, last_value(line)?), line)))
            .collect();
        line_ends.sort_by(|(left_y, _), (right_y, _)| left_y.total_cmp(right_y));
        let mut previous_y = f64::NEG_INFINITY;
        // Each label leaves enough space below it for the labels of the other lines.
        let plot_bottom = CHART_HEIGHT - MARGIN_BOTTOM;
        let label_count = line_ends.len();
        for (index, (line_y, line)) in line_ends.into_iter().enumerate() {
            let space_below = (label_count - index - 1) as f64 * LABEL_HEIGHT;
            let y = line_y.min(plot_bottom - space_below).max(previous_y + LABEL_HEIGHT);
            previous_y = y;
            write_svg(
                svg,
                format_args!(
                    "<text class=\"value f{}\" style=\"fill:var(--c{0})\" x=\"{:.1}\" \
                     y=\"{:.1}\">{}</text>",
                    line.color_index % COLOR_COUNT,
                    CHART_WIDTH - MARGIN_RIGHT + 4.0,
                    y + 4.0,
                    escape(line.label)
                ),
            );
        }
    }
}

fn y_position(axis: &ChartAxis, value: f64) -> f64 {
    CHART_HEIGHT - MARGIN_BOTTOM - axis.position(value)
}

fn write_svg(svg: &mut String, element: std::fmt::Arguments<'_>) {
    svg.write_fmt(element).expect("writing to a String never fails");
}

// Lengths are in units of the SVG's view box.
const CHART_WIDTH: f64 = 520.0;
const CHART_HEIGHT: f64 = 250.0;
const MARGIN_LEFT: f64 = 46.0;
/// Space for the labels of the lines.
const MARGIN_RIGHT: f64 = 86.0;
const MARGIN_TOP: f64 = 12.0;
const MARGIN_BOTTOM: f64 = 28.0;
/// The distance of the first and the last point from the sides of the plot.
const POINT_INSET: f64 = 20.0;
const LABEL_HEIGHT: f64 = 14.0;
