//! Test support for servers: a crowd of clients, each of which sends a part of a handshake or request and then
//! stays silent. The server must still serve a well-behaved client within a second.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

/// The bytes that a client sends before it goes silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// No bytes.
    NoBytes,
    /// The first byte of a TLS record.
    FirstByte,
    /// Half a ClientHello.
    HalfHello,
    /// A whole ClientHello, and no response to the server's messages.
    WholeHello,
    /// A ClientHello, one byte after another, that takes longer than the test.
    SlowHello,
    /// A part of the head of a plaintext request.
    PartialHead,
    /// A part of the plaintext preface of HTTP/2.
    PartialPreface,
}

impl Sent {
    /// All kinds of clients that start a handshake.
    pub(crate) const HANDSHAKES: [Self; 4] =
        [Self::FirstByte, Self::HalfHello, Self::WholeHello, Self::SlowHello];
    /// All kinds of plaintext clients that do not send a whole request.
    pub(crate) const REQUESTS: [Self; 3] = [Self::NoBytes, Self::PartialHead, Self::PartialPreface];
}

/// Clients that are connected until this is dropped.
pub(crate) struct Crowd {
    _clients: Vec<TcpStream>,
    _slow_clients: JoinSet<()>,
}

impl Crowd {
    /// Connects `client_count` clients that offer this protocol (ALPN).
    pub(crate) async fn connect(
        address: SocketAddr,
        client_count: usize,
        sent: Sent,
        protocol: &[u8],
    ) -> Self {
        let hello = client_hello(protocol);
        let (mut clients, mut slow_clients) = (Vec::new(), JoinSet::new());
        for _ in 0..client_count {
            let mut client = TcpStream::connect(address).await.unwrap();
            let bytes = match sent {
                Sent::NoBytes => &[],
                Sent::FirstByte => &hello[..1],
                Sent::HalfHello => &hello[..hello.len() / 2],
                Sent::WholeHello => &hello[..],
                Sent::PartialHead => &b"GET / HTTP/1.1\r\n"[..],
                Sent::PartialPreface => &b"PRI * HTTP/2.0"[..],
                Sent::SlowHello => {
                    let hello = hello.clone();
                    slow_clients.spawn(async move {
                        let mut pace = interval(Duration::from_millis(50));
                        for byte in hello {
                            pace.tick().await;
                            if client.write_all(&[byte]).await.is_err() {
                                return;
                            }
                        }
                    });
                    continue;
                }
            };
            // A client that was evicted already is not a failure.
            drop(client.write_all(bytes).await);
            clients.push(client);
        }
        Self { _clients: clients, _slow_clients: slow_clients }
    }
}

/// Returns the ClientHello of a client that offers this protocol.
fn client_hello(protocol: &[u8]) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let server_name = "a.com".try_into().unwrap();
    let mut client = ClientConnection::new(Arc::new(config), server_name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

/// Expects that `run_client` completes within a second, although a crowd is connected. Tries three times,
/// because a stalled machine is not a failure of the server.
pub(crate) async fn expect_served(
    address: SocketAddr,
    client_count: usize,
    sent: Sent,
    protocol: &[u8],
    mut run_client: impl AsyncFnMut(),
) {
    let mut durations = Vec::new();
    for _ in 0..3 {
        let crowd = Crowd::connect(address, client_count, sent, protocol).await;
        let start = Instant::now();
        run_client().await;
        durations.push(start.elapsed());
        drop(crowd);
        if durations.last().is_some_and(|duration| *duration < Duration::from_secs(1)) {
            return;
        }
    }
    panic!("behind {client_count} silent clients ({sent:?}) a client waited {durations:?}");
}
