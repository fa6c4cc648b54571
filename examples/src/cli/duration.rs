//! Lengths of time as people write them: `500ms`, `10s`, `1m30s`, `0`.

use core::time::Duration;

const UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("ms", 1), ("m", 60_000), ("s", 1_000)];

/// Reads a length of time: whole numbers, each with its unit `h`, `m`, `s` or `ms`, from the largest to the smallest; or a bare `0`.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut millis: u64 = 0;
    let mut last_unit = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        // `ms` stands before `m` and `s` in the list, so that it is not read as minutes.
        let (name, unit) = UNITS.iter().find(|(name, _)| rest.starts_with(name))?;
        if *unit >= last_unit {
            return None;
        }
        last_unit = *unit;
        millis = millis.checked_add(number.checked_mul(*unit)?)?;
        rest = &rest[name.len()..];
    }
    (last_unit != u64::MAX).then(|| Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_read() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("500ms", 500),
            ("10s", 10_000),
            ("1m30s", 90_000),
            ("2h5ms", 7_200_005),
            ("90s", 90_000),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "5",
            "10",
            "s",
            "ms",
            "-1s",
            "+1s",
            "1.5s",
            "1 s",
            "1s1m",
            "1s1s",
            "1d",
            "s1",
            "1ss",
            "99999999999999999999s",
            "١s",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
