//! Parses and formats IPv4 and IPv6 address ranges in CIDR notation.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A range of IPv4 or IPv6 addresses with a common prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CidrRange {
    /// The first address.
    first_address: IpAddr,
    /// The prefix length in bits.
    prefix_length: u8,
}

impl CidrRange {
    /// Returns the range of a single address.
    pub(crate) const fn from_address(address: IpAddr) -> Self {
        Self { first_address: address, prefix_length: address_bits(address) }
    }

    pub(crate) const fn first_address(&self) -> IpAddr {
        self.first_address
    }

    /// Returns the network mask: 4 bytes for IPv4, 16 bytes for IPv6.
    pub(crate) fn mask(&self) -> Vec<u8> {
        let host_bits = u32::from(address_bits(self.first_address) - self.prefix_length);
        // A shift by all bits, for a prefix of length zero, is `None`: the mask is zero.
        match self.first_address {
            IpAddr::V4(_) => u32::MAX.checked_shl(host_bits).unwrap_or(0).to_be_bytes().to_vec(),
            IpAddr::V6(_) => u128::MAX.checked_shl(host_bits).unwrap_or(0).to_be_bytes().to_vec(),
        }
    }

    /// Returns the keyword of `nft` for the address family.
    pub(crate) const fn nft_family(&self) -> &'static str {
        match self.first_address {
            IpAddr::V4(_) => "ip",
            IpAddr::V6(_) => "ip6",
        }
    }
}

/// Parses `192.0.2.0/24`, or a single address. Host bits are zeroed, as in `nft` and `ip`.
impl FromStr for CidrRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || format!("`{text}` is not an address range; use one such as 192.0.2.0/24");
        let (address, prefix_length) = match text.split_once('/') {
            Some((address, prefix_length)) => (address, Some(prefix_length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let address_width = address_bits(address);
        let prefix_length = match prefix_length {
            Some(prefix_length) => prefix_length.parse().map_err(|_| invalid())?,
            None => address_width,
        };
        if prefix_length > address_width {
            return Err(invalid());
        }
        let host_bits = u32::from(address_width - prefix_length);
        // As in `mask`, a prefix of length zero shifts by all bits.
        let first_address = match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
                IpAddr::V4((u32::from(address) & mask).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
                IpAddr::V6((u128::from(address) & mask).into())
            }
        };
        Ok(Self { first_address, prefix_length })
    }
}

impl fmt::Display for CidrRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first_address, self.prefix_length)
    }
}

/// Returns the number of bits of an address.
const fn address_bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_both_versions_are_parsed() {
        for (text, expected, mask) in [
            ("192.0.2.0/24", "192.0.2.0/24", &[255, 255, 255, 0][..]),
            ("192.0.2.7/24", "192.0.2.0/24", &[255, 255, 255, 0]),
            ("192.0.2.7", "192.0.2.7/32", &[255; 4]),
            ("0.0.0.0/0", "0.0.0.0/0", &[0; 4]),
            ("::/0", "::/0", &[0; 16]),
            ("::1", "::1/128", &[255; 16]),
        ] {
            let range: CidrRange = text.parse().unwrap();
            assert_eq!((range.to_string().as_str(), range.mask().as_slice()), (expected, mask));
        }
        for invalid in ["", "/", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/", "10.0.0.0/-1"] {
            assert!(invalid.parse::<CidrRange>().is_err(), "{invalid}");
        }
    }
}
