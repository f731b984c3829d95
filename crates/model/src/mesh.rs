//! Mesh-wide settings.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::floor::{Floor, Overruled};
use crate::identity::{ServiceAccount, TrustDomain};
use crate::name::Name;
use crate::revocation::RevokedWorkload;
use crate::sight::Sight;
use crate::workload::Workload;

/// Mesh-wide settings, a singleton.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshConfig {
    /// The trust domain of identities.
    pub trust_domain: TrustDomain,
    /// The default traffic mode, unless a namespace or workload sets its own.
    pub mode: TrafficMode,
    /// Revoked accounts: they are not members anymore, even with a valid certificate.
    pub revoked: BTreeSet<ServiceAccount>,
    /// Revoked workloads of other accounts.
    pub revoked_workloads: BTreeSet<RevokedWorkload>,
    /// The settings of namespaces; workloads may override them.
    pub namespaces: BTreeMap<Name, Admission>,
    /// The namespaces in `namespaces` that are set by annotations of a Namespace only. A cluster registry sets
    /// them.
    pub annotated: BTreeSet<Name>,
    /// The observability settings.
    pub sight: Box<Sight>,
    /// The default treatment of connections to external destinations.
    pub egress: Egress,
    /// While `egress` is `deny`, the same for connections to the Kubernetes API server.
    pub api_server_egress: Egress,
    /// The addresses of the Kubernetes API server that `egress: deny` permits. A cluster registry sets them.
    pub api_server: BTreeSet<SocketAddr>,
    /// The default treatment of connections without mutual TLS, unless a namespace or workload sets its own.
    pub plaintext: Plaintext,
    /// The minimum security; weaker settings of namespaces and workloads are overruled.
    pub floor: Box<Floor>,
}

/// The admission settings of a namespace or a workload; absent fields are inherited from the next larger scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Admission {
    /// The traffic mode.
    pub mode: Option<TrafficMode>,
    /// The treatment of connections without mutual TLS.
    pub plaintext: Option<Plaintext>,
}

impl MeshConfig {
    /// The mode of a workload: its own, or else that of its namespace, or else that of the mesh; never below
    /// the floor.
    #[must_use]
    pub fn mode_of(&self, workload: &Workload) -> TrafficMode {
        let namespace = &workload.name.namespace;
        let own = workload.admission.mode.map(|mode| self.raise_mode(namespace, mode));
        own.unwrap_or_else(|| self.mode_in(namespace))
    }

    /// The mode of a namespace: its own, or else that of the mesh; never below the floor.
    #[must_use]
    pub fn mode_in(&self, namespace: &Name) -> TrafficMode {
        let own = self.namespaces.get(namespace).and_then(|admission| admission.mode);
        self.raise_mode(namespace, own.unwrap_or(self.mode))
    }

    /// The treatment of connections to a workload without mutual TLS: its own setting, or else that of its
    /// namespace, or else that of the mesh; rejected if the floor requires it.
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

    /// The floor of a namespace; `None` for an exempt namespace.
    #[must_use]
    pub fn floor_in(&self, namespace: &Name) -> Option<&Floor> {
        (!self.floor.except_namespaces.contains(namespace)).then_some(&*self.floor)
    }

    /// The settings of a namespace, or of a workload in it, that the floor overrules.
    #[must_use]
    pub fn overruled_in(&self, namespace: &Name, wanted: Admission) -> Vec<Overruled> {
        self.floor_in(namespace).map(|floor| floor.overruled_settings(wanted)).unwrap_or_default()
    }

    /// The modes of the mesh and of its namespaces.
    pub fn traffic_modes(&self) -> impl Iterator<Item = TrafficMode> {
        let own = self.namespaces.values().filter_map(|admission| admission.mode);
        own.chain([self.mode]).chain(self.floor.mode)
    }

    fn raise_mode(&self, namespace: &Name, mode: TrafficMode) -> TrafficMode {
        let least = self.floor_in(namespace).and_then(|floor| floor.mode);
        least.map_or(mode, |least| mode.stricter(least))
    }
}

impl Default for MeshConfig {
    /// `cluster.local`, permissive: the settings of a mesh without a `MeshConfig` document.
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

/// The mode of authorization between members of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficMode {
    /// Every verified member of the mesh may call every service.
    Permissive,
    /// Only traffic that a policy allows.
    Strict,
    /// As in strict mode, but denied traffic is allowed, counted and reported.
    Audit,
}

impl TrafficMode {
    /// All values.
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

/// The treatment of connections from applications to external destinations. It applies to intercepted
/// connections; without interception there are no such connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Egress {
    /// They are forwarded unchanged.
    #[default]
    Allow,
    /// They are rejected.
    Deny,
}

impl Egress {
    /// All values.
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

/// The treatment of inbound connections without mutual TLS of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Plaintext {
    /// They are rejected.
    #[default]
    Refuse,
    /// They are allowed as unauthenticated peers, if policies allow such peers: for the migration of clients
    /// into the mesh.
    Accept,
}

impl Plaintext {
    /// All values.
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
