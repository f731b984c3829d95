//! Parses the field lines of a head. One pass classifies each field, checks the body length, and detects hop-by-hop
//! fields.

use super::cursor::{Cursor, TOKEN, is_blank, is_in_class};
use super::{BodyLength, ByteSpan, Http1Version, MAX_FIELDS, Malformed};

/// One field line of a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderField {
    /// The name as received.
    pub name: ByteSpan,
    /// The value without surrounding white space.
    pub value: ByteSpan,
    /// The classification of the name.
    pub kind: FieldKind,
    /// True if the field applies to this connection only, because of its name or because `Connection` lists it.
    pub hop_by_hop: bool,
}

/// The kind of a field: a field with a meaning for the proxy, or any other field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the field of that name")]
pub enum FieldKind {
    Host,
    Connection,
    ContentLength,
    TransferEncoding,
    Te,
    Trailer,
    Upgrade,
    KeepAlive,
    ProxyConnection,
    ProxyAuthorization,
    ProxyAuthenticate,
    Authorization,
    Expect,
    /// Any other field: it is forwarded unchanged.
    #[default]
    Other,
}

impl FieldKind {
    /// Classifies a field name, ignoring case.
    #[inline]
    #[must_use]
    pub fn classify(name: &[u8]) -> Self {
        match name.len() {
            2 if is_name(name, b"te") => Self::Te,
            4 if is_name(name, b"host") => Self::Host,
            6 if is_name(name, b"expect") => Self::Expect,
            7 if is_name(name, b"upgrade") => Self::Upgrade,
            7 if is_name(name, b"trailer") => Self::Trailer,
            10 if is_name(name, b"connection") => Self::Connection,
            10 if is_name(name, b"keep-alive") => Self::KeepAlive,
            13 if is_name(name, b"authorization") => Self::Authorization,
            14 if is_name(name, b"content-length") => Self::ContentLength,
            16 if is_name(name, b"proxy-connection") => Self::ProxyConnection,
            17 if is_name(name, b"transfer-encoding") => Self::TransferEncoding,
            18 if is_name(name, b"proxy-authenticate") => Self::ProxyAuthenticate,
            19 if is_name(name, b"proxy-authorization") => Self::ProxyAuthorization,
            _ => Self::Other,
        }
    }

    /// True if fields of this kind are never forwarded (RFC 9110 §7.6.1, §11.7).
    #[inline]
    #[must_use]
    pub fn is_hop_by_hop(self) -> bool {
        match self {
            Self::Connection
            | Self::TransferEncoding
            | Self::Te
            | Self::Upgrade
            | Self::KeepAlive
            | Self::ProxyConnection
            | Self::ProxyAuthorization
            | Self::ProxyAuthenticate => true,
            Self::Host
            | Self::ContentLength
            | Self::Trailer
            | Self::Authorization
            | Self::Expect
            | Self::Other => false,
        }
    }
}

/// True if `name` equals the lowercase `expected`, ignoring case. Compares several bytes at
/// once, without a branch for each byte.
#[inline]
fn is_name<const N: usize>(name: &[u8], expected: &[u8; N]) -> bool {
    let Ok(name) = <&[u8; N]>::try_from(name) else { return false };
    let add_difference = |differing_bits: u8, (byte, expected): (&u8, &u8)| {
        // The two cases of a letter differ only in the bit of the space (0x20).
        let case_bit = if expected.is_ascii_lowercase() { b' ' } else { 0 };
        differing_bits | ((byte | case_bit) ^ expected)
    };
    name.iter().zip(expected).fold(0, add_difference) == 0
}

