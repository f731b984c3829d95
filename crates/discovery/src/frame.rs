//! Frames messages on a stream: a length of 4 bytes, big-endian, precedes each message.
//!
//! Neither end holds a buffer while it is idle. Futures may be dropped at any time without loss: all partial
//! input and output is stored in the struct.

use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The reading half of a stream of messages.
#[derive(Debug)]
pub struct FrameReader<R> {
    stream: R,
    /// The greatest permitted length of a message.
    max_bytes: usize,
    /// The received part of the length of the next message.
    length_prefix: BytesMut,
    /// The message that is being received; `None` before its length is complete.
    partial_message: Option<PartialMessage>,
}

/// A partially received message.
#[derive(Debug)]
struct PartialMessage {
    /// The bytes received so far.
    bytes: BytesMut,
    /// The declared length.
    length: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads messages of at most `max_bytes` bytes.
    pub fn new(stream: R, max_bytes: usize) -> Self {
        Self { stream, max_bytes, length_prefix: BytesMut::new(), partial_message: None }
    }

    /// Reads the next message; `None` if the stream ended between two messages. Memory is allocated in steps as
    /// bytes arrive, not at once for the declared length.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`FrameError`] if the stream breaks, ends within a message, or declares a length above the maximum.
    pub async fn next(&mut self) -> Result<Option<Bytes>, FrameError> {
        loop {
            if let Some(partial_message) = &mut self.partial_message {
                if partial_message.bytes.len() == partial_message.length {
                    let complete_message = self.partial_message.take();
                    return Ok(complete_message.map(|message| message.bytes.freeze()));
                }
                let missing_bytes = partial_message.length - partial_message.bytes.len();
                let mut buffer =
                    (&mut partial_message.bytes).limit(missing_bytes.min(ALLOCATION_STEP_BYTES));
                if self.stream.read_buf(&mut buffer).await? == 0 {
                    return Err(FrameError::Truncated);
                }
                continue;
            }
            let missing_bytes = LENGTH_PREFIX_BYTES - self.length_prefix.len();
            let mut buffer = (&mut self.length_prefix).limit(missing_bytes);
            if self.stream.read_buf(&mut buffer).await? == 0 {
                return if self.length_prefix.is_empty() {
                    Ok(None)
                } else {
                    Err(FrameError::Truncated)
                };
            }
            self.begin_message()?;
        }
    }

    /// Begins the message if its length prefix is complete.
    fn begin_message(&mut self) -> Result<(), FrameError> {
        let Ok(length_prefix) = <[u8; LENGTH_PREFIX_BYTES]>::try_from(&self.length_prefix[..])
        else {
            return Ok(());
        };
        self.length_prefix = BytesMut::new();
        let length = usize::try_from(u32::from_be_bytes(length_prefix)).unwrap_or(usize::MAX);
        if length > self.max_bytes {
            return Err(FrameError::Oversize { length, max_bytes: self.max_bytes });
        }
        self.partial_message = Some(PartialMessage { bytes: BytesMut::new(), length });
        Ok(())
    }
}

/// The writing half of a stream of messages. The caller limits the queued bytes.
#[derive(Debug)]
pub struct FrameWriter<W> {
    stream: W,
    /// The encoded messages that are not written yet.
    queue: BytesMut,
    /// True while queued or written bytes are not flushed.
    is_unflushed: bool,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    /// Creates a writer with an empty queue.
    pub fn new(stream: W) -> Self {
        Self { stream, queue: BytesMut::new(), is_unflushed: false }
    }

    /// Queues a message; [`Self::flush`] writes it.
    ///
    /// # Errors
    /// [`FrameError::Oversize`] if it is larger than `max_bytes`; then it is not queued.
    pub fn push<M: Message>(&mut self, message: &M, max_bytes: usize) -> Result<(), FrameError> {
        let length = message.encoded_len();
        let length_prefix = u32::try_from(length).ok().filter(|_| length <= max_bytes);
        let Some(length_prefix) = length_prefix else {
            return Err(FrameError::Oversize { length, max_bytes });
        };
        self.queue.reserve(LENGTH_PREFIX_BYTES + length);
        self.queue.put_u32(length_prefix);
        self.queue.put_slice(&message.encode_to_vec());
        self.is_unflushed = true;
        Ok(())
    }

    /// Returns the number of queued bytes.
    pub fn queued_bytes(&self) -> usize {
        self.queue.len()
    }

    /// True if [`Self::flush`] has nothing to do.
    pub fn is_idle(&self) -> bool {
        !self.is_unflushed
    }

