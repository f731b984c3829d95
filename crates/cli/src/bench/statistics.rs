//! Computes medians, spreads and slopes of measured figures, and shuffles the order of contenders.

use serde::Serialize;

/// Returns the median of the finite figures; `None` if there are none.
pub(super) fn median(figures: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut figures: Vec<f64> = figures.into_iter().filter(|figure| figure.is_finite()).collect();
    figures.sort_by(f64::total_cmp);
    let upper = *figures.get(figures.len() / 2)?;
    if figures.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *figures.get(figures.len() / 2 - 1)?;
    Some(f64::midpoint(lower, upper))
}

/// The range of repeats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct RepeatRange {
    pub(super) min: f64,
    pub(super) max: f64,
    /// The difference between maximum and minimum, as a fraction of the median; 0 if the median is 0.
    pub(super) spread: f64,
}

impl RepeatRange {
    /// Returns the range of some figures; `None` without figures.
    pub(super) fn from_figures(figures: &[f64]) -> Option<Self> {
        let median = median(figures.iter().copied())?;
        let min = figures.iter().copied().fold(f64::INFINITY, f64::min);
        let max = figures.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let spread = if median == 0.0 { 0.0 } else { (max - min) / median };
        Some(Self {
            min: round_significant(min),
            max: round_significant(max),
            spread: round_significant(spread),
        })
    }
}

/// Rounds to four significant digits: measurements on a shared machine are less precise. Returns 0 for NaN and infinity.
pub(super) fn round_significant(figure: f64) -> f64 {
    if figure == 0.0 || !figure.is_finite() {
        return 0.0;
    }
    let digits = 3 - figure.abs().log10().floor() as i32;
    let scale = 10f64.powi(digits);
    (figure * scale).round() / scale
}

/// Returns the slope of y over x in `points`, by least squares; `None` for fewer than two different x.
pub(super) fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / count;
    let sum_of_products: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let sum_of_squares: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    (sum_of_squares > 0.0).then_some(sum_of_products / sum_of_squares)
}

/// Pseudo-random numbers, reproducible by seed (SplitMix64).
#[derive(Debug)]
pub(super) struct SeededRandom(u64);

impl SeededRandom {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns the indices below `count` in random order.
    pub(super) fn shuffled_indices(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            let chosen = (self.next_u64() % (last as u64 + 1)) as usize;
            order.swap(last, chosen);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_of_the_sorted_figures() {
        for (figures, expected) in [
            (vec![], None),
            (vec![3.0], Some(3.0)),
            (vec![9.0, 1.0, 2.0], Some(2.0)),
            (vec![4.0, 1.0, 2.0, 100.0], Some(3.0)),
            (vec![f64::NAN, 5.0], Some(5.0)),
        ] {
            assert_eq!(median(figures.clone()), expected, "{figures:?}");
        }
    }

    #[test]
    fn the_spread_is_a_share_of_the_median() {
        let range = RepeatRange::from_figures(&[90.0, 100.0, 120.0]).unwrap();
        assert_eq!(range, RepeatRange { min: 90.0, max: 120.0, spread: 0.3 });
        assert_eq!(RepeatRange::from_figures(&[]), None);
        assert_eq!(RepeatRange::from_figures(&[0.0, 0.0]).unwrap().spread, 0.0);
    }

    #[test]
    fn a_slope_needs_two_different_x() {
        assert_eq!(slope(&[(1.0, 5.0), (3.0, 9.0)]), Some(2.0));
        assert_eq!((slope(&[(1.0, 5.0), (1.0, 9.0)]), slope(&[])), (None, None));
    }

    #[test]
    fn figures_are_rounded_to_four_digits() {
        for (figure, expected) in [
            (0.0, 0.0),
            (123_456.0, 123_500.0),
            (0.012_345, 0.012_35),
            (9.999_96, 10.0),
            (-1.234_56, -1.235),
        ] {
            assert_eq!(round_significant(figure), expected);
        }
    }

    #[test]
    fn an_order_contains_each_index_once_and_depends_on_the_seed_only() {
        let mut random = SeededRandom::new(7);
        let order = random.shuffled_indices(5);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3, 4]);
        assert_eq!(SeededRandom::new(7).shuffled_indices(5), order);
        let orders: std::collections::BTreeSet<_> =
            (0..50).map(|_| random.shuffled_indices(3)).collect();
        assert_eq!(orders.len(), 6);
    }
}