/// The connection and body properties of one head's fields.
#[derive(Default)]
pub(super) struct FieldProperties {
    /// The value of `Host`; `None` without the field.
    pub(super) host: Option<ByteSpan>,
    /// True for `Expect: 100-continue`.
    pub(super) expect_continue: bool,
    /// True if `Connection` lists `close`.
    pub(super) has_close: bool,
    /// True if `Connection` lists `keep-alive`.
    pub(super) has_keep_alive: bool,
    /// True if `Authorization` has a scheme that authenticates the connection.
    pub(super) authenticates_connection: bool,
    content_length: Option<u64>,
    /// True for `Transfer-Encoding: chunked`.
    is_chunked: bool,
    /// True if `Connection` lists `Upgrade`.
    has_upgrade_option: bool,
    /// True if the head has an `Upgrade` field with a value.
    has_upgrade_field: bool,
    /// True if `Upgrade` lists `h2c` or `h2`.
    upgrade_lists_http2: bool,
    /// True if `Upgrade` lists a protocol other than WebSocket.
    upgrade_lists_others: bool,
}

/// The fields that `Connection` lists, without those whose kind is already hop-by-hop.
#[derive(Default)]
struct ConnectionOptions {
    option_spans: [ByteSpan; MAX_CONNECTION_OPTIONS],
    option_count: usize,
}

impl FieldProperties {
    /// Reads field lines up to and including the final empty line. `self` must be new: it is filled in place, because
    /// returning the properties would copy them for each head.
    pub(super) fn read(
        &mut self,
        cursor: &mut Cursor<'_>,
        fields: &mut Vec<HeaderField>,
    ) -> Result<(), Malformed> {
        let mut connection_options = ConnectionOptions::default();
        while !cursor.skip(b"\r\n") {
            if fields.len() >= MAX_FIELDS {
                return Err(Malformed::TooManyFields);
            }
            let field = read_field_line(cursor)?;
            if field.kind != FieldKind::Other {
                self.record_field(&field, cursor.bytes, &mut connection_options)?;
            }
            fields.push(field);
        }
        connection_options.mark_hop_by_hop(cursor.bytes, fields);
        Ok(())
    }

    /// Returns the body length that the fields declare (RFC 9112 §6.3); `None` if they declare none.
    pub(super) fn body_length(
        &self,
        version: Http1Version,
    ) -> Result<Option<BodyLength>, Malformed> {
        match (self.content_length, self.is_chunked) {
            (Some(_), true) => Err(Malformed::TwoLengths),
            (None, true) if version == Http1Version::Http10 => {
                Err(Malformed::TransferEncodingInHttp10)
            }
            (None, true) => Ok(Some(BodyLength::Chunked)),
            (Some(length), false) => Ok(Some(BodyLength::ContentLength(length))),
            (None, false) => Ok(None),
        }
    }

    /// True if the connection may carry another message after this one (RFC 9112 §9.3).
    pub(super) fn is_persistent(&self, version: Http1Version) -> bool {
        !self.has_close && (version == Http1Version::Http11 || self.has_keep_alive)
    }

    /// True if the message requests or confirms a change of protocol (RFC 9110 §7.8).
    ///
    /// False if the message offers HTTP/2: the proxy would forward the requests in it unchecked. See
    /// [`Self::offers_http2`].
    pub(super) fn is_upgrade(&self, version: Http1Version) -> bool {
        version == Http1Version::Http11
            && self.has_upgrade_option
            && self.has_upgrade_field
            && !self.upgrade_lists_http2
    }

    /// True if `Upgrade` lists no protocol other than WebSocket (RFC 6455 §4.1).
    pub(super) fn lists_only_websocket(&self) -> bool {
        !self.upgrade_lists_others
    }

    /// True if the client offers HTTP/2 (RFC 7540 §3.2). The offer is hop-by-hop: a proxy that does not accept the
    /// offer does not forward it, and the client continues in HTTP/1.1.
    pub(super) fn offers_http2(&self, version: Http1Version) -> bool {
        self.upgrade_lists_http2 && self.has_upgrade_option && version == Http1Version::Http11
    }

