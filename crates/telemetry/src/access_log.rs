//! The access log: one JSON line for each request or byte stream.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

/// What a line of the access log tells. There is no place for bodies, nor for headers that carry
/// secrets. Empty texts and absent values are written as `null`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
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
    /// The header `x-forwarded-for`.
    pub forwarded_for: &'a str,
    /// The header `user-agent`.
    pub user_agent: &'a str,
    /// The header `x-request-id`.
    pub request_id: &'a str,
    /// The server name that the client asked for when it started TLS.
    pub server_name: &'a str,
}

/// Appends an entry as one line of JSON. Names are those of OSM's access log where it has the
/// value; durations are milliseconds. Every text is cut to [`TEXT_BYTES_MAX`].
pub fn write_json(entry: &Entry<'_>, now_rfc3339: &str, out: &mut String) {
    let mut line = Line { out };
    line.out.push_str("{\"start_time\":");
    line.string(now_rfc3339);
    line.text("direction", entry.direction);
    line.text("method", entry.method);
    line.text("path", without_query(entry.path));
    line.text("protocol", entry.protocol);
    line.text("authority", without_user(entry.authority));
    line.number("response_code", entry.status.into());
    line.text("response_code_details", entry.reason.unwrap_or(""));
    line.text("grpc_status", entry.grpc_status);
    line.text("upstream_cluster", entry.service);
    line.text("route", entry.route);
    line.text("policy", entry.policy);
    line.text("audit", entry.audit);
    line.text("peer", entry.peer);
    line.address("downstream_remote", entry.downstream);
    line.address("upstream_host", entry.upstream);
    line.number("bytes_received", entry.bytes_in);
    line.number("bytes_sent", entry.bytes_out);
    line.duration("duration", Some(entry.duration));
    line.duration("time_to_first_byte", entry.time_to_first_byte);
    line.duration("upstream_service_time", entry.upstream_time);
    line.number("retries", entry.retries.into());
    line.text("x_forwarded_for", entry.forwarded_for);
    line.text("user_agent", entry.user_agent);
    line.text("request_id", entry.request_id);
    line.text("requested_server_name", entry.server_name);
    line.out.push_str("}\n");
}

struct Line<'a> {
    out: &'a mut String,
}

impl Line<'_> {
    fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        match text.is_empty() {
            true => self.out.push_str("null"),
            false => self.string(text),
        }
    }

    fn number(&mut self, name: &str, number: u64) {
        self.name(name);
        self.format(format_args!("{number}"));
    }

    fn duration(&mut self, name: &str, duration: Option<Duration>) {
        self.name(name);
        match duration.map(|d| d.as_micros()) {
            Some(us) => self.format(format_args!("{}.{:03}", us / 1000, us % 1000)),
            None => self.out.push_str("null"),
        }
    }

    fn address(&mut self, name: &str, address: Option<SocketAddr>) {
        self.name(name);
        match address {
            Some(address) => self.format(format_args!("\"{address}\"")),
            None => self.out.push_str("null"),
        }
    }

    /// Names are our own, and need no escapes.
    fn name(&mut self, name: &str) {
        self.format(format_args!(",\"{name}\":"));
    }

    /// RFC 8259, section 7: quotes, backslashes and controls are escaped.
    fn string(&mut self, text: &str) {
        self.out.push('"');
        let cut = text.floor_char_boundary(TEXT_BYTES_MAX);
        for character in text[..cut].chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                // Also the controls from U+0080, which terminals obey and JSON would let pass.
                control if control.is_control() => {
                    self.format(format_args!("\\u{:04x}", u32::from(control)));
                }
                other => self.out.push(other),
            }
        }
        self.out.push('"');
    }

    fn format(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a `String` cannot fail.
        self.out.write_fmt(text).unwrap_or_default();
    }
}

fn without_query(path: &str) -> &str {
    path.split(['?', '#']).next().unwrap_or(path)
}

fn without_user(authority: &str) -> &str {
    authority.rsplit('@').next().unwrap_or(authority)
}

/// The longest text in a line: clients choose paths and headers, and lines must stay readable.
pub const TEXT_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests;
