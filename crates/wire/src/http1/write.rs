//! Writes received heads for the next hop: copies spans of the received bytes, with edits between them.

use std::fmt::Write as _;

use bytes::BytesMut;

use super::cursor::{TARGET, is_in_class};
use super::{BodyLength, ByteSpan, FieldKind, HeaderField, RequestHead, ResponseHead};

/// The edits of a forwarded request. The default forwards it unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestEdits<'a> {
    /// The request target that replaces the received one, such as its [`origin_form`](super::origin_form).
    pub target: Option<&'a [u8]>,
    /// The value of `Host` that replaces the received one.
    pub host: Option<&'a [u8]>,
    /// The framing of the body for the next hop.
    pub framing: FramingPolicy,
    /// Fields to append, name and value; never `Host`, nor a field about framing or the connection.
    pub add: &'a [(&'a str, &'a [u8])],
    /// Complete field lines to append, each with its final CR LF. The caller must have validated their names and
    /// values, and must not add fields about framing or the connection.
    pub lines: &'a str,
    /// Names of fields to remove, including names that differ only in case and punctuation: applications may
    /// read `X_User` or `x.user` as `x-user` (RFC 3875 §4.1.18). `Host` and the framing fields are not
    /// affected.
    pub remove: &'a [Box<str>],
    /// Names of fields that `add` replaces, ignoring case.
    pub replace: &'a [&'a str],
    /// The state of the connection after this message.
    pub connection: ConnectionHeader,
}

/// The edits of a forwarded response. The default forwards it unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseEdits<'a> {
    /// The framing of the body for the next hop.
    pub framing: FramingPolicy,
    /// Fields to append, name and value; never a field about framing or the connection.
    pub add: &'a [(&'a str, &'a [u8])],
    /// Complete field lines to append, with the same conditions as [`RequestEdits::lines`].
    pub lines: &'a str,
    /// Names of fields to remove; the framing fields are not affected.
    pub remove: &'a [Box<str>],
    /// The state of the connection after this message; for an HTTP/1.0 client pass [`ConnectionHeader::Close`].
    pub connection: ConnectionHeader,
}

/// The policy for the framing fields of a forwarded head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FramingPolicy {
    /// Keeps the length in the head's `body`: `Content-Length`, or chunks.
    #[default]
    Keep,
    /// Writes no `Transfer-Encoding`, because the link's frames or the end of the connection delimit the body. A
    /// received `Content-Length` is kept.
    OutOfBand,
    /// Always writes `Transfer-Encoding: chunked`.
    Chunked,
}

/// The state of the connection that a forwarded head declares in `Connection`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionHeader {
    /// The connection persists, the default of HTTP/1.1: no `Connection` field is written.
    #[default]
    KeepAlive,
    /// The connection is closed after this message.
    Close,
    /// The connection changes its protocol; the received `Upgrade` field is kept.
    Upgrade,
}

/// Appends the request parsed from `bytes`, as HTTP/1.1 and without its hop-by-hop fields (RFC 9110 §7.6.1).
/// Apart from that and from `edits`, the bytes and their order are unchanged.
pub fn write_request(
    bytes: &[u8],
    head: &RequestHead,
    edits: &RequestEdits<'_>,
    output: &mut BytesMut,
) {
    reserve_space(bytes, &head.fields, output);
    output.extend_from_slice(head.method.slice_in(bytes));
    output.extend_from_slice(b" ");
    match edits.target {
        Some(target) => put_target(target, output),
        None => output.extend_from_slice(head.target.slice_in(bytes)),
    }
    output.extend_from_slice(b" HTTP/1.1\r\n");
    if head.host.is_none() {
        // HTTP/1.1 requires a `Host` field, even an empty one (RFC 9112 §3.2).
        put_field("host", edits.host.unwrap_or_default(), output);
    }
    let keep_length = matches!(head.body, BodyLength::ContentLength(_))
        && edits.framing != FramingPolicy::Chunked;
    let selection = FieldSelection {
        host: edits.host,
        keep_length,
        keep_upgrade: edits.connection == ConnectionHeader::Upgrade,
        remove: edits.remove,
        names_match: is_similar_name,
        replace: edits.replace,
        is_selective: !(edits.remove.is_empty() && edits.replace.is_empty()),
    };
    let has_content_length = put_fields(bytes, &head.fields, &selection, output);
    put_framing(edits.framing, head.body, has_content_length, output);
    put_end(edits.connection, edits.add, edits.lines, output);
}

