//! Mesh-wide settings: the trust domain, default policies, mutual TLS modes, revocations, egress, observability and
//! the security floor, which is the minimum of the security settings. Settings of namespaces and workloads override the
//! defaults, but not the floor.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::definition::{Definition, LABEL, ManifestBuilder};
use crate::identity::{ServiceAccount, TrustDomain};
use crate::name::Name;
use crate::observability::Observability;
use crate::revocation::{Revocation, RevokedWorkload};
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Definition)]
pub struct AdmissionSettings {
    /// Decision about traffic to which no policy applies.
    #[field(absent = "the inherited value")]
    pub default_policy: Option<DefaultPolicy>,
    /// Handling of clients without mutual TLS.
    #[field(absent = "the inherited value")]
    pub mtls: Option<MtlsMode>,
}

/// The fields of a `MeshConfig`. They have no literal defaults, because the API server writes such defaults into each
/// object: a `MeshConfig` with only a trust domain would seem to specify every setting, and replace the settings of another
/// mesh.
#[derive(Definition)]
#[definition(builds = MeshConfig)]
struct MeshConfigFields {
    /// Trust domain of identities. It is fixed after the first start of the mesh.
    #[field(absent = "`cluster.local`; in a cluster, the value of `leno install --trust-domain`")]
    trust_domain: Option<Name>,
    /// Decision about traffic between members of the mesh to which no policy applies. `allow` permits it, `deny` denies it,
    /// and `dry-run` permits it and counts the requests that `deny` would deny.
    #[field(absent = "`allow`")]
    default_policy: Option<DefaultPolicy>,
    /// Handling of clients without mutual TLS. `strict` rejects them, and `permissive` accepts them as well.
    #[field(absent = "`strict`")]
    mtls: Option<MtlsMode>,
    /// Namespaces with settings that differ from those of the mesh.
    #[field(list(0, MAX_NAMESPACES), absent = "none")]
    namespaces: Vec<NamespaceFields>,
    /// Accounts and single workloads that are no longer members of the mesh, even with a valid certificate.
    // Every sidecar receives all of them.
    #[field(list(0, 1024), absent = "none")]
    revoked: Vec<Revocation>,
    /// Connections to destinations outside the mesh: redirected connections, and requests through the HTTP proxy of a
    /// sidecar. Destinations of an `Egress` stay allowed.
    #[field(absent = "`allow`")]
    egress: Option<Egress>,
    /// Connections to the API server of Kubernetes while `egress` is `deny`.
    #[field(absent = "`allow`")]
    api_server_egress: Option<Egress>,
    /// Minimum settings that annotations, labels, namespaces and Workloads cannot weaken.
    #[field(absent = "no minimum")]
    floor: Option<Box<SecurityFloor>>,
    /// The observability settings.
    #[field(include)]
    observability: Box<Observability>,
}

/// The settings of a namespace.
#[derive(Definition)]
#[definition(check = Self::require_setting)]
struct NamespaceFields {
    /// Name of the namespace.
    #[field(text = LABEL)]
    name: Name,
    /// The settings.
    #[field(include)]
    admission: AdmissionSettings,
}

impl NamespaceFields {
    /// Rejects a namespace without settings.
    fn require_setting(self, builder: &mut ManifestBuilder<'_>) -> Option<Self> {
        if self.admission == AdmissionSettings::default() {
            builder.reject("has no settings", "add `defaultPolicy` or `mtls`");
            return None;
        }
        Some(self)
    }
}

