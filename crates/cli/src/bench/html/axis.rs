//! Computes the positions and labels of values on the axes of a plot.

/// The mapping of values to positions on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum AxisScale {
    /// Linear; the axis starts at zero.
    Linear,
    /// Logarithmic with base 10; the axis starts at or below the smallest positive value.
    Logarithmic,
}

/// An axis that maps the values between `from` and `to` to positions between 0 and `axis_length`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChartAxis {
    scale: AxisScale,
    from: f64,
    to: f64,
    axis_length: f64,
    /// The values that the axis labels, in ascending order.
    pub(super) ticks: Vec<f64>,
}

impl ChartAxis {
    /// Creates an axis that includes all positive values.
    pub(super) fn from_values(
        values: impl IntoIterator<Item = f64>,
        scale: AxisScale,
        axis_length: f64,
    ) -> Self {
        let values: Vec<f64> =
            values.into_iter().filter(|value| value.is_finite() && *value > 0.0).collect();
        // A chart without values also gets an axis, and its range must not be empty.
        let largest = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let smallest = values.iter().copied().fold(largest, f64::min);
        match scale {
            AxisScale::Linear => Self::linear(largest, axis_length),
            AxisScale::Logarithmic => Self::logarithmic(smallest, largest, axis_length),
        }
    }

    fn linear(largest: f64, axis_length: f64) -> Self {
        let min_step = largest / TARGET_INTERVAL_COUNT;
        let power = 10f64.powf(min_step.log10().floor());
        let round_steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
        let step = round_steps.into_iter().find(|step| *step >= min_step).unwrap_or(min_step);
        let step_count = (largest / step).ceil().clamp(1.0, 2.0 * TARGET_INTERVAL_COUNT);
        let ticks = (0..=step_count as u32).map(|index| f64::from(index) * step).collect();
        Self { scale: AxisScale::Linear, from: 0.0, to: step_count * step, axis_length, ticks }
    }

    fn logarithmic(smallest: f64, largest: f64, axis_length: f64) -> Self {
        // The axis spans at least one decade.
        let min_power = smallest.log10().floor() as i32;
        let max_power =
            (largest.log10().ceil() as i32).max(min_power + 1).min(min_power + MAX_DECADES);
        let mut ticks = Vec::new();
        for power in min_power..=max_power {
            for factor in [1.0, 2.0, 5.0] {
                let tick = factor * 10f64.powi(power);
                // An axis of at most two decades has space for more labels.
                if factor == 1.0 || (max_power - min_power <= 2 && power < max_power) {
                    ticks.push(tick);
                }
            }
        }
        let lowest = ticks.iter().copied().rfind(|tick| *tick <= smallest);
        let highest = ticks.iter().copied().find(|tick| *tick >= largest);
        let from = lowest.unwrap_or_else(|| 10f64.powi(min_power));
        let to = highest.unwrap_or_else(|| 10f64.powi(max_power));
        ticks.retain(|tick| (from..=to).contains(tick));
        Self { scale: AxisScale::Logarithmic, from, to, axis_length, ticks }
    }

    /// Returns the position of a value along the axis.
    pub(super) fn position(&self, value: f64) -> f64 {
        let fraction = match self.scale {
            AxisScale::Linear => (value - self.from) / (self.to - self.from),
            AxisScale::Logarithmic => {
                let value = value.max(self.from);
                (value / self.from).log10() / (self.to / self.from).log10()
            }
        };
        fraction.clamp(0.0, 1.0) * self.axis_length
    }
}

/// The approximate number of intervals between the ticks of a linear axis.
const TARGET_INTERVAL_COUNT: f64 = 4.0;
/// The maximum number of decades of a logarithmic axis: latencies range from a microsecond to minutes.
const MAX_DECADES: i32 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_span_all_values() {
        let axis = ChartAxis::from_values([3.0, 97.0], AxisScale::Linear, 100.0);
        assert_eq!(axis.ticks, [0.0, 25.0, 50.0, 75.0, 100.0]);
        assert_eq!(
            (axis.position(0.0), axis.position(50.0), axis.position(200.0)),
            (0.0, 50.0, 100.0)
        );
        let axis = ChartAxis::from_values([0.3, 40.0], AxisScale::Logarithmic, 100.0);
        assert_eq!((axis.ticks.first(), axis.ticks.last()), (Some(&0.1), Some(&100.0)));
        assert!((axis.position(100.0) - 100.0).abs() < 1e-9 && axis.position(0.01) == 0.0);
    }

    #[test]
    fn an_empty_chart_is_drawn() {
        for scale in [AxisScale::Linear, AxisScale::Logarithmic] {
            let axis = ChartAxis::from_values([0.0, f64::NAN], scale, 100.0);
            assert!(axis.position(1.0).is_finite() && !axis.ticks.is_empty(), "{axis:?}");
        }
    }
}
