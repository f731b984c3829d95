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
    /// A whole ClientHello, and no answer to what the server says then.
    Whole,
    /// A ClientHello, one byte after another, that takes longer than the test.
    Trickle,
    /// A part of the head of a request, in clear.
    Head,
    /// A part of the preface of HTTP/2, in clear.
    Preface,
}

impl Sent {
    /// Every kind of client that begins a handshake.
    pub(crate) const HANDSHAKES: [Self; 4] = [Self::Byte, Self::Half, Self::Whole, Self::Trickle];
    /// Every kind of client in clear that sends no whole request.
    pub(crate) const REQUESTS: [Self; 3] = [Self::Nothing, Self::Head, Self::Preface];
}

/// Clients that are connected until this is dropped.
pub(crate) struct Crowd {
    _clients: Vec<TcpStream>,
    _trickling: JoinSet<()>,
}

impl Crowd {
    /// So many clients, which offer this protocol (ALPN).
    pub(crate) async fn at(
        address: SocketAddr,
        number: usize,
        sent: Sent,
        protocol: &[u8],
    ) -> Self {
        let hello = hello(protocol);
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
            // One that was evicted already is no failure.
            drop(client.write_all(bytes).await);
            clients.push(client);
        }
        Self { _clients: clients, _trickling: trickling }
    }
}

/// The ClientHello of a client that offers this protocol.
fn hello(protocol: &[u8]) -> Vec<u8> {
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

/// Makes a crowd and then an honest client, three times or until one of those was served within a second:
/// a machine that stalls says nothing about a server.
pub(crate) async fn expect_served(
    address: SocketAddr,
    number: usize,
    sent: Sent,
    protocol: &[u8],
    mut honest: impl AsyncFnMut(),
) {
    let mut took = Vec::new();
    for _ in 0..3 {
        let crowd = Crowd::at(address, number, sent, protocol).await;
        let start = Instant::now();
        honest().await;
        took.push(start.elapsed());
        drop(crowd);
        if took.last().is_some_and(|took| *took < Duration::from_secs(1)) {
            return;
        }
    }
    panic!("behind {number} silent clients ({sent:?}) an honest one waited {took:?}");
}
