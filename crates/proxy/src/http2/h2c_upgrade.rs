//! Accepts `h2c` upgrades: HTTP/1.1 clients switch to HTTP/2 on the same connection (RFC 7540 §3.2). The
//! request that offers the upgrade is passed to the HTTP/2 server as a HEADERS frame.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut, Bytes, BytesMut};
use leno_wire::http1::{BodyLength, FieldKind, HeaderField, RequestHead};

use crate::io::Io;
use crate::session::{ListenerKind, Session};

/// The response that accepts the upgrade.
pub(crate) const SWITCHING_RESPONSE: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n";

/// Returns the request that offers the upgrade, as the frame that opens stream 1; `None` if the offer is not
/// accepted. An offer without both fields in `Connection` is ignored, because a proxy that does not support
/// the upgrade may have forwarded it.
pub(crate) fn accept_upgrade(
    session: &Session,
    io: &Io,
    head: &RequestHead,
    bytes: &[u8],
) -> Option<Bytes> {
    let supports_upgrade = match session.listener_kind {
        ListenerKind::Inbound { .. }
        | ListenerKind::Outbound { .. }
        | ListenerKind::Service { .. }
        | ListenerKind::Pinned { .. }
        | ListenerKind::Gateway { .. } => io.is_plain(),
        // Clients of the HTTP proxy name a server with each request; an address may be outside the mesh.
        ListenerKind::HttpProxy | ListenerKind::Address(_) => false,
    };
    let is_bodiless = matches!(head.body, BodyLength::Empty | BodyLength::ContentLength(0));
    let find_field = |name: &[u8]| find_only_field(&head.fields, bytes, name);
    let upgrade = find_field(b"upgrade")
        .filter(|field| field.value.slice_in(bytes).eq_ignore_ascii_case(b"h2c"));
    let settings_value =
        find_field(b"http2-settings").filter(|field| field.hop_by_hop)?.value.slice_in(bytes);
    if !supports_upgrade
        || !is_bodiless
        || upgrade.is_none()
        || !is_settings_payload(settings_value)
    {
        return None;
    }
    encode_headers_frame(head, bytes)
}

/// Returns the only field of this name; `None` if there is none, or if there are several.
fn find_only_field<'a>(
    fields: &'a [HeaderField],
    bytes: &[u8],
    name: &[u8],
) -> Option<&'a HeaderField> {
    let mut matching_fields =
        fields.iter().filter(|field| field.name.slice_in(bytes).eq_ignore_ascii_case(name));
    matching_fields.next().filter(|_| matching_fields.next().is_none())
}

/// True for the payload of a SETTINGS frame. Its content is ignored: the client repeats it in the SETTINGS
/// frame that it must send first (RFC 7540 §3.2.1), and no response precedes that.
fn is_settings_payload(value: &[u8]) -> bool {
    let payload = URL_SAFE_NO_PAD.decode(value).unwrap_or_default();
    !payload.is_empty() && payload.len().is_multiple_of(SETTING_BYTES)
}

/// Returns a HEADERS frame with all end-to-end fields, which ends its stream. `None` if the request has no
/// host, or a target that contains an authority, or does not fit into one frame.
fn encode_headers_frame(head: &RequestHead, bytes: &[u8]) -> Option<Bytes> {
    let target = head.target.slice_in(bytes);
    let authority = head
        .host
        .map(|authority| authority.slice_in(bytes))
        .filter(|authority| !authority.is_empty())?;
    // The other forms of a target contain an authority.
    if !target.starts_with(b"/") && target != b"*" {
        return None;
    }
    let mut frame = BytesMut::with_capacity(FRAME_HEADER_BYTES + bytes.len());
    frame.put_bytes(0, FRAME_HEADER_BYTES);
    put_field(b":method", head.method.slice_in(bytes), &mut frame);
    put_field(b":scheme", b"http", &mut frame);
    put_field(b":path", target, &mut frame);
    put_field(b":authority", authority, &mut frame);
    for field in
        head.fields.iter().filter(|field| !field.hop_by_hop && field.kind != FieldKind::Host)
    {
        put_field(field.name.slice_in(bytes), field.value.slice_in(bytes), &mut frame);
    }
    let payload_length = u32::try_from(frame.len() - FRAME_HEADER_BYTES).ok()?;
    if payload_length > MAX_FRAME_BYTES {
        return None;
    }
    let [_, length_field @ ..] = payload_length.to_be_bytes();
    let [frame_type, flags] = [HEADERS_FRAME_TYPE, END_STREAM_FLAG | END_HEADERS_FLAG];
    let frame_header =
        [&length_field[..], &[frame_type, flags], &FIRST_STREAM.to_be_bytes()].concat();
    frame.get_mut(..FRAME_HEADER_BYTES)?.copy_from_slice(&frame_header);
    Some(frame.freeze())
}

/// Appends a literal field without indexing (RFC 7541 §6.2.2).
fn put_field(name: &[u8], value: &[u8], frame: &mut BytesMut) {
    frame.put_u8(0);
    put_length(name.len(), frame);
    frame.extend(name.iter().map(u8::to_ascii_lowercase));
    put_length(value.len(), frame);
    frame.put_slice(value);
}

/// Appends the length of an uncompressed string (RFC 7541 §5.1, §5.2).
fn put_length(length: usize, frame: &mut BytesMut) {
    let Some(mut remaining) = length.checked_sub(MAX_PREFIX_LENGTH) else {
        return frame.put_u8(length as u8);
    };
    frame.put_u8(MAX_PREFIX_LENGTH as u8);
    while remaining >= 128 {
        frame.put_u8((remaining % 128) as u8 | 128);
        remaining /= 128;
    }
    frame.put_u8(remaining as u8);
}

/// The type of a HEADERS frame (RFC 9113 §6.2).
const HEADERS_FRAME_TYPE: u8 = 1;
/// The flag of a HEADERS frame that ends its stream.
const END_STREAM_FLAG: u8 = 1;
/// The flag of a HEADERS frame without continuation.
const END_HEADERS_FLAG: u8 = 4;
/// The stream of the request that offers the upgrade (RFC 7540 §3.2).
const FIRST_STREAM: u32 = 1;
/// The size of a frame header (RFC 9113 §4.1).
const FRAME_HEADER_BYTES: usize = 9;
/// The maximum frame size without other settings (RFC 9113 §4.2).
const MAX_FRAME_BYTES: u32 = 16 * 1024;
/// The size of a setting: its identifier and its value (RFC 9113 §6.5.1).
const SETTING_BYTES: usize = 6;
/// The maximum of the 7-bit prefix of a length; longer lengths have more bytes.
const MAX_PREFIX_LENGTH: usize = 127;
