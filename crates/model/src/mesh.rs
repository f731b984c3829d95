//! Settings of the whole mesh.

use std::collections::BTreeSet;

use crate::identity::{ServiceAccount, TrustDomain};
use crate::name::Name;

/// Settings of the whole mesh; there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshConfig {
    /// Who vouches for identities.
    pub trust_domain: TrustDomain,
    /// Whether policies decide or every member is let in.
    pub mode: TrafficMode,
    /// Accounts that are no members any more, whatever certificates they still hold.
    pub revoked: BTreeSet<ServiceAccount>,
}

impl Default for MeshConfig {
    /// `cluster.local`, permissive: what a mesh without a `MeshConfig` document has.
    fn default() -> Self {
        let domain = Name::new("cluster.local").expect("a literal DNS name is valid");
        Self {
            trust_domain: TrustDomain(domain),
            mode: TrafficMode::Permissive,
            revoked: BTreeSet::new(),
        }
    }
}

/// Whether policies decide who may call whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TrafficMode {
    /// Every verified member of the mesh may call every service.
    Permissive,
    /// Only what a `TrafficTarget` allows.
    Strict,
}

impl TrafficMode {
    /// The word used in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Permissive => "permissive",
            Self::Strict => "strict",
        }
    }
}
