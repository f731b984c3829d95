//! Formats counts, rates, shares and times for people, and defines the success rates of unhealthy services.

use std::time::Duration;

/// Formats a count with its noun: `1 file`, `2 files`, `0 proxies`.
#[must_use]
pub fn format_count(count: impl TryInto<u64>, noun: &str) -> String {
    // No count type is larger than `u64`.
    let count = count.try_into().unwrap_or(u64::MAX);
    match (count, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (count, Some(stem)) => format!("{count} {stem}ies"),
        (count, None) => format!("{count} {noun}s"),
    }
}

/// Formats requests per second: `0.2/s`, `12.3/s`, `1234/s`.
#[must_use]
pub fn format_rate(per_second: f64) -> String {
    match per_second {
        rate if rate <= 0.0 => "0/s".to_owned(),
        // With one decimal, 99.95 would become `100.0/s`.
        rate if rate < 99.95 => format!("{rate:.1}/s"),
        rate => format!("{rate:.0}/s"),
    }
}

/// Formats a share as a percentage that is 100 only if exact: `99.98 %`, `100 %`. Returns an empty text for `None`.
#[must_use]
pub fn format_share(share: Option<f64>) -> String {
    match share {
        None => String::new(),
        Some(share) if share >= 1.0 => "100 %".to_owned(),
        // Rounds down, so that 100 % means all.
        Some(share) => format!("{:.2} %", (share * 1e4).floor() / 1e2),
    }
}

/// Formats a duration in its two largest units, for tables: `3d4h`, `12m5s`, `0s`.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let units = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
    let first_unit = units.iter().position(|(_, unit_seconds)| seconds >= *unit_seconds);
    let Some(first_unit) = first_unit else {
        return "0s".to_owned();
    };
    let mut text = String::new();
    let mut remaining_seconds = seconds;
    for (unit, unit_seconds) in units.iter().skip(first_unit).take(2) {
        let count = remaining_seconds / unit_seconds;
        remaining_seconds %= unit_seconds;
        if count > 0 {
            text.push_str(&format!("{count}{unit}"));
        }
    }
    text
}

/// The success rate below which a service is failing.
pub const FAILING_BELOW: f64 = 0.95;
/// The success rate below which a service is degraded.
pub const DEGRADED_BELOW: f64 = 0.99;
