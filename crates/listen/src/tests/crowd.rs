//! For tests of servers: many clients that send a part of a handshake and then nothing.

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
    /// Nothing at all.
    Nothing,
    /// The first byte of a TLS record.
    Byte,
    /// Half a ClientHello.
    Half,
    /// A whole ClientHello, and no response to the server's messages.
    Whole,
    /// A ClientHello, one byte after another, that takes longer than the test.
    Trickle,
    /// A part of the head of a plaintext request.
    Head,
    /// A part of the plaintext preface of HTTP/2.
    Preface,
}

impl Sent {
    /// All kinds of clients that start a handshake.
    pub(crate) const HANDSHAKES: [Self; 4] = [Self::Byte, Self::Half, Self::Whole, Self::Trickle];
    /// All kinds of plaintext clients that do not send a whole request.
    pub(crate) const REQUESTS: [Self; 3] = [Self::Nothing, Self::Head, Self::Preface];
}

/// Clients that are connected until this is dropped.
pub(crate) struct Crowd {
    _clients: Vec<TcpStream>,
    _trickling: JoinSet<()>,
}

impl Crowd {
    /// Connects `number` clients that offer this protocol (ALPN).
    pub(crate) async fn at(
        address: SocketAddr,
        number: usize,
        sent: Sent,
        protocol: &[u8],
    ) -> Self {
        let hello = client_hello(protocol);
        let (mut clients, mut trickling) = (Vec::new(), JoinSet::new());
        for _ in 0..number {
            let mut client = TcpStream::connect(address).await.unwrap();
            let bytes = match sent {
                Sent::Nothing => &[],
                Sent::Byte => &hello[..1],
                Sent::Half => &hello[..hello.len() / 2],
                Sent::Whole => &hello[..],
                Sent::Head => &b"GET / HTTP/1.1\r\n"[..],
                Sent::Preface => &b"PRI * HTTP/2.0"[..],
                Sent::Trickle => {
                    let hello = hello.clone();
                    trickling.spawn(async move {
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
        Self { _clients: clients, _trickling: trickling }
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
    let name = "a.com".try_into().unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

/// Expects that a client is served within a second, although a crowd is connected. Tries three times, since
/// a stalled machine is not a failure of the server.
pub(crate) async fn expect_served(
    address: SocketAddr,
    number: usize,
    sent: Sent,
    protocol: &[u8],
    mut run_client: impl AsyncFnMut(),
) {
    let mut durations = Vec::new();
    for _ in 0..3 {
        let crowd = Crowd::at(address, number, sent, protocol).await;
        let start = Instant::now();
        run_client().await;
        durations.push(start.elapsed());
        drop(crowd);
        if durations.last().is_some_and(|duration| *duration < Duration::from_secs(1)) {
            return;
        }
    }
    panic!("behind {number} silent clients ({sent:?}) a client waited {durations:?}");
}
