//! Length-prefixed messages of gRPC.

use bytes::{BufMut, Bytes, BytesMut};

/// Adds the prefix to a message: the compression flag and the length.
#[must_use]
pub fn add_frame(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(FRAME_BYTES + message.len());
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.extend_from_slice(message);
    framed.freeze()
}

/// Returns the only message of a response.
///
/// # Errors
/// [`NotOneMessage`].
pub fn single_message(mut response: Bytes) -> Result<Bytes, NotOneMessage> {
    let invalid = |problem| Err(NotOneMessage(problem));
    let Some((&[flag, a, b, c, d], _)) = response.split_first_chunk::<FRAME_BYTES>() else {
        return invalid("it has no message");
    };
    if flag != 0 {
        return invalid("it is compressed, which was not requested");
    }
    let message = response.split_off(FRAME_BYTES);
    match usize::try_from(u32::from_be_bytes([a, b, c, d])) {
        Ok(length) if length == message.len() => Ok(message),
        _ => invalid("it is not exactly one message"),
    }
}

/// Appends a part of a response, up to the size limit.
///
/// # Errors
/// [`NotOneMessage`] if the response is too long.
pub fn append_part(response: &mut BytesMut, chunk: &[u8]) -> Result<(), NotOneMessage> {
    if response.len() + chunk.len() > MAX_ANSWER_BYTES {
        return Err(NotOneMessage("it is too long"));
    }
    response.extend_from_slice(chunk);
    Ok(())
}

/// A response that is not exactly one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotOneMessage(&'static str);

/// The size limit of responses, larger than any expected one.
pub const MAX_ANSWER_BYTES: usize = 64 << 10;
/// The prefix: a flag and a length of four bytes.
const FRAME_BYTES: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_must_be_exactly_one_message() {
        assert_eq!(single_message(add_frame(b"hello")).unwrap(), "hello");
        assert_eq!(single_message(add_frame(b"")).unwrap(), "");
        for invalid in [&b""[..], b"\0\0\0\0", b"\x01\0\0\0\x01a", b"\0\0\0\0\x02a", b"\0\0\0\0\0a"]
        {
            assert!(single_message(Bytes::copy_from_slice(invalid)).is_err(), "{invalid:?}");
        }
        let mut response = BytesMut::new();
        assert!(append_part(&mut response, &[0; MAX_ANSWER_BYTES]).is_ok());
        assert!(append_part(&mut response, b"a").is_err());
    }
}