/// Appends the response parsed from `bytes`, as HTTP/1.1 and without its hop-by-hop fields (RFC 9110 §7.6.1).
/// Apart from that and from `edits`, the bytes and their order are unchanged.
pub fn write_response(
    bytes: &[u8],
    head: &ResponseHead,
    edits: &ResponseEdits<'_>,
    output: &mut BytesMut,
) {
    reserve_space(bytes, &head.fields, output);
    output.extend_from_slice(b"HTTP/1.1 ");
    output.extend_from_slice(&status_digits(head.status));
    output.extend_from_slice(b" ");
    output.extend_from_slice(head.reason.slice_in(bytes));
    output.extend_from_slice(b"\r\n");
    let forbids_body = head.forbids_body();
    // A response to HEAD and a 304 may declare the length that the response to GET has (RFC 9110 §8.6).
    let may_report_length = matches!(head.body, BodyLength::ContentLength(_) | BodyLength::Empty);
    let selection = FieldSelection {
        host: None,
        keep_length: may_report_length && !forbids_body && edits.framing != FramingPolicy::Chunked,
        keep_upgrade: edits.connection == ConnectionHeader::Upgrade,
        remove: edits.remove,
        names_match: <[u8]>::eq_ignore_ascii_case,
        replace: &[],
        is_selective: !edits.remove.is_empty(),
    };
    let has_content_length = put_fields(bytes, &head.fields, &selection, output);
    if !forbids_body {
        put_framing(edits.framing, head.body, has_content_length, output);
    }
    put_end(edits.connection, edits.add, edits.lines, output);
}

/// Selects the received fields to forward.
struct FieldSelection<'a> {
    /// The value that replaces the received `Host`.
    host: Option<&'a [u8]>,
    /// True if `Content-Length` is forwarded.
    keep_length: bool,
    /// True if `Upgrade` is forwarded.
    keep_upgrade: bool,
    /// As in [`RequestEdits`], like `replace`.
    remove: &'a [Box<str>],
    /// Compares the name of a field with a name in `remove`.
    names_match: fn(&[u8], &[u8]) -> bool,
    replace: &'a [&'a str],
    /// True if `remove` or `replace` contains a name; computed once for all fields.
    is_selective: bool,
}

/// The treatment of a received field in the forwarded head.
enum FieldAction<'a> {
    /// Copies the field.
    Keep,
    /// Omits the field.
    Drop,
    /// Writes the field with this value.
    Replace(&'a [u8]),
}

impl<'a> FieldSelection<'a> {
    #[inline]
    fn field_action(&self, bytes: &[u8], field: &HeaderField) -> FieldAction<'a> {
        let is_forwarded = match field.kind {
            FieldKind::Host => return self.host.map_or(FieldAction::Keep, FieldAction::Replace),
            FieldKind::ContentLength => self.keep_length,
            FieldKind::Upgrade => self.keep_upgrade && self.is_kept(bytes, field.name),
            _ => !field.hop_by_hop && self.is_kept(bytes, field.name),
        };
        if is_forwarded { FieldAction::Keep } else { FieldAction::Drop }
    }

    /// True unless an edit removes or replaces the field.
    #[inline]
    fn is_kept(&self, bytes: &[u8], name: ByteSpan) -> bool {
        !self.is_selective || !self.is_dropped(bytes, name)
    }

    /// True if `remove` or `replace` contains the name.
    fn is_dropped(&self, bytes: &[u8], name: ByteSpan) -> bool {
        let name = name.slice_in(bytes);
        self.remove.iter().any(|removed| (self.names_match)(name, removed.as_bytes()))
            || self.replace.iter().any(|replaced| name.eq_ignore_ascii_case(replaced.as_bytes()))
    }
}

/// True if two names differ only in case and punctuation.
fn is_similar_name(name: &[u8], other: &[u8]) -> bool {
    let is_similar_byte = |(byte, other): (&u8, &u8)| {
        byte.eq_ignore_ascii_case(other)
            || !byte.is_ascii_alphanumeric() && !other.is_ascii_alphanumeric()
    };
    name.len() == other.len() && name.iter().zip(other).all(is_similar_byte)
}

/// Copies the selected fields; adjacent fields are copied together. Returns true if `Content-Length` is among them.
fn put_fields(
    bytes: &[u8],
    fields: &[HeaderField],
    selection: &FieldSelection<'_>,
    output: &mut BytesMut,
) -> bool {
    let mut copied_range = 0..0;
    let mut has_content_length = false;
    for field in fields {
        match selection.field_action(bytes, field) {
            FieldAction::Drop => {}
            FieldAction::Keep => {
                let start = field.name.start as usize;
                if start != copied_range.end {
                    output.extend_from_slice(bytes.get(copied_range).unwrap_or_default());
                    copied_range = start..start;
                }
                copied_range.end = line_end(bytes, field);
                has_content_length |= field.kind == FieldKind::ContentLength;
            }
            FieldAction::Replace(value) => {
                output.extend_from_slice(bytes.get(copied_range).unwrap_or_default());
                copied_range = 0..0;
                output.extend_from_slice(field.name.slice_in(bytes));
                put_value(value, output);
            }
        }
    }
    output.extend_from_slice(bytes.get(copied_range).unwrap_or_default());
    has_content_length
}

