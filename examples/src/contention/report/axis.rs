//! Maps values to positions in a chart.

#[derive(Clone, Copy)]
pub(super) struct Axis {
    is_log: bool,
    values: (f64, f64),
    range: (f64, f64),
}

impl Axis {
    /// Creates a logarithmic axis over the whole decades around these values.
    pub(super) fn decades(of: impl Iterator<Item = f64>, range: (f64, f64)) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in of.filter(|value| *value > 0.0) {
            (low, high) = (low.min(value.log10()), high.max(value.log10()));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let low = low.floor();
        let high = high.ceil().max(low + 1.0);
        Self { is_log: true, values: (low, high), range }
    }

    pub(super) const fn linear(to: f64, range: (f64, f64)) -> Self {
        Self { is_log: false, values: (0.0, to), range }
    }

    pub(super) const fn moved(self, range: (f64, f64)) -> Self {
        Self { range, ..self }
    }

    /// Returns the position of a value, clamped to the axis.
    pub(super) fn at(&self, value: f64) -> f64 {
        let (low, high) = self.values;
        let value = if self.is_log { value.max(f64::MIN_POSITIVE).log10() } else { value };
        let part = ((value - low) / (high - low)).clamp(0.0, 1.0);
        self.range.0 + part * (self.range.1 - self.range.0)
    }

    /// Returns the values for grid lines, about `most` at most.
    pub(super) fn ticks(&self, most: usize) -> Vec<f64> {
        if !self.is_log {
            // Steps of 1, 2 or 5 times a power of ten.
            let rough = self.values.1 / most.max(1) as f64;
            let power = 10_f64.powf(rough.log10().floor());
            let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= rough * 0.999).unwrap_or(10.0);
            let count = (self.values.1 / (factor * power) + 1e-9) as usize;
            return (0..=count).map(|i| i as f64 * factor * power).collect();
        }
        let (low, high) = (self.values.0 as i32, self.values.1 as i32);
        let step = (high - low) as usize / most.max(1) + 1;
        (low..=high).rev().step_by(step).map(|power| 10_f64.powi(power)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axis_has_round_ticks() {
        assert_eq!(Axis::linear(1.0, (0.0, 10.0)).ticks(2), [0.0, 0.5, 1.0]);
        assert_eq!(Axis::linear(470.0, (0.0, 10.0)).ticks(5), [0.0, 100.0, 200.0, 300.0, 400.0]);
        assert_eq!(Axis::linear(9.0, (0.0, 10.0)).ticks(5), [0.0, 2.0, 4.0, 6.0, 8.0]);
    }

    #[test]
    fn log_axis_covers_whole_decades() {
        let axis = Axis::decades([20.0, 0.0, 3_000.0].into_iter(), (100.0, 400.0));
        for (value, place) in [(10.0, 100.0), (100.0, 200.0), (10_000.0, 400.0), (1e9, 400.0), (0.0, 100.0)] {
            assert!((axis.at(value) - place).abs() < 1e-9, "{value}: {}", axis.at(value));
        }
        assert_eq!(axis.ticks(5), [10_000.0, 1_000.0, 100.0, 10.0]);
        assert_eq!(axis.ticks(2), [10_000.0, 100.0]);
        assert_eq!(Axis::decades(core::iter::empty(), (0.0, 1.0)).ticks(9), [10.0, 1.0]);
    }
}
