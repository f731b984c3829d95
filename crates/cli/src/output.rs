//! Formats and prints the output of commands: tables for people, JSON and YAML for programs.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use leno_telemetry::{escape_controls, is_terminal_control, with_causes};
use serde::Serialize;

use crate::yaml;

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Table
    #[default]
    Table,
    /// Table with more columns
    Wide,
    /// JSON
    Json,
    /// YAML with the same content as JSON
    Yaml,
}

impl OutputFormat {
    /// Returns the format for programs; `None` for tables.
    pub(crate) const fn structured_format(self) -> Option<StructuredFormat> {
        match self {
            Self::Table | Self::Wide => None,
            Self::Json => Some(StructuredFormat::Json),
            Self::Yaml => Some(StructuredFormat::Yaml),
        }
    }
}

/// The output format for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StructuredFormat {
    /// Indented JSON.
    Json,
    /// YAML in block style.
    Yaml,
}

/// A column of a [`Listing`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListingColumn {
    name: &'static str,
    visibility: ColumnVisibility,
}

/// The visibility of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ColumnVisibility {
    Always,
    Wide,
}

impl ListingColumn {
    /// Creates a column that is always visible.
    pub(crate) const fn always(name: &'static str) -> Self {
        let visibility = ColumnVisibility::Always;
        Self { name, visibility }
    }

    /// Creates a column for `-o wide`.
    pub(crate) const fn wide(name: &'static str) -> Self {
        let visibility = ColumnVisibility::Wide;
        Self { name, visibility }
    }
}

/// A table of rows under named columns.
#[derive(Debug)]
pub(crate) struct Listing {
    columns: &'static [ListingColumn],
    rows: Vec<Vec<String>>,
}

impl Listing {
    /// Creates a listing without rows.
    pub(crate) const fn new(columns: &'static [ListingColumn]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row: one cell per column, including the wide columns.
    pub(crate) fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Renders the rows as a table without trailing spaces.
    pub(crate) fn render(&self, format: OutputFormat) -> String {
        let shown_columns: Vec<bool> = self
            .columns
            .iter()
            .map(|column| {
                column.visibility == ColumnVisibility::Always || format == OutputFormat::Wide
            })
            .collect();
        let visible_cells = |cells: &[String]| -> Vec<String> {
            let shown_cells = cells.iter().zip(&shown_columns).filter(|(_, is_shown)| **is_shown);
            shown_cells.map(|(cell, _)| escape_cell(cell)).collect()
        };
        let header: Vec<String> =
            self.columns.iter().map(|column| column.name.to_uppercase()).collect();
        let mut table = Table::new();
        table
            .load_preset(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(visible_cells(&header));
        for row in &self.rows {
            table.add_row(visible_cells(row));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let mut text = String::new();
        for line in table.lines() {
            writeln!(text, "{}", line.trim_end()).expect("writing to a String never fails");
        }
        text
    }
}

/// Writes a text to standard output, with a newline at the end.
///
/// # Errors
/// If the reader has closed the output; see [`is_broken_pipe`].
pub(crate) fn print_raw(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        stdout.write_all(b"\n")?;
    }
    stdout.flush()?;
    Ok(())
}

/// Writes text for people to standard output, without terminal control characters: parts of the text may come
/// from other machines.
///
/// # Errors
/// If the reader has closed the output; see [`is_broken_pipe`].
pub(crate) fn print_text(text: &str) -> anyhow::Result<()> {
    print_raw(&escape_lines(text))
}

/// Replaces terminal control characters, except newlines.
fn escape_lines(text: &str) -> String {
    text.replace(|character| character != '\n' && is_terminal_control(character), "\u{fffd}")
}

/// Formats a finding in one line. Terminal control characters, including line breaks, are escaped as in `\n`,
/// because findings contain file names.
pub(crate) fn format_line(finding: &impl std::fmt::Display) -> String {
    escape_controls(&finding.to_string()).into_owned()
}

/// Writes a value to standard output, for programs.
///
/// # Errors
/// If the reader has closed the output; see [`is_broken_pipe`].
pub(crate) fn print_value(value: &impl Serialize, format: StructuredFormat) -> anyhow::Result<()> {
    print_raw(&format_value(value, format)?)
}

/// Writes a value as indented JSON to standard output, for commands without other formats.
///
/// # Errors
/// If the reader has closed the output; see [`is_broken_pipe`].
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print_value(value, StructuredFormat::Json)
}

fn format_value(value: &impl Serialize, format: StructuredFormat) -> anyhow::Result<String> {
    let text = match format {
        StructuredFormat::Json => serde_json::to_string_pretty(value)?,
        StructuredFormat::Yaml => yaml::write_document(&serde_json::to_value(value)?),
    };
    Ok(escape_json(&text))
}

/// True if the error means that the other end of standard output is closed. Such an error is an [`io::Error`]
/// without context, because [`print_raw`] adds none.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Returns a cell's text without terminal control characters, because some cells come from other machines; a
/// dash for an empty cell.
pub(crate) fn escape_cell(cell: &str) -> String {
    match cell {
        "" => "-".to_owned(),
        text => text.replace(is_terminal_control, "\u{fffd}"),
    }
}

/// Escapes terminal control characters in JSON, or in YAML that Leno has written, without changing the value: RFC
/// 8259 section 7 allows most control characters and all bidirectional controls unescaped in strings, and YAML has
/// the same escapes.
pub(crate) fn escape_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            // A line break between two values; within a string it is already escaped.
            '\n' => escaped.push(character),
            character if is_terminal_control(character) => {
                write!(escaped, "\\u{:04x}", u32::from(character))
                    .expect("writing to a String never fails");
            }
            character => escaped.push(character),
        }
    }
    escaped
}

