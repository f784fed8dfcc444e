//! When two tensors are equal, and by how much they differ.

use assay_engine::trace::{Number, Tensor};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// How far values may lie apart.
///
/// What a trace holds of a tensor is compared: the values that were selected, the extremes, mean and norm. Each is held to what
/// follows from the tolerance if every element keeps it. `assay trace --values all` writes every element.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tolerance {
    /// Every bit, by the hash.
    Exact,
    /// At most so many f32 values lie between them.
    Ulp(u32),
    /// The difference is at most this.
    Abs(f64),
    /// The difference is at most this share of the larger magnitude.
    Rel(f64),
}

/// Not a tolerance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no tolerance, expected exact, ulp:N, abs:X or rel:X with a number that is not negative")]
pub struct ToleranceError(String);

impl FromStr for Tolerance {
    type Err = ToleranceError;

    fn from_str(text: &str) -> Result<Self, ToleranceError> {
        let number = |text: &str| text.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
        let tolerance = match text.split_once(':') {
            None if text == "exact" => Some(Self::Exact),
            Some(("ulp", count)) => count.parse().ok().map(Self::Ulp),
            Some(("abs", limit)) => number(limit).map(Self::Abs),
            Some(("rel", share)) => number(share).map(Self::Rel),
            _ => None,
        };
        tolerance.ok_or_else(|| ToleranceError(text.to_owned()))
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("exact"),
            Self::Ulp(count) => write!(f, "ulp:{count}"),
            Self::Abs(limit) => write!(f, "abs:{limit}"),
            Self::Rel(share) => write!(f, "rel:{share}"),
        }
    }
}

/// By how much two tensors differ, in what their traces hold of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Size {
    /// Values compared one by one: those that were selected, smallest and largest.
    pub values: usize,
    /// How many of them differ.
    pub differing: usize,
    /// Largest difference.
    pub max_abs: f64,
    /// The same as a share of the larger magnitude there.
    pub rel: f64,
    /// f32 values that lie between the two there.
    pub ulps: u64,
    /// The value there that was expected.
    pub expected: f64,
    /// The value that was found.
    pub found: f64,
    /// Norm of the tensor that was expected, and of the one found.
    pub l2: [f64; 2],
}

impl Tolerance {
    /// Whether two values are equal.
    pub(super) fn accepts(self, expected: f32, found: f32) -> bool {
        if expected.to_bits() == found.to_bits() || (expected.is_nan() && found.is_nan()) {
            return true;
        }
        if !expected.is_finite() || !found.is_finite() {
            return false;
        }
        let difference = (f64::from(expected) - f64::from(found)).abs();
        match self {
            Self::Exact => false,
            Self::Ulp(count) => ulps(expected, found) <= u64::from(count),
            Self::Abs(limit) => difference <= limit,
            Self::Rel(share) => difference <= share * f64::from(expected.abs().max(found.abs())),
        }
    }

    /// Whether a norm and a mean over `len` elements can be those of equal tensors.
    fn accepts_sums(self, expected: &Tensor<'_>, found: &Tensor<'_>, len: f64) -> bool {
        let (mean, l2) = ((expected.mean - found.mean).abs(), (expected.l2 - found.l2).abs());
        let norm = expected.l2.max(found.l2);
        let share = match self {
            Self::Exact => return mean == 0.0 && l2 == 0.0,
            Self::Abs(limit) => return mean <= limit * SLACK && l2 <= limit * len.sqrt() * SLACK,
            // A value of 24 bits changes by at most 2^-23 of itself from one to the next; subnormals are nothing to a norm.
            Self::Ulp(count) => f64::from(count) * f64::from(f32::EPSILON),
            Self::Rel(share) => share,
        };
        // Of the larger of both magnitudes in each element, whose norm is at most that of both tensors together.
        let largest = 2f64.sqrt() * norm;
        l2 <= share * largest * SLACK && mean <= share * largest / len.sqrt() * SLACK
    }
}

/// Norm and mean are rounded sums of their own.
const SLACK: f64 = 1.0 + 1e-9;

/// f32 values from one to the other.
fn ulps(a: f32, b: f32) -> u64 {
    let place = |value: f32| {
        let bits = i64::from(value.to_bits() & 0x7FFF_FFFF);
        if value.is_sign_negative() { -bits } else { bits }
    };
    place(a).abs_diff(place(b))
}

/// How two tensors that go by the same name compare: `None` where they are equal.
pub(super) fn compare(expected: &Tensor<'_>, found: &Tensor<'_>, tolerance: Tolerance) -> Option<Size> {
    let (dtype, hash) = (expected.dtype == found.dtype, expected.hash == found.hash);
    if dtype && hash && expected.shape == found.shape {
        return None;
    }
    let same_form = dtype && expected.shape == found.shape && expected.values.len() == found.values.len();
    let len: f64 = expected.shape.iter().map(|&size| size as f64).product();
    let within = |(a, b): (&Number, &Number)| tolerance.accepts(a.0, b.0);
    // An index has no neighbours: the hash decides.
    let equal = same_form
        && tolerance != Tolerance::Exact
        && expected.dtype == "f32"
        && expected.non_finite == found.non_finite
        && pairs(expected, found).all(within)
        && tolerance.accepts_sums(expected, found, len);
    if equal { None } else { Some(size(expected, found)) }
}

