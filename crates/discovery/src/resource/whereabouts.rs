//! Wire conversion of DNS records.

use leno_model::Whereabouts;

use super::field::{Invalid, each, ip_address, ip_address_to_wire};
use crate::proto;

pub(super) fn to_wire(whereabouts: &Whereabouts) -> proto::Whereabouts {
    let addresses = whereabouts.addresses().iter().copied().map(ip_address_to_wire);
    proto::Whereabouts { addresses: addresses.collect() }
}

pub(super) fn from_wire(wire: proto::Whereabouts) -> Result<Whereabouts, Invalid> {
    if wire.addresses.len() > ADDRESSES_OF_NAME_MAX {
        return Err(Invalid::new("addresses", "more than 64 addresses"));
    }
    let addresses = each("addresses", wire.addresses, |bytes| ip_address("", &bytes))?;
    let whereabouts: Whereabouts = addresses.iter().copied().collect();
    match whereabouts.addresses() == addresses {
        true => Ok(whereabouts),
        false => Err(Invalid::new("addresses", "are not sorted, or have duplicates")),
    }
}

/// The maximum number of addresses of a name.
pub(crate) const ADDRESSES_OF_NAME_MAX: usize = 64;
