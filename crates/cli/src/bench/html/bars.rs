//! Draws bar charts: one bar per contender, with the range of its repeats.

use std::fmt::Write as _;

use super::axis::{AxisScale, ChartAxis};
use crate::bench::figures::{escape, format_figure, format_tick};

/// A bar chart with one bar per contender, from top to bottom.
pub(super) struct BarChart<'a> {
    pub(super) bars: Vec<Bar<'a>>,
}

/// The bar of one contender.
pub(super) struct Bar<'a> {
    pub(super) label: &'a str,
    /// The index of the bar's color in the style sheet.
    pub(super) color_index: usize,
    /// The segments of the bar from left to right, each with a name and a value.
    pub(super) segments: Vec<(String, f64)>,
    /// The minimum and maximum of the repeats; `None` if they are not drawn.
    pub(super) repeat_range: Option<(f64, f64)>,
    /// A note after the figure, such as a ratio.
    pub(super) note: String,
}

impl Bar<'_> {
    fn sum(&self) -> f64 {
        self.segments.iter().map(|(_, value)| value).sum()
    }
}

impl BarChart<'_> {
    /// Renders the plot as SVG.
    pub(super) fn to_svg(&self, title: &str) -> String {
        let height = MARGIN_TOP + ROW_HEIGHT * self.bars.len() as f64 + MARGIN_BOTTOM;
        let bar_ends =
            self.bars.iter().map(|bar| bar.repeat_range.map_or(0.0, |(_, max)| max).max(bar.sum()));
        let axis = ChartAxis::from_values(
            bar_ends,
            AxisScale::Linear,
            CHART_WIDTH - MARGIN_LEFT - MARGIN_RIGHT,
        );
        let mut svg = format!(
            "<svg viewBox=\"0 0 {CHART_WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
            escape(title)
        );
        for value in &axis.ticks {
            let x = MARGIN_LEFT + axis.position(*value);
            let bottom = height - MARGIN_BOTTOM;
            write_svg(
                &mut svg,
                format_args!(
                    "<line class=\"grid-line\" x1=\"{x:.1}\" y1=\"{MARGIN_TOP}\" x2=\"{x:.1}\" \
                     y2=\"{bottom}\"/><text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" \
                     text-anchor=\"middle\">{}</text>",
                    bottom + 15.0,
                    format_tick(*value)
                ),
            );
        }
        for (index, bar) in self.bars.iter().enumerate() {
            draw_bar(&mut svg, bar, &axis, MARGIN_TOP + ROW_HEIGHT * index as f64);
        }
        svg.push_str("</svg>");
        svg
    }
}

/// Appends a bar with its label and figure. `top` is the upper end of its row.
fn draw_bar(svg: &mut String, bar: &Bar<'_>, axis: &ChartAxis, top: f64) {
    let middle = top + ROW_HEIGHT / 2.0;
    write_svg(
        svg,
        format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            MARGIN_LEFT - 10.0,
            middle + 4.0,
            escape(bar.label)
        ),
    );
    let mut segment_start = 0.0;
    for (index, (name, value)) in bar.segments.iter().enumerate() {
        let (x, end) = (
            MARGIN_LEFT + axis.position(segment_start),
            MARGIN_LEFT + axis.position(segment_start + value),
        );
        let shade = index.min(SHADE_COUNT);
        write_svg(
            svg,
            format_args!(
                "<rect class=\"f{} shade{shade}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" \
                 height=\"{BAR_HEIGHT}\" rx=\"2.5\"><title>{}: {}</title></rect>",
                bar.color_index % COLOR_COUNT,
                middle - BAR_HEIGHT / 2.0,
                // Short segments stay visible.
                (end - x - SEGMENT_GAP).max(0.8),
                escape(name),
                format_figure(*value)
            ),
        );
        segment_start += value;
    }
    let sum = bar.sum();
    let mut bar_end = MARGIN_LEFT + axis.position(sum);
    if let Some((min, max)) = bar.repeat_range.filter(|(min, max)| max > min) {
        let (x1, x2) = (MARGIN_LEFT + axis.position(min), MARGIN_LEFT + axis.position(max));
        bar_end = bar_end.max(x2);
        write_svg(
            svg,
            format_args!(
                "<path class=\"whisker\" fill=\"none\" d=\"M{x1:.1} {middle}H{x2:.1}M{x1:.1} {whisker_top:.1}V{whisker_bottom:.1}M{x2:.1} \
                 {whisker_top:.1}V{whisker_bottom:.1}\"><title>{} to {}</title></path>",
                format_figure(min),
                format_figure(max),
                whisker_top = middle - 4.0,
                whisker_bottom = middle + 4.0,
            ),
        );
    }
    let value = if sum > 0.0 { format_figure(sum) } else { "none".to_owned() };
    write_svg(
        svg,
        format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\"><tspan class=\"value\">{value}</tspan><tspan \
             class=\"tick\" dx=\"6\">{}</tspan></text>",
            bar_end + 8.0,
            middle + 4.0,
            escape(&bar.note)
        ),
    );
}

fn write_svg(svg: &mut String, element: std::fmt::Arguments<'_>) {
    svg.write_fmt(element).expect("writing to a String never fails");
}

/// The number of colors in the style sheet.
pub(super) const COLOR_COUNT: usize = 8;
/// The number of shades of a color in addition to the full one.
const SHADE_COUNT: usize = 3;
// Lengths are in units of the SVG's view box.
const CHART_WIDTH: f64 = 520.0;
const MARGIN_LEFT: f64 = 78.0;
/// Space for the figure after the longest bar.
const MARGIN_RIGHT: f64 = 104.0;
const MARGIN_TOP: f64 = 6.0;
const MARGIN_BOTTOM: f64 = 24.0;
const ROW_HEIGHT: f64 = 30.0;
const BAR_HEIGHT: f64 = 16.0;
/// The gap between the segments of a bar.
const SEGMENT_GAP: f64 = 1.0;
