//! Settings of the whole mesh.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::floor::{Floor, Overruled};
use crate::identity::{ServiceAccount, TrustDomain};
use crate::name::Name;
use crate::revocation::RevokedWorkload;
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
    /// Workloads of other accounts that are no members any more.
    pub revoked_workloads: BTreeSet<RevokedWorkload>,
    /// What namespaces have of their own; workloads may differ again.
    pub namespaces: BTreeMap<Name, Admission>,
    /// The namespaces of `namespaces` that annotations of a Namespace set alone. A registry of a cluster sets them.
    pub annotated: BTreeSet<Name>,
    /// What operators see of single requests.
    pub sight: Box<Sight>,
    /// What becomes of connections of applications to what is not of the mesh.
    pub egress: Egress,
    /// While `egress` is `deny`, the same for connections to the API server of Kubernetes.
    pub api_server_egress: Egress,
    /// The addresses of the API server of Kubernetes that `egress: deny` permits. A registry of a cluster sets them.
    pub api_server: BTreeSet<SocketAddr>,
    /// What becomes of connections to them that come without mutual TLS, where nothing more
    /// specific says so.
    pub plaintext: Plaintext,
    /// Settings of namespaces and workloads that are weaker are overruled.
    pub floor: Box<Floor>,
}

/// What a namespace or a workload says about who is let in; what it leaves open, the next
/// larger scope says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Admission {
    /// Whether policies decide.
    pub mode: Option<TrafficMode>,
    /// What becomes of connections that come without mutual TLS.
    pub plaintext: Option<Plaintext>,
}

impl MeshConfig {
    /// The mode of a workload: its own, or that of its namespace, or that of the mesh; never below the floor.
    #[must_use]
    pub fn mode_of(&self, workload: &Workload) -> TrafficMode {
        let namespace = &workload.name.namespace;
        let own = workload.admission.mode.map(|mode| self.raise_mode(namespace, mode));
        own.unwrap_or_else(|| self.mode_in(namespace))
    }

    /// The mode of a namespace: its own, or that of the mesh; never below the floor.
    #[must_use]
    pub fn mode_in(&self, namespace: &Name) -> TrafficMode {
        let own = self.namespaces.get(namespace).and_then(|admission| admission.mode);
        self.raise_mode(namespace, own.unwrap_or(self.mode))
    }

    /// What becomes of connections to a workload that come without mutual TLS: as it says, or its
    /// namespace, or the mesh; refused where the floor refuses them.
    #[must_use]
    pub fn plaintext_of(&self, workload: &Workload) -> Plaintext {
        let namespace = &workload.name.namespace;
        let in_namespace = || self.namespaces.get(namespace)?.plaintext;
        let wanted = workload.admission.plaintext.or_else(in_namespace).unwrap_or(self.plaintext);
        match self.floor_in(namespace) {
            Some(floor) if floor.plaintext_refused => Plaintext::Refuse,
            Some(_) | None => wanted,
        }
    }

    /// The floor of a namespace; `None` for a namespace that is excepted.
    #[must_use]
    pub fn floor_in(&self, namespace: &Name) -> Option<&Floor> {
        (!self.floor.except_namespaces.contains(namespace)).then_some(&*self.floor)
    }

    /// The settings of a namespace, or of a workload in it, that the floor overrules.
    #[must_use]
    pub fn overruled_in(&self, namespace: &Name, wanted: Admission) -> Vec<Overruled> {
        self.floor_in(namespace).map(|floor| floor.overruled(wanted)).unwrap_or_default()
    }

    /// The modes of the mesh and of its namespaces.
    pub fn modes(&self) -> impl Iterator<Item = TrafficMode> {
        let own = self.namespaces.values().filter_map(|admission| admission.mode);
        own.chain([self.mode]).chain(self.floor.mode)
    }

    fn raise_mode(&self, namespace: &Name, mode: TrafficMode) -> TrafficMode {
        let least = self.floor_in(namespace).and_then(|floor| floor.mode);
        least.map_or(mode, |least| mode.stricter(least))
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
            revoked_workloads: BTreeSet::new(),
            namespaces: BTreeMap::new(),
            annotated: BTreeSet::new(),
            sight: Box::default(),
            egress: Egress::default(),
            api_server_egress: Egress::default(),
            api_server: BTreeSet::new(),
            plaintext: Plaintext::default(),
            floor: Box::default(),
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

    /// The stricter of two modes.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        if other.strictness() > self.strictness() { other } else { self }
    }

    const fn strictness(self) -> u8 {
        match self {
            Self::Permissive => 0,
            Self::Audit => 1,
            Self::Strict => 2,
        }
    }

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

/// What becomes of connections of applications to what is not of the mesh. It is about those that
/// sidecars recognise by their address; with doors there are no others than those to services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Egress {
    /// They go where they want to go, as they are.
    #[default]
    Allow,
    /// They are refused.
    Deny,
}

impl Egress {
    /// Both.
    pub const ALL: &'static [Self] = &[Self::Allow, Self::Deny];

    /// The word used in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// What becomes of connections that come in without mutual TLS of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Plaintext {
    /// They are refused.
    #[default]
    Refuse,
    /// They are let in as peers without identity, where policies let such peers in: for the time
    /// in which not all clients are in the mesh yet.
    Accept,
}

impl Plaintext {
    /// Both.
    pub const ALL: &'static [Self] = &[Self::Refuse, Self::Accept];

    /// The word used in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Accept => "accept",
        }
    }
}
