//! Validation of an application's metrics before they are exposed with ours: one invalid line would invalidate
//! the whole page.

use std::collections::BTreeSet;
use std::fmt;

use crate::names::{self, MetricFamily};

/// The reason that an application's metrics are rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidExposition {
    /// The number of the first invalid line, from 1.
    pub line: usize,
}

impl fmt::Display for InvalidExposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} is invalid in the Prometheus text format 0.0.4", self.line)
    }
}

impl std::error::Error for InvalidExposition {}

/// The lines of a page in the Prometheus text format 0.0.4, without those with names of our metrics: a scraper
/// would confuse them. Comments that do not describe a metric are removed.
///
/// # Errors
/// [`InvalidExposition`] for the first invalid line: then the whole page is rejected.
pub fn adopt_page(page: &str) -> Result<String, InvalidExposition> {
    let ours: BTreeSet<&str> =
        names::all_metrics().map(|MetricFamily { name, .. }| *name).collect();
    let is_ours = |name: &str| {
        let parts = ["_bucket", "_sum", "_count"];
        let whole = parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name);
        ours.contains(name) || ours.contains(whole)
    };
    let mut out = String::with_capacity(page.len());
    for (index, line) in page.lines().enumerate() {
        let line = line.trim_matches([' ', '\t', '\r']);
        let unfit = InvalidExposition { line: index + 1 };
        let name = match line.strip_prefix('#') {
            None if line.is_empty() => continue,
            None => sample_name(line).ok_or(unfit)?,
            Some(comment) => match described_metric(comment) {
                Some(name) => name.ok_or(unfit)?,
                None => continue,
            },
        };
        if !is_ours(name) {
            out.push_str(line);
            out.push('\n');
        }
    }
    Ok(out)
}

/// The name in a comment that describes a metric: `HELP` and `TYPE` must contain one.
fn described_metric(comment: &str) -> Option<Option<&str>> {
    let mut words = comment.split_ascii_whitespace();
    let word = words.next()?;
    let is_kind =
        |kind: &str| matches!(kind, "counter" | "gauge" | "histogram" | "summary" | "untyped");
    let name = words.next().filter(|name| is_name(name));
    match word {
        "HELP" => Some(name),
        "TYPE" => {
            Some(name.filter(|_| words.next().is_some_and(is_kind) && words.next().is_none()))
        }
        _ => None,
    }
}

/// Parses the name of a line `NAME[{LABEL="VALUE",…}] NUMBER [MILLISECONDS]`.
fn sample_name(line: &str) -> Option<&str> {
    let end = line.find(|character: char| !is_part(character)).unwrap_or(line.len());
    let (name, rest) = line.split_at_checked(end)?;
    let rest = match rest.trim_start_matches([' ', '\t']).strip_prefix('{') {
        Some(labels) => after_labels(labels)?,
        // A separator is required.
        None => rest.strip_prefix([' ', '\t'])?,
    };
    let mut words = rest.split_ascii_whitespace();
    let is_number =
        |word: &str| matches!(word, "Nan" | "NaN" | "+Inf" | "-Inf" | "Inf") || is_decimal(word);
    let fits = is_name(name)
        && words.next().is_some_and(is_number)
        && words.next().is_none_or(|time| time.parse::<i64>().is_ok())
        && words.next().is_none();
    fits.then_some(name)
}

/// The rest of a line after its labels and the closing brace.
fn after_labels(mut rest: &str) -> Option<&str> {
    loop {
        rest = rest.trim_start_matches([' ', '\t']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some(after);
        }
        let (name, value) = rest.split_once('=')?;
        let name = name.trim_matches([' ', '\t']);
        if !is_name(name) || name.contains(':') {
            return None;
        }
        let value = value.trim_start_matches([' ', '\t']).strip_prefix('"')?;
        rest = after_value(value)?.trim_start_matches([' ', '\t']);
        if let Some(after) = rest.strip_prefix(',') {
            rest = after;
        } else if !rest.starts_with('}') {
            return None;
        }
    }
}

/// The rest of a line after the quote that ends a value.
fn after_value(value: &str) -> Option<&str> {
    let mut escaped = false;
    for (index, character) in value.char_indices() {
        match character {
            _ if escaped => {
                // Some parsers keep other escapes, and others reject them.
                if !matches!(character, '\\' | '"' | 'n') {
                    return None;
                }
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return value.get(index + 1..),
            _ => {}
        }
    }
    None
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.chars().all(is_part)
}

fn is_part(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | ':')
}

/// True for numbers in Rust's syntax, without the words that other parsers do not support.
fn is_decimal(word: &str) -> bool {
    let known = |character: char| character.is_ascii_digit() || "+-.eE".contains(character);
    word.chars().all(known) && word.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_of_an_application_are_copied_unchanged() {
        let page = "# HELP http_requests_total The total.\n\
                    # TYPE http_requests_total counter\n\
                    http_requests_total{method=\"post\",path=\"/a,}\\\"\\\\\"} 1027 1395066363000\n\
                    http_requests_total{} 3\n\
                    metric_without_labels 12.47\n\
                    a:b { x = \"y\" , } -Inf\n\
                    c NaN\n\
                    d +1.5e-3\n";
        assert_eq!(adopt_page(page).unwrap(), page);
        let odd = "\n  a 1  \r\n# a word\n#\n# EOF\n# UNIT a seconds\n";
        assert_eq!(adopt_page(odd).unwrap(), "a 1\n");
    }

    #[test]
    fn families_with_our_names_are_left_out() {
        let page = "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 1\n\
                    leno_requests_total{a=\"b\"} 1\nleno_request_duration_seconds_bucket{le=\"1\"} 2\n\
                    leno_of_the_application 4\n";
        assert_eq!(adopt_page(page).unwrap(), "leno_of_the_application 4\n");
    }

    #[test]
    fn one_invalid_line_rejects_the_page() {
        for bad in [
            "a",
            "a b",
            "a 0x1",
            "a infinity",
            "1a 1",
            "a{b=c} 1",
            "a{b=\"c} 1",
            "a{b=\"c\\x\"} 1",
            "a{b=\"c\"d=\"e\"} 1",
            "a{b:c=\"d\"} 1",
            "a{b=\"c\"} 1 2 3",
            "a 1 1.5",
            "a 1 # {trace_id=\"x\"} 1",
            "<html>",
            "# TYPE a gauges",
            "# TYPE a",
            "# HELP",
            "\u{e9} 1",
        ] {
            let page = format!("good 1\n{bad}\n");
            assert_eq!(adopt_page(&page), Err(InvalidExposition { line: 2 }), "{bad}");
        }
    }
}
