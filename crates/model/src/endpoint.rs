//! An endpoint: one place where one port of a service can be reached.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU16;

use crate::identity::ServiceAccount;
use crate::name::{ServiceName, WorkloadName};

/// Which endpoint: the workload that serves a service port. Load and failure state follow it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId {
    /// The service it serves.
    pub service: ServiceName,
    /// The service's port.
    pub port: u16,
    /// The workload behind it.
    pub workload: WorkloadName,
}

/// One place where one port of a service can be reached: the inbound listener of a sidecar, or an application without
/// one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Its identity across changes of address.
    pub id: EndpointId,
    /// Where its sidecar accepts mutual TLS; where the application itself is without a sidecar.
    pub address: SocketAddr,
    /// The certificate of this account alone is accepted there. Absent without a sidecar: then it is reached in plaintext.
    pub account: Option<ServiceAccount>,
    /// The labels of its workload that the service's tag rules name.
    pub tags: BTreeMap<String, String>,
    /// How much it gets beside the others of its port; absent where all get the same.
    pub weight: Option<Weight>,
}

/// How much an endpoint gets beside others: 1 to [`Weight::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(NonZeroU16);

impl Weight {
    /// What is given to who says nothing.
    pub const DEFAULT: u16 = 100;
    /// The most that one may have.
    pub const MAX: u16 = 1000;

    /// A weight; `None` when it is out of range.
    #[must_use]
    pub fn new(weight: u16) -> Option<Self> {
        NonZeroU16::new(weight).filter(|weight| weight.get() <= Self::MAX).map(Self)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u16 {
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
    /// Whether both are one place: a connection to the one is a connection to the other, and what was
    /// learned of the one, such as that it fails, is true of the other, whatever rules make of its tags,
    /// and whatever it gets.
    #[must_use]
    pub fn is_same_place(&self, other: &Self) -> bool {
        self.id == other.id && self.address == other.address && self.account == other.account
    }
}
