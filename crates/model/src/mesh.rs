//! Mesh-wide settings: the trust domain, default policies, mutual TLS modes, revocations, egress, observability and
//! the security floor, which is the minimum of the security settings. Settings of namespaces and workloads override the
//! defaults, but not the floor.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::identity::{ServiceAccount, TrustDomain};
use crate::name::Name;
use crate::observability::Observability;
use crate::revocation::RevokedWorkload;
use crate::security_floor::{OverriddenSetting, SecurityFloor};
use crate::workload::Workload;

/// The settings of a `MeshConfig` document, of which a mesh has at most one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshConfig {
    /// The trust domain of identities.
    pub trust_domain: TrustDomain,
    /// The default policy of namespaces and workloads that set none.
    pub default_policy: DefaultPolicy,
    /// Revoked accounts: their workloads are not members of the mesh anymore, even with a valid certificate.
    pub revoked: BTreeSet<ServiceAccount>,
    /// Revoked workloads of accounts that are not revoked.
    pub revoked_workloads: BTreeSet<RevokedWorkload>,
    /// The settings of namespaces; workloads may override them.
    pub namespaces: BTreeMap<Name, AdmissionSettings>,
    /// The namespaces in `namespaces` whose settings come only from annotations of a Kubernetes Namespace. The
    /// Kubernetes registry sets this field.
    pub annotated: BTreeSet<Name>,
    /// The observability settings.
    pub observability: Box<Observability>,
    /// The default handling of connections to external destinations.
    pub egress: Egress,
    /// The handling of connections to the Kubernetes API server while `egress` is `deny`.
    pub api_server_egress: Egress,
    /// The addresses of the Kubernetes API server that `egress: deny` permits. The Kubernetes registry sets this
    /// field.
    pub api_server: BTreeSet<SocketAddr>,
    /// The mutual TLS mode of namespaces and workloads that set none.
    pub mtls: MtlsMode,
    /// The minimum security settings, which override weaker settings of namespaces and workloads.
    pub floor: Box<SecurityFloor>,
}

/// The admission settings of a namespace or a workload. A workload inherits absent fields from its namespace, and a
/// namespace from the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AdmissionSettings {
    /// The decision about traffic to which no policy applies.
    pub default_policy: Option<DefaultPolicy>,
    /// The handling of connections without mutual TLS.
    pub mtls: Option<MtlsMode>,
}

impl MeshConfig {
    /// Returns the default policy of a workload: its own, or else that of its namespace, or else that of the
    /// mesh; never below the floor.
    #[must_use]
    pub fn default_policy_of(&self, workload: &Workload) -> DefaultPolicy {
        let namespace = &workload.name.namespace;
        let workload_policy = workload
            .admission
            .default_policy
            .map(|default_policy| self.raise_to_floor(namespace, default_policy));
        workload_policy.unwrap_or_else(|| self.default_policy_in(namespace))
    }

    /// Returns the default policy of a namespace: its own, or else that of the mesh; never below the floor.
    #[must_use]
    pub fn default_policy_in(&self, namespace: &Name) -> DefaultPolicy {
        let namespace_policy =
            self.namespaces.get(namespace).and_then(|admission| admission.default_policy);
        self.raise_to_floor(namespace, namespace_policy.unwrap_or(self.default_policy))
    }

    /// Returns the mutual TLS mode of a workload: its own, or else that of its namespace, or else that of the
    /// mesh; strict if the floor requires it.
    #[must_use]
    pub fn mtls_mode_of(&self, workload: &Workload) -> MtlsMode {
        let namespace = &workload.name.namespace;
        let namespace_mode = || self.namespaces.get(namespace)?.mtls;
        let mode = workload.admission.mtls.or_else(namespace_mode).unwrap_or(self.mtls);
        match self.floor_in(namespace) {
            Some(floor) if floor.mtls_strict => MtlsMode::Strict,
            Some(_) | None => mode,
        }
    }

