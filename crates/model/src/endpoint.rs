//! Endpoints: the network addresses that serve the ports of services, and their weights.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU16;

use crate::identity::ServiceAccount;
use crate::name::{ServiceName, WorkloadName};

/// The identity of an endpoint: the workload that serves a service port. Sidecars track load and failures by this
/// identity.
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
    /// The mutual TLS address of the workload's sidecar, or the application's address if there is no sidecar.
    pub address: SocketAddr,
    /// The account that the endpoint's certificate must have. Absent for a workload without a sidecar, which is
    /// called in plaintext.
    pub account: Option<ServiceAccount>,
    /// The labels of the workload that the service's tag rules use.
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

    /// Creates a weight; `None` if it is 0 or greater than [`Weight::MAX`].
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
        // The default weight is not 0, so the fallback is never used.
        Self(NonZeroU16::new(Self::DEFAULT).unwrap_or(ONE))
    }
}

impl Endpoint {
    /// True if both endpoints have the same identity, address and account. Connections and health of one then
    /// remain valid for the other, even if tags and weights differ.
    #[must_use]
    pub fn is_same_upstream(&self, other: &Self) -> bool {
        self.id == other.id && self.address == other.address && self.account == other.account
    }
}
