//! Sends responses that the sidecar generates itself, such as errors and redirects, in the client's protocol.

use bytes::BytesMut;
use http::header::{DATE, HeaderName, HeaderValue};
use leno_traffic::FieldEdits;

use super::body::{send_http2_data, send_link_data};
use super::date;
use super::respond::Responder;
use crate::link::REJECTED_OPTION;

/// A generated response: a head, and a text for people.
pub(crate) struct GeneratedResponse<'a> {
    pub(crate) status: u16,
    /// The fields in addition to `date` and `content-length`.
    pub(crate) fields: &'a [(&'a str, &'a str)],
    /// The body, in plain text.
    pub(crate) text: &'a str,
    /// The header changes by a rule.
    pub(crate) edits: Option<&'a FieldEdits>,
    /// True if the sidecar rejects the request.
    pub(crate) is_rejection: bool,
    /// True if the client is a sidecar: over HTTP/1.1, a rejection is then marked with [`REJECTED_OPTION`].
    pub(crate) to_sidecar: bool,
}

impl GeneratedResponse<'_> {
    /// Sends the response. `is_bodiless`: the client reads no body. Returns false if the client has
    /// disconnected.
    pub(crate) async fn send(&self, responder: &mut Responder<'_>, is_bodiless: bool) -> bool {
        let body = if is_bodiless { "" } else { self.text };
        match responder {
            Responder::Http1 { writer, keep_alive, .. } => {
                let head = self.http1_head();
                writer.output_buffer().extend_from_slice(head.as_bytes());
                if self.is_rejection && self.to_sidecar {
                    let rejection_header = format!("connection: {REJECTED_OPTION}\r\n");
                    writer.output_buffer().extend_from_slice(rejection_header.as_bytes());
                }
                let head_end: &[u8] =
                    if *keep_alive { b"\r\n" } else { b"connection: close\r\n\r\n" };
                writer.output_buffer().extend_from_slice(head_end);
                writer.output_buffer().extend_from_slice(body.as_bytes());
                writer.flush().await.is_ok()
            }
            Responder::Http2 { response, stall_timeout, .. } => {
                let Some(Ok(stream)) =
                    self.http2_head().map(|head| response.send_head(head, body.is_empty()))
                else {
                    return false;
                };
                let body = bytes::Bytes::copy_from_slice(body.as_bytes());
                body.is_empty()
                    || send_http2_data(&stream, body, true, *stall_timeout).await.is_ok()
            }
            Responder::Link { stream, stall_timeout } => {
                let Some(Ok(())) = stream.wait_uncongested(*stall_timeout).await else {
                    return false;
                };
                let head = self.http1_head();
                let body = bytes::Bytes::copy_from_slice(body.as_bytes());
                let write_head = |out: &mut BytesMut| {
                    out.extend_from_slice(head.as_bytes());
                    out.extend_from_slice(b"\r\n");
                };
                let send_result = match self.is_rejection {
                    true => stream.send_rejection(body.is_empty(), write_head),
                    false => stream.send_head(false, body.is_empty(), write_head),
                };
                let is_sent = send_result.is_ok();
                is_sent
                    && (body.is_empty()
                        || send_link_data(stream, body, true, *stall_timeout).await.is_ok())
            }
        }
    }

    /// Returns the HTTP/1.1 head, without the empty line at its end.
    fn http1_head(&self) -> String {
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.status, reason_phrase(self.status));
        for (name, value) in self.remaining_fields() {
            head.extend([name, ": ", value, "\r\n"]);
        }
        let current_date = date::current_date();
        if !self.is_removed("date") {
            let date = std::str::from_utf8(&current_date).unwrap_or_default();
            head.extend(["date: ", date, "\r\n"]);
        }
        head.push_str(self.edits.map_or("", |edits| &edits.lines));
        head.extend(["content-length: ", &self.text.len().to_string(), "\r\n"]);
        head
    }

    /// Returns the head for HTTP/2; `None` if a field is invalid.
    fn http2_head(&self) -> Option<http::Response<()>> {
        let mut builder = http::Response::builder().status(self.status);
        for (name, value) in self.remaining_fields() {
            builder = builder.header(name, value);
        }
        if !self.is_removed("date") {
            builder = builder.header(DATE, &date::current_date()[..]);
        }
        let mut response = builder.header("content-length", self.text.len()).body(()).ok()?;
        if let Some(edits) = self.edits {
            append_fields(edits, response.headers_mut())?;
        }
        Some(response)
    }

    /// Returns the fields that the rule does not remove.
    fn remaining_fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().copied().filter(|(name, _)| !self.is_removed(name))
    }

    fn is_removed(&self, name: &str) -> bool {
        self.edits.is_some_and(|edits| edits.remove.iter().any(|removed| **removed == *name))
    }
}

/// Applies the edits of a rule to a head; `None` if a field is invalid.
pub(crate) fn edit_fields(edits: &FieldEdits, fields: &mut http::HeaderMap) -> Option<()> {
    for name in &edits.remove {
        fields.remove(&**name);
    }
    append_fields(edits, fields)
}

/// Appends the fields that a rule adds or sets; `None` if a field is invalid.
fn append_fields(edits: &FieldEdits, fields: &mut http::HeaderMap) -> Option<()> {
    for (name, value) in edits.appended() {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        fields.append(name, HeaderValue::from_bytes(value.as_bytes()).ok()?);
    }
    Some(())
}

/// Returns the reason phrase (RFC 9110 §15) of a status that the sidecar generates.
fn reason_phrase(status: u16) -> &'static str {
    match status {
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Content Too Large",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use leno_model::{Reason, Redirect};

    use super::*;

    #[test]
    fn every_generated_status_has_a_reason_phrase() {
        for reason in Reason::ALL {
            assert!(
                reason.status() == 0 || reason_phrase(reason.status()) != "Error",
                "{reason:?}"
            );
        }
        for status in Redirect::STATUSES {
            assert_ne!(reason_phrase(status), "Error", "{status}");
        }
    }
}
