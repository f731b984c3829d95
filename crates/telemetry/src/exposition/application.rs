//! Validates an application's metrics before they are appended to the sidecar's metrics: scrapers would reject the
//! metrics of both for one invalid line.

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

/// Returns the lines of an exposition in the Prometheus text format 0.0.4 that can be appended to the sidecar's own.
/// Lines with names of sidecar metrics are removed, since scrapers could not distinguish them; comments that do not
/// describe a metric are removed as well.
///
/// # Errors
/// [`InvalidExposition`] if a line is invalid: then no line is returned.
pub fn sanitize_exposition(text: &str) -> Result<String, InvalidExposition> {
    let sidecar_names: BTreeSet<&str> =
        names::sidecar_metrics().map(|MetricFamily { name, .. }| *name).collect();
    let is_sidecar_name = |name: &str| {
        let suffixes = ["_bucket", "_sum", "_count"];
        let family = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
        sidecar_names.contains(name) || sidecar_names.contains(family)
    };
    let mut accepted_lines = String::with_capacity(text.len());
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_matches([' ', '\t', '\r']);
        let invalid_line = InvalidExposition { line: index + 1 };
        let name = match line.strip_prefix('#') {
            None if line.is_empty() => continue,
            None => parse_sample(line).ok_or(invalid_line)?,
            Some(comment) => match parse_comment(comment) {
                Some(name) => name.ok_or(invalid_line)?,
                None => continue,
            },
        };
        if !is_sidecar_name(name) {
            accepted_lines.push_str(line);
            accepted_lines.push('\n');
        }
    }
    Ok(accepted_lines)
}

/// Returns the metric name in a `HELP` or `TYPE` comment; `Some(None)` if such a comment is invalid. Returns
/// `None` for other comments.
fn parse_comment(comment: &str) -> Option<Option<&str>> {
    let mut words = comment.split_ascii_whitespace();
    let word = words.next()?;
    let is_kind =
        |kind: &str| matches!(kind, "counter" | "gauge" | "histogram" | "summary" | "untyped");
    let name = words.next().filter(|name| is_valid_name(name));
    match word {
        "HELP" => Some(name),
        "TYPE" => {
            Some(name.filter(|_| words.next().is_some_and(is_kind) && words.next().is_none()))
        }
        _ => None,
    }
}

/// Returns the metric name of a line `NAME[{LABEL="VALUE",…}] NUMBER [MILLISECONDS]`; `None` if the line is
/// invalid.
fn parse_sample(line: &str) -> Option<&str> {
    let name_end = line.find(|character: char| !is_name_character(character)).unwrap_or(line.len());
    let (name, remaining) = line.split_at_checked(name_end)?;
    let remaining = match remaining.trim_start_matches([' ', '\t']).strip_prefix('{') {
        Some(labels) => skip_labels(labels)?,
        // Without labels, white space must separate the name from the number.
        None => remaining.strip_prefix([' ', '\t'])?,
    };
    let mut words = remaining.split_ascii_whitespace();
    let is_number =
        |word: &str| matches!(word, "Nan" | "NaN" | "+Inf" | "-Inf" | "Inf") || is_decimal(word);
    let is_valid = is_valid_name(name)
        && words.next().is_some_and(is_number)
        && words.next().is_none_or(|time| time.parse::<i64>().is_ok())
        && words.next().is_none();
    is_valid.then_some(name)
}

/// Skips labels and the closing brace, and returns the rest of the line; `None` if the labels are invalid.
fn skip_labels(mut remaining: &str) -> Option<&str> {
    loop {
        remaining = remaining.trim_start_matches([' ', '\t']);
        if let Some(after_labels) = remaining.strip_prefix('}') {
            return Some(after_labels);
        }
        let (name, value) = remaining.split_once('=')?;
        let name = name.trim_matches([' ', '\t']);
        if !is_valid_name(name) || name.contains(':') {
            return None;
        }
        let value = value.trim_start_matches([' ', '\t']).strip_prefix('"')?;
        remaining = skip_label_value(value)?.trim_start_matches([' ', '\t']);
        if let Some(after_separator) = remaining.strip_prefix(',') {
            remaining = after_separator;
        } else if !remaining.starts_with('}') {
            return None;
        }
    }
}

/// Skips a label value and its closing quote, and returns the rest of the line; `None` if the value is invalid.
fn skip_label_value(value: &str) -> Option<&str> {
    let mut is_escaped = false;
    for (index, character) in value.char_indices() {
        match character {
            _ if is_escaped => {
                // Some parsers keep other escapes, and others reject them.
                if !matches!(character, '\\' | '"' | 'n') {
                    return None;
                }
                is_escaped = false;
            }
            '\\' => is_escaped = true,
            '"' => return value.get(index + 1..),
            _ => {}
        }
    }
    None
}

/// True for a valid metric or label name.
fn is_valid_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.chars().all(is_name_character)
}

/// True for a character of metric names.
fn is_name_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | ':')
}

/// True for decimal numbers with an optional exponent. Words such as `infinity`, which Rust also parses, are
/// excluded.
fn is_decimal(word: &str) -> bool {
    let is_decimal_character =
        |character: char| character.is_ascii_digit() || "+-.eE".contains(character);
    word.chars().all(is_decimal_character) && word.parse::<f64>().is_ok()
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
        assert_eq!(sanitize_exposition(page).unwrap(), page);
        let page_with_comments = "\n  a 1  \r\n# a word\n#\n# EOF\n# UNIT a seconds\n";
        assert_eq!(sanitize_exposition(page_with_comments).unwrap(), "a 1\n");
    }

    #[test]
    fn families_with_names_of_our_metrics_are_omitted() {
        let page = "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 1\n\
                    leno_requests_total{a=\"b\"} 1\nleno_request_duration_seconds_bucket{le=\"1\"} 2\n\
                    leno_of_the_application 4\n";
        assert_eq!(sanitize_exposition(page).unwrap(), "leno_of_the_application 4\n");
    }

    #[test]
    fn one_invalid_line_rejects_all_metrics() {
        for invalid_line in [
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
            let page = format!("good 1\n{invalid_line}\n");
            assert_eq!(
                sanitize_exposition(&page),
                Err(InvalidExposition { line: 2 }),
                "{invalid_line}"
            );
        }
    }
}
