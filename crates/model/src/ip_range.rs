//! IP address ranges in CIDR notation, which policies use to match clients and destinations.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address range in CIDR notation, such as `10.1.0.0/16`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpRange {
    /// The first address of the range.
    address: IpAddr,
    /// The prefix length: the number of bits that all addresses of the range have in common.
    prefix_length: u8,
}

impl IpRange {
    /// Creates the range of all addresses that begin with the first `prefix_length` bits of `address`.
    ///
    /// # Errors
    /// [`InvalidIpRange`] if the prefix is longer than the address, or if bits of the address after the prefix are
    /// set, which is probably a mistake.
    pub fn new(address: IpAddr, prefix_length: u8) -> Result<Self, InvalidIpRange> {
        let range = Self { address, prefix_length };
        let is_valid = prefix_length <= range.address_bits()
            && range.mask_bits(address_to_bits(address)) == address_to_bits(address);
        if is_valid {
            Ok(range)
        } else {
            Err(InvalidIpRange { text: format!("{address}/{prefix_length}") })
        }
    }

    /// Returns the range with this prefix length that contains an address; `None` if the prefix is longer than the
    /// address. IPv4-mapped IPv6 addresses count as IPv4.
    #[must_use]
    pub fn from_address(address: IpAddr, prefix_length: u8) -> Option<Self> {
        let address = address.to_canonical();
        let range = Self { address, prefix_length };
        if prefix_length > range.address_bits() {
            return None;
        }
        let masked_bits = range.mask_bits(address_to_bits(address));
        let first_address = match address {
            IpAddr::V4(_) => Ipv4Addr::from_bits(u32::try_from(masked_bits).ok()?).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(masked_bits).into(),
        };
        Some(Self { address: first_address, prefix_length })
    }

    /// Parses `ADDRESS/BITS`, or one address.
    ///
    /// # Errors
    /// [`InvalidIpRange`] for any other text.
    pub fn parse_range_or_address(text: &str) -> Result<Self, InvalidIpRange> {
        match text.parse::<IpAddr>() {
            Ok(address) => Ok(address.into()),
            Err(_) => text.parse(),
        }
    }

    /// True if the range contains an address. IPv4-mapped IPv6 addresses count as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.address.is_ipv4() == address.is_ipv4()
            && self.mask_bits(address_to_bits(address)) == address_to_bits(self.address)
    }

    /// Returns the first address of the range.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the prefix length.
    #[must_use]
    pub fn prefix_length(&self) -> u8 {
        self.prefix_length
    }

    /// Returns the number of bits of an address: 32 for IPv4, 128 for IPv6.
    fn address_bits(&self) -> u8 {
        if self.address.is_ipv4() { 32 } else { 128 }
    }

    /// Clears the bits after the prefix.
    fn mask_bits(&self, bits: u128) -> u128 {
        let host_bits = u32::from(self.address_bits().saturating_sub(self.prefix_length));
        // For an IPv6 prefix of 0 bits, `checked_shr` returns `None`, because it cannot shift by 128 bits.
        bits.checked_shr(host_bits).and_then(|bits| bits.checked_shl(host_bits)).unwrap_or(0)
    }
}

/// Creates a range of one address.
impl From<IpAddr> for IpRange {
    fn from(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self { address, prefix_length: if address.is_ipv4() { 32 } else { 128 } }
    }
}

/// Returns an address as a number.
fn address_to_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => Ipv6Addr::to_bits(address),
    }
}

impl fmt::Display for IpRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_length)
    }
}

/// Parses `ADDRESS/BITS`.
impl FromStr for IpRange {
    type Err = InvalidIpRange;

    fn from_str(text: &str) -> Result<Self, InvalidIpRange> {
        let invalid = || InvalidIpRange { text: text.chars().take(MAX_TEXT_CHARACTERS).collect() };
        let (address, prefix) = text.split_once('/').ok_or_else(invalid)?;
        // `u8::from_str` accepts a leading `+`, which is not part of CIDR notation.
        let is_number = prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix_length =
            Some(prefix).filter(|_| is_number).and_then(|prefix| prefix.parse().ok());
        let (address, prefix_length) =
            address.parse().ok().zip(prefix_length).ok_or_else(invalid)?;
        Self::new(address, prefix_length).map_err(|_| invalid())
    }
}

/// A text that is not an address range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a range of addresses: use the first address of it and its bits, such as 10.1.0.0/16"
)]
pub struct InvalidIpRange {
    /// The text, truncated to 64 characters.
    pub text: String,
}

/// The maximum number of characters of a text in an error.
const MAX_TEXT_CHARACTERS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_contains_the_addresses_with_its_prefix() {
        for (range, inside, outside) in [
            (
                "10.1.0.0/16",
                &["10.1.0.0", "10.1.255.255", "::ffff:10.1.2.3"][..],
                &["10.2.0.0"][..],
            ),
            ("10.1.2.3/32", &["10.1.2.3"], &["10.1.2.2", "10.1.2.4"]),
            ("0.0.0.0/0", &["0.0.0.0", "255.255.255.255"], &["::1", "fd00::1"]),
            ("::/0", &["::1", "fd00::1"], &["10.1.2.3"]),
            ("fd00:1::/32", &["fd00:1::", "fd00:1:ffff::"], &["fd00:2::"]),
            ("128.0.0.0/1", &["128.0.0.0", "255.0.0.1"], &["127.255.255.255"]),
        ] {
            let parsed: IpRange = range.parse().unwrap();
            assert_eq!(parsed.to_string(), range);
            let contains = |text: &&&str| parsed.contains(text.parse().unwrap());
            assert_eq!(inside.iter().filter(contains).count(), inside.len(), "{range}");
            assert_eq!(outside.iter().filter(contains).count(), 0, "{range}");
            let enclosing =
                |text: &&str| IpRange::from_address(text.parse().unwrap(), parsed.prefix_length());
            assert!(inside.iter().all(|inside| enclosing(inside) == Some(parsed)), "{range}");
            assert!(outside.iter().all(|outside| enclosing(outside) != Some(parsed)), "{range}");
        }
    }

    #[test]
    fn ambiguous_ranges_are_rejected() {
        for invalid in
            ["", "10.1.0.0", "10.1.2.3/16", "10.1.0.0/33", "::/129", "10.1.0.0/+8", "a/8"]
        {
            assert!(invalid.parse::<IpRange>().is_err(), "{invalid}");
        }
        let mapped = IpRange::from("::ffff:10.1.2.3".parse::<IpAddr>().unwrap());
        assert_eq!(mapped.to_string(), "10.1.2.3/32");
        assert_eq!(IpRange::from_address(mapped.address(), 33), None);
    }
}
