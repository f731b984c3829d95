//! Parses request heads.

use super::cursor::{Cursor, TARGET, TOKEN, parse_section};
use super::field::{self, FieldProperties};
use super::target::{RequestTarget, parse_valid_target, split_authority};
use super::{BodyLength, ByteSpan, HeaderField, Http1Version, Malformed, ParseProgress};

/// The head of a request, as spans of the parsed bytes. Reuse one value for several heads: it keeps the allocation of
/// `fields`.
#[derive(Debug, Default)]
pub struct RequestHead {
    /// The method, a token.
    pub method: ByteSpan,
    /// The request target as received; [`parse_target`](super::parse_target) cannot fail on it.
    pub target: ByteSpan,
    /// The version in the request line.
    pub version: Http1Version,
    /// The field lines in order.
    pub fields: Vec<HeaderField>,
    /// The value of `Host`: valid, may be empty, absent only in HTTP/1.0.
    pub host: Option<ByteSpan>,
    /// The length of the body. A head that arrived over a link has no `Transfer-Encoding`; the recipient sets this
    /// field after parsing.
    pub body: BodyLength,
    /// True if the client may send another request on this connection (RFC 9112 §9.3).
    pub keep_alive: bool,
    /// True if the client waits for `100 Continue` before it sends the body (RFC 9110 §10.1.1).
    pub expect_continue: bool,
    /// True for `Connection: upgrade` with an `Upgrade` other than to HTTP/2.
    pub upgrade: bool,
    /// True if `upgrade` is true and `Upgrade` lists no protocol but WebSocket.
    pub websocket: bool,
    /// True if the client offers to change the connection to HTTP/2. An implementation that accepts the offer must
    /// check the rest of the head (RFC 7540 §3.2).
    pub http2: bool,
    /// True if the request's credentials authenticate the connection to the server: other clients must not share it.
    pub authenticates_connection: bool,
}

impl RequestHead {
    /// Parses the head at the start of `bytes`. Call again with more bytes after [`ParseProgress::Partial`]. The head
    /// is empty unless the result is [`ParseProgress::Complete`].
    ///
    /// # Errors
    /// The first violated rule; the connection is no longer usable.
    pub fn parse(&mut self, bytes: &[u8]) -> Result<ParseProgress, Malformed> {
        self.clear();
        let parsed = parse_section(bytes, |cursor| self.read(cursor));
        if !matches!(parsed, Ok(ParseProgress::Complete(_))) {
            self.clear();
        }
        parsed
    }

    /// Returns the values of all fields called `name`, ignoring case, without the fields that `Connection`
    /// lists; `bytes` are the parsed bytes.
    pub fn find<'b>(&self, bytes: &'b [u8], name: &str) -> impl Iterator<Item = &'b [u8]> {
        field::find(&self.fields, bytes, name)
    }

    /// Returns the values of all fields whose name satisfies `matches`, without the fields that `Connection`
    /// lists; `bytes` are the parsed bytes.
    pub fn find_by<'b>(
        &self,
        bytes: &'b [u8],
        matches: impl Fn(&[u8]) -> bool,
    ) -> impl Iterator<Item = &'b [u8]> {
        field::find_by(&self.fields, bytes, matches)
    }

    /// Returns the parsed target; `bytes` are the parsed bytes.
    ///
    /// # Errors
    /// None for the parsed bytes: [`Self::parse`] has checked the target.
    pub fn parsed_target<'b>(&self, bytes: &'b [u8]) -> Result<RequestTarget<'b>, Malformed> {
        parse_valid_target(self.method.slice_in(bytes), self.target.slice_in(bytes))
    }

    fn read(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        // Some clients send one empty line before the request line (RFC 9112 §2.2).
        cursor.skip(b"\r\n");
        self.read_request_line(cursor)?;
        let mut properties = FieldProperties::default();
        properties.read(cursor, &mut self.fields)?;
        self.host = properties.host;
        match self.host.map(|host| host.slice_in(cursor.bytes)) {
            None if self.version == Http1Version::Http11 => return Err(Malformed::HostMissing),
            // HTTP/1.0 requires no `Host`, and an empty `Host` is valid (RFC 9112 §3.2).
            None | Some(b"") => {}
            Some(host) => {
                split_authority(host)?;
            }
        }
        self.body = properties.body_length(self.version)?.unwrap_or_default();
        if self.method.slice_in(cursor.bytes) == b"CONNECT" {
            if !matches!(self.body, BodyLength::Empty | BodyLength::ContentLength(0)) {
                return Err(Malformed::BodyForbidden);
            }
            self.body = BodyLength::Empty;
        }
        self.keep_alive = properties.is_persistent(self.version);
        self.upgrade = properties.is_upgrade(self.version);
        self.websocket = self.upgrade && properties.lists_only_websocket();
        self.http2 = properties.offers_http2(self.version);
        self.authenticates_connection = properties.authenticates_connection;
        self.expect_continue = properties.expect_continue && self.version == Http1Version::Http11;
        Ok(())
    }

    fn read_request_line(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        self.method = cursor.skip_run(TOKEN);
        if self.method.is_empty() || !cursor.skip(b" ") {
            return Err(match cursor.peek() {
                Some(b'\n') => Malformed::LineEnd,
                _ => Malformed::Method,
            });
        }
        self.target = cursor.skip_run(TARGET);
        if self.target.is_empty() || !cursor.skip(b" ") {
            return Err(match cursor.peek() {
                Some(b' ' | b'\r') => Malformed::RequestLine,
                Some(b'\n') => Malformed::LineEnd,
                _ => Malformed::TargetCharacter,
            });
        }
        self.version =
            read_version(cursor).ok_or(if cursor.remaining_bytes().starts_with(b"HTTP/") {
                Malformed::Version
            } else {
                Malformed::RequestLine
            })?;
        cursor.skip_line_end(Malformed::RequestLine)?;
        parse_valid_target(self.method.slice_in(cursor.bytes), self.target.slice_in(cursor.bytes))
            .map(|_| ())
    }

    fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = Self { fields, ..Self::default() };
    }
}

/// Reads `HTTP/1.0` or `HTTP/1.1` (RFC 9112 §2.3).
pub(super) fn read_version(cursor: &mut Cursor<'_>) -> Option<Http1Version> {
    if cursor.skip(b"HTTP/1.1") {
        Some(Http1Version::Http11)
    } else if cursor.skip(b"HTTP/1.0") {
        Some(Http1Version::Http10)
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
