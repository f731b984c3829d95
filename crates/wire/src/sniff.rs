//! Detects the protocol of a connection from its first bytes.

mod first_line;

pub use first_line::{FirstLine, FirstLineReader};

/// The protocol of a connection, as its first bytes show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectedProtocol {
    /// Undecided: call again with more bytes. Never returned for [`MAX_SNIFF_BYTES`] bytes.
    Incomplete,
    /// An HTTP/1 request line, perhaps malformed.
    Http1,
    /// The connection preface of HTTP/2 (RFC 9113 §3.4).
    Http2,
    /// A TLS ClientHello (RFC 8446 §4.1.2).
    Tls,
    /// Anything else.
    Opaque,
}

/// Detects the protocol of a client from its first bytes. The client of a server-first protocol sends nothing, so the
/// result stays [`DetectedProtocol::Incomplete`]: the caller must limit the wait. Empty lines, CR and LF before a
/// request line are skipped, because some servers skip them (RFC 9112 §2.2).
#[must_use]
pub fn sniff_protocol(first_bytes: &[u8]) -> DetectedProtocol {
    let first_bytes = first_bytes.get(..MAX_SNIFF_BYTES).unwrap_or(first_bytes);
    match first_bytes {
        [] => DetectedProtocol::Incomplete,
        [TLS_HANDSHAKE, ..] => sniff_tls(first_bytes),
        _ if first_bytes.starts_with(HTTP2_PREFACE) => DetectedProtocol::Http2,
        _ if HTTP2_PREFACE.starts_with(first_bytes) => DetectedProtocol::Incomplete,
        _ => {
            let blank_count =
                first_bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            let request = first_bytes.get(blank_count..).unwrap_or_default();
            sniff_http1(request, first_bytes.len() < MAX_SNIFF_BYTES)
        }
    }
}

/// The number of bytes after which the result is final. Requests with an unregistered method need many bytes, because
/// only the version after the target distinguishes them from other protocols.
pub const MAX_SNIFF_BYTES: usize = 1024;

/// Detects a handshake record of any version 3.x, of a valid length, that begins with a ClientHello.
fn sniff_tls(bytes: &[u8]) -> DetectedProtocol {
    let byte_checks: [fn(u8) -> bool; 6] = [
        |kind| kind == TLS_HANDSHAKE,
        |major| major == 3,
        // Servers ignore the minor version (RFC 8446 §5.1).
        |_minor| true,
        // A record has at most 2^14 bytes (RFC 8446 §5.1).
        |length_high| length_high <= 0x40,
        |_length_low| true,
        |message| message == TLS_CLIENT_HELLO,
    ];
    if !bytes.iter().zip(byte_checks).all(|(byte, matches)| matches(*byte)) {
        DetectedProtocol::Opaque
    } else if bytes.len() < byte_checks.len() {
        DetectedProtocol::Incomplete
    } else {
        DetectedProtocol::Tls
    }
}

/// Detects an HTTP/1 request. For a registered method, `METHOD SP` and a slash or a scheme suffice. For any other
/// method, a whole request line is required, because other protocols also begin with a word (`PING`, `get key`, `EHLO
/// name`). `may_wait` is true if the caller can pass more bytes.
fn sniff_http1(bytes: &[u8], may_wait: bool) -> DetectedProtocol {
    let method_length = bytes.iter().take_while(|byte| is_method_byte(**byte)).count();
    let (method, after_method) = bytes.split_at_checked(method_length).unwrap_or((bytes, b""));
    if method.len() > MAX_METHOD_BYTES {
        return DetectedProtocol::Opaque;
    }
    let after_space = match after_method {
        [] if may_wait => return DetectedProtocol::Incomplete,
        [b' ', after_space @ ..] if !method.is_empty() => after_space,
        _ => return DetectedProtocol::Opaque,
    };
    if REGISTERED_METHODS.contains(&method)
        && TARGET_PREFIXES.iter().any(|prefix| after_space.starts_with(prefix))
    {
        return DetectedProtocol::Http1;
    }
    let target_length = after_space.iter().take_while(|byte| byte.is_ascii_graphic()).count();
    let (target, version) =
        after_space.split_at_checked(target_length).unwrap_or((after_space, b""));
    if version.starts_with(VERSION_PREFIX) && !target.is_empty() {
        DetectedProtocol::Http1
    } else if VERSION_PREFIX.starts_with(version) && may_wait {
        DetectedProtocol::Incomplete
    } else {
        DetectedProtocol::Opaque
    }
}

fn is_method_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.!#$%&'*+^`|~".contains(&byte)
}

/// The beginning of the HTTP/2 preface (RFC 9113 §3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0";
/// The type of a TLS record with handshake messages (RFC 8446 §5.1).
const TLS_HANDSHAKE: u8 = 22;
/// The type of the handshake message ClientHello (RFC 8446 §4).
const TLS_CLIENT_HELLO: u8 = 1;
/// The bytes between the target and the minor version of a request line.
const VERSION_PREFIX: &[u8] = b" HTTP/1.";

/// Methods that identify HTTP together with a slash or a scheme.
const REGISTERED_METHODS: [&[u8]; 8] =
    [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE"];

/// The beginnings of a target after a registered method.
const TARGET_PREFIXES: [&[u8]; 3] = [b"/", b"http://", b"https://"];

/// The maximum length of a method, longer than any registered one (`UPDATEREDIRECTREF` has 17 letters).
const MAX_METHOD_BYTES: usize = 32;

#[cfg(test)]
mod tests;
