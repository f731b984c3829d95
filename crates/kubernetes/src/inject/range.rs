//! Parses the address ranges in annotations and options.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A range of addresses in CIDR notation, or a single address, as written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressRange(String);

impl FromStr for AddressRange {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address_text, prefix_length) =
            text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address_text.parse().map_err(|_| ())?;
        let max_prefix_length = if address.is_ipv4() { 32 } else { 128 };
        match prefix_length.map(str::parse::<u8>) {
            // A single address.
            None => Ok(Self(text.to_owned())),
            Some(Ok(prefix_length)) if prefix_length <= max_prefix_length => {
                Ok(Self(text.to_owned()))
            }
            Some(_) => Err(()),
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
