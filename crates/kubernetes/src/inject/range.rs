//! Address range of annotations.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A range of addresses in CIDR notation, as written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressRange(String);

impl FromStr for AddressRange {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let address: IpAddr = address.parse().map_err(|_| ())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        match bits.map(str::parse::<u8>) {
            None => Ok(Self(text.to_owned())),
            Some(Ok(bits)) if bits <= width => Ok(Self(text.to_owned())),
            Some(_) => Err(()),
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