    /// Returns the floor of a namespace; `None` for an exempt namespace.
    #[must_use]
    pub fn floor_in(&self, namespace: &Name) -> Option<&SecurityFloor> {
        (!self.floor.except_namespaces.contains(namespace)).then_some(&*self.floor)
    }

    /// Returns the settings of a namespace, or of a workload in it, that the floor overrides.
    #[must_use]
    pub fn overridden_in(
        &self,
        namespace: &Name,
        requested: AdmissionSettings,
    ) -> Vec<OverriddenSetting> {
        self.floor_in(namespace)
            .map(|floor| floor.overridden_settings(requested))
            .unwrap_or_default()
    }

    /// Returns the default policies of the mesh, of its namespaces and of the floor, with duplicates.
    pub fn default_policies(&self) -> impl Iterator<Item = DefaultPolicy> {
        let namespace_policies =
            self.namespaces.values().filter_map(|admission| admission.default_policy);
        namespace_policies.chain([self.default_policy]).chain(self.floor.default_policy)
    }

    /// Returns this default policy, or the minimum of the namespace's floor if that is stricter.
    fn raise_to_floor(&self, namespace: &Name, default_policy: DefaultPolicy) -> DefaultPolicy {
        let minimum = self.floor_in(namespace).and_then(|floor| floor.default_policy);
        minimum.map_or(default_policy, |minimum| default_policy.stricter(minimum))
    }
}

impl Default for MeshConfig {
    /// Returns the settings of a mesh without a `MeshConfig` document: `cluster.local` and `allow`.
    fn default() -> Self {
        let domain = Name::new("cluster.local").expect("a literal DNS name is valid");
        Self {
            trust_domain: TrustDomain(domain),
            default_policy: DefaultPolicy::Allow,
            revoked: BTreeSet::new(),
            revoked_workloads: BTreeSet::new(),
            namespaces: BTreeMap::new(),
            annotated: BTreeSet::new(),
            observability: Box::default(),
            egress: Egress::default(),
            api_server_egress: Egress::default(),
            api_server: BTreeSet::new(),
            mtls: MtlsMode::default(),
            floor: Box::default(),
        }
    }
}

/// The decision about traffic between members of the mesh to which no policy applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DefaultPolicy {
    /// Every verified member of the mesh may call every service.
    Allow,
    /// Traffic is denied unless a policy allows it.
    Deny,
    /// Traffic that [`Self::Deny`] would deny is allowed, counted and reported.
    DryRun,
}

impl DefaultPolicy {
    /// All values, in the order of the documentation.
    pub const ALL: &'static [Self] = &[Self::Allow, Self::Deny, Self::DryRun];

    /// Returns the stricter of two default policies.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        if other.strictness() > self.strictness() { other } else { self }
    }

    /// Returns a number for comparisons; the strictest policy has the highest number.
    const fn strictness(self) -> u8 {
        match self {
            Self::Allow => 0,
            Self::DryRun => 1,
            Self::Deny => 2,
        }
    }

    /// Returns the word used in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::DryRun => "dry-run",
        }
    }
}

/// The handling of intercepted connections from applications to external destinations. Connections that are not
/// intercepted do not pass through the sidecar, and are not affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Egress {
    /// The connections are forwarded unchanged.
    #[default]
    Allow,
    /// The connections are rejected.
    Deny,
}

impl Egress {
    /// All values, in the order of the documentation.
    pub const ALL: &'static [Self] = &[Self::Allow, Self::Deny];

    /// Returns the word used in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// The handling of inbound connections without mutual TLS of the mesh, as in Istio's `PeerAuthentication`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum MtlsMode {
    /// The connections are rejected.
    #[default]
    Strict,
    /// The connections are treated as those of unauthenticated peers, and allowed if policies allow these. For the
    /// migration of clients into the mesh.
    Permissive,
}

impl MtlsMode {
    /// All values, in the order of the documentation.
    pub const ALL: &'static [Self] = &[Self::Strict, Self::Permissive];

    /// Returns the word used in manifests.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Permissive => "permissive",
        }
    }
}
