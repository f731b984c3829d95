//! Where a control plane is: an address, or a name that is looked up anew at each connection.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;

/// Where a control plane is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlAddress {
    /// There.
    Address(SocketAddr),
    /// Wherever this name leads to now.
    Name {
        /// A host name, as the system resolves it.
        host: String,
        /// The port there.
        port: u16,
    },
}

impl ControlAddress {
    /// Its addresses now, in the order that the resolver gives them.
    pub(crate) async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::Address(address) => Ok(vec![*address]),
            Self::Name { host, port } => {
                let found = tokio::net::lookup_host((host.as_str(), *port)).await;
                let at = |error: io::Error| {
                    io::Error::new(error.kind(), format!("`{host}` is not resolved: {error}"))
                };
                Ok(found.map_err(at)?.take(ADDRESSES_MAX).collect())
            }
        }
    }
}

impl From<SocketAddr> for ControlAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

impl fmt::Display for ControlAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl FromStr for ControlAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let invalid = || InvalidAddress(text.chars().take(NAME_BYTES_MAX).collect());
        let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let port: u16 = port.parse().map_err(|_| invalid())?;
        let is_label = |label: &str| {
            let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            !label.is_empty() && label.len() <= LABEL_BYTES_MAX && label.bytes().all(good)
        };
        // One dot at its end says that the name is whole.
        let labels = host.strip_suffix('.').unwrap_or(host);
        // What is of digits alone at its end is a misspelt address, and no name (RFC 3696 §2).
        let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
        let good = host.len() <= NAME_BYTES_MAX
            && port != 0
            && labels.split('.').all(is_label)
            && !labels.rsplit('.').next().is_some_and(is_number);
        match good {
            true => Ok(Self::Name { host: host.to_owned(), port }),
            false => Err(invalid()),
        }
    }
}

/// A text that says nowhere where a control plane is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no address and no name with a port: use 192.0.2.1:15010 or NAME:15010")]
pub struct InvalidAddress(String);

/// More are not tried: any control plane will do.
const ADDRESSES_MAX: usize = 8;
/// The longest name (RFC 1035 §2.3.4).
const NAME_BYTES_MAX: usize = 253;
/// The longest part of one.
const LABEL_BYTES_MAX: usize = 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_are_read_back_as_they_are_shown() {
        for text in [
            "127.0.0.1:15010",
            "[2001:db8::1]:15010",
            "localhost:1",
            "leno-control.leno-system.svc:15010",
            "leno-control.leno-system.svc.cluster.local.:15010",
        ] {
            let parsed: ControlAddress = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
            let is_address = matches!(parsed, ControlAddress::Address(_));
            assert_eq!(is_address, text.starts_with(['1', '[']), "{text}");
        }
        let long = format!("{}:1", "a.".repeat(127));
        let refused =
            ["", "x", ":1", "x:", "x:0", "x:65536", "a b:1", "1.2.3:4", "::1:2", "a..b:1"];
        for text in refused.into_iter().chain([long.as_str(), "http://x:1", ".:1"]) {
            assert!(text.parse::<ControlAddress>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_name_is_looked_up_when_it_is_asked_for() {
        let name: ControlAddress = "localhost:15010".parse().unwrap();
        let found = name.resolve().await.unwrap();
        assert!(found.iter().all(|found| found.ip().is_loopback() && found.port() == 15_010));
        assert!(!found.is_empty());
    }
}