    /// Writes and flushes all queued bytes.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// If the stream breaks.
    pub async fn flush(&mut self) -> io::Result<()> {
        while !self.queue.is_empty() {
            if self.stream.write_buf(&mut self.queue).await? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        self.queue = BytesMut::new();
        self.stream.flush().await?;
        self.is_unflushed = false;
        Ok(())
    }

    /// Writes all queued bytes and shuts down the writing half.
    ///
    /// # Errors
    /// If the stream breaks.
    pub async fn finish(mut self) -> io::Result<()> {
        self.flush().await?;
        self.stream.shutdown().await
    }
}

/// The reason that a message cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The stream broke.
    #[error("the stream broke")]
    Io(#[from] io::Error),
    /// The stream ended within a message.
    #[error("the stream ended within a message")]
    Truncated,
    /// The message exceeds the protocol's limit.
    #[error("a message of {length} bytes exceeds the limit of {max_bytes} bytes")]
    Oversize {
        /// The length of the message.
        length: usize,
        /// The maximum length.
        max_bytes: usize,
    },
}

/// The maximum size of a message from a control plane; a larger configuration arrives in several deltas.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// The maximum size of a message from a proxy; it bounds the memory that a message occupies at the control
/// plane.
pub const MAX_REQUEST_BYTES: usize = 1 << 20;

/// The number of queued bytes at which an end of the stream pauses, so that a slow peer does not fill its memory:
/// the control plane reads no further messages, and the proxy sends no further requests and reports.
pub(crate) const MAX_OUTBOX_BYTES: usize = 256 << 10;

/// The maximum size of a message in a join, because the client of a join is not authenticated yet.
pub const MAX_JOIN_BYTES: usize = 64 << 10;

/// The size of the length prefix of each message.
const LENGTH_PREFIX_BYTES: usize = 4;

/// The maximum allocation ahead of received bytes.
const ALLOCATION_STEP_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;
    use crate::proto::Goodbye;

    fn goodbye_of_length(length: usize) -> Goodbye {
        Goodbye { reason: "x".repeat(length) }
    }

    #[tokio::test]
    async fn messages_pass_through_a_narrow_stream() {
        let (write_end, read_end) = duplex(7);
        let mut writer = FrameWriter::new(write_end);
        let mut reader = FrameReader::new(read_end, 1 << 20);
        let lengths = [0, 1, 3, 300, 200_000];
        for length in lengths {
            writer.push(&goodbye_of_length(length), 1 << 20).unwrap();
        }
        let receiving = async {
            let mut received = Vec::new();
            while let Some(bytes) = reader.next().await.unwrap() {
                received.push(Goodbye::decode(bytes).unwrap().reason.len());
            }
            received
        };
        let (write_result, received) = tokio::join!(writer.finish(), receiving);
        write_result.unwrap();
        assert_eq!(received, lengths);
    }

    #[tokio::test]
    async fn dropped_futures_lose_no_bytes() {
        let (write_end, read_end) = duplex(5);
        let mut writer = FrameWriter::new(write_end);
        let mut reader = FrameReader::new(read_end, 1 << 20);
        writer.push(&goodbye_of_length(1000), 1 << 20).unwrap();
        let message = loop {
            tokio::select! {
                biased;
                message = reader.next() => break message.unwrap().unwrap(),
                // Each iteration drops both futures in the middle of their work.
                () = async { tokio::select! { biased; _ = writer.flush() => {}, () = tokio::task::yield_now() => {} } } => {}
            }
        };
        assert_eq!(Goodbye::decode(message).unwrap().reason.len(), 1000);
    }

    #[tokio::test]
    async fn a_length_above_the_limit_is_rejected_before_memory_is_allocated() {
        let mut reader = FrameReader::new(&[0xff, 0xff, 0xff, 0xff, 1, 2][..], 1000);
        let error = reader.next().await.unwrap_err();
        assert!(matches!(error, FrameError::Oversize { length: 0xffff_ffff, max_bytes: 1000 }));
        let mut writer = FrameWriter::new(tokio::io::sink());
        assert!(matches!(
            writer.push(&goodbye_of_length(2000), 1000),
            Err(FrameError::Oversize { .. })
        ));
        assert_eq!(writer.queued_bytes(), 0);
    }

    #[tokio::test]
    async fn memory_is_not_allocated_for_a_declared_length_alone() {
        let mut stream = &[0, 0x40, 0, 0, 9, 9][..];
        let mut reader = FrameReader::new(&mut stream, MAX_MESSAGE_BYTES);
        assert!(matches!(reader.next().await, Err(FrameError::Truncated)));
        let capacity = reader.partial_message.map(|body| body.bytes.capacity());
        assert!(capacity.unwrap() <= ALLOCATION_STEP_BYTES, "{capacity:?}");
    }

    #[tokio::test]
    async fn an_end_within_a_message_is_distinguished_from_an_end_between_messages() {
        for (bytes, is_clean) in
            [(&[][..], true), (&[0, 0][..], false), (&[0, 0, 0, 2, 1][..], false)]
        {
            let result = FrameReader::new(bytes, 100).next().await;
            assert_eq!(matches!(result, Ok(None)), is_clean, "{bytes:?}");
            assert_eq!(matches!(result, Err(FrameError::Truncated)), !is_clean, "{bytes:?}");
        }
    }
}
