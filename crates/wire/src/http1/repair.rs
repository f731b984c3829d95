//! Repairs response heads of the local application that violate HTTP/1.1 in ways that recipients may accept.

use super::MAX_HEAD_BYTES;
use super::cursor::is_blank;

/// A repaired response head.
#[derive(Debug, PartialEq, Eq)]
pub struct RepairedHead {
    /// The valid head. It has `Connection: close`: if the repair was wrong about the length of the body, the bytes
    /// after it must not be read as another response.
    pub head: Vec<u8>,
    /// The length of the received head in bytes.
    pub received_bytes: usize,
}

/// Repairs the head of a response at the start of `bytes`. Only the sidecar of the application that sent the response
/// calls this. The caller parses the repaired head by the same rules as any other head.
///
/// Accepts lines that end in LF alone (RFC 9112 §2.2), a status line without its second space, folded fields
/// (§5.2), white space before a colon (§5.1), `Content-Length` that is repeated with one value or has leading
/// zeros (§6.3), and `Transfer-Encoding` that is repeated with `chunked` (§6.3). Drops `Content-Length` next to
/// `Transfer-Encoding` (§6.3), and `Transfer-Encoding` in a 204 or a 304, which never have content (§6.1).
///
/// Returns `None` for other violations, and for an incomplete head.
#[must_use]
pub fn repair_response(bytes: &[u8]) -> Option<RepairedHead> {
    let (lines, head_length) = split_lines(bytes)?;
    let (status_line, field_lines) = lines.split_first()?;
    let fields = split_fields(field_lines)?;
    let status = status_line.get(STATUS_START..STATUS_END)?;
    if status.starts_with(b"1") {
        return None;
    }
    let is_chunked = parse_transfer_encoding(&fields)?;
    let content_length = parse_content_length(&fields)?;
    if status == b"204" && content_length.is_some_and(|length| length > 0) {
        return None;
    }
    let mut head = status_line.to_vec();
    if status_line.len() == STATUS_END {
        head.push(b' ');
    }
    head.extend_from_slice(b"\r\n");
    for (name, value) in &fields {
        let (is_content_length, is_transfer_encoding) =
            (is_named(name, CONTENT_LENGTH), is_named(name, TRANSFER_ENCODING));
        if !is_content_length && !is_transfer_encoding {
            write_line(&mut head, name, value);
        }
    }
    match (is_chunked, content_length) {
        _ if status == b"204" => {}
        (true, _) if status == b"304" => {}
        (true, _) => write_line(&mut head, TRANSFER_ENCODING, b"chunked"),
        (false, Some(length)) => {
            write_line(&mut head, CONTENT_LENGTH, length.to_string().as_bytes())
        }
        (false, None) => {}
    }
    head.extend_from_slice(b"connection: close\r\n\r\n");
    Some(RepairedHead { head, received_bytes: head_length })
}

/// Splits a complete head. Returns its lines without their ends, and the length of the head in bytes. Returns `None`
/// for an incomplete head, and for a mixture of LF and CR LF: if an application that ends its lines in CR LF copies a
/// client's LF into a field value, that LF must not start a new line.
fn split_lines(bytes: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let mut lines = Vec::new();
    let is_crlf = bytes.split_inclusive(|byte| *byte == b'\n').next()?.ends_with(b"\r\n");
    let mut head_length = 0_usize;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        head_length = head_length.saturating_add(line.len());
        let line = line.strip_suffix(b"\n")?;
        let line = match is_crlf {
            true => line.strip_suffix(b"\r")?,
            false => line,
        };
        if head_length > MAX_HEAD_BYTES {
            return None;
        }
        if line.is_empty() {
            return Some((lines, head_length));
        }
        lines.push(line);
    }
    None
}

/// Returns the names and values of the fields. The lines of a folded field are joined with a space. Returns `None` for
/// a line without a colon.
fn split_fields<'b>(lines: &[&'b [u8]]) -> Option<Vec<(&'b [u8], Vec<u8>)>> {
    let mut fields: Vec<(&[u8], Vec<u8>)> = Vec::new();
    for line in lines {
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            let (_, value) = fields.last_mut()?;
            value.push(b' ');
            value.extend_from_slice(trim_whitespace(line));
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at_checked(colon)?;
        let value = value.strip_prefix(b":").unwrap_or_default();
        fields.push((trim_trailing_whitespace(name), trim_whitespace(value).to_vec()));
    }
    Some(fields)
}

