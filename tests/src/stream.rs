//! An application that generates and verifies bodies of any length while streaming.

use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use socket2::SockRef;

use crate::message::{first_header, read_head};

/// An application that responds to `GET /N` with a body of N bytes, and reads the whole body of a `POST` before
/// it responds with the length. It ends with its connections.
pub struct StreamingApplication {
    address: SocketAddr,
    sent_bytes: Arc<AtomicU64>,
}

impl StreamingApplication {
    /// Starts the application on loopback, on a port assigned by the kernel.
    ///
    /// # Panics
    /// If loopback has no free port.
    #[must_use]
    pub fn start() -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST.into())
    }

    /// Starts the application at a local address, on a port assigned by the kernel.
    ///
    /// # Panics
    /// If there is no free port.
    #[must_use]
    pub fn start_at(address: IpAddr) -> Self {
        Self::serve_on(TcpListener::bind((address, 0)).expect("there is a free port"))
    }

    /// Starts the application on loopback with small socket buffers, so that a thousand stalled connections do not
    /// exhaust the machine's TCP memory.
    ///
    /// # Panics
    /// If loopback has no free port.
    #[must_use]
    pub fn start_narrow() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        narrow_buffers(SockRef::from(&listener));
        Self::serve_on(listener)
    }

    fn serve_on(listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("a bound socket has an address");
        let sent_bytes = Arc::new(AtomicU64::new(0));
        let sent_counter = sent_bytes.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let sent_counter = sent_counter.clone();
                // Connection errors are ignored: the test observes the client.
                std::thread::spawn(move || drop(serve_connection(stream, &sent_counter)));
            }
        });
        Self { address, sent_bytes }
    }

    /// Returns the port of the application.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the number of body bytes that the kernel has accepted from the application.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }
}

/// Limits the buffers of a socket, with small segments, because the kernel counts whole segments.
///
/// # Panics
/// If the kernel rejects the options.
pub fn narrow_buffers(socket: SockRef<'_>) {
    socket.set_tcp_mss(1460).expect("a segment of Ethernet");
    socket.set_send_buffer_size(NARROW_BUFFER_BYTES).expect("a small buffer");
    socket.set_recv_buffer_size(NARROW_BUFFER_BYTES).expect("a small buffer");
}

fn serve_connection(stream: TcpStream, sent_bytes: &AtomicU64) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(BLOCK_BYTES, stream);
    while let Some(head) = read_head(&mut reader)? {
        let declared_length =
            first_header(&head, "content-length").and_then(|length| length.parse().ok());
        let mut output = reader.get_ref();
        match declared_length {
            Some(length) => {
                check_body(&mut reader, length, |_| {})?;
                let body = length.to_string();
                let mut output = reader.get_ref();
                write!(output, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
            }
            None => {
                let target = head.split(' ').nth(1).and_then(|target| target.get(1..));
                let length = target.and_then(|target| target.parse().ok()).unwrap_or(0);
                write!(output, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n")?;
                write_body(&mut output, length, |bytes| {
                    sent_bytes.fetch_add(bytes, Ordering::Relaxed);
                })?;
            }
        }
    }
    Ok(())
}

/// Writes a generated body of `length` bytes; `on_progress` receives the size of every piece.
///
/// # Errors
/// The error of the socket.
pub fn write_body(
    output: &mut impl Write,
    length: u64,
    mut on_progress: impl FnMut(u64),
) -> io::Result<()> {
    let block = periodic_block();
    let mut position = 0;
    while position < length {
        let bytes = block.get(block_offset(position)..).unwrap_or_default();
        let bytes = bytes.get(..to_usize(length - position).min(BLOCK_BYTES)).unwrap_or_default();
        let written = output.write(bytes)? as u64;
        position += written;
        on_progress(written);
    }
    Ok(())
}

/// Reads a generated body of `length` bytes; `on_progress` receives the size of every piece.
///
/// # Errors
/// The error of the socket; `InvalidData` if a byte differs from the generated one.
pub fn check_body(
    input: &mut impl Read,
    length: u64,
    mut on_progress: impl FnMut(u64),
) -> io::Result<()> {
    let block = periodic_block();
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut position = 0;
    while position < length {
        let requested_bytes = to_usize(length - position).min(BLOCK_BYTES);
        let read_bytes = input.read(buffer.get_mut(..requested_bytes).unwrap_or_default())?;
        let expected = block.get(block_offset(position)..block_offset(position) + read_bytes);
        if read_bytes == 0 || expected != buffer.get(..read_bytes) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        position += read_bytes as u64;
        on_progress(read_bytes as u64);
    }
    Ok(())
}

/// Returns a block that repeats after a prime number of bytes, so that a misplaced piece is detected.
fn periodic_block() -> Vec<u8> {
    (0..=250).cycle().take(BLOCK_BYTES + PATTERN_PERIOD).collect()
}

fn block_offset(position: u64) -> usize {
    to_usize(position % PATTERN_PERIOD as u64)
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The size of each buffer of a socket with narrow buffers.
const NARROW_BUFFER_BYTES: usize = 16 * 1024;
/// The number of bytes after which a body repeats: a prime number, unlike the sizes of buffers.
const PATTERN_PERIOD: usize = 251;
/// The maximum size of one read or write.
const BLOCK_BYTES: usize = 256 * 1024;
