//! Draws SVG plots: axes, lines, and marks with tooltips.

use std::fmt::Write as _;

/// A plot: two axes and the lines in their coordinates.
#[derive(Debug)]
pub(super) struct SvgPlot {
    /// The title, also for screen readers.
    pub(super) title: &'static str,
    pub(super) x_axis: PlotAxis,
    pub(super) y_axis: PlotAxis,
    pub(super) lines: Vec<PlotLine>,
}

/// An axis from the value `low` to the value `high`.
#[derive(Debug)]
pub(super) struct PlotAxis {
    pub(super) label: &'static str,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) ticks: Vec<PlotTick>,
}

/// A labeled position on an axis.
#[derive(Debug)]
pub(super) struct PlotTick {
    pub(super) position: f64,
    pub(super) label: String,
}

/// A line, in several pieces if points are missing.
#[derive(Debug)]
pub(super) struct PlotLine {
    /// The label at the end of the line; empty for none.
    pub(super) name: String,
    /// The CSS class of the page for the color of the line.
    pub(super) class: &'static str,
    /// The opacity from 0 to 1, which tells lines of one color apart.
    pub(super) opacity: f64,
    /// The points, in the coordinates of the axes; `None` interrupts the line.
    pub(super) points: Vec<Option<(f64, f64)>>,
    /// Values along the line, as points with tooltips.
    pub(super) marks: Vec<PlotMark>,
}

/// A value on a line, at a point in the coordinates of the axes, with the text of its tooltip.
#[derive(Debug)]
pub(super) struct PlotMark {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) text: String,
}

impl PlotAxis {
    /// Creates an axis from zero to `high`, labeled at round numbers.
    pub(super) fn from_zero(label: &'static str, high: f64) -> Self {
        let high = high.max(f64::MIN_POSITIVE);
        // At most five ticks after zero.
        let step = round_step(high / 5.0);
        let format_label = |value: f64| match value {
            value if value >= 1e6 => format!("{}M", format_trimmed(value / 1e6)),
            value if value >= 1e4 => format!("{}k", format_trimmed(value / 1e3)),
            value => format_trimmed(value),
        };
        let ticks = (0..=(high / step) as u32).map(|index| {
            let value = f64::from(index) * step;
            PlotTick { position: value, label: format_label(value) }
        });
        Self { label, low: 0.0, high, ticks: ticks.collect() }
    }

    /// Creates a logarithmic axis for a range of microseconds, in powers of ten.
    pub(super) fn latency_axis(low_us: f64, high_us: f64) -> Self {
        let low = low_us.max(1.0).log10().floor();
        let high = high_us.max(1.0).log10().ceil().max(low + 1.0);
        let format_label = |power: i32| match power {
            ..3 => format!("{} µs", 10_u64.pow(power.unsigned_abs())),
            3..6 => format!("{} ms", 10_u64.pow(power.unsigned_abs() - 3)),
            _ => format!("{} s", 10_u64.pow(power.unsigned_abs() - 6)),
        };
        let ticks = (low as i32..=high as i32)
            .map(|power| PlotTick { position: f64::from(power), label: format_label(power) });
        Self { label: "", low, high, ticks: ticks.collect() }
    }
}

impl SvgPlot {
    /// Renders the plot.
    pub(super) fn to_svg(&self) -> String {
        let mut svg = String::new();
        append_text(
            &mut svg,
            &format!(
                "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
                escape_html(self.title)
            ),
        );
        self.draw_axes(&mut svg);
        for line in &self.lines {
            self.draw_line(&mut svg, line);
        }
        // Marks lie above all lines, so that the pointer reaches them.
        for line in &self.lines {
            self.draw_marks(&mut svg, line);
        }
        self.draw_names(&mut svg);
        svg.push_str("</svg>\n");
        svg
    }

    /// Draws the axes with their labels. The inline numbers are distances between lines and text: 4 below a line puts
    /// the text at the middle of its height.
    fn draw_axes(&self, svg: &mut String) {
        let (bottom, right) = (HEIGHT - BOTTOM_MARGIN, WIDTH - RIGHT_MARGIN);
        for tick in &self.y_axis.ticks {
            let y = self.svg_y(tick.position);
            append_text(
                svg,
                &format!("<path class=\"grid\" d=\"M{LEFT_MARGIN} {y:.1}H{right}\"/>"),
            );
            append_text(
                svg,
                &format!(
                    "<text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                    LEFT_MARGIN - 8.0,
                    y + 4.0,
                    escape_html(&tick.label)
                ),
            );
        }
        append_text(
            svg,
            &format!("<path class=\"axis\" d=\"M{LEFT_MARGIN} {bottom}H{right}\"/>\n"),
        );
        for tick in &self.x_axis.ticks {
            let x = self.svg_x(tick.position);
            append_text(svg, &format!("<path class=\"axis\" d=\"M{x:.1} {bottom}v4\"/>"));
            append_text(
                svg,
                &format!(
                    "<text class=\"tick\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                    bottom + 18.0,
                    escape_html(&tick.label)
                ),
            );
        }
        append_text(
            svg,
            &format!(
                "<text class=\"label\" x=\"{right}\" y=\"{}\" text-anchor=\"end\">{}</text>\n",
                HEIGHT - 4.0,
                escape_html(self.x_axis.label)
            ),
        );
        append_text(
            svg,
            &format!(
                "<text class=\"label\" x=\"{LEFT_MARGIN}\" y=\"12\">{}</text>\n",
                escape_html(self.y_axis.label)
            ),
        );
    }

