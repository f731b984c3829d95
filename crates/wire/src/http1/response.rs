//! Parses response heads.

use super::cursor::{Cursor, parse_section};
use super::field::{self, FieldProperties};
use super::request::read_version;
use super::{BodyLength, ByteSpan, FieldKind, HeaderField, Http1Version, Malformed, ParseProgress};

/// The head of a response, as spans of the parsed bytes. Reuse one value for several heads: it keeps the allocation of
/// `fields`.
#[derive(Debug, Default)]
pub struct ResponseHead {
    /// The version in the status line.
    pub version: Http1Version,
    /// The status, 100 to 999.
    pub status: u16,
    /// The reason phrase, may be empty.
    pub reason: ByteSpan,
    /// The field lines in order.
    pub fields: Vec<HeaderField>,
    /// The length of the body. A head that arrived over a link has no `Transfer-Encoding`; the recipient sets this
    /// field after parsing.
    pub body: BodyLength,
    /// True if the server accepts another request on this connection (RFC 9112 §9.3).
    pub keep_alive: bool,
    /// True for `Connection: upgrade` with an `Upgrade` other than to HTTP/2.
    pub upgrade: bool,
    /// True if another protocol follows: 101, or 2xx to CONNECT.
    pub tunnel: bool,
}

/// The kind of the request's method: the length of the response body depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestKind {
    /// HEAD: the response has no body.
    Head,
    /// CONNECT: a tunnel follows a 2xx response.
    Connect,
    /// Any other method.
    #[default]
    Other,
}

impl RequestKind {
    /// Classifies a method, which is case-sensitive.
    #[must_use]
    pub fn for_method(method: &[u8]) -> Self {
        match method {
            b"HEAD" => Self::Head,
            b"CONNECT" => Self::Connect,
            _ => Self::Other,
        }
    }
}

impl ResponseHead {
    /// Parses the head at the start of `bytes`, the response to a request of `request_kind`. Call again with more
    /// bytes after [`ParseProgress::Partial`]. The head is empty unless the result is [`ParseProgress::Complete`].
    ///
    /// # Errors
    /// The first violated rule; the connection is no longer usable.
    pub fn parse(
        &mut self,
        bytes: &[u8],
        request_kind: RequestKind,
    ) -> Result<ParseProgress, Malformed> {
        self.clear();
        let parsed = parse_section(bytes, |cursor| self.read(cursor, request_kind));
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

    /// True if `Connection` has this option; `bytes` are the parsed bytes.
    #[must_use]
    pub fn has_connection_option(&self, bytes: &[u8], option: &str) -> bool {
        let connection_fields =
            self.fields.iter().filter(|field| field.kind == FieldKind::Connection);
        let mut options = connection_fields
            .flat_map(|field| field.value.slice_in(bytes).split(|byte| *byte == b','));
        options.any(|candidate| candidate.trim_ascii().eq_ignore_ascii_case(option.as_bytes()))
    }

    /// True for a challenge to authenticate the connection (RFC 4559 §4). `bytes` are the parsed bytes.
    #[must_use]
    pub fn authenticates_connection(&self, bytes: &[u8]) -> bool {
        matches!(self.status, 401 | 407)
            && self.fields.iter().any(|field| {
                let name = field.name.slice_in(bytes);
                let is_challenge = name.eq_ignore_ascii_case(b"www-authenticate")
                    || name.eq_ignore_ascii_case(b"proxy-authenticate");
                is_challenge
                    && field
                        .value
                        .slice_in(bytes)
                        .split(|byte| *byte == b',')
                        .any(|challenge| field::authenticates_connection(challenge.trim_ascii()))
            })
    }

    /// True if another head follows for the same request: 1xx other than 101 (RFC 9110 §15.2).
    #[must_use]
    pub fn is_interim(&self) -> bool {
        matches!(self.status, 100 | 102..=199)
    }

    /// True if a response with this status never has content nor framing fields (RFC 9110 §8.6).
    pub(super) fn forbids_body(&self) -> bool {
        matches!(self.status, 100..=199 | 204) || self.tunnel
    }

    fn read(
        &mut self,
        cursor: &mut Cursor<'_>,
        request_kind: RequestKind,
    ) -> Result<(), Malformed> {
        self.read_status_line(cursor)?;
        let mut properties = FieldProperties::default();
        properties.read(cursor, &mut self.fields)?;
        let declared_length = properties.body_length(self.version)?;
        self.tunnel = self.status == 101
            || (request_kind == RequestKind::Connect && matches!(self.status, 200..=299));
        self.body = match declared_length {
            // A declared length in a 2xx response to CONNECT is ignored (RFC 9110 §9.3.6).
            _ if self.tunnel && self.status != 101 => BodyLength::Empty,
            None | Some(BodyLength::ContentLength(0)) if self.forbids_body() => BodyLength::Empty,
            Some(_) if self.forbids_body() => return Err(Malformed::BodyForbidden),
            _ if request_kind == RequestKind::Head || self.status == 304 => BodyLength::Empty,
            Some(length) => length,
            None => BodyLength::UntilClose,
        };
        self.keep_alive = properties.is_persistent(self.version)
            && self.body != BodyLength::UntilClose
            && !self.tunnel;
        self.upgrade = properties.is_upgrade(self.version);
        Ok(())
    }

    /// Reads `HTTP-version SP status-code SP [ reason-phrase ]` (RFC 9112 §4).
    fn read_status_line(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        self.version = read_version(cursor).ok_or(Malformed::Version)?;
        let Some([b' ', hundreds @ b'1'..=b'9', tens @ b'0'..=b'9', ones @ b'0'..=b'9', b' ', ..]) =
            cursor.remaining_bytes().first_chunk::<5>()
        else {
            return Err(Malformed::StatusLine);
        };
        self.status = [hundreds, tens, ones].iter().fold(0, |status: u16, digit| {
            status.saturating_mul(10).saturating_add(u16::from(digit.wrapping_sub(b'0')))
        });
        cursor.position = cursor.position.saturating_add(5);
        self.reason = cursor.skip_value();
        cursor.skip_line_end(Malformed::FieldValue)
    }

    fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = Self { fields, ..Self::default() };
    }
}

#[cfg(test)]
mod tests;
