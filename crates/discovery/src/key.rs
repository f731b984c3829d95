//! Defines resource keys and versions. A version is a hash of the resource's encoded content.

use std::fmt;
use std::net::IpAddr;

use leno_model::{EndpointId, ServiceName};

/// The identity of a resource, the unit of updates, removals and rejections.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKey {
    /// The configuration of the stream's workload, a singleton.
    Workload,
    /// The configuration of a service for the workload, without its endpoints.
    Service(ServiceName),
    /// One endpoint of a service.
    Endpoint(EndpointId),
    /// The address entry of an address.
    Address(IpAddr),
    /// The DNS record of a service name.
    Name(ServiceName),
}

impl ResourceKey {
    /// Returns the service that the resource belongs to; `None` for the workload, addresses and names.
    #[must_use]
    pub fn service(&self) -> Option<&ServiceName> {
        match self {
            Self::Workload | Self::Address(_) | Self::Name(_) => None,
            Self::Service(name) => Some(name),
            Self::Endpoint(id) => Some(&id.service),
        }
    }
}

/// Formats as `plan` (the protocol's name of the workload configuration), `service namespace/name`,
/// `endpoint namespace/name:port at namespace/workload`, `address IP` or `name namespace/name`.
impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload => f.write_str("plan"),
            Self::Service(name) => write!(f, "service {name}"),
            Self::Address(address) => write!(f, "address {address}"),
            Self::Name(name) => write!(f, "name {name}"),
            Self::Endpoint(id) => {
                write!(f, "endpoint {}:{} at {}", id.service, id.port, id.workload)
            }
        }
    }
}

/// A hash of a resource's encoded content: equal on every replica and after every restart, so a proxy that
/// reconnects to any replica receives only differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceVersion(pub u64);

impl ResourceVersion {
    /// Hashes the content: FNV-1a, then mixed so that every bit depends on every byte.
    #[must_use]
    pub fn from_content(content: &[u8]) -> Self {
        let hash = content
            .iter()
            .fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME));
        let hash = (hash ^ (hash >> 32)).wrapping_mul(MIX_MULTIPLIER);
        Self(hash ^ (hash >> 29))
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The control plane's number of a mesh change, used to follow it from its source to the proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ChangeId(pub u64);

impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The initial value of 64-bit FNV-1a.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
/// The multiplier of 64-bit FNV-1a.
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// An odd number with well-spread bits (from splitmix64).
const MIX_MULTIPLIER: u64 = 0xbf58_476d_1ce4_e5b9;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn versions_do_not_depend_on_the_machine() {
        assert_eq!(ResourceVersion::from_content(b"").to_string(), "e725b373746bacdb");
        assert_eq!(ResourceVersion::from_content(b"leno").to_string(), "fe85cd6b6c6b0750");
    }

    #[test]
    fn small_differences_change_the_version() {
        let mut versions = HashSet::new();
        for length in 0..300 {
            let mut content = vec![7; length];
            assert!(versions.insert(ResourceVersion::from_content(&content)), "{length} bytes");
            if let Some(last) = content.last_mut() {
                *last ^= 1;
                assert!(
                    versions.insert(ResourceVersion::from_content(&content)),
                    "{length} bytes, last differs"
                );
            }
        }
    }
}
