//! The clients that may use an unauthenticated port of the sidecar: none, address ranges, or any.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::ip_range::IpRange;

/// Allowed clients, by address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ClientRanges {
    /// No client is allowed.
    #[default]
    None,
    /// Only clients with an address in one of these ranges are allowed. There is at least one range.
    Ranges(BTreeSet<IpRange>),
    /// Every client is allowed.
    Any,
}

impl ClientRanges {
    /// The maximum number of ranges, each of which is compared with the address of a client.
    pub const MAX_RANGES: usize = 64;

    /// True if a client with this address is allowed.
    #[must_use]
    pub fn contains(&self, client: IpAddr) -> bool {
        match self {
            Self::None => false,
            Self::Ranges(ranges) => ranges.iter().any(|range| range.contains(client)),
            Self::Any => true,
        }
    }
}

/// Parses `none`, `any`, or comma-separated ranges and addresses.
impl FromStr for ClientRanges {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            NONE => return Ok(Self::None),
            ANY => return Ok(Self::Any),
            _ => {}
        }
        let mut ranges = BTreeSet::new();
        for element in text.split(',').map(str::trim) {
            let range = IpRange::parse_range_or_address(element);
            let range = range.map_err(|error| {
                format!("{error}: use `{NONE}`, `{ANY}`, or ranges such as 10.0.0.0/8,fd00::/8")
            })?;
            ranges.insert(range);
        }
        match ranges.len() > Self::MAX_RANGES {
            true => Err(format!("has more than {} ranges: merge some of them", Self::MAX_RANGES)),
            false => Ok(Self::Ranges(ranges)),
        }
    }
}

impl fmt::Display for ClientRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str(NONE),
            Self::Any => f.write_str(ANY),
            Self::Ranges(ranges) => {
                let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
                f.write_str(&ranges.join(","))
            }
        }
    }
}

/// The text of [`ClientRanges::None`].
const NONE: &str = "none";
/// The text of [`ClientRanges::Any`].
const ANY: &str = "any";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_ranges_are_none_any_or_a_list() {
        let is_in = |text: &str, client: &str| {
            text.parse::<ClientRanges>().unwrap().contains(client.parse().unwrap())
        };
        assert!(!is_in("none", "127.0.0.1") && is_in("any", "192.0.2.1"));
        let list = "10.0.0.0/8, fd00::/8,192.0.2.1";
        for (client, expected) in
            [("10.1.2.3", true), ("::ffff:10.1.2.3", true), ("192.0.2.2", false), ("fd01::1", true)]
        {
            assert_eq!(is_in(list, client), expected, "{client}");
        }
        let printed = list.parse::<ClientRanges>().unwrap().to_string();
        assert_eq!(printed.parse::<ClientRanges>().unwrap().to_string(), printed);
        for invalid in ["", "10.0.0.1/8", "x", "10.0.0.0/8,,", "all"] {
            assert!(
                invalid.parse::<ClientRanges>().unwrap_err().contains("10.0.0.0/8"),
                "{invalid}"
            );
        }
    }
}
