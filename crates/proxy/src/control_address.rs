//! Parses and resolves the addresses of control planes: fixed addresses, and names that are resolved for each
//! connection. The last address at which a control plane was reached by name is stored, for times when DNS is not
//! available.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use tokio::time::timeout;

use crate::state::StateDir;

/// The address of a control plane, as `--control` has it: `ADDRESS:PORT` or `NAME:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlAddress {
    /// A fixed address.
    Address(SocketAddr),
    /// A name that is resolved for each connection.
    Name {
        /// A host name, resolved by the system.
        host: String,
        /// The TCP port; never 0.
        port: u16,
    },
}

impl ControlAddress {
    /// Returns the current addresses, in the order of the resolver.
    pub(crate) async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::Address(address) => Ok(vec![*address]),
            Self::Name { host, port } => {
                let addresses = tokio::net::lookup_host((host.as_str(), *port)).await;
                let with_host = |error: io::Error| {
                    io::Error::new(error.kind(), format!("cannot resolve `{host}`: {error}"))
                };
                Ok(addresses.map_err(with_host)?.take(MAX_RESOLVED_ADDRESSES).collect())
            }
        }
    }
}

/// The last addresses at which control planes were reached, by name. They survive restarts and DNS failures.
#[derive(Debug)]
pub(crate) struct ReachedAddresses {
    state_dir: StateDir,
    last_addresses: RefCell<BTreeMap<String, SocketAddr>>,
}

impl ReachedAddresses {
    /// Creates an empty table; addresses of previous runs are read from the state directory when needed.
    pub(crate) fn new(state_dir: StateDir) -> Self {
        Self { state_dir, last_addresses: RefCell::default() }
    }

    /// Returns the addresses of a control plane: the current addresses of its name, or the last known address
    /// if the name cannot be resolved within [`MAX_RESOLUTION_TIME`].
    ///
    /// # Errors
    /// If the name cannot be resolved, and no control plane was ever reached by this name.
    pub(crate) async fn find_addresses(
        &self,
        control: &ControlAddress,
    ) -> io::Result<Vec<SocketAddr>> {
        let Some(last_address) = self.last_known_address(control) else {
            return control.resolve().await;
        };
        match timeout(MAX_RESOLUTION_TIME, control.resolve()).await {
            Ok(Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
            outcome => {
                let error = match outcome {
                    Ok(Ok(_)) => "the name has no address".to_owned(),
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => format!("cannot resolve `{control}` within {MAX_RESOLUTION_TIME:?}"),
                };
                tracing::info!(%control, address = %last_address, "{error}; the last known address is used");
                Ok(vec![last_address])
            }
        }
    }

    /// Records an address at which a control plane was reached.
    pub(crate) fn record_reached(&self, control: &ControlAddress, address: SocketAddr) {
        let ControlAddress::Name { .. } = control else { return };
        if self.last_known_address(control) != Some(address) {
            self.last_addresses.borrow_mut().insert(control.to_string(), address);
            self.state_dir.store_address(&address_file_name(control), address);
        }
    }

    /// Returns the address at which a control plane was last reached by name; `None` for fixed addresses.
    fn last_known_address(&self, control: &ControlAddress) -> Option<SocketAddr> {
        let ControlAddress::Name { .. } = control else { return None };
        let known_address = self.last_addresses.borrow().get(&control.to_string()).copied();
        known_address.or_else(|| self.state_dir.stored_address(&address_file_name(control)))
    }
}

/// Returns the file name in the state directory; every character of a host name is valid in a file name.
fn address_file_name(control: &ControlAddress) -> String {
    format!("control-{}", control.to_string().replace(':', "-"))
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
        let invalid_error = || InvalidAddress(text.chars().take(MAX_NAME_BYTES).collect());
        let (host, port) = text.rsplit_once(':').ok_or_else(invalid_error)?;
        let port: u16 = port.parse().map_err(|_| invalid_error())?;
        let is_label = |label: &str| {
            let is_valid_byte =
                |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            !label.is_empty() && label.len() <= MAX_LABEL_BYTES && label.bytes().all(is_valid_byte)
        };
        // A trailing dot marks a fully qualified name.
        let labels = host.strip_suffix('.').unwrap_or(host);
        // A last label of digits only is a mistyped address, not a name (RFC 3696 §2).
        let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
        let is_valid = host.len() <= MAX_NAME_BYTES
            && port != 0
            && labels.split('.').all(is_label)
            && !labels.rsplit('.').next().is_some_and(is_number);
        match is_valid {
            true => Ok(Self::Name { host: host.to_owned(), port }),
            false => Err(invalid_error()),
        }
    }
}

/// A text that is neither an address nor a name with a port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an address nor a name with a port: use 192.0.2.1:15010 or NAME:15010")]
pub struct InvalidAddress(String);

/// The maximum time to resolve a name if an address is known.
const MAX_RESOLUTION_TIME: Duration = Duration::from_secs(2);
/// The maximum number of addresses of one name that are tried.
const MAX_RESOLVED_ADDRESSES: usize = 8;
/// The maximum length of a name (RFC 1035 §2.3.4).
const MAX_NAME_BYTES: usize = 253;
/// The maximum length of a label of a name (RFC 1035 §2.3.4).
const MAX_LABEL_BYTES: usize = 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_round_trip_through_text() {
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
        let too_long_name = format!("{}:1", "a.".repeat(127));
        let invalid_addresses =
            ["", "x", ":1", "x:", "x:0", "x:65536", "a b:1", "1.2.3:4", "::1:2", "a..b:1"];
        for text in
            invalid_addresses.into_iter().chain([too_long_name.as_str(), "http://x:1", ".:1"])
        {
            assert!(text.parse::<ControlAddress>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn the_last_known_address_survives_dns_failures_and_restarts() {
        let directory = tempfile::tempdir().unwrap();
        let control: ControlAddress = "control.invalid:15010".parse().unwrap();
        let address = SocketAddr::from(([192, 0, 2, 7], 15_010));
        let addresses = {
            let reached_addresses =
                ReachedAddresses::new(StateDir::open(directory.path()).unwrap());
            assert!(
                reached_addresses.find_addresses(&control).await.is_err(),
                "a name that was never reached"
            );
            reached_addresses.record_reached(&control, address);
            reached_addresses.find_addresses(&control).await.unwrap()
        };
        assert_eq!(addresses, [address]);
        let reached_addresses = ReachedAddresses::new(StateDir::open(directory.path()).unwrap());
        assert_eq!(reached_addresses.find_addresses(&control).await.unwrap(), [address]);
        // A name that can be resolved uses its current addresses.
        let local: ControlAddress = "localhost:15010".parse().unwrap();
        reached_addresses.record_reached(&local, address);
        assert!(
            reached_addresses
                .find_addresses(&local)
                .await
                .unwrap()
                .iter()
                .all(|address| address.ip().is_loopback())
        );
    }

    #[tokio::test]
    async fn a_name_resolves_to_its_current_addresses() {
        let name: ControlAddress = "localhost:15010".parse().unwrap();
        let addresses = name.resolve().await.unwrap();
        assert!(
            addresses.iter().all(|address| address.ip().is_loopback() && address.port() == 15_010)
        );
        assert!(!addresses.is_empty());
    }
}