/// Removes surrounding spaces and tabs (RFC 9110 §5.6.3).
fn trim_whitespace(bytes: &[u8]) -> &[u8] {
    let blank_count = bytes.iter().take_while(|byte| is_blank(**byte)).count();
    trim_trailing_whitespace(bytes.get(blank_count..).unwrap_or_default())
}

fn trim_trailing_whitespace(bytes: &[u8]) -> &[u8] {
    let blank_count = bytes.iter().rev().take_while(|byte| is_blank(**byte)).count();
    bytes.get(..bytes.len().saturating_sub(blank_count)).unwrap_or_default()
}

/// Returns true if the body is chunked; `None` for a coding other than `chunked`. Some applications add the field a
/// second time although the body is encoded once: a repeated `chunked` counts once.
fn parse_transfer_encoding(fields: &[(&[u8], Vec<u8>)]) -> Option<bool> {
    let mut transfer_encodings =
        fields.iter().filter(|(name, _)| is_named(name, TRANSFER_ENCODING)).peekable();
    let is_chunked = transfer_encodings.peek().is_some();
    transfer_encodings
        .all(|(_, coding)| coding.eq_ignore_ascii_case(b"chunked"))
        .then_some(is_chunked)
}

/// Returns the length in all `Content-Length` fields and in the lists within them: `Some(None)` without such a field,
/// `None` if the lengths differ or are not numbers.
fn parse_content_length(fields: &[(&[u8], Vec<u8>)]) -> Option<Option<u64>> {
    let mut declared_length = None;
    for (_, value) in fields.iter().filter(|(name, _)| is_named(name, CONTENT_LENGTH)) {
        for element in value.split(|byte| *byte == b',') {
            let digits = element.trim_ascii();
            if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
                return None;
            }
            let length: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
            if declared_length.replace(length).is_some_and(|previous| previous != length) {
                return None;
            }
        }
    }
    Some(declared_length)
}

fn write_line(head: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for piece in [name, b": ", value, b"\r\n"] {
        head.extend_from_slice(piece);
    }
}

fn is_named(name: &[u8], expected: &[u8]) -> bool {
    name.eq_ignore_ascii_case(expected)
}

const CONTENT_LENGTH: &[u8] = b"content-length";
const TRANSFER_ENCODING: &[u8] = b"transfer-encoding";
/// The position of the status in `HTTP/1.1 200 OK`.
const STATUS_START: usize = 9;
/// The position after the status.
const STATUS_END: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::{ParseProgress, RequestKind, ResponseHead};

    /// Returns the head that a strict recipient receives, without `connection: close`.
    fn repair_head(head: &str) -> Option<String> {
        let received = format!("{head}left");
        let repaired = repair_response(received.as_bytes())?;
        assert_eq!(repaired.received_bytes, head.len());
        let mut response_head = ResponseHead::default();
        let parse_result = response_head.parse(&repaired.head, RequestKind::Other);
        assert_eq!(parse_result, Ok(ParseProgress::Complete(repaired.head.len())), "{head}");
        assert!(!response_head.keep_alive);
        let repaired_text = String::from_utf8(repaired.head).unwrap();
        Some(repaired_text.strip_suffix("connection: close\r\n\r\n").unwrap().to_owned())
    }

    #[test]
    fn repairs_deviations_that_recipients_may_accept() {
        for (head, expected) in [
            (
                "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\nA: b\r\n\r\n",
                "HTTP/1.1 204 No Content\r\nA: b\r\n",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: Chunked\r\n\r\n",
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n",
            ),
            ("HTTP/1.1 304 X\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 304 X\r\n"),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\ncontent-length: 5, 05\r\n\r\n",
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: Chunked\r\n\r\n",
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n",
            ),
            ("HTTP/1.1 200\r\nA : b\r\n c\r\n\r\n", "HTTP/1.1 200 \r\nA: b c\r\n"),
            ("HTTP/1.1 200 OK\nA: b\n\n", "HTTP/1.1 200 OK\r\nA: b\r\n"),
        ] {
            assert_eq!(repair_head(head).as_deref(), Some(expected), "{head}");
        }
    }

    #[test]
    fn ambiguous_heads_are_not_repaired() {
        for head in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: identity\r\n\r\n",
            "HTTP/1.1 100 Continue\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 204 X\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\n folded\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\n",
            "HTTP/1.1 200 OK\r\nLocation: /x\nSet-Cookie: s=1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nLocation: /x\n\n<body>\r\n\r\n",
            "HTTP/1.1 200 OK\nA: b\r\n\r\n",
        ] {
            assert_eq!(repair_response(head.as_bytes()), None, "{head}");
        }
    }
}
