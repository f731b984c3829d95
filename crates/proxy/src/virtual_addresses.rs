//! Assigns virtual addresses to services. The DNS server returns them to the application; outbound listeners map them
//! back to the services.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use leno_model::ServiceName;
use leno_telemetry::RecentTable;

/// The virtual addresses of services, valid in this workload's namespace only.
#[derive(Debug, Default)]
pub(crate) struct VirtualAddresses(Mutex<AddressTable>);

/// The assigned addresses by service, and the services by address.
#[derive(Debug, Default)]
struct AddressTable {
    /// The address of each service.
    services: BTreeMap<ServiceName, Ipv4Addr>,
    /// The service of each address, in order of their last use.
    addresses: RecentTable<Ipv4Addr, ServiceName, MAX_VIRTUAL_ADDRESSES>,
    /// Evicted entries: the application may have cached their addresses, so they are not reassigned to other
    /// services yet.
    evicted: RecentTable<ServiceName, Ipv4Addr, MAX_VIRTUAL_ADDRESSES>,
}

impl VirtualAddresses {
    /// Parses the output of [`Self::to_text`]; invalid lines are skipped.
    pub(crate) fn from_text(text: &str) -> Self {
        let mut table = AddressTable::default();
        // The two tables, of assigned and of evicted addresses, have at most this number of lines together.
        for line in text.lines().take(2 * MAX_VIRTUAL_ADDRESSES) {
            let (line, is_evicted) = match line.strip_prefix(EVICTED_PREFIX) {
                Some(line) => (line, true),
                None => (line, false),
            };
            if let Some((address, service)) = line.split_once(' ')
                && let (Ok(address), Ok(service)) = (address.parse(), service.parse())
            {
                match is_evicted {
                    true => drop(table.evicted.insert(service, address)),
                    false => table.assign(service, address),
                }
            }
        }
        Self(Mutex::new(table))
    }

    /// Formats one line per service for the state directory: applications cache addresses longer than a proxy
    /// lives. The least recently used service comes first. Lines of evicted services have a prefix, which makes
    /// earlier releases skip them.
    pub(crate) fn to_text(&self) -> String {
        let table = self.lock();
        let evicted_lines = table.evicted.least_recent().filter_map(|service| {
            let address = table.evicted.get(service)?;
            Some(format!("{EVICTED_PREFIX}{address} {service}\n"))
        });
        let assigned_lines = table.addresses.least_recent().filter_map(|address| {
            let service = table.addresses.get(address)?;
            Some(format!("{address} {service}\n"))
        });
        evicted_lines.chain(assigned_lines).collect()
    }

    /// Returns the virtual address of a service, and the way in which the service received it. Assigns an address if
    /// necessary. A full table evicts the least recently used service. Returns `None` if all addresses are in use.
    pub(crate) fn virtual_address(
        &self,
        service: &ServiceName,
    ) -> Option<(Ipv4Addr, AddressAssignment)> {
        let mut table = self.lock();
        if let Some(address) = table.services.get(service).copied() {
            table.record_use(address);
            return Some((address, AddressAssignment::Existing));
        }
        let is_full = table.addresses.len() >= MAX_VIRTUAL_ADDRESSES;
        let address = table.free_address(service)?;
        table.assign(service.clone(), address);
        Some((
            address,
            if is_full { AddressAssignment::Replaced } else { AddressAssignment::Created },
        ))
    }

    /// Returns the service of a virtual address of either IP version; `None` if the address is not assigned.
    pub(crate) fn service_at(&self, address: IpAddr) -> Option<ServiceName> {
        let address = match address {
            IpAddr::V4(address) => address,
            IpAddr::V6(address) => from_v6(address)?,
        };
        self.lock().record_use(address)
    }

    fn lock(&self) -> MutexGuard<'_, AddressTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AddressTable {
    /// Assigns an address to a service. A full table evicts the least recently used service.
    fn assign(&mut self, service: ServiceName, address: Ipv4Addr) {
        if let Some((evicted_address, evicted_service)) =
            self.addresses.insert(address, service.clone())
        {
            self.services.remove(&evicted_service);
            self.evicted.insert(evicted_service, evicted_address);
        }
        self.services.insert(service, address);
    }

