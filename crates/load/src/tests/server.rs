//! A scripted server.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

/// The server's action for a request.
#[derive(Clone)]
pub(super) struct ScriptedResponse {
    pub(super) text: std::borrow::Cow<'static, str>,
    /// The number of bytes per write.
    pub(super) bytes_per_write: usize,
    /// Closes the connection afterwards.
    pub(super) closes: bool,
    /// Closes the connection with the request unread, which resets it.
    pub(super) resets: bool,
    /// Stalls for [`STALL`] first.
    pub(super) stalls: bool,
}

impl ScriptedResponse {
    pub(super) fn from_text(text: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        Self { text: text.into(), ..OK }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

/// A server with a scripted response to its n-th request.
pub(super) struct ScriptedServer {
    pub(super) address: SocketAddr,
    /// The heads of all requests so far.
    pub(super) requests: Rc<RefCell<Vec<String>>>,
    /// The number of accepted connections.
    pub(super) connections: Rc<Cell<usize>>,
}

impl ScriptedServer {
    /// Starts a server that responds to the request with index `n`, from 0, with `respond(n)`.
    pub(super) async fn start(respond: impl Fn(usize) -> ScriptedResponse + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Self { address, requests: Rc::default(), connections: Rc::default() };
        let (requests, connections) = (Rc::clone(&server.requests), Rc::clone(&server.connections));
        let respond = Rc::new(respond);
        spawn_local(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.set(connections.get() + 1);
                spawn_local(serve_connection(stream, Rc::clone(&requests), Rc::clone(&respond)));
            }
        });
        server
    }
}

async fn serve_connection(
    mut stream: TcpStream,
    requests: Rc<RefCell<Vec<String>>>,
    respond: Rc<impl Fn(usize) -> ScriptedResponse>,
) {
    stream.set_nodelay(true).unwrap();
    let mut request_bytes = Vec::new();
    loop {
        let index = requests.borrow().len();
        if respond(index).resets {
            stream.readable().await.unwrap();
            requests.borrow_mut().push(String::new());
            return;
        }
        let head = loop {
            if let Some(head_end) =
                request_bytes.windows(4).position(|window| window == b"\r\n\r\n")
            {
                break String::from_utf8_lossy(&request_bytes[..head_end + 4]).into_owned();
            }
            match stream.read_buf(&mut request_bytes).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        };
        request_bytes.clear();
        let index = requests.borrow().len();
        requests.borrow_mut().push(head);
        let response = respond(index);
        if response.stalls {
            tokio::time::sleep(STALL).await;
        }
        for piece in response.bytes().chunks(response.bytes_per_write) {
            if stream.write_all(piece).await.is_err() {
                return;
            }
        }
        if response.closes {
            stream.shutdown().await.ok();
            // Drain input: closing with unread data would reset the connection and lose the response.
            while stream.read(&mut [0; 65_536]).await.is_ok_and(|read| read > 0) {}
            return;
        }
    }
}

/// The duration of a stall.
pub(super) const STALL: Duration = Duration::from_millis(200);

pub(super) const OK_TEXT: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

pub(super) const OK: ScriptedResponse = ScriptedResponse {
    text: std::borrow::Cow::Borrowed(OK_TEXT),
    bytes_per_write: usize::MAX,
    closes: false,
    resets: false,
    stalls: false,
};
