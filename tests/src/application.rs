//! A small HTTP application in the test process, for behavior that real servers cannot produce.

use std::io::{self, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::message::{UndeclaredBody, first_header, read_body, read_head};

/// A small HTTP application; it stops when dropped.
pub struct TestApplication {
    address: SocketAddr,
    stop_requested: Arc<AtomicBool>,
}

/// A request received by the application.
pub struct ReceivedRequest {
    /// The head, as text.
    pub head: String,
    /// The body, without chunked encoding.
    pub body: Vec<u8>,
}

/// The application's response to a request.
pub enum ApplicationResponse {
    /// These bytes, which may be invalid HTTP.
    Bytes(Vec<u8>),
    /// No response; the connection stays open until the client closes it.
    NoResponse,
    /// The connection is closed without a response.
    CloseConnection,
}

impl ReceivedRequest {
    /// Returns the method and the target.
    #[must_use]
    pub fn method_and_target(&self) -> (&str, &str) {
        let mut words = self.head.split(' ');
        (words.next().unwrap_or_default(), words.next().unwrap_or_default())
    }

    /// Returns the first header of this name.
    #[must_use]
    pub fn first_header(&self, name: &str) -> Option<&str> {
        first_header(&self.head, name)
    }
}

impl ApplicationResponse {
    /// Returns a response with status 200 and this body.
    #[must_use]
    pub fn ok(body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let mut bytes =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
        bytes.extend_from_slice(body);
        Self::Bytes(bytes)
    }
}

impl TestApplication {
    /// Starts the application on loopback, on a port assigned by the kernel.
    ///
    /// # Panics
    /// If loopback has no free port.
    #[must_use]
    pub fn start(
        respond: impl Fn(&ReceivedRequest) -> ApplicationResponse + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let stop_requested = Arc::new(AtomicBool::new(false));
        let (respond, stop_flag) = (Arc::new(respond), stop_requested.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if stop_flag.load(Ordering::Relaxed) {
                    return;
                }
                let respond = respond.clone();
                // Connection errors are ignored: the test observes the client.
                std::thread::spawn(move || drop(serve_connection(stream, &*respond)));
            }
        });
        Self { address, stop_requested }
    }

    /// Starts an application that responds with the request's method, target and body.
    #[must_use]
    pub fn start_echo() -> Self {
        Self::start(|request| {
            let (method, target) = request.method_and_target();
            let mut body = format!("{method} {target} ").into_bytes();
            body.extend_from_slice(&request.body);
            ApplicationResponse::ok(body)
        })
    }

    /// Returns the port of the application.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for TestApplication {
    fn drop(&mut self) {
        self.stop_requested.store(true, Ordering::Relaxed);
        // Wakes the accept loop; a failure means that the loop has ended.
        drop(TcpStream::connect(self.address));
    }
}

fn serve_connection(
    stream: TcpStream,
    respond: &(impl Fn(&ReceivedRequest) -> ApplicationResponse + ?Sized),
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    while let Some(head) = read_head(&mut reader)? {
        let body = read_body(&mut reader, &head, UndeclaredBody::Empty)?;
        match respond(&ReceivedRequest { head, body }) {
            ApplicationResponse::Bytes(bytes) => reader.get_mut().write_all(&bytes)?,
            // Returns when the client closes the connection.
            ApplicationResponse::NoResponse => drop(read_head(&mut reader)?),
            ApplicationResponse::CloseConnection => return Ok(()),
        }
    }
    Ok(())
}
