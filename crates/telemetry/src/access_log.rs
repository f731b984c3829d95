//! The access log: one line for each request or byte stream, as JSON or by a template.

use std::fmt::Write;

use crate::terminal::steers;
use std::net::SocketAddr;
use std::time::Duration;

/// What a line of the access log tells. There is no place for bodies, nor for headers that carry
/// secrets. Empty texts and absent values are written as `null`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// When it began, as RFC 3339 writes it.
    pub start_time: &'a str,
    /// `inbound` or `outbound`.
    pub direction: &'static str,
    /// The method; empty for a byte stream.
    pub method: &'a str,
    /// The path. What follows `?` or `#` is never written: queries carry tokens.
    pub path: &'a str,
    /// What was spoken.
    pub protocol: &'a str,
    /// Whom the request was for. User names and passwords before an `@` are never written.
    pub authority: &'a str,
    /// The status of the response; 0 when there was none.
    pub status: u16,
    /// Why it failed, from the closed list.
    pub reason: Option<&'static str>,
    /// The name of the status that a gRPC call was answered with; empty for anything else.
    pub grpc_status: &'static str,
    /// The service that was called, `namespace/name`.
    pub service: &'a str,
    /// The route that decided, `namespace/name`.
    pub route: &'a str,
    /// The policy that allowed it, or would allow it to others.
    pub policy: &'a str,
    /// Why strict mode would have denied what audit mode let in; empty otherwise.
    pub audit: &'a str,
    /// The verified identity at the other end.
    pub peer: &'a str,
    /// The address of the client, as the socket tells it.
    pub downstream: Option<SocketAddr>,
    /// The address of the endpoint that it was sent to.
    pub upstream: Option<SocketAddr>,
    /// Bytes of the body received from the client.
    pub bytes_in: u64,
    /// Bytes of the body sent to the client.
    pub bytes_out: u64,
    /// From the first byte received to the last byte sent.
    pub duration: Duration,
    /// From the first byte received to the first byte sent.
    pub time_to_first_byte: Option<Duration>,
    /// From the last byte of the request sent to the first byte of the response received.
    pub upstream_time: Option<Duration>,
    /// How many times it was sent once more.
    pub retries: u8,
    /// Whether a second attempt beside the first `won` or `lost`; empty when there was none.
    pub hedge: &'a str,
    /// The header `x-forwarded-for`.
    pub forwarded_for: &'a str,
    /// The header `user-agent`.
    pub user_agent: &'a str,
    /// The header `x-request-id`.
    pub request_id: &'a str,
    /// The server name that the client asked for when it started TLS.
    pub server_name: &'a str,
    /// The trace that it is a part of; empty when requests are not traced.
    pub trace_id: &'a str,
    /// Its span, whether or not that is sampled.
    pub span_id: &'a str,
}

/// The value of a field that is there, for whoever does not write lines.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LogValue<'a> {
    /// Cut to [`TEXT_BYTES_MAX`], without escapes.
    Text(&'a str),
    /// A count, or a status.
    Number(u64),
    /// How long, in milliseconds.
    Milliseconds(f64),
    /// Of a socket.
    Address(SocketAddr),
}

/// The value of a field.
enum Value<'a> {
    Text(&'a str),
    Number(u64),
    Duration(Option<Duration>),
    Address(Option<SocketAddr>),
}

impl<'a> Entry<'a> {
    /// The fields that are not absent, in their order.
    pub fn present(&self) -> impl Iterator<Item = (&'static str, LogValue<'a>)> {
        self.fields().into_iter().filter_map(|(name, value)| {
            let value = match value {
                Value::Text("") | Value::Duration(None) | Value::Address(None) => return None,
                Value::Text(text) => LogValue::Text(cut(text)),
                Value::Number(number) => LogValue::Number(number),
                Value::Duration(Some(duration)) => {
                    LogValue::Milliseconds(duration.as_micros() as f64 / 1e3)
                }
                Value::Address(Some(address)) => LogValue::Address(address),
            };
            Some((name, value))
        })
    }