/// Formats an error and its causes for a terminal.
pub(crate) fn format_error(error: &anyhow::Error) -> String {
    escape_lines(&with_causes(error.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[ListingColumn] = &[
        ListingColumn::always("name"),
        ListingColumn::wide("address"),
        ListingColumn::always("ports"),
    ];

    #[test]
    fn wide_columns_are_optional_and_empty_cells_are_dashes() {
        let mut listing = Listing::new(COLUMNS);
        listing.add_row(["bookinfo/ratings-1".to_owned(), "127.0.0.1".to_owned(), String::new()]);
        expect_test::expect![[r#"
            NAME                PORTS
            bookinfo/ratings-1  -
        "#]]
        .assert_eq(&listing.render(OutputFormat::Table));
        expect_test::expect![[r#"
            NAME                ADDRESS    PORTS
            bookinfo/ratings-1  127.0.0.1  -
        "#]]
        .assert_eq(&listing.render(OutputFormat::Wide));
    }

    #[test]
    fn cells_are_escaped_for_terminals() {
        let mut listing = Listing::new(COLUMNS);
        let name = "a\u{1b}[2Jb\rc\nd\u{9b}e\u{202e}é".to_owned();
        listing.add_row([name, String::new(), "80".to_owned()]);
        let text = listing.render(OutputFormat::Table);
        assert!(
            text.ends_with("a\u{fffd}[2Jb\u{fffd}c\u{fffd}d\u{fffd}e\u{fffd}é  80\n"),
            "{text:?}"
        );
        assert_eq!(text.lines().count(), 2);
    }

    #[test]
    fn json_output_is_escaped_for_terminals() {
        let value = serde_json::json!({"a\u{9b}": ["2J\u{85}\u{1b}\n", "\u{202e}é\u{2069}"]});
        for text in [value.to_string(), format!("{value:#}")] {
            let escaped = escape_json(&text);
            assert!(
                escaped
                    .chars()
                    .all(|character| character == '\n' || !is_terminal_control(character)),
                "{escaped:?}"
            );
            assert!(escaped.contains("\\u009b") && escaped.contains('é'), "{escaped:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
        }
    }

    #[test]
    fn errors_contain_each_cause_once_and_are_escaped() {
        let error_cause = io::Error::from_raw_os_error(28);
        let text = error_cause.to_string();
        let error = anyhow::Error::from(error_cause)
            .context(format!("a\u{1b}[2Jb cannot be written: {text}"));
        let formatted = format_error(&error);
        assert_eq!(formatted.matches(&text).count(), 1, "{formatted}");
        assert!(formatted.starts_with("a\u{fffd}[2Jb cannot be written"), "{formatted}");
    }

    #[test]
    fn only_an_error_without_context_is_a_broken_pipe() {
        let broken_pipe: anyhow::Error = io::Error::from(io::ErrorKind::BrokenPipe).into();
        assert!(is_broken_pipe(&broken_pipe));
        let not_found: anyhow::Error = io::Error::from(io::ErrorKind::NotFound).into();
        assert!(!is_broken_pipe(&not_found));
        // A broken pipe elsewhere has a context that names it.
        assert!(!is_broken_pipe(&anyhow::anyhow!("asking").context("control.sock")));
    }
}
