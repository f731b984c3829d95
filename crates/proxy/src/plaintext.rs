//! Detects whether a client begins mutual TLS of the mesh, at ports that also accept clients without mutual TLS.

use std::io;

use leno_identity::offers_protocol;
use leno_model::Protocol;
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::tls::ALPN_LINK;
use crate::worker::Worker;

/// True if a client begins mutual TLS of the mesh; its bytes are peeked, not consumed.
///
/// If the application itself may use TLS, only clients that offer the link protocol count as mesh members. If
/// the protocol of the port may be one in which the server sends first, a silent client does not count as a
/// mesh member.
pub(crate) async fn is_mutual_tls(worker: &Worker, declared: Protocol, tcp: &TcpStream) -> bool {
    let limits = &worker.config.limits;
    let (may_be_opaque, max_wait) = match declared {
        Protocol::Http | Protocol::Http2 | Protocol::Grpc => (false, limits.handshake_timeout),
        Protocol::Tcp | Protocol::Detect => (true, limits.detect_timeout),
    };
    let mut first_byte = [0; 1];
    match timeout(max_wait, tcp.peek(&mut first_byte)).await {
        Ok(Ok(1)) if first_byte == [TLS_HANDSHAKE] => {}
        Ok(Ok(_)) | Err(_) => return false,
        // The handshake meets the same error, and reports it.
        Ok(Err(_)) => return true,
    }
    // After a timeout the handshake reports the error, as in `offers_link`.
    !may_be_opaque || timeout(limits.handshake_timeout, offers_link(tcp)).await.unwrap_or(true)
}

/// True if the ClientHello offers the link protocol. Also true if the connection fails before the ClientHello is
/// complete: the handshake then reports the error.
async fn offers_link(tcp: &TcpStream) -> bool {
    let mut client_hello = vec![0; MAX_CLIENT_HELLO_BYTES];
    let mut peeked_len = 0;
    loop {
        let Ok(readiness) = tcp.ready(Interest::READABLE).await else { return true };
        let result = tcp.try_io(Interest::READABLE, || {
            match recv(tcp, client_hello.as_mut_slice(), RecvFlags::PEEK)? {
                // No new bytes: `WouldBlock` clears the readiness, so that the next event is awaited.
                (_, length) if length == peeked_len => Err(io::ErrorKind::WouldBlock.into()),
                (_, length) => Ok(length),
            }
        });
        match result {
            Ok(length) => peeked_len = length,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return true,
            Err(_) if readiness.is_read_closed() => return true,
            Err(_) => continue,
        }
        match offers_protocol(client_hello.get(..peeked_len).unwrap_or_default(), ALPN_LINK) {
            Some(is_offered) => return is_offered,
            // The ClientHello of a sidecar is shorter than one record.
            None if peeked_len == client_hello.len() => return false,
            None => {}
        }
    }
}

/// The type of the first record of a TLS connection: handshake (RFC 8446 §5.1).
const TLS_HANDSHAKE: u8 = 22;
/// The maximum length of a ClientHello in bytes: one record.
const MAX_CLIENT_HELLO_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rustls::{ClientConfig, ClientConnection, RootCertStore};
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;
    use crate::tests::fixture::run;

    /// Returns whether a client that sends these pieces offers the link protocol; `None` if it is undecided.
    /// The client then half-closes the connection if `ends`.
    async fn detect_link_offer(pieces: &[&[u8]], ends: bool) -> Option<bool> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.set_nodelay(true).unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let mut classification = std::pin::pin!(offers_link(&server));
        let (last_piece, first_pieces) = pieces.split_last().unwrap();
        for piece in first_pieces {
            client.write_all(piece).await.unwrap();
            let early_result = timeout(Duration::from_millis(10), &mut classification).await;
            assert!(early_result.is_err(), "classified before the ClientHello was complete");
        }
        client.write_all(last_piece).await.unwrap();
        if ends {
            client.shutdown().await.unwrap();
        }
        timeout(Duration::from_millis(500), classification).await.ok()
    }

    fn client_hello(protocol: &[u8]) -> Vec<u8> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = "server".try_into().unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_client_hello_is_classified_once_it_is_complete() {
        run(async {
            for (protocol, expected) in [(ALPN_LINK, true), (b"h2".as_slice(), false)] {
                let bytes = client_hello(protocol);
                assert_eq!(detect_link_offer(&[&bytes], false).await, Some(expected));
                let pieces = [&bytes[..1], &bytes[1..9], &bytes[9..]];
                assert_eq!(detect_link_offer(&pieces, false).await, Some(expected));
            }
        });
    }

    #[test]
    fn an_incomplete_client_hello_is_left_to_the_tls_reader() {
        run(async {
            let bytes = client_hello(ALPN_LINK);
            assert_eq!(detect_link_offer(&[&bytes[..40]], true).await, Some(true));
            assert_eq!(
                detect_link_offer(&[&bytes[..40]], false).await,
                None,
                "more bytes may arrive"
            );
        });
    }
}
