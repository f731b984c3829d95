//! Reads the server name and the offered protocols in a TLS ClientHello. By the server name, sidecars and gateways route
//! TLS sessions that they do not terminate.

use rustls::server::Acceptor;

/// An incremental parser of a ClientHello that returns the server name.
#[derive(Default)]
pub struct ClientHelloReader {
    acceptor: Acceptor,
    /// The number of bytes that `acceptor` has consumed.
    bytes_read: usize,
}

/// The result of parsing the first bytes of a TLS client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientHello {
    /// The ClientHello is incomplete: call again with more bytes.
    Incomplete,
    /// The requested server name (RFC 6066 §3).
    ServerName(String),
    /// The ClientHello has no server name, or is invalid.
    NoServerName,
}

impl ClientHelloReader {
    /// Parses the bytes received so far: each call must repeat the bytes of the previous call, and may add more.
    pub fn read(&mut self, first_bytes: &[u8]) -> ClientHello {
        let mut remaining = first_bytes.get(self.bytes_read..).unwrap_or_default();
        while !remaining.is_empty() {
            if self.bytes_read > MAX_CLIENT_HELLO_BYTES {
                return ClientHello::NoServerName;
            }
            let length_before = remaining.len();
            if self.acceptor.read_tls(&mut remaining).is_err() {
                return ClientHello::NoServerName;
            }
            self.bytes_read =
                self.bytes_read.saturating_add(length_before.saturating_sub(remaining.len()));
            match self.acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    let name = accepted.client_hello().server_name().map(str::to_owned);
                    return name.map_or(ClientHello::NoServerName, ClientHello::ServerName);
                }
                Err(_) => return ClientHello::NoServerName,
            }
        }
        ClientHello::Incomplete
    }
}

/// True if a TLS client offers this protocol (ALPN, RFC 7301); false also for an invalid ClientHello. `None` until the
/// ClientHello is complete.
#[must_use]
pub fn offers_protocol(first_bytes: &[u8], protocol: &[u8]) -> Option<bool> {
    let mut acceptor = Acceptor::default();
    let mut remaining = first_bytes;
    while !remaining.is_empty() {
        if acceptor.read_tls(&mut remaining).is_err() {
            return Some(false);
        }
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                let mut offered_protocols = accepted.client_hello().alpn().into_iter().flatten();
                return Some(offered_protocols.any(|offered| offered == protocol));
            }
            Err(_) => return Some(false),
        }
    }
    None
}

/// Maximum size of a ClientHello: one TLS record. A ClientHello with post-quantum key shares has about 2 KiB.
const MAX_CLIENT_HELLO_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    /// Returns the ClientHello of a client that connects to this server.
    fn client_hello(name: &str) -> Vec<u8> {
        hello_offering(name, &[])
    }

    fn hello_offering(name: &str, protocols: &[&[u8]]) -> Vec<u8> {
        let mut config = ClientConfig::builder_with_provider(crate::provider::crypto_provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let name = name.to_owned().try_into().unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn the_server_name_is_available_after_the_last_byte() {
        let bytes = client_hello("shop.example.com");
        let expected = ClientHello::ServerName("shop.example.com".to_owned());
        assert_eq!(ClientHelloReader::default().read(&bytes), expected);
        for size in [1, 7, 100] {
            let mut reader = ClientHelloReader::default();
            let mut sent_bytes = 0;
            while sent_bytes + size < bytes.len() {
                sent_bytes += size;
                assert_eq!(
                    reader.read(&bytes[..sent_bytes]),
                    ClientHello::Incomplete,
                    "{sent_bytes}"
                );
            }
            assert_eq!(reader.read(&bytes), expected, "{size}");
        }
        let longer = [&bytes[..], b"and more"].concat();
        assert_eq!(ClientHelloReader::default().read(&longer), expected);
    }

    #[test]
    fn offered_protocols_are_known_when_the_client_hello_is_complete() {
        let bytes = hello_offering("shop.example.com", &[b"leno/1", b"h2"]);
        assert_eq!(offers_protocol(&bytes, b"leno/1"), Some(true));
        assert_eq!(offers_protocol(&bytes, b"leno/2"), Some(false));
        assert_eq!(offers_protocol(&bytes[..bytes.len() - 1], b"leno/1"), None);
        assert_eq!(offers_protocol(&client_hello("shop.example.com"), b"leno/1"), Some(false));
        assert_eq!(offers_protocol(b"GET / HTTP/1.1\r\n", b"leno/1"), Some(false));
        assert_eq!(offers_protocol(b"", b"leno/1"), None);
    }

    #[test]
    fn clients_without_a_server_name_are_distinguished_from_incomplete_hellos() {
        // Addresses are not sent as server names (RFC 6066 §3).
        let unnamed = client_hello("192.0.2.1");
        assert_eq!(ClientHelloReader::default().read(&unnamed), ClientHello::NoServerName);
        assert_eq!(ClientHelloReader::default().read(b""), ClientHello::Incomplete);
        assert_eq!(
            ClientHelloReader::default().read(b"GET / HTTP/1.1\r\n"),
            ClientHello::NoServerName
        );
        let endless = [&[22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc][..], &[0; 40_000]].concat();
        assert_eq!(ClientHelloReader::default().read(&endless), ClientHello::NoServerName);
    }
}
