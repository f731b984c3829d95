//! DNS records: the addresses of a service name, which sidecars use to answer DNS queries of applications.

use std::net::IpAddr;

/// The addresses of a service name, in order and without duplicates.
///
/// They are the cluster IPs of the service, or the addresses of its workloads if the service has no cluster IP.
/// Queries for a name without addresses are forwarded to the upstream resolver.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct DnsRecord(Vec<IpAddr>);

impl DnsRecord {
    /// Returns all addresses, in order.
    #[must_use]
    pub fn addresses(&self) -> &[IpAddr] {
        &self.0
    }

    /// True if queries for the name are forwarded to the upstream resolver, because the record is empty.
    #[must_use]
    pub fn is_forwarded(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<IpAddr> for DnsRecord {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        let mut addresses: Vec<IpAddr> = addresses.into_iter().collect();
        addresses.sort_unstable();
        addresses.dedup();
        Self(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_sorted_and_unique() {
        let addresses: [IpAddr; 3] =
            [[10, 0, 0, 2].into(), [10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        let record: DnsRecord = addresses.into_iter().collect();
        assert_eq!(record.addresses(), [addresses[1], addresses[0]]);
        assert!(!record.is_forwarded() && DnsRecord::default().is_forwarded());
    }
}