    /// Records the meaning of a field for the connection and the body.
    fn record_field(
        &mut self,
        field: &HeaderField,
        bytes: &[u8],
        connection_options: &mut ConnectionOptions,
    ) -> Result<(), Malformed> {
        let value = field.value.slice_in(bytes);
        match field.kind {
            FieldKind::Host => {
                if self.host.replace(field.value).is_some() {
                    return Err(Malformed::HostRepeated);
                }
            }
            FieldKind::ContentLength => {
                if self.content_length.replace(parse_decimal(value)?).is_some() {
                    return Err(Malformed::ContentLengthRepeated);
                }
            }
            FieldKind::TransferEncoding => {
                if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Malformed::TransferEncoding);
                }
                self.is_chunked = true;
            }
            FieldKind::Connection => {
                self.record_connection_options(field.value, bytes, connection_options)?
            }
            FieldKind::Expect => {
                self.expect_continue |= value.eq_ignore_ascii_case(b"100-continue")
            }
            FieldKind::Authorization => {
                self.authenticates_connection |= authenticates_connection(value)
            }
            FieldKind::Upgrade => {
                self.has_upgrade_field |= !value.is_empty();
                self.upgrade_lists_http2 |= value.split(|byte| *byte == b',').any(is_http2);
                self.upgrade_lists_others |= !value.split(|byte| *byte == b',').all(is_websocket);
            }
            // These kinds only determine whether the field is forwarded.
            FieldKind::Te
            | FieldKind::Trailer
            | FieldKind::KeepAlive
            | FieldKind::ProxyConnection
            | FieldKind::ProxyAuthorization
            | FieldKind::ProxyAuthenticate
            | FieldKind::Other => {}
        }
        Ok(())
    }

    /// Records the options in one `Connection` field.
    fn record_connection_options(
        &mut self,
        value: ByteSpan,
        bytes: &[u8],
        connection_options: &mut ConnectionOptions,
    ) -> Result<(), Malformed> {
        let mut element_start = value.start as usize;
        for element in value.slice_in(bytes).split(|byte| *byte == b',') {
            let blank_count = element.iter().take_while(|byte| is_blank(**byte)).count();
            let option = element.trim_ascii();
            let option_start = element_start.saturating_add(blank_count);
            element_start = element_start.saturating_add(element.len()).saturating_add(1);
            if !option.is_empty() {
                let span = ByteSpan::new(option_start, option_start.saturating_add(option.len()));
                self.record_connection_option(option, span, connection_options)?;
            }
        }
        Ok(())
    }

    /// Records one option of `Connection`, at `span` of the head.
    fn record_connection_option(
        &mut self,
        option: &[u8],
        span: ByteSpan,
        connection_options: &mut ConnectionOptions,
    ) -> Result<(), Malformed> {
        if option.eq_ignore_ascii_case(b"close") {
            self.has_close = true;
            return Ok(());
        }
        match FieldKind::classify(option) {
            FieldKind::KeepAlive => self.has_keep_alive = true,
            FieldKind::Upgrade => self.has_upgrade_option = true,
            // A listed field is not forwarded. Without these fields, the message would have another destination or end.
            FieldKind::Host | FieldKind::ContentLength | FieldKind::TransferEncoding => {
                return Err(Malformed::ConnectionOption);
            }
            kind if kind.is_hop_by_hop() => {}
            _ if !option.iter().all(|byte| is_in_class(*byte, TOKEN)) => {
                return Err(Malformed::ConnectionOption);
            }
            _ => connection_options.push(span)?,
        }
        Ok(())
    }
}

impl ConnectionOptions {
    fn push(&mut self, span: ByteSpan) -> Result<(), Malformed> {
        let slot = self
            .option_spans
            .get_mut(self.option_count)
            .ok_or(Malformed::TooManyConnectionOptions)?;
        *slot = span;
        self.option_count = self.option_count.saturating_add(1);
        Ok(())
    }

