//! Formats recent configuration changes as a table, and one change as text.

use std::fmt::Write as _;

use leno_control::status::ChangeReport;

use crate::figures::format_count;
use crate::output::{Listing, ListingColumn};

/// Lists the changes in the given order, one row each.
pub(super) fn change_table(changes: &[ChangeReport]) -> Listing {
    let mut listing = Listing::new(COLUMNS);
    for change in changes {
        listing.add_row([
            change.id.to_string(),
            format_ms(Some(change.age_ms)),
            format!("{}/{}", change.applied, change.recipients),
            format_ms(change.applied_after_ms),
            change.bytes.to_string(),
            change.cause.clone(),
            change.affected.to_string(),
            change.push_size.to_string(),
            change.rejected.to_string(),
        ]);
    }
    listing
}

/// Describes one change, from its source to the last proxy that applied it.
pub(crate) fn describe_change(change: &ChangeReport) -> String {
    let mut text = format!("change {}: {}\n", change.id, change.cause);
    let mut write_line = |label: &str, value: String| {
        writeln!(text, "  {label:<10} {value}").expect("writing to a String never fails");
    };
    write_line("noticed", format!("{} ago", format_ms(Some(change.age_ms))));
    write_line("processed", format!("after {}", format_ms(Some(change.processed_after_ms))));
    if change.expired {
        write_line("sent", "details are no longer available".to_owned());
        return text;
    }
    let Some(sent_after) = change.sent_after_ms else {
        write_line("sent", "not yet: waiting for the debounce interval".to_owned());
        return text;
    };
    let other_changes = match change.push_size {
        0 | 1 => String::new(),
        count => format!(", together with {}", format_count(count - 1, "other")),
    };
    write_line("sent", format!("after {}{other_changes}", format_ms(Some(sent_after))));
    write_line(
        "affected",
        format!(
            "{}, and {} received it",
            format_count(change.affected, "proxy"),
            change.recipients
        ),
    );
    write_line(
        "applied",
        format!("{}, {} bytes", format_count(change.applied, "proxy"), change.bytes),
    );
    if change.rejected > 0 {
        write_line(
            "rejected",
            format!(
                "{}: see `leno get proxies --out-of-sync`",
                format_count(usize::try_from(change.rejected).unwrap_or(usize::MAX), "time")
            ),
        );
    }
    match change.applied_after_ms {
        Some(duration) => write_line("last ACK", format!("after {}", format_ms(Some(duration)))),
        None if change.recipients == 0 => {
            write_line("last ACK", "none: no proxy uses it".to_owned())
        }
        None => write_line("waits for", change.waiting.join(", ")),
    }
    text
}

fn format_ms(duration: Option<f64>) -> String {
    duration.map_or("–".to_owned(), |ms| match ms {
        1000.0.. => format!("{:.1} s", ms / 1000.0),
        _ => format!("{ms:.1} ms"),
    })
}

const COLUMNS: &[ListingColumn] = &[
    ListingColumn::always("change"),
    ListingColumn::always("age"),
    ListingColumn::always("applied"),
    ListingColumn::always("after"),
    ListingColumn::always("bytes"),
    ListingColumn::always("cause"),
    ListingColumn::wide("affected"),
    ListingColumn::wide("push size"),
    ListingColumn::wide("rejected"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_change() -> ChangeReport {
        ChangeReport {
            id: 42,
            cause: "Workload shop/cart-1 is new or changed".to_owned(),
            age_ms: 12_000.0,
            processed_after_ms: 61.0,
            sent_after_ms: Some(82.0),
            applied_after_ms: Some(97.25),
            push_size: 3,
            affected: 100,
            recipients: 90,
            applied: 90,
            rejected: 0,
            bytes: 8100,
            waiting: Vec::new(),
            expired: false,
        }
    }

    #[test]
    fn a_change_is_described_from_its_source_to_the_last_acknowledgment() {
        let text = describe_change(&sample_change());
        for expected in
            ["change 42", "cart-1", "61.0 ms", "2 others", "90 received it", "last ACK", "97.2"]
        {
            assert!(text.contains(expected), "{expected} is missing in:\n{text}");
        }
    }

    #[test]
    fn proxies_without_an_acknowledgment_are_named() {
        let waiting = vec!["shop/web-1".to_owned()];
        let change =
            ChangeReport { applied: 89, applied_after_ms: None, waiting, ..sample_change() };
        assert!(
            describe_change(&change).contains("waits for  shop/web-1"),
            "{}",
            describe_change(&change)
        );
        let pending = ChangeReport { sent_after_ms: None, ..change };
        assert!(describe_change(&pending).contains("not yet"));
    }
}
