//! Reads durations as in the Gateway API, such as `1h30m` and `500ms`.

use std::ops::RangeInclusive;
use std::time::Duration;

use leno_model::definition::format_duration;

use crate::document::NodeValue;
use crate::field::Field;
use crate::hint::Replacement;

/// Reads a duration from `min` to `max`.
pub(crate) fn read_duration_within(
    field: &Field<'_>,
    min: Duration,
    max: Duration,
) -> Option<Duration> {
    let (lower, upper) = (format_duration(min), format_duration(max));
    let example = format_duration(DURATION_EXAMPLE.clamp(min, max));
    let bounds = format!("use a time with a unit, from {lower} to {upper}, such as \"{example}\"");
    let duration = read_with_unit(field, &(min..=max), &bounds)?;
    if !(min..=max).contains(&duration) {
        field.reject(format!("{} is out of range", field.quoted_value()), bounds);
        return None;
    }
    Some(duration)
}

/// Reads a Gateway API duration; see [`parse_duration`].
pub(crate) fn read_duration(field: &Field<'_>) -> Option<Duration> {
    let hint = "use a number with a unit, such as \"5s\" or \"500ms\"";
    read_with_unit(field, &(Duration::ZERO..=Duration::MAX), hint)
}

/// Reads a duration. The proposal for a number without a unit is the same number of seconds, if it is within `bounds`.
fn read_with_unit(
    field: &Field<'_>,
    bounds: &RangeInclusive<Duration>,
    hint: &str,
) -> Option<Duration> {
    if let NodeValue::Number(text) | NodeValue::Text(text) = field.value() {
        let seconds = format!("{text}s");
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        if is_number && parse_duration(&seconds).is_some_and(|time| bounds.contains(&time)) {
            let problem = format!("{} is not a duration", field.quoted_value());
            let hint = format!("write `{seconds}`");
            field.reject_with_replacement(problem, hint, Replacement::Text(seconds));
            return None;
        }
    }
    if let NodeValue::Number(_) = field.value() {
        // The unit is missing; with quotes alone, the number would be rejected as well.
        field.reject(format!("{} is not a duration", field.quoted_value()), hint);
        return None;
    }
    field.read_with(parse_duration, "a duration", hint)
}

/// Parses a Gateway API duration (GEP-2257): one to four pairs of up to five digits and a unit.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let mut remaining = text;
    let mut total = Duration::ZERO;
    for _ in 0..4 {
        let digit_count = remaining.bytes().take_while(u8::is_ascii_digit).count();
        if digit_count == 0 || digit_count > 5 {
            return None;
        }
        let (digits, unit_and_following) = remaining.split_at_checked(digit_count)?;
        let number: u64 = digits.parse().ok()?;
        let (milliseconds, unit_length) = match unit_and_following.as_bytes() {
            [b'm', b's', ..] => (1, 2),
            [b'h', ..] => (3_600_000, 1),
            [b'm', ..] => (60_000, 1),
            [b's', ..] => (1_000, 1),
            _ => return None,
        };
        total += Duration::from_millis(number * milliseconds);
        remaining = unit_and_following.split_at_checked(unit_length)?.1;
        if remaining.is_empty() {
            return Some(total);
        }
    }
    None
}

/// The duration that messages give as an example, unless a field's bounds exclude it.
const DURATION_EXAMPLE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_duration_is_within_the_bounds() {
        let milliseconds = Duration::from_millis;
        for (min, max) in [(1, 100), (1_000, 86_400_000), (10_000, 3_600_000), (1_500, 2_500)] {
            let example =
                format_duration(DURATION_EXAMPLE.clamp(milliseconds(min), milliseconds(max)));
            let parsed = parse_duration(&example).unwrap();
            assert!((milliseconds(min)..=milliseconds(max)).contains(&parsed), "{example}");
            for bound in [min, max] {
                assert_eq!(
                    parse_duration(&format_duration(milliseconds(bound))),
                    Some(milliseconds(bound))
                );
            }
        }
        assert_eq!(format_duration(milliseconds(604_800_000)), "168h");
    }

    #[test]
    fn only_valid_seconds_are_proposed_for_a_number() {
        let bounds = "use a time with a unit, from 1ms to 1m, such as \"5s\"";
        for (text, hint) in [
            ("5", "write `5s`"),
            ("\"5\"", "write `5s`"),
            ("500", bounds),
            ("1.5", bounds),
            ("100000", bounds),
        ] {
            let manifest = format!(
                "{{apiVersion: leno.dev/v1alpha1, kind: Hedging, metadata: {{name: a}}, \
                 spec: {{targetRefs: [{{name: b}}], after: {text}}}}}"
            );
            let (_, rejected) = crate::read_str("a.yaml", &manifest);
            assert_eq!(rejected.len(), 1, "{rejected:?}");
            assert!(rejected[0].problem.ends_with(" is not a duration"), "{rejected:?}");
            assert_eq!(rejected[0].hint, hint);
        }
    }

    #[test]
    fn only_gateway_api_durations_are_parsed() {
        for (text, milliseconds) in [
            ("5s", Some(5_000)),
            ("500ms", Some(500)),
            ("1h", Some(3_600_000)),
            ("1h30m10s500ms", Some(5_410_500)),
            ("10s30m1h", Some(5_410_000)),
            ("0s", Some(0)),
            ("99999h", Some(359_996_400_000)),
            ("5", None),
            ("", None),
            ("s", None),
            ("1.5s", None),
            ("-1s", None),
            ("1d", None),
            ("100000s", None),
            ("1s1s1s1s1s", None),
            ("1 s", None),
        ] {
            let expected = milliseconds.map(Duration::from_millis);
            assert_eq!(parse_duration(text), expected, "{text}");
        }
    }
}