    /// Marks the fields that `Connection` lists as hop-by-hop.
    fn mark_hop_by_hop(&self, bytes: &[u8], fields: &mut [HeaderField]) {
        for option_span in self.option_spans.iter().take(self.option_count) {
            let option = option_span.slice_in(bytes);
            for field in fields.iter_mut() {
                field.hop_by_hop |= field.name.slice_in(bytes).eq_ignore_ascii_case(option);
            }
        }
    }
}

/// Reads one field line, including its line end (RFC 9112 §5).
#[inline]
pub(super) fn read_field_line(cursor: &mut Cursor<'_>) -> Result<HeaderField, Malformed> {
    let name = cursor.skip_token();
    if name.is_empty() || !cursor.skip(b":") {
        return Err(match cursor.peek() {
            Some(b' ' | b'\t') if name.is_empty() => Malformed::FoldedField,
            Some(b' ' | b'\t') => Malformed::SpaceBeforeColon,
            Some(b'\r') if name.is_empty() => Malformed::LineEnd,
            Some(b'\n') => Malformed::LineEnd,
            _ => Malformed::FieldName,
        });
    }
    let value = cursor.skip_value();
    cursor.skip_line_end(Malformed::FieldValue)?;
    let kind = FieldKind::classify(name.slice_in(cursor.bytes));
    Ok(HeaderField { name, value, kind, hop_by_hop: kind.is_hop_by_hop() })
}

/// Returns the values of all fields called `name`, ignoring case, without the fields that `Connection` lists: those
/// are not forwarded, and decisions must not depend on fields that the next hop does not receive.
pub(super) fn find<'b>(
    fields: &[HeaderField],
    bytes: &'b [u8],
    name: &str,
) -> impl Iterator<Item = &'b [u8]> {
    find_by(fields, bytes, move |field_name| field_name.eq_ignore_ascii_case(name.as_bytes()))
}

/// Returns the values of all fields whose name satisfies `matches`, without the fields that `Connection` lists.
#[inline]
pub(super) fn find_by<'b>(
    fields: &[HeaderField],
    bytes: &'b [u8],
    matches: impl Fn(&[u8]) -> bool,
) -> impl Iterator<Item = &'b [u8]> {
    fields
        .iter()
        .filter(move |field| {
            let is_connection_option = field.hop_by_hop && !field.kind.is_hop_by_hop();
            !is_connection_option && matches(field.name.slice_in(bytes))
        })
        .map(move |field| field.value.slice_in(bytes))
}

/// Parses a decimal number: digits only, without a leading zero, because some recipients interpret it
/// as octal.
fn parse_decimal(value: &[u8]) -> Result<u64, Malformed> {
    if value.is_empty() || (value.len() > 1 && value.starts_with(b"0")) {
        return Err(Malformed::ContentLength);
    }
    value
        .iter()
        .try_fold(0_u64, |number, byte| {
            let digit = char::from(*byte).to_digit(10)?;
            number.checked_mul(10)?.checked_add(u64::from(digit))
        })
        .ok_or(Malformed::ContentLength)
}

/// True if credentials or a challenge use the scheme NTLM or Negotiate. They authenticate the connection, not the
/// request (RFC 4559 §5).
pub(super) fn authenticates_connection(value: &[u8]) -> bool {
    let scheme = value.split(|byte| is_blank(*byte) || *byte == b',').next().unwrap_or_default();
    scheme.eq_ignore_ascii_case(b"ntlm") || scheme.eq_ignore_ascii_case(b"negotiate")
}

fn is_http2(protocol: &[u8]) -> bool {
    let protocol = protocol.trim_ascii();
    protocol.eq_ignore_ascii_case(b"h2c") || protocol.eq_ignore_ascii_case(b"h2")
}

fn is_websocket(protocol: &[u8]) -> bool {
    protocol.trim_ascii().eq_ignore_ascii_case(b"websocket")
}

/// The maximum number of fields that `Connection` may list in addition to hop-by-hop fields. Each of them is compared
/// with every field of the head, and a `Connection` field of 64 KiB could list thirty thousand.
const MAX_CONNECTION_OPTIONS: usize = 16;
