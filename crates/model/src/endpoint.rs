//! Endpoints: network addresses of service ports.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU16;

use crate::identity::ServiceAccount;
use crate::name::{ServiceName, WorkloadName};

/// The identity of an endpoint: the workload that serves a service port. Load and failure state are keyed by
/// it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId {
    /// The service that the workload serves.
    pub service: ServiceName,
    /// The port of the service.
    pub port: u16,
    /// The workload that serves the port.
    pub workload: WorkloadName,
}

/// One address of one service port: the inbound listener of a sidecar, or an application without a sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The identity of the endpoint across changes of address.
    pub id: EndpointId,
    /// The mutual TLS address of its sidecar, or the address of the application if it has none.
    pub address: SocketAddr,
    /// The only account that its certificate may have. Absent without a sidecar: then the endpoint is reached
    /// in plaintext.
    pub account: Option<ServiceAccount>,
    /// The labels of its workload that the service's tag rules use.
    pub tags: BTreeMap<String, String>,
    /// The weight among the endpoints of the port; absent if all are equal.
    pub weight: Option<Weight>,
}

/// The weight of an endpoint: 1 to [`Weight::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(NonZeroU16);

impl Weight {
    /// The weight of endpoints that set none.
    pub const DEFAULT: u16 = 100;
    /// The maximum weight.
    pub const MAX: u16 = 1000;

    /// Creates a weight; `None` if it is out of range.
    #[must_use]
    pub fn new(weight: u16) -> Option<Self> {
        NonZeroU16::new(weight).filter(|weight| weight.get() <= Self::MAX).map(Self)
    }

    /// Returns the weight as a number.
    #[must_use]
    pub const fn as_u16(self) -> u16 {
        self.0.get()
    }
}

impl Default for Weight {
    fn default() -> Self {
        const ONE: NonZeroU16 = NonZeroU16::MIN;
        Self(NonZeroU16::new(Self::DEFAULT).unwrap_or(ONE))
    }
}

impl Endpoint {
    /// True if both have the same address and identity: connections can be reused, and health learned from one
    /// holds for the other, even if tags and weights differ.
    #[must_use]
    pub fn has_same_address(&self, other: &Self) -> bool {
        self.id == other.id && self.address == other.address && self.account == other.account
    }
}
