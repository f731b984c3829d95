//! Writes lines of the access log, one for each request or byte stream, as JSON or by a template.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

use crate::terminal::is_terminal_control;

/// The fields of an access log line. No field contains bodies or headers with secrets. Empty texts and absent
/// values are written as `null` in JSON and as `-` by templates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessLogEntry<'a> {
    /// The start time, in RFC 3339 format.
    pub start_time: &'a str,
    /// `inbound` or `outbound`.
    pub direction: &'static str,
    /// The method; empty for a byte stream.
    pub method: &'a str,
    /// The path. Anything after `?` or `#` is never written: queries may contain tokens.
    pub path: &'a str,
    /// The protocol, as in the label `protocol` of metrics.
    pub protocol: &'a str,
    /// The authority of the request. User names and passwords before an `@` are never written.
    pub authority: &'a str,
    /// The HTTP status of the response; 0 without a response.
    pub status: u16,
    /// The label of the failure reason; `None` if the application responded.
    pub reason: Option<&'static str>,
    /// The name of the gRPC status; empty if the request is not a gRPC call.
    pub grpc_status: &'static str,
    /// The destination service, `namespace/name`.
    pub service: &'a str,
    /// The matching route, `namespace/name`; empty without a route.
    pub route: &'a str,
    /// The policy that allowed or denied the request; empty if no policy did. With `defaultPolicy: dry-run` it
    /// may be a policy that allows only other clients.
    pub policy: &'a str,
    /// The reason that `defaultPolicy: deny` would have denied traffic allowed with `defaultPolicy: dry-run`;
    /// empty otherwise.
    pub dry_run_reason: &'a str,
    /// The verified account of the peer; empty without mutual TLS.
    pub peer: &'a str,
    /// The client's socket address.
    pub downstream: Option<SocketAddr>,
    /// The socket address of the selected endpoint; `None` if no endpoint was selected.
    pub upstream: Option<SocketAddr>,
    /// The number of body bytes received from the client.
    pub bytes_in: u64,
    /// The number of body bytes sent to the client.
    pub bytes_out: u64,
    /// The time from the first byte received to the last byte sent.
    pub duration: Duration,
    /// The time from the first byte received to the first byte sent.
    pub time_to_first_byte: Option<Duration>,
    /// The time from the last request byte sent to the first response byte received.
    pub upstream_time: Option<Duration>,
    /// The number of attempts after the first, also those of a hedge.
    pub retries: u8,
    /// `won` or `lost` for a hedged second attempt; empty without a second attempt.
    pub hedge: &'a str,
    /// The header `x-forwarded-for`.
    pub forwarded_for: &'a str,
    /// The header `user-agent`.
    pub user_agent: &'a str,
    /// The header `x-request-id`.
    pub request_id: &'a str,
    /// The TLS server name from the client.
    pub server_name: &'a str,
    /// The trace ID; empty if requests are not traced.
    pub trace_id: &'a str,
    /// The span ID, also if the span is not sampled; empty if requests are not traced.
    pub span_id: &'a str,
}

/// The value of a present field, for exporters of structured records.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LogValue<'a> {
    /// A text, truncated to [`MAX_TEXT_BYTES`], without escapes.
    Text(&'a str),
    /// A count, or a status.
    Number(u64),
    /// A duration in milliseconds.
    Milliseconds(f64),
    /// A socket address.
    Address(SocketAddr),
}

/// The value of a field. An empty text and `None` are absent values.
enum FieldValue<'a> {
    Text(&'a str),
    Number(u64),
    Duration(Option<Duration>),
    Address(Option<SocketAddr>),
}

impl<'a> AccessLogEntry<'a> {
    /// Returns the names and values of the present fields, in order.
    pub fn present_fields(&self) -> impl Iterator<Item = (&'static str, LogValue<'a>)> {
        self.all_fields().into_iter().filter_map(|(name, value)| {
            let log_value = match value {
                FieldValue::Text("") | FieldValue::Duration(None) | FieldValue::Address(None) => {
                    return None;
                }
                FieldValue::Text(text) => LogValue::Text(truncate_text(text)),
                FieldValue::Number(number) => LogValue::Number(number),
                FieldValue::Duration(Some(duration)) => {
                    LogValue::Milliseconds(duration.as_micros() as f64 / 1e3)
                }
                FieldValue::Address(Some(address)) => LogValue::Address(address),
            };
            Some((name, log_value))
        })
    }

