//! Converts DNS records to and from the wire. A record contains the addresses of a service name.

use leno_model::DnsRecord;

use super::field::{InvalidField, convert_each, ip_address_to_wire, parse_ip_address};
use crate::proto;

pub(super) fn to_wire(dns_record: &DnsRecord) -> proto::DnsRecord {
    let addresses = dns_record.addresses().iter().copied().map(ip_address_to_wire);
    proto::DnsRecord { addresses: addresses.collect() }
}

/// Parses a record. The addresses must be sorted and unique, so that equal records have equal encodings.
pub(super) fn from_wire(wire: proto::DnsRecord) -> Result<DnsRecord, InvalidField> {
    if wire.addresses.len() > MAX_ADDRESSES_OF_NAME {
        return Err(InvalidField::new("addresses", "has more than 64 addresses"));
    }
    let addresses =
        convert_each("addresses", wire.addresses, |bytes| parse_ip_address("", &bytes))?;
    let dns_record: DnsRecord = addresses.iter().copied().collect();
    match dns_record.addresses() == addresses {
        true => Ok(dns_record),
        false => Err(InvalidField::new("addresses", "are not sorted, or have duplicates")),
    }
}

/// The maximum number of addresses of a name.
pub(crate) const MAX_ADDRESSES_OF_NAME: usize = 64;
