//! Reads percentages of requests, such as `12.5`.

use crate::document::NodeValue;
use crate::field::Field;
use crate::hint::Replacement;

/// Reads a percentage above 0, up to 100, with at most four decimals, and returns it in parts per million.
pub(crate) fn read_percentage(field: &Field<'_>) -> Option<u32> {
    let problem = format!("{} is not a percentage", field.quoted_value());
    match field.value() {
        NodeValue::Number(text) => {
            if let Some(share_ppm) = parse_percentage(text) {
                return Some(share_ppm);
            }
        }
        NodeValue::Text(text) => {
            let number = text.trim_end_matches('%').trim_end();
            if parse_percentage(number).is_some() {
                let hint = format!("write {number}, without quotes or a tag");
                field.reject_with_replacement(
                    problem,
                    hint,
                    Replacement::Number(number.to_owned()),
                );
                return None;
            }
        }
        _ => {}
    }
    field.reject(
        problem,
        "use a number above 0, up to 100, with at most four decimals, such as 12.5",
    );
    None
}

/// Parses a percentage above 0, up to 100, with at most four decimals into parts per million.
pub(crate) fn parse_percentage(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || decimals.len() > 4 || !are_digits(whole) || !are_digits(decimals) {
        return None;
    }
    // The fourth decimal of a percentage is one part per million.
    let decimal_ppm: u32 = format!("{decimals:0<4}").parse().ok()?;
    let share_ppm = whole.parse::<u32>().ok()?.checked_mul(10_000)?.checked_add(decimal_ppm)?;
    (1..=WHOLE_PPM).contains(&share_ppm).then_some(share_ppm)
}

/// 100 % in parts per million.
const WHOLE_PPM: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::parse_percentage;

    #[test]
    fn percentages_are_parsed_exactly() {
        for (text, expected) in [
            ("0", None),
            ("100", Some(1_000_000)),
            ("12.5", Some(125_000)),
            ("0.0001", Some(1)),
            ("0.00001", None),
            ("100.1", None),
            ("-1", None),
            (".5", None),
            ("1e1", None),
        ] {
            assert_eq!(parse_percentage(text), expected, "{text}");
        }
    }
}