    fn draw_line(&self, svg: &mut String, line: &PlotLine) {
        let mut path = String::new();
        let mut path_command = 'M';
        for point in &line.points {
            let Some((x, y)) = point else {
                path_command = 'M';
                continue;
            };
            append_text(
                &mut path,
                &format!("{path_command}{:.1} {:.1}", self.svg_x(*x), self.svg_y(*y)),
            );
            path_command = 'L';
        }
        let PlotLine { class, opacity, .. } = line;
        append_text(
            svg,
            &format!("<path class=\"line {class}\" opacity=\"{opacity:.2}\" d=\"{path}\"/>\n"),
        );
    }

    fn draw_marks(&self, svg: &mut String, line: &PlotLine) {
        let PlotLine { class, opacity, .. } = line;
        for mark in &line.marks {
            append_text(
                svg,
                &format!(
                    "<circle class=\"mark {class}\" opacity=\"{opacity:.2}\" cx=\"{:.1}\" cy=\"{:.1}\" \
                 r=\"2.5\"><title>{}</title></circle>\n",
                    self.svg_x(mark.x),
                    self.svg_y(mark.y),
                    escape_html(&mark.text)
                ),
            );
        }
    }

    /// Draws names at the ends of lines, far enough apart to be readable.
    fn draw_names(&self, svg: &mut String) {
        let mut line_ends: Vec<(f64, &PlotLine)> = self
            .lines
            .iter()
            .filter_map(|line| {
                let (_, y) = line.points.iter().rev().find_map(|point| *point)?;
                (!line.name.is_empty()).then(|| (self.svg_y(y), line))
            })
            .collect();
        line_ends.sort_by(|(first, _), (second, _)| first.total_cmp(second));
        let mut next_free_y = TOP_MARGIN;
        for (line_end_y, line) in line_ends {
            let name_y = line_end_y.max(next_free_y);
            next_free_y = name_y + NAME_HEIGHT;
            append_text(
                svg,
                &format!(
                    "<text class=\"name {}\" x=\"{}\" y=\"{:.1}\">{}</text>\n",
                    line.class,
                    WIDTH - RIGHT_MARGIN + 8.0,
                    name_y + 4.0,
                    escape_html(&line.name)
                ),
            );
        }
    }

    fn svg_x(&self, value: f64) -> f64 {
        LEFT_MARGIN + axis_position(&self.x_axis, value) * (WIDTH - LEFT_MARGIN - RIGHT_MARGIN)
    }

    fn svg_y(&self, value: f64) -> f64 {
        HEIGHT
            - BOTTOM_MARGIN
            - axis_position(&self.y_axis, value) * (HEIGHT - TOP_MARGIN - BOTTOM_MARGIN)
    }
}

/// Escapes the characters of a text that have a meaning in HTML.
pub(super) fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            character => escaped.push(character),
        }
    }
    escaped
}

/// Returns the position of a value on an axis, from 0 to 1.
fn axis_position(axis: &PlotAxis, value: f64) -> f64 {
    ((value - axis.low) / (axis.high - axis.low)).clamp(0.0, 1.0)
}

/// Returns the smallest number of at least `minimum` that is 1, 2 or 5 times a power of ten.
fn round_step(minimum: f64) -> f64 {
    let power = 10_f64.powf(minimum.log10().floor());
    [1.0, 2.0, 5.0]
        .map(|digit| digit * power)
        .into_iter()
        .find(|step| *step >= minimum)
        .unwrap_or(10.0 * power)
}

fn format_trimmed(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn append_text(svg: &mut String, text: &str) {
    write!(svg, "{text}").expect("writing to a String never fails");
}

// The sizes of a plot are in the units of its `viewBox`, which the page scales to its own width.
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 300.0;
const LEFT_MARGIN: f64 = 64.0;
const RIGHT_MARGIN: f64 = 96.0;
const TOP_MARGIN: f64 = 24.0;
const BOTTOM_MARGIN: f64 = 44.0;
/// The minimum distance between the names of two lines.
const NAME_HEIGHT: f64 = 15.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_labeled_at_round_numbers() {
        let labels = |axis: &PlotAxis| -> Vec<String> {
            axis.ticks.iter().map(|tick| tick.label.clone()).collect()
        };
        assert_eq!(labels(&PlotAxis::from_zero("", 37.0)), ["0", "10", "20", "30"]);
        assert_eq!(labels(&PlotAxis::from_zero("", 150_000.0)), ["0", "50k", "100k", "150k"]);
        assert_eq!(labels(&PlotAxis::from_zero("", 2.5)), ["0", "0.5", "1", "1.5", "2", "2.5"]);
        assert_eq!(labels(&PlotAxis::from_zero("", 0.0)).first().unwrap(), "0");
        assert_eq!(
            labels(&PlotAxis::latency_axis(40.0, 2_500.0)),
            ["10 µs", "100 µs", "1 ms", "10 ms"]
        );
        assert_eq!(labels(&PlotAxis::latency_axis(1e6, 1e6)), ["1 s", "10 s"]);
    }

    #[test]
    fn all_drawn_elements_are_inside_the_plot() {
        let line = PlotLine {
            name: "a<b".to_owned(),
            class: "one",
            opacity: 1.0,
            points: vec![Some((0.0, 0.0)), None, Some((99.0, 1e9)), Some((-5.0, -5.0))],
            marks: vec![PlotMark { x: 1.0, y: 1e12, text: "\"x\"".to_owned() }],
        };
        let axes = || PlotAxis::from_zero("n", 10.0);
        let svg =
            SvgPlot { title: "t", x_axis: axes(), y_axis: axes(), lines: vec![line] }.to_svg();
        assert!(svg.contains("a&lt;b") && svg.contains("&quot;x&quot;"), "{svg}");
        assert!(svg.contains(&format!("L{LEFT_MARGIN:.1} {:.1}", HEIGHT - BOTTOM_MARGIN)), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