    /// The fields of a line in their order, by the names that OSM's access log has for them.
    fn fields(&self) -> [(&'static str, Value<'a>); 29] {
        use Value::{Address, Duration, Number, Text};
        [
            ("start_time", Text(self.start_time)),
            ("direction", Text(self.direction)),
            ("method", Text(self.method)),
            ("path", Text(without_query(self.path))),
            ("protocol", Text(self.protocol)),
            ("authority", Text(without_user(self.authority))),
            ("response_code", Number(self.status.into())),
            ("response_code_details", Text(self.reason.unwrap_or(""))),
            ("grpc_status", Text(self.grpc_status)),
            ("upstream_cluster", Text(self.service)),
            ("route", Text(self.route)),
            ("policy", Text(self.policy)),
            ("audit", Text(self.audit)),
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

/// Appends an entry as one line of JSON. Durations are milliseconds. Every text is cut to
/// [`TEXT_BYTES_MAX`].
pub fn write_json(entry: &Entry<'_>, out: &mut String) {
    let mut line = Line { out };
    for (index, (name, value)) in entry.fields().into_iter().enumerate() {
        line.out.push(if index == 0 { '{' } else { ',' });
        // Names are our own, and need no escapes.
        line.format(format_args!("\"{name}\":"));
        match value {
            Value::Text("") | Value::Duration(None) | Value::Address(None) => {
                line.out.push_str("null");
            }
            Value::Text(text) => line.string(text),
            Value::Address(Some(address)) => line.format(format_args!("\"{address}\"")),
            Value::Number(number) => line.format(format_args!("{number}")),
            Value::Duration(Some(duration)) => line.milliseconds(duration),
        }
    }
    line.out.push_str("}\n");
}

/// Appends the fields of these names, each as a template for lines shows it: what is absent as `-`,
/// and texts with the escapes of JSON, so that no client can begin a line.
pub fn write_fields<'n>(
    entry: &Entry<'_>,
    parts: impl Iterator<Item = Part<'n>>,
    out: &mut String,
) {
    let fields = entry.fields();
    let mut line = Line { out };
    for part in parts {
        let name = match part {
            Part::Text(text) => {
                line.out.push_str(text);
                continue;
            }
            Part::Field(name) => name,
        };
        let value = fields.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
        match value {
            None | Some(Value::Text("") | Value::Duration(None) | Value::Address(None)) => {
                line.out.push('-');
            }
            Some(Value::Text(text)) => line.escaped(text),
            Some(Value::Address(Some(address))) => line.format(format_args!("{address}")),
            Some(Value::Number(number)) => line.format(format_args!("{number}")),
            Some(Value::Duration(Some(duration))) => line.milliseconds(*duration),
        }
    }
    line.out.push('\n');
}

/// A part of a template for lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// It stands as it is.
    Text(&'a str),
    /// The value of the field of this name.
    Field(&'a str),
}

struct Line<'a> {
    out: &'a mut String,
}

impl Line<'_> {
    fn milliseconds(&mut self, duration: Duration) {
        let us = duration.as_micros();
        self.format(format_args!("{}.{:03}", us / 1000, us % 1000));
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        self.escaped(text);
        self.out.push('"');
    }

    /// RFC 8259, section 7: quotes, backslashes and controls are escaped.
    fn escaped(&mut self, text: &str) {
        for character in cut(text).chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                // Also the controls from U+0080 and marks of direction, which JSON would let pass.
                control if steers(control) => {
                    self.format(format_args!("\\u{:04x}", u32::from(control)));
                }
                other => self.out.push(other),
            }
        }
    }

    fn format(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a `String` cannot fail.
        self.out.write_fmt(text).unwrap_or_default();
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

fn without_query(path: &str) -> &str {
    path.split(['?', '#']).next().unwrap_or(path)
}

/// An authority without the user and password that a client may have put in front of it.
#[must_use]
pub fn without_user(authority: &str) -> &str {
    authority.rsplit('@').next().unwrap_or(authority)
}

/// The longest text in a line: clients choose paths and headers, and lines must stay readable.
pub const TEXT_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests;
