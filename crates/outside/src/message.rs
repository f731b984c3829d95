//! Encodes and parses length-prefixed gRPC messages: one request message, and the single message of a unary
//! response.

use bytes::{BufMut, Bytes, BytesMut};

/// Adds the prefix to a message: the compression flag and the length.
#[must_use]
pub fn add_prefix(message: &[u8]) -> Bytes {
    let mut prefixed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    // 0: not compressed.
    prefixed.put_u8(0);
    prefixed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    prefixed.extend_from_slice(message);
    prefixed.freeze()
}

/// Returns the single message of a response, without its prefix.
///
/// # Errors
/// Returns [`MalformedMessage`] if the response is compressed, or is not exactly one message.
pub fn parse_single_message(mut response: Bytes) -> Result<Bytes, MalformedMessage> {
    let malformed = |problem| Err(MalformedMessage(problem));
    let Some((&[flag, a, b, c, d], _)) = response.split_first_chunk::<PREFIX_BYTES>() else {
        return malformed("it has no message");
    };
    if flag != 0 {
        return malformed("it is compressed, which was not requested");
    }
    let message = response.split_off(PREFIX_BYTES);
    match usize::try_from(u32::from_be_bytes([a, b, c, d])) {
        Ok(length) if length == message.len() => Ok(message),
        _ => malformed("it is not exactly one message"),
    }
}

/// Appends a part of a response, up to the size limit.
///
/// # Errors
/// Returns [`MalformedMessage`] if the response is too long.
pub fn append_part(response: &mut BytesMut, part: &[u8]) -> Result<(), MalformedMessage> {
    if response.len() + part.len() > MAX_RESPONSE_BYTES {
        return Err(MalformedMessage("it is too long"));
    }
    response.extend_from_slice(part);
    Ok(())
}

/// A response that is not exactly one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MalformedMessage(&'static str);

/// Maximum bytes of a response, including the prefix; more than any expected response has.
pub const MAX_RESPONSE_BYTES: usize = 64 << 10;
/// The length of the prefix in bytes: a flag, and a length of four bytes.
const PREFIX_BYTES: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_must_be_exactly_one_message() {
        assert_eq!(parse_single_message(add_prefix(b"hello")).unwrap(), "hello");
        assert_eq!(parse_single_message(add_prefix(b"")).unwrap(), "");
        for invalid in [&b""[..], b"\0\0\0\0", b"\x01\0\0\0\x01a", b"\0\0\0\0\x02a", b"\0\0\0\0\0a"]
        {
            assert!(parse_single_message(Bytes::copy_from_slice(invalid)).is_err(), "{invalid:?}");
        }
        let mut response = BytesMut::new();
        assert!(append_part(&mut response, &[0; MAX_RESPONSE_BYTES]).is_ok());
        assert!(append_part(&mut response, b"a").is_err());
    }
}
