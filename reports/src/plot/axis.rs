//! Scales and ticks.

/// How values become places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Equal steps.
    Linear,
    /// Equal ratios, for positive values.
    Log,
    /// Equal steps of seconds, with ticks where a clock has them.
    Time,
}

/// A range of values over a range of pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mapping {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Mapping {
    /// Over `values`, a little wider than they are. `None` where there is none that the scale has a place for.
    pub(super) fn over(scale: Scale, values: impl Iterator<Item = f64>, (from, to): (i32, i32)) -> Option<Self> {
        let good = |value: &f64| value.is_finite() && (scale != Scale::Log || *value > 0.0);
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(good) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            return None;
        }
        match scale {
            Scale::Log => {
                // At least a factor of two, so that neighbouring ticks can be told apart.
                let middle = (low * high).sqrt();
                low = (low / 1.12).min(middle / 1.5);
                high = (high * 1.12).max(middle * 1.5);
            }
            Scale::Time => {
                // Five minutes at the least, so that moments close together have ticks too.
                let room = (0.06 * (high - low)).max(300.0);
                (low, high) = (low - room, high + room);
            }
            Scale::Linear => {
                let room = if high > low { 0.06 * (high - low) } else { 0.5 * high.abs().max(1e-9) };
                let zero = low >= 0.0;
                low -= room;
                high += room;
                if zero {
                    low = low.max(0.0);
                }
            }
        }
        Some(Self { scale, low, high, from: f64::from(from), to: f64::from(to) })
    }

    fn share(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear | Scale::Time => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        }
    }

    /// A value's pixel; values beyond the range are put at its end.
    pub(super) fn pixel(&self, value: f64) -> i32 {
        let share = self.share(value);
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        (self.from + share * (self.to - self.from)).round() as i32
    }

    /// At most `most` round values inside the range, rising.
    pub(super) fn ticks(&self, most: usize) -> Vec<f64> {
        let most = most.max(2);
        let ticks = match self.scale {
            Scale::Linear => linear(self.low, self.high, most),
            Scale::Log => logarithmic(self.low, self.high, most),
            Scale::Time => moments(self.low, self.high, most),
        };
        let room = 1e-9 * (self.high - self.low);
        ticks.into_iter().filter(|&tick| tick >= self.low - room && tick <= self.high + room).collect()
    }
}

/// Multiples of 1, 2 or 5 times a power of ten.
fn linear(low: f64, high: f64, most: usize) -> Vec<f64> {
    let rough = (high - low) / most as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|&step| step >= rough);
    let step = step.unwrap_or(10.0 * power);
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    (first..=last).take(4 * most).map(|index| index as f64 * step).collect()
}

/// Whole minutes, hours or days of UTC.
fn moments(low: f64, high: f64, most: usize) -> Vec<f64> {
    const MINUTE: f64 = 60.0;
    const STEPS: [f64; 14] =
        [1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 180.0, 360.0, 720.0, 1440.0, 2880.0, 10_080.0];
    let rough = (high - low) / most as f64 / MINUTE;
    // Beyond weeks, as many of them as there is room for.
    let step = STEPS.into_iter().find(|&step| step >= rough).unwrap_or_else(|| 10_080.0 * (rough / 10_080.0).ceil());
    let step = step * MINUTE;
    let (first, last) = ((low / step).ceil() as i64, (high / step).floor() as i64);
    (first..=last).take(4 * most).map(|index| index as f64 * step).collect()
}

/// Powers of ten, with 2 and 5 between them as far as there is room.
fn logarithmic(low: f64, high: f64, most: usize) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let of = |factors: &[f64], every: i32| -> Vec<f64> {
        let powers = (first..=last).filter(|power| power.rem_euclid(every) == 0);
        let all = powers.flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
        all.filter(|value| (low..=high).contains(value)).collect()
    };
    let choices = [&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0][..], &[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]];
    let fits = choices.into_iter().map(|factors| of(factors, 1)).find(|ticks| ticks.len() <= most);
    fits.unwrap_or_else(|| {
        let every = (last - first) / i32::try_from(most).unwrap_or(i32::MAX) + 1;
        of(&[1.0], every)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let ticks =
            |scale, values: &[f64], most| Mapping::over(scale, values.iter().copied(), (0, 100)).unwrap().ticks(most);
        assert_eq!(ticks(Scale::Linear, &[0.0, 100.0], 6), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(Scale::Log, &[900.0, 9000.0], 5), [1000.0, 2000.0, 5000.0, 10_000.0]);
        let morning = 1_764_489_600.0; // 2025-11-30 08:00 UTC
        assert_eq!(
            ticks(Scale::Time, &[morning + 900.0, morning + 21_000.0], 4),
            [0.0, 2.0, 4.0, 6.0].map(|hour| morning + 3600.0 * hour)
        );
        for (low, high) in [(1e-3, 1e9), (5.0, 5.0), (0.9, 1.1), (1.0, 1e3)] {
            for scale in [Scale::Linear, Scale::Log, Scale::Time] {
                for most in [3, 6] {
                    let found = ticks(scale, &[low, high], most);
                    assert!(!found.is_empty() && found.len() <= most + 2, "{scale:?} {low} {high}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn every_value_has_a_place() {
        let mapping = Mapping::over(Scale::Log, [1.0, f64::NAN, -1.0, 100.0].into_iter(), (10, 210)).unwrap();
        assert!(mapping.pixel(1.0) >= 10 && mapping.pixel(100.0) <= 210);
        assert_eq!((mapping.pixel(-3.0), mapping.pixel(1e9)), (10, 210));
        assert!(Mapping::over(Scale::Log, [0.0, -1.0].into_iter(), (0, 1)).is_none());
    }
}
