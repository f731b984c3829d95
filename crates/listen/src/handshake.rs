//! Incoming TLS handshakes: the whole ClientHello is read first; then the cryptographic work is done in turns.

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

use crate::admission::HalfOpen;

/// Reads a whole ClientHello, without cryptographic work.
///
/// # Errors
/// Returns an error if the bytes are no ClientHello, the client disconnected, or the connection was evicted (and is
/// reset). A TLS error is the source of the returned error. The socket is returned as well, unless it is closed.
pub async fn read_hello(
    half_open: &HalfOpen,
    tcp: TcpStream,
) -> Result<StartHandshake<TcpStream>, (io::Error, Option<TcpStream>)> {
    let mut acceptor = LazyConfigAcceptor::new(Acceptor::default(), tcp);
    match half_open.await_peer(&mut acceptor).await {
        Ok(Ok(hello)) => Ok(hello),
        Ok(Err(error)) => Err((error, acceptor.take_io())),
        Err(evicted) => {
            let tcp = acceptor.take_io();
            tcp.as_ref().inspect(|tcp| reset_on_drop(tcp));
            Err((evicted.into(), tcp))
        }
    }
}

/// Completes a handshake after its ClientHello, in turns ([`HalfOpen::run_in_turns`]).
///
/// # Errors
/// Returns an error if the handshake fails, or the connection was evicted (and is reset). A TLS error is the source
/// of the error.
pub async fn complete_handshake(
    half_open: &HalfOpen,
    hello: StartHandshake<TcpStream>,
    config: Arc<ServerConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    let (mut hello, mut accept) = (Some(hello), None::<Accept<TcpStream>>);
    let handshake_work = poll_fn(|cx| {
        // The server's first flight is computed here, so this is part of the turn.
        if let Some(hello) = hello.take() {
            accept = Some(hello.into_stream(Arc::clone(&config)));
        }
        let accept = accept.as_mut().expect("it was made above, at the first poll");
        Pin::new(accept).poll(cx)
    });
    match half_open.run_in_turns(handshake_work).await {
        Ok(result) => result,
        Err(evicted) => {
            let tcp = hello.as_ref().map(|hello| &hello.io);
            tcp.or_else(|| accept.as_ref()?.get_ref()).inspect(|tcp| reset_on_drop(tcp));
            Err(evicted.into())
        }
    }
}

/// Makes the kernel reset a connection when it is dropped: no state remains in the kernel, and the peer sees no
/// orderly end.
pub fn reset_on_drop(tcp: &TcpStream) {
    // An error means that the socket is already closed, which is intended.
    drop(SockRef::from(tcp).set_linger(Some(Duration::ZERO)));
}
