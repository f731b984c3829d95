//! Values of the `Date` header, formatted once a second by each thread.

use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_wire::http1::ResponseHead;
use time::OffsetDateTime;

/// A time in the format of `Date` (RFC 9110 §5.6.7).
pub(crate) type DateText = [u8; DATE_BYTES];

/// Returns the `Date` for a final response that has none (RFC 9110 §6.6.1).
pub(crate) fn missing_date(bytes: &[u8], head: &ResponseHead) -> Option<DateText> {
    (head.status >= 200 && head.find(bytes, "date").next().is_none()).then(current_date)
}

/// Returns the current time in the format of `Date`.
pub(crate) fn current_date() -> DateText {
    let second = since_epoch().as_secs();
    LATEST.with(|latest| match latest.get() {
        (stamped_second, stamp) if stamped_second == second => stamp,
        _ => {
            let stamp = format_date(second);
            latest.set((second, stamp));
            stamp
        }
    })
}

/// Returns the time since the Unix epoch.
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Formats a number of seconds since the Unix epoch.
fn format_date(second: u64) -> DateText {
    let seconds = i64::try_from(second).unwrap_or_default();
    let time = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let day = usize::from(time.weekday().number_days_from_monday()) * 3;
    let month = usize::from(u8::from(time.month()) - 1) * 3;
    let date = format!(
        "{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT",
        DAYS.get(day..day + 3).unwrap_or_default(),
        time.day(),
        MONTHS.get(month..month + 3).unwrap_or_default(),
        time.year(),
        time.hour(),
        time.minute(),
        time.second(),
    );
    date.as_bytes().try_into().unwrap_or(*b"Thu, 01 Jan 1970 00:00:00 GMT")
}

thread_local! {
    /// The last formatted date of this thread, and its second since the Unix epoch.
    static LATEST: Cell<(u64, DateText)> = const { Cell::new((u64::MAX, [0; DATE_BYTES])) };
}

/// The length of a `Date` value.
const DATE_BYTES: usize = 29;
/// The names of the days, three bytes each, from Monday.
const DAYS: &str = "MonTueWedThuFriSatSun";
/// The names of the months, three bytes each.
const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_has_the_format_of_the_header() {
        for (second, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (1_709_251_199, "Thu, 29 Feb 2024 23:59:59 GMT"),
            (253_402_300_799, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(std::str::from_utf8(&format_date(second)), Ok(text));
        }
        assert_eq!(current_date().len(), DATE_BYTES);
    }
}
