//! Defines the source of a connection: an IPv4 address or an IPv6 /64 network. All limits of this crate that are
//! "per source" count by this value.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The source of a connection. An IPv6 host owns at least the /64 that it is in (RFC 6177), so all
/// addresses of one /64 are one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionSource(IpAddr);

impl ConnectionSource {
    /// The source of connections over Unix sockets: the unspecified address, which no IP client has.
    pub const LOCAL: Self = Self(IpAddr::V4(Ipv4Addr::UNSPECIFIED));

    /// True for clients on this machine: over Unix sockets and loopback addresses.
    #[must_use]
    pub const fn is_local(self) -> bool {
        match self.0 {
            IpAddr::V4(address) => address.is_loopback() || address.is_unspecified(),
            // The /64 of `::1`.
            IpAddr::V6(network) => network.is_unspecified(),
        }
    }
}

impl From<IpAddr> for ConnectionSource {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & NETWORK_MASK))
            }
            IpAddr::V4(address) => IpAddr::V4(address),
        })
    }
}

/// The mask of the first 64 bits of an IPv6 address.
const NETWORK_MASK: u128 = (u64::MAX as u128) << 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_counts_by_network_and_ipv4_by_address() {
        let source = |address: &str| ConnectionSource::from(address.parse::<IpAddr>().unwrap());
        assert_eq!(source("2001:db8:0:1::1"), source("2001:db8:0:1:ffff::2"));
        assert_ne!(source("2001:db8:0:1::1"), source("2001:db8:0:2::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
        assert_ne!(source("10.0.0.1"), ConnectionSource::LOCAL);
        for local in [
            source("127.0.0.2"),
            source("::1"),
            source("::ffff:127.0.0.1"),
            ConnectionSource::LOCAL,
        ] {
            assert!(local.is_local(), "{local:?}");
        }
        assert!(!source("10.0.0.1").is_local() && !source("2001:db8::1").is_local());
    }
}
