//! Parses durations on the command line: `500ms`, `20s`, `1m30s`, `24h`.

use std::time::Duration;

pub(crate) use leno_control::figures::format_duration;

/// Parses numbers with units, in any order: `1h30m`, `0.5s`.
///
/// # Errors
/// A message for users, if the text is not a duration, or is longer than ten years.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let invalid =
        || format!("`{text}` is not a duration: use for example 500ms, 20s, 1m30s or 24h");
    let mut total = Duration::ZERO;
    let mut remaining = text.trim();
    if remaining.is_empty() {
        return Err(invalid());
    }
    while !remaining.is_empty() {
        let number_end = remaining
            .find(|character: char| !character.is_ascii_digit() && character != '.')
            .ok_or_else(invalid)?;
        let (number, after_number) = remaining.split_at(number_end);
        let unit_end = after_number
            .find(|character: char| character.is_ascii_digit() || character == '.')
            .unwrap_or(after_number.len());
        let (unit, after_unit) = after_number.split_at(unit_end);
        let number: f64 = number.parse().map_err(|_| invalid())?;
        let seconds = number * unit_seconds(unit).ok_or_else(invalid)?;
        let component = Duration::try_from_secs_f64(seconds).map_err(|_| invalid())?;
        total = total.checked_add(component).ok_or_else(invalid)?;
        remaining = after_unit;
    }
    match total <= MAX_DURATION {
        true => Ok(total),
        false => Err(format!("`{text}` is too long: use at most 3650d")),
    }
}

/// Parses a duration as [`parse_duration`] does, and rejects zero.
///
/// # Errors
/// A message for users, if the text is not a duration, or is zero or longer than ten years.
pub(crate) fn parse_positive(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("it must be longer than zero".to_owned()),
        duration => Ok(duration),
    }
}

/// Returns the length of a unit, in seconds; `None` for an unknown unit.
fn unit_seconds(unit: &str) -> Option<f64> {
    Some(match unit {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return None,
    })
}

/// The maximum duration, ten years, which timers and clocks support.
const MAX_DURATION: Duration = Duration::from_secs(3_650 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_durations_are_parsed() {
        for (text, milliseconds) in [
            ("500ms", 500),
            ("20s", 20_000),
            (" 20s ", 20_000),
            ("1m30s", 90_000),
            ("0.5s", 500),
            ("24h", 86_400_000),
            ("1d", 86_400_000),
            ("0s", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    #[test]
    fn invalid_durations_are_rejected_with_an_example() {
        for text in [
            "",
            "20",
            "s",
            "20 s",
            "-1s",
            "1x",
            "1..2s",
            ".s",
            "1e9d",
            "9999999999999999999999d",
            "4000d",
            "1s2",
            "NaNs",
            "infs",
        ] {
            let error = parse_duration(text).expect_err(text);
            assert!(error.contains("use "), "{error}");
        }
        assert!(parse_positive("0s").is_err());
        assert!(parse_positive("1ms").is_ok());
    }

    #[test]
    fn formatted_durations_have_the_two_largest_units() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (725, "12m5s"),
            (86_400 + 3_600 + 61, "1d1h"),
            (2 * 86_400 + 61, "2d"),
        ] {
            assert_eq!(format_duration(Duration::from_secs(seconds)), text);
        }
    }
}
