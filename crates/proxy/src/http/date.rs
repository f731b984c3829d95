//! Values of the `Date` header, formatted once a second by each thread.

use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_wire::http1::ResponseHead;
use time::OffsetDateTime;

/// A time in the format of `Date` (RFC 9110 §5.6.7).
pub(crate) type DateText = [u8; DATE_BYTES];

/// Returns the `Date` to add to a final response (RFC 9110 §6.6.1); `None` if the response has a `Date`, and
/// for interim responses. `bytes`: the bytes from which `head` was parsed.
pub(crate) fn missing_date(bytes: &[u8], head: &ResponseHead) -> Option<DateText> {
    (head.status >= 200 && head.find(bytes, "date").next().is_none()).then(current_date)
}

/// Returns the current time in the format of `Date`.
pub(crate) fn current_date() -> DateText {
    let unix_second = since_epoch().as_secs();
    LATEST_DATE.with(|latest_date| match latest_date.get() {
        (date_second, date) if date_second == unix_second => date,
        _ => {
            let date = format_date(unix_second);
            latest_date.set((unix_second, date));
            date
        }
    })
}

/// Returns the time since the Unix epoch; zero if the clock of the machine is before it.
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Formats a number of seconds since the Unix epoch.
fn format_date(unix_second: u64) -> DateText {
    let timestamp = i64::try_from(unix_second).unwrap_or_default();
    let time = OffsetDateTime::from_unix_timestamp(timestamp).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let day_offset = usize::from(time.weekday().number_days_from_monday()) * 3;
    let month_offset = usize::from(u8::from(time.month()) - 1) * 3;
    let date = format!(
        "{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT",
        DAY_NAMES.get(day_offset..day_offset + 3).unwrap_or_default(),
        time.day(),
        MONTH_NAMES.get(month_offset..month_offset + 3).unwrap_or_default(),
        time.year(),
        time.hour(),
        time.minute(),
        time.second(),
    );
    // The conversion always succeeds, because the library supports no year after 9999.
    date.as_bytes().try_into().unwrap_or(*b"Thu, 01 Jan 1970 00:00:00 GMT")
}

thread_local! {
    /// The last formatted date of this thread, and its second since the Unix epoch; `u64::MAX` before the first.
    static LATEST_DATE: Cell<(u64, DateText)> = const { Cell::new((u64::MAX, [0; DATE_BYTES])) };
}

/// The length of a `Date` value.
const DATE_BYTES: usize = 29;
/// The names of the days, three bytes each, from Monday.
const DAY_NAMES: &str = "MonTueWedThuFriSatSun";
/// The names of the months, three bytes each.
const MONTH_NAMES: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";

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
