//! Reads the first bytes of a connection, to detect its protocol or the server name of a TLS client. All functions
//! append to `early_bytes`, which may already contain bytes of the connection.

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::BytesMut;
use leno_identity::{ClientHello, ClientHelloReader};
use leno_wire::sniff::{DetectedProtocol, sniff_protocol};

use crate::io::Io;

/// Reads until the first bytes identify the protocol. A connection that ends before counts as opaque.
pub(crate) async fn sniff_connection(io: &Io, early_bytes: &mut BytesMut) -> DetectedProtocol {
    let poll_detect = |cx: &mut Context<'_>| {
        loop {
            match sniff_protocol(early_bytes) {
                DetectedProtocol::Incomplete => {}
                protocol => return Poll::Ready(protocol),
            }
            match io.poll_read(cx, early_bytes) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(DetectedProtocol::Opaque),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    };
    poll_fn(poll_detect).await
}

/// Reads until at least one byte has arrived. Returns false if the connection ends earlier.
pub(crate) async fn read_first_bytes(io: &Io, early_bytes: &mut BytesMut) -> bool {
    let poll_first = |cx: &mut Context<'_>| {
        while early_bytes.is_empty() {
            match io.poll_read(cx, early_bytes) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(false),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(true)
    };
    poll_fn(poll_first).await
}

/// Reads until the HTTP/2 preface (RFC 9113 §3.4) is complete or ruled out.
pub(crate) async fn read_preface(io: &Io, early_bytes: &mut BytesMut) {
    let poll_preface = |cx: &mut Context<'_>| {
        loop {
            if early_bytes.len() >= PREFACE.len() || !PREFACE.starts_with(early_bytes) {
                return Poll::Ready(());
            }
            match io.poll_read(cx, early_bytes) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    };
    poll_fn(poll_preface).await;
}

/// Reads until the ClientHello of a TLS client is complete, and returns its server name. Returns `None` if the
/// ClientHello has no server name, or if the connection ends earlier.
pub(crate) async fn read_server_name(io: &Io, early_bytes: &mut BytesMut) -> Option<String> {
    let mut reader = ClientHelloReader::default();
    let poll_name = |cx: &mut Context<'_>| {
        loop {
            match reader.read(early_bytes) {
                ClientHello::Incomplete => {}
                ClientHello::ServerName(name) => return Poll::Ready(Some(name)),
                ClientHello::NoServerName => return Poll::Ready(None),
            }
            match io.poll_read(cx, early_bytes) {
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(None),
                Poll::Ready(Ok(_)) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    };
    poll_fn(poll_name).await
}

/// The client preface of HTTP/2 (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
