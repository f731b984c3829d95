//! Selects wildcard listen addresses for machines with and without IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Returns the wildcard address: `::`, which includes IPv4, or 0.0.0.0 on a machine without IPv6.
pub(crate) fn wildcard_address() -> IpAddr {
    match has_ipv6() {
        true => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        false => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    }
}

/// Parses a listen address. `[::]` is the wildcard address, also on a machine without IPv6.
pub(crate) fn parse_listen_address(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| ADDRESS_AND_PORT.to_owned())?;
    Ok(adapt_to_ip_versions(address, has_ipv6()))
}

fn adapt_to_ip_versions(address: SocketAddr, has_ipv6: bool) -> SocketAddr {
    match address.ip() == Ipv6Addr::UNSPECIFIED && !has_ipv6 {
        true => SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())),
        false => address,
    }
}

/// True if this machine has IPv6: the IPv6 loopback address can be bound.
pub(crate) fn has_ipv6() -> bool {
    UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

/// The hint for text that is not an address with a port.
pub(crate) const ADDRESS_AND_PORT: &str =
    "use an address and a port, such as 192.0.2.1:15010 or [::]:15010";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wildcard_address_is_ipv4_without_ipv6() {
        for (text, expected) in
            [("[::]:80", "0.0.0.0:80"), ("[::1]:80", "[::1]:80"), ("192.0.2.1:80", "192.0.2.1:80")]
        {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(adapt_to_ip_versions(address, true), address);
            assert_eq!(adapt_to_ip_versions(address, false).to_string(), expected);
        }
        assert!(parse_listen_address(":80").unwrap_err().contains("[::]:15010"));
    }
}