    /// Records a use of an address, and returns its service.
    fn record_use(&mut self, address: Ipv4Addr) -> Option<ServiceName> {
        self.addresses.use_value(&address).cloned()
    }

    /// Returns an address for a service: its previous address, or an address that no service had recently.
    fn free_address(&mut self, service: &ServiceName) -> Option<Ipv4Addr> {
        if let Some(address) = self.evicted.remove(service) {
            return Some(address);
        }
        let evicted_addresses: HashSet<Ipv4Addr> =
            self.evicted.iter().map(|(_, address)| *address).collect();
        let start = hash_service(service);
        (0..HOST_COUNT).map(|step| nth_address(start.wrapping_add(step) % HOST_COUNT)).find(
            |address| !self.addresses.contains_key(address) && !evicted_addresses.contains(address),
        )
    }
}

/// The way in which a service received its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressAssignment {
    /// The address was assigned by this call.
    Created,
    /// The address was assigned by this call, and another service lost its address because the table was full.
    Replaced,
    /// The service had the address already.
    Existing,
}

/// Returns the hash (FNV-1a) of a service, so that it gets the same address on every machine unless hashes
/// collide.
fn hash_service(service: &ServiceName) -> u32 {
    let text = service.to_string();
    // The offset basis and the prime of FNV-1a with 32 bits.
    text.bytes()
        .fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Returns the `index`-th host of 240.240.0.0/16: class E, which no network uses or routes.
fn nth_address(index: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(240, 240, 0, 1)) + index)
}

/// Converts an address to IPv6: it becomes the last four bytes of a unique local network (RFC 4193).
pub(crate) fn to_v6(address: Ipv4Addr) -> Ipv6Addr {
    Ipv6Addr::from(PREFIX_V6 | u128::from(u32::from(address)))
}

/// Converts an address of [`to_v6`] back to IPv4; `None` for any other address.
fn from_v6(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = u128::from(address);
    let host_bits = u32::try_from(bits & u128::from(u32::MAX)).ok()?;
    (bits - u128::from(host_bits) == PREFIX_V6).then(|| Ipv4Addr::from(host_bits))
}

/// The network of the virtual IPv6 addresses: fd6c:656e:6f00:f0::/96.
const PREFIX_V6: u128 = 0xfd6c_656e_6f00_00f0 << 64;
/// The number of hosts of a /16 without its network and broadcast address.
const HOST_COUNT: u32 = 65_534;
/// The maximum number of services that one application may resolve.
const MAX_VIRTUAL_ADDRESSES: usize = 4096;
/// The prefix of evicted entries in the state directory.
const EVICTED_PREFIX: &str = "evicted ";

#[cfg(test)]
mod tests {
    use super::*;

    fn service_name(name: &str) -> ServiceName {
        ServiceName::new("bookinfo", name).unwrap()
    }

    #[test]
    fn services_have_different_addresses_that_survive_a_restart() {
        let virtual_addresses = VirtualAddresses::default();
        let mut assigned = HashSet::new();
        for index in 0..1000 {
            let (address, assignment) =
                virtual_addresses.virtual_address(&service_name(&format!("s{index}"))).unwrap();
            assert_eq!(assignment, AddressAssignment::Created);
            assert!(assigned.insert(address), "{address} was assigned twice");
        }
        let restored = VirtualAddresses::from_text(&virtual_addresses.to_text());
        for index in 0..1000 {
            let name = service_name(&format!("s{index}"));
            let (address, assignment) = restored.virtual_address(&name).unwrap();
            assert_eq!(assignment, AddressAssignment::Existing);
            for address in [IpAddr::V4(address), IpAddr::V6(to_v6(address))] {
                assert_eq!(virtual_addresses.service_at(address), Some(name.clone()));
            }
        }
    }

    #[test]
    fn addresses_of_other_networks_have_no_service() {
        let virtual_addresses = VirtualAddresses::default();
        let (address, _) = virtual_addresses.virtual_address(&service_name("one")).unwrap();
        let [.., high, low] = to_v6(address).segments();
        for network in ["::", "fd6c:656e:6f00:f1::", "fd6c:656e:6f00:f0:0:1::"] {
            let network = u128::from(network.parse::<Ipv6Addr>().unwrap());
            let host = (u128::from(high) << 16) | u128::from(low);
            assert_eq!(virtual_addresses.service_at(Ipv6Addr::from(network | host).into()), None);
        }
    }