/// Returns the position after the line end of a field: only white space and CR LF follow its value.
#[inline]
fn line_end(bytes: &[u8], field: &HeaderField) -> usize {
    let end = field.value.end as usize;
    let after_value = bytes.get(end..).unwrap_or_default();
    if after_value.starts_with(b"\r\n") {
        return end.saturating_add(2);
    }
    let bytes_before_lf = after_value.iter().take_while(|byte| **byte != b'\n').count();
    end.saturating_add(bytes_before_lf).saturating_add(1)
}

/// Appends the field that declares the body length, unless a received `Content-Length` was copied.
fn put_framing(
    framing: FramingPolicy,
    body: BodyLength,
    has_content_length: bool,
    output: &mut BytesMut,
) {
    match (framing, body) {
        (FramingPolicy::Chunked, _) | (FramingPolicy::Keep, BodyLength::Chunked) => {
            output.extend_from_slice(b"transfer-encoding: chunked\r\n");
        }
        (FramingPolicy::Keep, BodyLength::ContentLength(length)) if !has_content_length => {
            write!(output, "content-length: {length}\r\n")
                .expect("a growing buffer accepts all bytes");
        }
        (FramingPolicy::Keep | FramingPolicy::OutOfBand, _) => {}
    }
}

/// Appends `Connection`, the added fields and the empty line.
fn put_end(
    connection: ConnectionHeader,
    add: &[(&str, &[u8])],
    lines: &str,
    output: &mut BytesMut,
) {
    match connection {
        ConnectionHeader::KeepAlive => {}
        ConnectionHeader::Close => output.extend_from_slice(b"connection: close\r\n"),
        ConnectionHeader::Upgrade => output.extend_from_slice(b"connection: upgrade\r\n"),
    }
    for (name, value) in add {
        put_field(name, value, output);
    }
    debug_assert!(are_field_lines(lines), "not field lines: {lines:?}");
    if !lines.is_empty() {
        output.extend_from_slice(lines.as_bytes());
    }
    output.extend_from_slice(b"\r\n");
}

/// True if a text consists of complete field lines.
fn are_field_lines(text: &str) -> bool {
    let is_line = |line: &str| match line.split_once(": ") {
        Some((name, value)) => !name.is_empty() && !value.contains(['\r', '\n']),
        None => false,
    };
    text.is_empty() || (text.ends_with("\r\n") && text.split_terminator("\r\n").all(is_line))
}

fn put_field(name: &str, value: &[u8], output: &mut BytesMut) {
    debug_assert!(!name.is_empty() && !name.contains([':', '\r', '\n']), "not a name: {name}");
    output.extend_from_slice(name.as_bytes());
    put_value(value, output);
}

/// Appends the value of a field and the line end. Control characters become spaces, as RFC 9110 §5.5 allows, so that
/// a value cannot end its line. Parsed values have none; this is for values created by callers.
fn put_value(value: &[u8], output: &mut BytesMut) {
    output.extend_from_slice(b": ");
    // The loop has no early exit, so that the compiler can test many bytes at once.
    if value.iter().fold(false, |has_control, byte| has_control | byte.is_ascii_control()) {
        output.extend(value.iter().map(|byte| if byte.is_ascii_control() { b' ' } else { *byte }));
    } else {
        output.extend_from_slice(value);
    }
    output.extend_from_slice(b"\r\n");
}

/// Appends a request target. Invalid characters are percent-encoded, so that the target cannot end the
/// request line.
fn put_target(target: &[u8], output: &mut BytesMut) {
    if target.iter().all(|byte| is_in_class(*byte, TARGET)) {
        output.extend_from_slice(target);
        return;
    }
    for byte in target {
        if is_in_class(*byte, TARGET) {
            output.extend_from_slice(&[*byte]);
        } else {
            write!(output, "%{byte:02X}").expect("a growing buffer accepts all bytes");
        }
    }
}

fn status_digits(status: u16) -> [u8; 3] {
    let last_digit =
        |number: u16| u8::try_from(number % 10).map_or(b'0', |digit| b'0'.wrapping_add(digit));
    [last_digit(status / 100), last_digit(status / 10), last_digit(status)]
}

/// Reserves space for all received bytes up to the last field, and for typical additions.
fn reserve_space(bytes: &[u8], fields: &[HeaderField], output: &mut BytesMut) {
    let received_bytes = fields.last().map_or(bytes.len(), |field| field.value.end as usize);
    output.reserve(received_bytes.min(bytes.len()).saturating_add(ADDITIONS_BYTES));
}

/// The space reserved for fields that a proxy appends, in bytes. If they need more, the buffer grows once more.
const ADDITIONS_BYTES: usize = 256;

#[cfg(test)]
mod tests;
