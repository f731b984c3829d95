//! Settings of the whole mesh.

use std::collections::{BTreeMap, BTreeSet};

use crate::identity::{ServiceAccount, TrustDomain};
use crate::name::Name;
use crate::sight::Sight;
use crate::workload::Workload;

/// Settings of the whole mesh; there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshConfig {
    /// Who vouches for identities.
    pub trust_domain: TrustDomain,
    /// Whether policies decide or every member is let in, where nothing more specific says so.
    pub mode: TrafficMode,
    /// Accounts that are no members any more, whatever certificates they still hold.
    pub revoked: BTreeSet<ServiceAccount>,
    /// What namespaces have of their own; workloads may differ again.
    pub namespaces: BTreeMap<Name, Admission>,
    /// What operators see of single requests.
    pub sight: Sight,
}

/// What a namespace or a workload says about who is let in; what it leaves open, the next
/// larger scope says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Admission {
    /// Whether policies decide.
    pub mode: Option<TrafficMode>,
}

impl MeshConfig {
    /// The mode of a workload: its own, or that of its namespace, or that of the mesh.
    #[must_use]
    pub fn mode_of(&self, workload: &Workload) -> TrafficMode {
        workload.admission.mode.unwrap_or_else(|| self.mode_in(&workload.name.namespace))
    }

    /// The mode of a namespace: its own, or that of the mesh.
    #[must_use]
    pub fn mode_in(&self, namespace: &Name) -> TrafficMode {
        let own = self.namespaces.get(namespace).and_then(|admission| admission.mode);
        own.unwrap_or(self.mode)
    }

    /// The modes of the mesh and of its namespaces.
    pub fn modes(&self) -> impl Iterator<Item = TrafficMode> {
        let own = self.namespaces.values().filter_map(|admission| admission.mode);
        own.chain([self.mode])
    }
}

impl Default for MeshConfig {
    /// `cluster.local`, permissive: what a mesh without a `MeshConfig` document has.
    fn default() -> Self {
        let domain = Name::new("cluster.local").expect("a literal DNS name is valid");
        Self {
            trust_domain: TrustDomain(domain),
            mode: TrafficMode::Permissive,
            revoked: BTreeSet::new(),
            namespaces: BTreeMap::new(),
            sight: Sight::default(),
        }
    }
}

/// Whether policies decide who may call whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficMode {
    /// Every verified member of the mesh may call every service.
    Permissive,
    /// Only what a policy allows.
    Strict,
    /// As in strict mode, but who would be denied is let in, counted and told.
    Audit,
}

impl TrafficMode {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::Permissive, Self::Strict, Self::Audit];

    /// The word used in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Permissive => "permissive",
            Self::Strict => "strict",
            Self::Audit => "audit",
        }
    }
}
