//! Draws grouped bar charts: one group per case, with one bar per contender.

use std::fmt::Write as _;

use super::axis::{AxisScale, ChartAxis};
use super::bars::COLOR_COUNT;
use crate::bench::figures::{escape, format_figure};

/// Groups of bars, from top to bottom.
pub(super) struct GroupedBarChart(pub(super) Vec<BarGroup>);

/// The bars of one case.
pub(super) struct BarGroup {
    pub(super) label: String,
    pub(super) bars: Vec<GroupBar>,
}

/// A bar of a group.
pub(super) struct GroupBar {
    pub(super) label: String,
    /// The index of the bar's color in the style sheet.
    pub(super) color_index: usize,
    pub(super) value: f64,
}

impl GroupedBarChart {
    /// Renders the plot as SVG.
    pub(super) fn to_svg(&self, title: &str) -> String {
        let height: f64 = self.0.iter().map(BarGroup::height).sum();
        let values = self.0.iter().flat_map(|group| group.bars.iter().map(|bar| bar.value));
        let axis = ChartAxis::from_values(
            values,
            AxisScale::Linear,
            CHART_WIDTH - MARGIN_LEFT - MARGIN_RIGHT,
        );
        let mut svg = format!(
            "<svg viewBox=\"0 0 {CHART_WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
            escape(title)
        );
        let mut top = 0.0;
        for group in &self.0 {
            group.draw_group(&mut svg, &axis, top);
            top += group.height();
        }
        svg.push_str("</svg>");
        svg
    }
}

impl BarGroup {
    fn height(&self) -> f64 {
        HEADING_HEIGHT + ROW_HEIGHT * self.bars.len() as f64 + GROUP_GAP
    }

    /// Appends the group to the SVG. `top` is its upper end.
    fn draw_group(&self, svg: &mut String, axis: &ChartAxis, top: f64) {
        let heading = format_args!(
            "<text class=\"tick\" x=\"0\" y=\"{:.1}\">{}</text>",
            top + HEADING_HEIGHT - 6.0,
            escape(&self.label)
        )
        .to_string();
        svg.push_str(&heading);
        for (index, bar) in self.bars.iter().enumerate() {
            let middle = top + HEADING_HEIGHT + ROW_HEIGHT * (index as f64 + 0.5);
            // Short bars stay visible.
            let width = axis.position(bar.value).max(0.8);
            let result = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text><rect \
                 class=\"f{}\" x=\"{MARGIN_LEFT}\" y=\"{:.1}\" width=\"{width:.1}\" \
                 height=\"{BAR_HEIGHT}\" rx=\"2.5\"/><text class=\"value\" x=\"{:.1}\" \
                 y=\"{:.1}\">{}</text>",
                MARGIN_LEFT - 10.0,
                middle + 4.0,
                escape(&bar.label),
                bar.color_index % COLOR_COUNT,
                middle - BAR_HEIGHT / 2.0,
                MARGIN_LEFT + width + 8.0,
                middle + 4.0,
                format_figure(bar.value)
            );
            result.expect("writing to a String never fails");
        }
    }
}

// Lengths are in units of the SVG's view box.
const CHART_WIDTH: f64 = 520.0;
const MARGIN_LEFT: f64 = 78.0;
/// Space for the figure after the longest bar.
const MARGIN_RIGHT: f64 = 70.0;
const HEADING_HEIGHT: f64 = 22.0;
const ROW_HEIGHT: f64 = 21.0;
const BAR_HEIGHT: f64 = 13.0;
const GROUP_GAP: f64 = 8.0;
