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
pub fn single_message(mut answer: Bytes) -> Result<Bytes, NotOneMessage> {
    let wrong = |what| Err(NotOneMessage(what));
    let Some((&[flag, a, b, c, d], _)) = answer.split_first_chunk::<FRAME_BYTES>() else {
        return wrong("it has no message");
    };
    if flag != 0 {
        return wrong("it is compressed, which was not requested");
    }
    let message = answer.split_off(FRAME_BYTES);
    match usize::try_from(u32::from_be_bytes([a, b, c, d])) {
        Ok(length) if length == message.len() => Ok(message),
        _ => wrong("it is not exactly one message"),
    }
}

/// Appends a part of a response, up to the size limit.
///
/// # Errors
/// [`NotOneMessage`] if the response is too long.
pub fn append_part(answer: &mut BytesMut, more: &[u8]) -> Result<(), NotOneMessage> {
    if answer.len() + more.len() > ANSWER_BYTES_MAX {
        return Err(NotOneMessage("it is too long"));
    }
    answer.extend_from_slice(more);
    Ok(())
}

/// A response that is not exactly one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotOneMessage(&'static str);

/// The size limit of responses, larger than any expected one.
pub const ANSWER_BYTES_MAX: usize = 64 << 10;
/// The prefix: a flag and a length of four bytes.
const FRAME_BYTES: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_is_taken_and_nothing_else() {
        assert_eq!(single_message(add_frame(b"hello")).unwrap(), "hello");
        assert_eq!(single_message(add_frame(b"")).unwrap(), "");
        for wrong in [&b""[..], b"\0\0\0\0", b"\x01\0\0\0\x01a", b"\0\0\0\0\x02a", b"\0\0\0\0\0a"] {
            assert!(single_message(Bytes::copy_from_slice(wrong)).is_err(), "{wrong:?}");
        }
        let mut answer = BytesMut::new();
        assert!(append_part(&mut answer, &[0; ANSWER_BYTES_MAX]).is_ok());
        assert!(append_part(&mut answer, b"a").is_err());
    }
}
