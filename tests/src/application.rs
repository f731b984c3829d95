//! A small HTTP application inside the test, for what no real server can be made to do.

use std::io::{self, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::message::{Undeclared, header, read_body, read_head};

/// A small HTTP application; it ends when dropped.
pub struct Application {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
}

/// A request as it arrived at the application.
pub struct Received {
    /// The head, as text.
    pub head: String,
    /// The body, taken out of its chunks.
    pub body: Vec<u8>,
}

/// What the application does with a request.
pub enum Answer {
    /// These bytes, whatever they are.
    Bytes(Vec<u8>),
    /// Nothing, for as long as the client waits.
    Silence,
    /// Nothing: the connection is closed.
    HangUp,
}

impl Received {
    /// The method and the target.
    #[must_use]
    pub fn what(&self) -> (&str, &str) {
        let mut words = self.head.split(' ');
        (words.next().unwrap_or_default(), words.next().unwrap_or_default())
    }

    /// The first header of this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }
}

impl Answer {
    /// 200 with a body.
    #[must_use]
    pub fn ok(body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let mut bytes =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
        bytes.extend_from_slice(body);
        Self::Bytes(bytes)
    }
}

impl Application {
    /// Starts it on loopback, at a port of the kernel's choice.
    ///
    /// # Panics
    /// When loopback has no free port.
    #[must_use]
    pub fn start(answer: impl Fn(&Received) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let ended = Arc::new(AtomicBool::new(false));
        let (answer, over) = (Arc::new(answer), ended.clone());
        std::thread::spawn(move || {
            for tcp in listener.incoming().map_while(Result::ok) {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let answer = answer.clone();
                // The end of a connection needs no word: the test sees what its client saw.
                std::thread::spawn(move || drop(serve(tcp, &*answer)));
            }
        });
        Self { address, ended }
    }

    /// Answers every request with its own method, target and body.
    #[must_use]
    pub fn echo() -> Self {
        Self::start(|request| {
            let (method, target) = request.what();
            let mut body = format!("{method} {target} ").into_bytes();
            body.extend_from_slice(&request.body);
            Answer::ok(body)
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes whoever accepts; failing means that nobody does any more.
        drop(TcpStream::connect(self.address));
    }
}

fn serve(tcp: TcpStream, answer: &(impl Fn(&Received) -> Answer + ?Sized)) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let mut reader = BufReader::new(tcp);
    while let Some(head) = read_head(&mut reader)? {
        let body = read_body(&mut reader, &head, Undeclared::Empty)?;
        match answer(&Received { head, body }) {
            Answer::Bytes(bytes) => reader.get_mut().write_all(&bytes)?,
            Answer::Silence => drop(read_head(&mut reader)?),
            Answer::HangUp => return Ok(()),
        }
    }
    Ok(())
}