    #[test]
    fn a_full_table_evicts_the_least_recently_used_service() {
        let virtual_addresses = VirtualAddresses::default();
        let first = virtual_addresses.virtual_address(&service_name("s0")).unwrap().0;
        let second = virtual_addresses.virtual_address(&service_name("s1")).unwrap().0;
        for index in 2..MAX_VIRTUAL_ADDRESSES {
            assert_eq!(
                virtual_addresses.virtual_address(&service_name(&format!("s{index}"))).unwrap().1,
                AddressAssignment::Created
            );
        }
        // A connection to its address is a use of a service.
        assert_eq!(virtual_addresses.service_at(first.into()), Some(service_name("s0")));
        let (new_address, assignment) =
            virtual_addresses.virtual_address(&service_name("new")).unwrap();
        assert_eq!(assignment, AddressAssignment::Replaced);
        assert_eq!(virtual_addresses.service_at(new_address.into()), Some(service_name("new")));
        assert_eq!(virtual_addresses.service_at(first.into()), Some(service_name("s0")));
        assert_eq!(virtual_addresses.service_at(second.into()), None);
        // Many more names stay within the bound, and never get an address that was evicted just before.
        for index in 0..MAX_VIRTUAL_ADDRESSES {
            assert_ne!(
                virtual_addresses.virtual_address(&service_name(&format!("t{index}"))).unwrap().0,
                second
            );
        }
        assert_eq!(virtual_addresses.lock().services.len(), MAX_VIRTUAL_ADDRESSES);
        assert_eq!(virtual_addresses.lock().addresses.len(), MAX_VIRTUAL_ADDRESSES);
        let existing = virtual_addresses.virtual_address(&service_name("t0")).unwrap();
        assert_eq!(existing.1, AddressAssignment::Existing);
        virtual_addresses.virtual_address(&service_name("one-more"));
        assert!(virtual_addresses.lock().evicted.len() <= MAX_VIRTUAL_ADDRESSES);
    }

    #[test]
    fn an_evicted_service_gets_its_address_again() {
        let virtual_addresses = VirtualAddresses::default();
        let first = virtual_addresses.virtual_address(&service_name("s0")).unwrap().0;
        for index in 1..=MAX_VIRTUAL_ADDRESSES {
            virtual_addresses.virtual_address(&service_name(&format!("s{index}"))).unwrap();
        }
        assert_eq!(virtual_addresses.service_at(first.into()), None);
        assert_eq!(
            virtual_addresses.virtual_address(&service_name("s0")),
            Some((first, AddressAssignment::Replaced))
        );
    }

    #[test]
    fn evicted_addresses_and_the_order_of_uses_survive_a_restart() {
        let virtual_addresses = VirtualAddresses::default();
        let first = virtual_addresses.virtual_address(&service_name("s0")).unwrap().0;
        for index in 1..=MAX_VIRTUAL_ADDRESSES {
            virtual_addresses.virtual_address(&service_name(&format!("s{index}"))).unwrap();
        }
        virtual_addresses.virtual_address(&service_name("s1")).unwrap();
        let second = virtual_addresses.virtual_address(&service_name("s2")).unwrap().0;
        let third = virtual_addresses.virtual_address(&service_name("s3")).unwrap().0;
        virtual_addresses.service_at(second.into());
        let used: Vec<String> =
            (4..=MAX_VIRTUAL_ADDRESSES).map(|index| format!("s{index}")).collect();
        for name in &used {
            virtual_addresses.virtual_address(&service_name(name)).unwrap();
        }
        // The least recent uses are now those of s1, s3 and s2.
        let restored = VirtualAddresses::from_text(&virtual_addresses.to_text());
        assert_eq!(restored.to_text(), virtual_addresses.to_text());
        for index in 0..2 {
            let (address, assignment) =
                restored.virtual_address(&service_name(&format!("t{index}"))).unwrap();
            assert_eq!(assignment, AddressAssignment::Replaced);
            assert_ne!(address, first, "the address is reserved for its own service");
        }
        assert_eq!(restored.service_at(third.into()), None);
        assert_eq!(restored.service_at(second.into()), Some(service_name("s2")));
        assert_eq!(
            restored.virtual_address(&service_name("s0")),
            Some((first, AddressAssignment::Replaced))
        );
    }
}
