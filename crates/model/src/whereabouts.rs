//! What the name of a service stands for, to whoever looks it up.

use std::net::IpAddr;

/// What the name of a service stands for: addresses in order, none of them twice.
///
/// Those that a cluster gave the service, or those of its workloads where it gave none. When there
/// are none at all the mesh does not say: whoever else answers names does.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Whereabouts(Vec<IpAddr>);

impl Whereabouts {
    /// All addresses, in order.
    #[must_use]
    pub fn addresses(&self) -> &[IpAddr] {
        &self.0
    }

    /// Whether the mesh does not say.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<IpAddr> for Whereabouts {
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
    fn they_are_in_order_and_none_is_there_twice() {
        let addresses: [IpAddr; 3] =
            [[10, 0, 0, 2].into(), [10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        let found: Whereabouts = addresses.into_iter().collect();
        assert_eq!(found.addresses(), [addresses[1], addresses[0]]);
        assert!(!found.is_elsewhere() && Whereabouts::default().is_elsewhere());
    }
}
