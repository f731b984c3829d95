//! Performs incoming TLS handshakes: reads the whole ClientHello first, then does the cryptographic work in turns
//! (see the crate documentation).

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::Acceptor;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, LazyConfigAcceptor, StartHandshake};

use crate::admission::PendingConnection;

/// Reads a whole ClientHello, without cryptographic work.
///
/// # Errors
/// Returns an error if the bytes are not a ClientHello, the client disconnected, or the connection was evicted. An
/// evicted connection is reset when the socket is dropped. A TLS error is the source of the returned error. The
/// socket is returned as well, unless it is closed.
pub async fn read_hello(
    pending_connection: &PendingConnection,
    tcp: TcpStream,
) -> Result<StartHandshake<TcpStream>, (io::Error, Option<TcpStream>)> {
    let mut acceptor = LazyConfigAcceptor::new(Acceptor::default(), tcp);
    match pending_connection.await_peer(&mut acceptor).await {
        Ok(Ok(hello)) => Ok(hello),
        Ok(Err(error)) => Err((error, acceptor.take_io())),
        Err(evicted) => {
            let tcp = acceptor.take_io();
            tcp.as_ref().inspect(|tcp| reset_on_drop(tcp));
            Err((evicted.into(), tcp))
        }
    }
}

/// Completes a handshake after its ClientHello, in turns ([`PendingConnection::run_in_turns`]).
///
/// # Errors
/// Returns an error if the handshake fails, or the connection was evicted and thus reset. A TLS error is the
/// source of the returned error.
pub async fn complete_handshake(
    pending_connection: &PendingConnection,
    hello: StartHandshake<TcpStream>,
    config: Arc<ServerConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    let (mut unanswered_hello, mut handshake) = (Some(hello), None::<Accept<TcpStream>>);
    let handshake_work = poll_fn(|cx| {
        // `into_stream` computes the server's first flight, so it is part of the first turn.
        if let Some(hello) = unanswered_hello.take() {
            handshake = Some(hello.into_stream(Arc::clone(&config)));
        }
        let handshake = handshake.as_mut().expect("the first poll starts the handshake");
        Pin::new(handshake).poll(cx)
    });
    match pending_connection.run_in_turns(handshake_work).await {
        Ok(result) => result,
        Err(evicted) => {
            let tcp = unanswered_hello.as_ref().map(|hello| &hello.io);
            tcp.or_else(|| handshake.as_ref()?.get_ref()).inspect(|tcp| reset_on_drop(tcp));
            Err(evicted.into())
        }
    }
}

/// Makes the kernel reset a connection when it is dropped. Then no state remains in the kernel, and the peer sees no
/// orderly end.
pub fn reset_on_drop(tcp: &TcpStream) {
    // An error means that the socket is already closed, which is intended.
    drop(SockRef::from(tcp).set_linger(Some(Duration::ZERO)));
}