    /// Returns the fields of a line in order, with the names of OSM's access log.
    fn all_fields(&self) -> [(&'static str, FieldValue<'a>); 29] {
        use FieldValue::{Address, Duration, Number, Text};
        [
            ("start_time", Text(self.start_time)),
            ("direction", Text(self.direction)),
            ("method", Text(self.method)),
            ("path", Text(strip_query(self.path))),
            ("protocol", Text(self.protocol)),
            ("authority", Text(strip_user_info(self.authority))),
            ("response_code", Number(self.status.into())),
            ("response_code_details", Text(self.reason.unwrap_or(""))),
            ("grpc_status", Text(self.grpc_status)),
            ("upstream_cluster", Text(self.service)),
            ("route", Text(self.route)),
            ("policy", Text(self.policy)),
            ("dry_run_reason", Text(self.dry_run_reason)),
            ("peer", Text(self.peer)),
            ("downstream_remote", Address(self.downstream)),
            ("upstream_host", Address(self.upstream)),
            ("bytes_received", Number(self.bytes_in)),
            ("bytes_sent", Number(self.bytes_out)),
            ("duration", Duration(Some(self.duration))),
            ("time_to_first_byte", Duration(self.time_to_first_byte)),
            ("upstream_service_time", Duration(self.upstream_time)),
            ("retries", Number(self.retries.into())),
            ("hedge", Text(self.hedge)),
            ("x_forwarded_for", Text(self.forwarded_for)),
            ("user_agent", Text(self.user_agent)),
            ("request_id", Text(self.request_id)),
            ("requested_server_name", Text(self.server_name)),
            ("trace_id", Text(self.trace_id)),
            ("span_id", Text(self.span_id)),
        ]
    }
}

/// Appends an entry as one line of JSON. Durations are in milliseconds. Every text is truncated to
/// [`MAX_TEXT_BYTES`].
pub fn write_json(entry: &AccessLogEntry<'_>, output: &mut String) {
    let mut line = LineWriter { output };
    for (index, (name, value)) in entry.all_fields().into_iter().enumerate() {
        line.output.push(if index == 0 { '{' } else { ',' });
        // Field names are constants and need no escapes.
        line.write_formatted(format_args!("\"{name}\":"));
        match value {
            FieldValue::Text("") | FieldValue::Duration(None) | FieldValue::Address(None) => {
                line.output.push_str("null");
            }
            FieldValue::Text(text) => line.write_string(text),
            FieldValue::Address(Some(address)) => {
                line.write_formatted(format_args!("\"{address}\""))
            }
            FieldValue::Number(number) => line.write_formatted(format_args!("{number}")),
            FieldValue::Duration(Some(duration)) => line.write_millis(duration),
        }
    }
    line.output.push_str("}\n");
}

/// Appends an entry as one line that consists of `parts`. Absent values are written as `-`. Texts are written
/// with JSON escapes, so that no client can inject a line.
pub fn write_fields<'n>(
    entry: &AccessLogEntry<'_>,
    parts: impl Iterator<Item = TemplatePart<'n>>,
    output: &mut String,
) {
    let fields = entry.all_fields();
    let mut line = LineWriter { output };
    for part in parts {
        let name = match part {
            TemplatePart::Text(text) => {
                line.output.push_str(text);
                continue;
            }
            TemplatePart::Field(name) => name,
        };
        let value = fields.iter().find(|(candidate, _)| *candidate == name).map(|(_, value)| value);
        match value {
            None
            | Some(FieldValue::Text("") | FieldValue::Duration(None) | FieldValue::Address(None)) =>
            {
                line.output.push('-');
            }
            Some(FieldValue::Text(text)) => line.write_escaped(text),
            Some(FieldValue::Address(Some(address))) => {
                line.write_formatted(format_args!("{address}"))
            }
            Some(FieldValue::Number(number)) => line.write_formatted(format_args!("{number}")),
            Some(FieldValue::Duration(Some(duration))) => line.write_millis(*duration),
        }
    }
    line.output.push('\n');
}

/// A part of a line template: literal text, or a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplatePart<'a> {
    /// Literal text.
    Text(&'a str),
    /// The value of the field with this name.
    Field(&'a str),
}

/// A writer of the values of one line.
struct LineWriter<'a> {
    output: &'a mut String,
}

impl LineWriter<'_> {
    fn write_millis(&mut self, duration: Duration) {
        let micros = duration.as_micros();
        self.write_formatted(format_args!("{}.{:03}", micros / 1000, micros % 1000));
    }

    fn write_string(&mut self, text: &str) {
        self.output.push('"');
        self.write_escaped(text);
        self.output.push('"');
    }

    /// Appends a text in which quotes, backslashes and controls are escaped (RFC 8259 §7).
    fn write_escaped(&mut self, text: &str) {
        for character in truncate_text(text).chars() {
            match character {
                '"' => self.output.push_str("\\\""),
                '\\' => self.output.push_str("\\\\"),
                '\n' => self.output.push_str("\\n"),
                '\r' => self.output.push_str("\\r"),
                '\t' => self.output.push_str("\\t"),
                // Also C1 controls from U+0080 and bidirectional marks, which JSON permits.
                control if is_terminal_control(control) => {
                    self.write_formatted(format_args!("\\u{:04x}", u32::from(control)));
                }
                character => self.output.push(character),
            }
        }
    }

    fn write_formatted(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a `String` cannot fail.
        self.output.write_fmt(text).unwrap_or_default();
    }
}

/// Truncates a text to [`MAX_TEXT_BYTES`], at the end of a character.
fn truncate_text(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

/// Returns a path without its query and fragment.
fn strip_query(path: &str) -> &str {
    path.split(['?', '#']).next().unwrap_or(path)
}

/// Returns an authority without user name and password.
#[must_use]
pub fn strip_user_info(authority: &str) -> &str {
    authority.rsplit('@').next().unwrap_or(authority)
}

/// The maximum length of a text in a line, in bytes: clients choose paths and headers, and lines must stay
/// readable.
pub const MAX_TEXT_BYTES: usize = 1024;

#[cfg(test)]
mod tests;
