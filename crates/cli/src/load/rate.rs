//! Parses request rates (`1000`, or `1000:4000:1000` for several) and shares of requests from the command line.

/// One rate, or several that are measured in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rates(pub(super) Vec<u32>);

/// Parses `R` or `FROM:TO:STEP`, also descending.
///
/// # Errors
/// A message for users, if a number is invalid or zero, or there are more than 100 rates.
pub(super) fn parse_rates(text: &str) -> Result<Rates, String> {
    let invalid = || "use for example 1000, or 1000:4000:1000 for several".to_owned();
    let parse_result: Result<Vec<u32>, _> = text.split(':').map(str::parse).collect();
    match parse_result.map_err(|_| invalid())?.as_slice() {
        [0, ..] | [_, 0, _] | [_, _, 0] => Err("a rate or step of 0 is invalid".to_owned()),
        [rate] => Ok(Rates(vec![*rate])),
        [from, to, step] => {
            if from.abs_diff(*to) / step >= MAX_RATES {
                return Err(format!("that is more than {MAX_RATES} rates"));
            }
            let offsets = (0..=from.abs_diff(*to)).step_by(*step as usize);
            let rate_at = |offset| if from <= to { from + offset } else { from - offset };
            Ok(Rates(offsets.map(rate_at).collect()))
        }
        _ => Err(invalid()),
    }
}

/// Parses a share: `0.01` or `1%`.
///
/// # Errors
/// A message for users, if the text is not a number from 0 to 1 or a percentage.
pub(super) fn parse_share(text: &str) -> Result<f64, String> {
    let (number, divisor) = match text.strip_suffix('%') {
        Some(percent) => (percent, 100.0),
        None => (text, 1.0),
    };
    let share = number.trim().parse::<f64>().ok().map(|number| number / divisor);
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "use a share of the requests: 0.01 or 1%".to_owned())
}

/// The maximum number of rates; each is a separate run, with a warm-up.
const MAX_RATES: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_rates_and_ascending_or_descending_steps_are_parsed() {
        for (text, rates) in [
            ("1", &[1_u32] as &[u32]),
            ("1000:4000:1000", &[1000, 2000, 3000, 4000]),
            ("100:350:100", &[100, 200, 300]),
            ("300:100:100", &[300, 200, 100]),
            ("5:5:1", &[5]),
        ] {
            assert_eq!(parse_rates(text), Ok(Rates(rates.to_vec())), "{text}");
        }
        for text in ["", "0", "-1", "1.5", "1:2", "1:2:0", "0:2:1", "1:0:1", "1:2:3:4", "1:9999:1"]
        {
            assert!(parse_rates(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shares_are_parsed_as_numbers_and_percentages() {
        for (text, share) in [("0", 0.0), ("0.01", 0.01), ("1%", 0.01), ("100%", 1.0), ("1", 1.0)] {
            assert_eq!(parse_share(text), Ok(share), "{text}");
        }
        for text in ["", "%", "2", "-1%", "101%", "NaN", "inf"] {
            assert!(parse_share(text).is_err(), "{text}");
        }
    }
}
