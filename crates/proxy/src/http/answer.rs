//! An answer that the sidecar makes itself, in the form that its client reads.

use bytes::BytesMut;
use http::header::{DATE, HeaderName, HeaderValue};
use leno_traffic::FieldEdits;

use super::body::{send, send_http2};
use super::date;
use super::respond::Responder;
use crate::link::REJECTED;

/// An answer of our own: a head, and a text for people.
pub(crate) struct Answer<'a> {
    pub(crate) status: u16,
    /// Fields beside `date` and `content-length`.
    pub(crate) fields: &'a [(&'a str, &'a str)],
    pub(crate) text: &'a str,
    /// What a rule does to the heads of answers.
    pub(crate) edits: Option<&'a FieldEdits>,
    /// True where the sidecar rejects the request.
    pub(crate) rejects: bool,
    /// True where the client is a sidecar that reads the mark of rejections over HTTP/1.1.
    pub(crate) to_sidecar: bool,
}

impl Answer<'_> {
    /// Sends it. `bodiless`: the client reads no body. False: the client is gone.
    pub(crate) async fn send(&self, responder: &mut Responder<'_>, bodiless: bool) -> bool {
        let body = if bodiless { "" } else { self.text };
        match responder {
            Responder::Http1 { writer, keep_alive, .. } => {
                let head = self.head();
                writer.room().extend_from_slice(head.as_bytes());
                if self.rejects && self.to_sidecar {
                    let mark = format!("connection: {REJECTED}\r\n");
                    writer.room().extend_from_slice(mark.as_bytes());
                }
                let close: &[u8] = if *keep_alive { b"\r\n" } else { b"connection: close\r\n\r\n" };
                writer.room().extend_from_slice(close);
                writer.room().extend_from_slice(body.as_bytes());
                writer.flush().await.is_ok()
            }
            Responder::Http2 { reply, patience, .. } => {
                let Some(Ok(stream)) = self.response().map(|it| reply.answer(it, body.is_empty()))
                else {
                    return false;
                };
                let body = bytes::Bytes::copy_from_slice(body.as_bytes());
                body.is_empty() || send_http2(&stream, body, true, *patience).await.is_ok()
            }
            Responder::Link { stream, patience } => {
                let Some(Ok(())) = stream.uncongested(*patience).await else {
                    return false;
                };
                let head = self.head();
                let body = bytes::Bytes::copy_from_slice(body.as_bytes());
                let write = |out: &mut BytesMut| {
                    out.extend_from_slice(head.as_bytes());
                    out.extend_from_slice(b"\r\n");
                };
                let sent = match self.rejects {
                    true => stream.send_rejection(body.is_empty(), write),
                    false => stream.send_head(false, body.is_empty(), write),
                };
                let sent = sent.is_ok();
                sent && (body.is_empty() || send(stream, body, true, *patience).await.is_ok())
            }
        }
    }

    /// The head of HTTP/1.1, up to the field before its end.
    fn head(&self) -> String {
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.status, phrase(self.status));
        for (name, value) in self.kept() {
            head.extend([name, ": ", value, "\r\n"]);
        }
        let now = date::now();
        if !self.is_removed("date") {
            let now = std::str::from_utf8(&now).unwrap_or_default();
            head.extend(["date: ", now, "\r\n"]);
        }
        head.push_str(self.edits.map_or("", |edits| &edits.lines));
        head.extend(["content-length: ", &self.text.len().to_string(), "\r\n"]);
        head
    }

    /// The same for HTTP/2.
    fn response(&self) -> Option<http::Response<()>> {
        let mut response = http::Response::builder().status(self.status);
        for (name, value) in self.kept() {
            response = response.header(name, value);
        }
        if !self.is_removed("date") {
            response = response.header(DATE, &date::now()[..]);
        }
        let mut response = response.header("content-length", self.text.len()).body(()).ok()?;
        if let Some(edits) = self.edits {
            append(edits, response.headers_mut())?;
        }
        Some(response)
    }

    fn kept(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().copied().filter(|(name, _)| !self.is_removed(name))
    }

    fn is_removed(&self, name: &str) -> bool {
        self.edits.is_some_and(|edits| edits.remove.iter().any(|removed| **removed == *name))
    }
}

/// Edits a head as a rule says.
pub(crate) fn edit(edits: &FieldEdits, fields: &mut http::HeaderMap) -> Option<()> {
    for name in &edits.remove {
        fields.remove(&**name);
    }
    append(edits, fields)
}

/// Appends the fields that a rule appends.
fn append(edits: &FieldEdits, fields: &mut http::HeaderMap) -> Option<()> {
    for (name, value) in edits.appended() {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        fields.append(name, HeaderValue::from_bytes(value.as_bytes()).ok()?);
    }
    Some(())
}

/// The reason phrases of RFC 9110 §15 for the statuses that the sidecar answers with.
fn phrase(status: u16) -> &'static str {
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
    fn every_status_of_ours_has_its_phrase() {
        for reason in Reason::ALL {
            assert!(reason.status() == 0 || phrase(reason.status()) != "Error", "{reason:?}");
        }
        for status in Redirect::STATUSES {
            assert_ne!(phrase(status), "Error", "{status}");
        }
    }
}
