//! Listening at every address of the machine, whichever versions of IP it has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Every address of the machine: of both versions, or of version 4 where there is no other.
pub(crate) fn any() -> IpAddr {
    match has_v6() {
        true => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        false => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    }
}

/// Reads where to listen. `[::]` is every address of the machine, also of one without IPv6.
pub(crate) fn listening(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| ADDRESS_AND_PORT.to_owned())?;
    Ok(at(address, has_v6()))
}

fn at(address: SocketAddr, has_v6: bool) -> SocketAddr {
    match address.ip() == Ipv6Addr::UNSPECIFIED && !has_v6 {
        true => SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())),
        false => address,
    }
}

/// Where IPv6 is off, its loopback is nobody's address.
pub(crate) fn has_v6() -> bool {
    UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

/// The remedy for text that is no address with a port.
pub(crate) const ADDRESS_AND_PORT: &str =
    "use an address and a port, such as 192.0.2.1:15010 or [::]:15010";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_one_of_version_4_where_there_is_no_other() {
        for (written, without) in
            [("[::]:80", "0.0.0.0:80"), ("[::1]:80", "[::1]:80"), ("192.0.2.1:80", "192.0.2.1:80")]
        {
            let address: SocketAddr = written.parse().unwrap();
            assert_eq!(at(address, true), address);
            assert_eq!(at(address, false).to_string(), without);
        }
        assert!(listening(":80").unwrap_err().contains("[::]:15010"));
    }
}