fn pairs<'a>(expected: &'a Tensor<'_>, found: &'a Tensor<'_>) -> impl Iterator<Item = (&'a Number, &'a Number)> {
    let extremes = [(&expected.min, &found.min), (&expected.max, &found.max)];
    expected.values.iter().zip(&found.values).chain(extremes)
}

fn size(expected: &Tensor<'_>, found: &Tensor<'_>) -> Size {
    let mut size = Size {
        values: 0,
        differing: 0,
        max_abs: 0.0,
        rel: 0.0,
        ulps: 0,
        expected: 0.0,
        found: 0.0,
        l2: [expected.l2, found.l2],
    };
    for (&Number(a), &Number(b)) in pairs(expected, found) {
        size.values += 1;
        if a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()) {
            continue;
        }
        size.differing += 1;
        let difference = (f64::from(a) - f64::from(b)).abs();
        // A NaN against a number is as far as can be.
        let difference = if difference.is_nan() { f64::INFINITY } else { difference };
        if size.differing == 1 || difference > size.max_abs {
            size.max_abs = difference;
            size.rel = difference / f64::from(a.abs().max(b.abs())).max(f64::MIN_POSITIVE);
            size.ulps = ulps(a, b);
            (size.expected, size.found) = (f64::from(a), f64::from(b));
        }
    }
    size
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    fn tensor(values: &[f32], hash: &'static str) -> Tensor<'static> {
        let wide = || values.iter().map(|&value| f64::from(value));
        Tensor {
            name: Cow::Borrowed("x"),
            dtype: Cow::Borrowed("f32"),
            shape: vec![values.len() as u64],
            hash: Cow::Borrowed(hash),
            min: Number(values.iter().copied().fold(f32::INFINITY, f32::min)),
            max: Number(values.iter().copied().fold(f32::NEG_INFINITY, f32::max)),
            mean: wide().sum::<f64>() / values.len() as f64,
            l2: wide().map(|value| value * value).sum::<f64>().sqrt(),
            non_finite: 0,
            values: values.iter().copied().map(Number).collect(),
        }
    }

    #[test]
    fn tolerances_are_read_and_written() {
        for text in ["exact", "ulp:4", "abs:0.001", "rel:0.00001"] {
            assert_eq!(text.parse::<Tolerance>().unwrap().to_string(), text);
        }
        for text in ["", "ulp", "ulp:-1", "ulp:1.5", "abs:nan", "abs:-1", "rel:inf", "exact:1", "max:1"] {
            assert!(text.parse::<Tolerance>().is_err(), "{text}");
        }
    }

    #[test]
    fn neighbours_are_one_apart_across_zero_too() {
        let next = |value: f32| f32::from_bits(value.to_bits() + 1);
        assert_eq!(ulps(1.0, next(1.0)), 1);
        assert_eq!(ulps(0.0, -0.0), 0);
        assert_eq!(ulps(f32::from_bits(1), -f32::from_bits(1)), 2);
        assert_eq!(ulps(1.0, 2.0), 1 << 23);
    }

    #[test]
    fn each_tolerance_takes_what_it_says_and_no_more() {
        let next = f32::from_bits(1f32.to_bits() + 1);
        let check = |tolerance: &str, found: f32, equal: bool| {
            let (a, b) = (tensor(&[1.0, -8.0, 0.0], "a"), tensor(&[found, -8.0, 0.0], "b"));
            let size = compare(&a, &b, tolerance.parse().unwrap());
            assert_eq!(size.is_none(), equal, "{tolerance} {found}: {size:?}");
        };
        check("exact", next, false);
        check("ulp:1", next, true);
        check("ulp:1", f32::from_bits(next.to_bits() + 1), false);
        check("abs:0.01", 1.009, true);
        check("abs:0.01", 1.011, false);
        check("rel:0.01", 1.009, true);
        check("rel:0.01", 1.02, false);
        check("abs:1", f32::INFINITY, false);
    }

    #[test]
    fn what_was_not_selected_shows_in_norm_and_hash() {
        let (mut a, mut b) = (tensor(&[1.0, 2.0, 3.0, 9.0], "a"), tensor(&[1.0, 7.0, 3.0, 9.0], "b"));
        for tensor in [&mut a, &mut b] {
            tensor.values = vec![Number(1.0), Number(3.0)];
        }
        assert!(compare(&a, &b, Tolerance::Exact).is_some());
        assert!(compare(&a, &b, Tolerance::Abs(0.1)).is_some(), "the norm");
        assert!(compare(&a, &b, Tolerance::Abs(5.0)).is_none());
        let size = compare(&a, &b, Tolerance::Exact).unwrap();
        assert_eq!((size.values, size.differing), (4, 0));
        let (mut ids, mut other) = (tensor(&[1.0], "a"), tensor(&[1.0], "b"));
        (ids.dtype, other.dtype) = (Cow::Borrowed("u32"), Cow::Borrowed("u32"));
        assert!(compare(&ids, &other, Tolerance::Abs(100.0)).is_some(), "an index has no tolerance");
    }
}
