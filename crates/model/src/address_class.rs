//! Classes of IP addresses: public, private, loopback and special, including IPv4 embedded in IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The class of an address, ordered by the harm that a request to it can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressClass {
    /// An address of the internet.
    Public,
    /// An address of a private network, such as those of pods and cluster IPs.
    Private,
    /// A loopback address of the machine itself.
    Loopback,
    /// A link-local, unspecified, multicast or broadcast address, or that of a cloud's metadata service.
    Special,
}

impl AddressClass {
    /// Returns the class of an address. An IPv6 address that embeds an IPv4 address (mapped, NAT64, 6to4,
    /// Teredo, ISATAP) has the more harmful class of the two.
    #[must_use]
    pub fn from_address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => class_of_ipv4(address),
            IpAddr::V6(address) => {
                let embedded_class = embedded_ipv4(address).map_or(Self::Public, class_of_ipv4);
                class_of_ipv6(address).max(embedded_class)
            }
        }
    }

    /// True for loopback addresses of the machine itself and for special addresses.
    #[must_use]
    pub fn is_loopback_or_special(address: IpAddr) -> bool {
        Self::from_address(address) >= Self::Loopback
    }
}

/// Returns the class of an IPv4 address.
fn class_of_ipv4(address: Ipv4Addr) -> AddressClass {
    let [first, second, third, _] = address.octets();
    // Linux connects 0.0.0.0 to the machine itself.
    let is_special = first == 0
        || address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
        || METADATA_SERVICES_V4.contains(&address);
    if is_special {
        return AddressClass::Special;
    }
    match (first, second, third) {
        (127, ..) => AddressClass::Loopback,
        // RFC 1918, RFC 6598, RFC 6890, RFC 2544, and class E, which some clouds give to pods.
        (10, ..)
        | (172, 16..=31, _)
        | (192, 168, _)
        | (100, 64..=127, _)
        | (192, 0, 0)
        | (198, 18..=19, _)
        | (240.., ..) => AddressClass::Private,
        _ => AddressClass::Public,
    }
}

/// Returns the class of an IPv6 address, without regard to an embedded IPv4 address.
fn class_of_ipv6(address: Ipv6Addr) -> AddressClass {
    let [first, second, third, ..] = address.segments();
    let is_special = address.is_unspecified()
        || address.is_unicast_link_local()
        || address.is_multicast()
        || METADATA_SERVICES_V6.contains(&address);
    if is_special {
        return AddressClass::Special;
    }
    let is_loopback = address.is_loopback();
    // Unique local addresses, the former site-local addresses, and local-use NAT64 (RFC 8215).
    let is_private = address.is_unique_local()
        || first & 0xffc0 == 0xfec0
        || (first, second, third) == (0x64, 0xff9b, 1);
    match (is_loopback, is_private) {
        (true, _) => AddressClass::Loopback,
        (false, true) => AddressClass::Private,
        (false, false) => AddressClass::Public,
    }
}

/// Returns the IPv4 address embedded in an IPv6 address; `None` if there is none.
fn embedded_ipv4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [first, second, third, fourth, fifth, sixth, high, low] = address.segments();
    let low_bits = u32::from(high) << 16 | u32::from(low);
    let bits = match (first, second, third, fourth, fifth, sixth) {
        // IPv4-compatible; `::` and `::1` embed no address.
        (0, 0, 0, 0, 0, 0) if low_bits <= 1 => return None,
        // IPv4-compatible, IPv4-mapped, or IPv4-translated (RFC 2765).
        (0, 0, 0, 0, 0, 0 | 0xffff) | (0, 0, 0, 0, 0xffff, 0) => low_bits,
        // NAT64 (RFC 6052, RFC 8215).
        (0x64, 0xff9b, 0, 0, 0, 0) | (0x64, 0xff9b, 1, ..) => low_bits,
        // 6to4 (RFC 3056).
        (0x2002, ..) => u32::from(second) << 16 | u32::from(third),
        // Teredo (RFC 4380).
        (0x2001, 0, ..) => !low_bits,
        // ISATAP (RFC 5214).
        (.., 0 | 0x200, 0x5efe) => low_bits,
        _ => return None,
    };
    Some(Ipv4Addr::from_bits(bits))
}

/// The addresses of metadata services that issue credentials to machines: Alibaba, Azure, Oracle. The metadata
/// services of other clouds have link-local addresses.
const METADATA_SERVICES_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];
/// The IPv6 addresses of metadata services: AWS, EKS Pod Identity, Oracle, Google, Scaleway.
const METADATA_SERVICES_V6: [Ipv6Addr; 5] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_class_of_its_embedded_address() {
        for (class, addresses) in [
            (
                AddressClass::Special,
                "0.0.0.0 0.1.2.3 169.254.169.254 224.0.0.1 255.255.255.255 100.100.100.200 168.63.129.16 \
                 :: fe80::1 febf::1 ff02::1 fd00:ec2::254 fd00:ec2::23 fd00:c1::a9fe:a9fe fd20:ce::254 ::ffff:169.254.169.254 \
                 ::169.254.169.254 ::ffff:0:169.254.169.254 64:ff9b::169.254.169.254 64:ff9b::a9fe:a9fe \
                 64:ff9b:1::169.254.169.254 2002:a9fe:a9fe::1 2001:0:1:2:3:4:5601:5601 \
                 2001:db8::5efe:169.254.169.254 2001:db8::200:5efe:169.254.169.254 ::ffff:0.0.0.0",
            ),
            (
                AddressClass::Loopback,
                "127.0.0.1 127.255.255.254 ::1 ::ffff:127.0.0.1 ::127.0.0.1 64:ff9b::7f00:1 2002:7f00:1::",
            ),
            (
                AddressClass::Private,
                "10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 198.18.0.1 240.0.0.1 \
                 fc00::1 fd12::1 fec0::1 ::ffff:10.96.0.1 64:ff9b::10.0.0.1 64:ff9b:1::8.8.8.8",
            ),
            (
                AddressClass::Public,
                "8.8.8.8 172.32.0.1 192.0.2.1 100.128.0.1 2001:4860::8888 2606:4700::1 ::ffff:8.8.8.8 \
                 64:ff9b::8.8.8.8 2002:808:808::1",
            ),
        ] {
            for address in addresses.split_whitespace() {
                assert_eq!(
                    AddressClass::from_address(address.parse().unwrap()),
                    class,
                    "{address}"
                );
            }
        }
    }
}