impl MeshConfigFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<MeshConfig> {
        let floor = self.floor.unwrap_or_default();
        let admission = AdmissionSettings { default_policy: self.default_policy, mtls: self.mtls };
        // The mesh-wide setting may be below the floor only if namespaces are exempt: it applies to these namespaces, and
        // the floor replaces it in all others.
        let hint = "list the namespaces that need it in spec.floor.exceptNamespaces";
        let is_mesh_valid =
            !floor.except_namespaces.is_empty() || floor.check_settings(admission, hint, builder);
        let are_namespaces_valid = builder.build_below("namespaces", |builder| {
            check_namespaces(&self.namespaces, &floor, builder)
        });
        let is_each_listed_once = builder.check_unique(
            "namespaces",
            &self.namespaces,
            |namespace| namespace.name.clone(),
            "names a namespace that is already listed",
            "remove one of the two",
        );
        if !(is_mesh_valid && are_namespaces_valid && is_each_listed_once) {
            return None;
        }
        let default = MeshConfig::default();
        let mut config = MeshConfig {
            trust_domain: self.trust_domain.map_or(default.trust_domain, TrustDomain),
            default_policy: self.default_policy.unwrap_or(default.default_policy),
            mtls: self.mtls.unwrap_or_default(),
            namespaces: self
                .namespaces
                .into_iter()
                .map(|namespace| (namespace.name, namespace.admission))
                .collect(),
            egress: self.egress.unwrap_or_default(),
            api_server_egress: self.api_server_egress.unwrap_or_default(),
            floor,
            observability: self.observability,
            ..default
        };
        for revocation in self.revoked {
            match revocation {
                Revocation::Account(account) => drop(config.revoked.insert(account)),
                Revocation::Workload(workload) => drop(config.revoked_workloads.insert(workload)),
            }
        }
        Some(config)
    }
}

/// True if no setting of a namespace is below the floor, except in exempt namespaces. Otherwise the setting is rejected.
fn check_namespaces(
    namespaces: &[NamespaceFields],
    floor: &SecurityFloor,
    builder: &mut ManifestBuilder<'_>,
) -> bool {
    let check = |(index, namespace): (usize, &NamespaceFields)| {
        let NamespaceFields { name, admission } = namespace;
        let hint = format!("add {name} to spec.floor.exceptNamespaces");
        floor.except_namespaces.contains(name)
            || builder.build_at(index, |builder| floor.check_settings(*admission, &hint, builder))
    };
    namespaces.iter().enumerate().map(check).filter(|is_valid| !is_valid).count() == 0
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Definition)]
pub enum DefaultPolicy {
    /// Every verified member of the mesh may call every service.
    #[field(name = "allow")]
    Allow,
    /// Traffic is denied unless a policy allows it.
    #[field(name = "deny")]
    Deny,
    /// Traffic that [`Self::Deny`] would deny is allowed, counted and reported.
    #[field(name = "dry-run")]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Definition)]
pub enum Egress {
    /// The connections are forwarded unchanged.
    #[default]
    #[field(name = "allow")]
    Allow,
    /// The connections are rejected.
    #[field(name = "deny")]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Definition)]
pub enum MtlsMode {
    /// The connections are rejected.
    #[default]
    #[field(name = "strict")]
    Strict,
    /// The connections are treated as those of unauthenticated peers, and allowed if policies allow these. For the
    /// migration of clients into the mesh.
    #[field(name = "permissive")]
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

/// Maximum number of namespaces with settings of their own, or exempt from the floor.
pub(crate) const MAX_NAMESPACES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Schema;

    fn words_of<T: Definition>() -> &'static [&'static str] {
        match T::SCHEMA {
            Schema::Choice(words) => words,
            _ => panic!("not a choice"),
        }
    }

    #[test]
    fn words_in_messages_are_those_of_manifests() {
        let policies: Vec<&str> = DefaultPolicy::ALL.iter().map(|value| value.as_str()).collect();
        assert_eq!(words_of::<DefaultPolicy>(), policies);
        let egress: Vec<&str> = Egress::ALL.iter().map(|value| value.as_str()).collect();
        assert_eq!(words_of::<Egress>(), egress);
        let modes: Vec<&str> = MtlsMode::ALL.iter().map(|value| value.as_str()).collect();
        assert_eq!(words_of::<MtlsMode>(), modes);
    }
}
