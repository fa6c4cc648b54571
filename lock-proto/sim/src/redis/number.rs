//! Number parsing as in Redis and Lua.

/// Parses an integer as Redis does: no blank, no plus, no leading zero.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let negative = digits.len() < text.len();
    match digits {
        [b'0'] => return if negative { None } else { Some(0) },
        [b'1'..=b'9', ..] => {}
        _ => return None,
    }
    // Accumulates negatively, because `i64::MIN` has no positive counterpart.
    let sum = digits.iter().try_fold(0_i64, |sum, digit| {
        let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_sub(digit)
    })?;
    if negative { Some(sum) } else { sum.checked_neg() }
}

pub(super) fn float(text: &[u8]) -> Option<f64> {
    if text.first().is_some_and(u8::is_ascii_whitespace) || text.last().is_some_and(u8::is_ascii_whitespace) {
        return None;
    }
    lua(text).filter(|n| !n.is_nan())
}

/// Lua's `tonumber` for strings: surrounding blanks, decimal or hexadecimal.
pub(super) fn lua(text: &[u8]) -> Option<f64> {
    let text = core::str::from_utf8(text).ok()?.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b');
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
    if unsigned.starts_with(['+', '-']) {
        return None;
    }
    match unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X")) {
        Some(hex) => hexadecimal(hex).map(|n| sign * n),
        // Accepts the same forms as C's strtod: digits, a point, an exponent, `inf`, `nan`.
        None => unsigned.parse::<f64>().ok().map(|n| sign * n),
    }
}

fn hexadecimal(digits: &str) -> Option<f64> {
    let (mantissa, exponent) = match digits.split_once(['p', 'P']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (digits, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut value = 0.0_f64;
    for digit in whole.chars().chain(fraction.chars()) {
        value = value * 16.0 + f64::from(digit.to_digit(16)?);
    }
    let scale = exponent.saturating_sub(4 * i32::try_from(fraction.len()).ok()?);
    Some(value * exp2(scale))
}

/// Returns 2 to the power of `n`. `core` has no `powi`.
fn exp2(n: i32) -> f64 {
    let step = if n < 0 { 0.5 } else { 2.0 };
    (0..n.unsigned_abs().min(2_200)).fold(1.0, |power: f64, _| power * step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers() {
        for (text, expected) in [
            ("0", Some(0)),
            ("-5", Some(-5)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("", None),
            ("-", None),
            ("-0", None),
            ("01", None),
            ("+1", None),
            (" 1", None),
            ("1.0", None),
        ] {
            assert_eq!(integer(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn lua_numbers_are_parsed() {
        for (text, expected) in [
            ("17", Some(17.0)),
            (" 17 \t", Some(17.0)),
            ("1e3", Some(1000.0)),
            (".5", Some(0.5)),
            ("-0x10", Some(-16.0)),
            ("0x1.8p1", Some(3.0)),
            ("0x", None),
            ("", None),
            ("--1", None),
            ("1 2", None),
            ("12abc", None),
        ] {
            assert_eq!(lua(text.as_bytes()), expected, "{text}");
        }
    }
}
