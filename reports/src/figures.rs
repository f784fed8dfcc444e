//! How numbers are printed.

/// A rate or a time: four significant digits, thousands in groups.
pub(crate) fn figure(value: f64) -> String {
    let magnitude = value.abs();
    let decimals = match magnitude {
        _ if magnitude >= 999.5 => return grouped(value),
        _ if magnitude >= 99.95 => 1,
        _ if magnitude >= 9.995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// `low to high`, or a dash where there is no interval.
pub(crate) fn interval(ci95: Option<[f64; 2]>, print: impl Fn(f64) -> String) -> String {
    ci95.map_or_else(|| "–".to_owned(), |[low, high]| format!("{} to {}", print(low), print(high)))
}

/// A difference, with its sign.
pub(crate) fn difference(value: f64) -> String {
    format!("{value:+.4}")
}

/// Bytes in the largest binary unit that keeps them whole, or else with one decimal.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut size = bytes as f64;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    if size.fract() == 0.0 { format!("{size} {}", UNITS[unit]) } else { format!("{size:.1} {}", UNITS[unit]) }
}

/// A share as per cent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits.as_str()), |digits| ("-", digits));
    let mut text = sign.to_owned();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_four_digits() {
        for (value, text) in [
            (1_234_567.8, "1,234,568"),
            (1000.0, "1,000"),
            (999.96, "1,000"),
            (123.456, "123.5"),
            (99.96, "100.0"),
            (12.3456, "12.35"),
            (1.23456, "1.235"),
            (0.0, "0.000"),
        ] {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn bytes_take_the_largest_unit() {
        for (count, text) in [(0, "0 B"), (1023, "1023 B"), (8 << 30, "8 GiB"), (1_500_000, "1.4 MiB")] {
            assert_eq!(bytes(count), text);
        }
    }
}
