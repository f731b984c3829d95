//! Merges the mesh settings from Leno's MeshConfig, the settings of other meshes, and namespace annotations.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use leno_model::{
    AdmissionSettings, DefaultPolicy, Egress, MeshConfig, Name, Object, ObjectKey, TrustDomain,
};
use leno_registry::{DocumentLocation, Warning};

use super::{ObjectOrigin, ObjectStore};
use crate::inject::Exclusions;
use crate::read::{ForeignMeshSettings, IngressCertificateRequest};

/// Settings in addition to our MeshConfig.
#[derive(Default)]
pub(super) struct MeshSettings {
    /// The settings of other meshes.
    foreign_settings: BTreeMap<ObjectOrigin, ForeignMeshSettings>,
    /// The fields that each MeshConfig of Leno specifies. Other fields may come from the settings of another
    /// mesh.
    specified_fields: BTreeMap<ObjectOrigin, BTreeSet<String>>,
    /// The addresses of the API server, by the object that lists them.
    api_server: BTreeMap<ObjectOrigin, BTreeSet<SocketAddr>>,
    /// The trust domain that applies if no MeshConfig of Leno specifies one.
    assumed_trust_domain: Option<TrustDomain>,
    /// The namespaces in which the operator permits mesh-wide objects.
    permitted_namespaces: BTreeSet<Name>,
}

impl MeshSettings {
    /// Returns true if the operator permits mesh-wide objects in the namespace.
    fn is_permitted(&self, namespace: &str) -> bool {
        self.permitted_namespaces.iter().any(|name| name.as_str() == namespace)
    }

    /// Returns the settings of other meshes in the permitted namespaces: the oldest of each mesh, so that every
    /// control plane applies the same.
    fn permitted_settings(&self) -> impl Iterator<Item = (&ObjectOrigin, &ForeignMeshSettings)> {
        let mut oldest_settings: BTreeMap<usize, (&ObjectOrigin, &ForeignMeshSettings)> =
            BTreeMap::new();
        for (origin, foreign_settings) in &self.foreign_settings {
            if !self.is_permitted(&origin.id.namespace) {
                continue;
            }
            let oldest =
                oldest_settings.entry(origin.kind_index).or_insert((origin, foreign_settings));
            let (_, settings) = *oldest;
            if foreign_settings.created < settings.created {
                *oldest = (origin, foreign_settings);
            }
        }
        oldest_settings.into_values()
    }

    /// Returns the reason that settings of another mesh are ignored regardless of the MeshConfig of Leno.
    /// `is_weaker` is true if the mesh allows by default although these settings deny.
    fn ignored_reason(&self, origin: &ObjectOrigin, is_weaker: bool) -> Option<Warning> {
        if !self.is_permitted(&origin.id.namespace) {
            let namespace = &origin.id.namespace;
            let (problem, suggestion) = match is_weaker {
                true => (format!("{NOT_PERMITTED}, {WEAKER}"), " with `defaultPolicy: deny`"),
                false => (NOT_PERMITTED.to_owned(), ""),
            };
            let hint = format!(
                "write a MeshConfig of leno.dev{suggestion}, or install with `--settings-namespaces {namespace}`"
            );
            return Some(Warning {
                location: settings_location(origin, "metadata.namespace"),
                problem,
                hint,
            });
        }
        let (oldest, _) =
            self.permitted_settings().find(|(oldest, _)| oldest.kind_index == origin.kind_index)?;
        (oldest != origin).then(|| Warning {
            location: settings_location(origin, "metadata.name"),
            problem: format!("is ignored: {} is older", describe_origin(oldest)),
            hint: "remove one of the two".to_owned(),
        })
    }
}

impl ObjectStore {
    /// Sets the namespaces in which mesh-wide objects are permitted.
    pub(crate) fn set_settings_namespaces(&mut self, namespaces: BTreeSet<Name>) {
        self.settings.permitted_namespaces = namespaces;
        self.mark_settings_changed();
    }

    /// Returns true if the operator permits mesh-wide objects in the namespace.
    pub(super) fn permits_mesh_wide(&self, namespace: &Name) -> bool {
        self.settings.permitted_namespaces.contains(namespace)
    }

    /// Returns the settings of other meshes that apply: none if a `MeshConfig` of Leno specifies more than the
    /// trust domain.
    fn applied_settings(&self) -> impl Iterator<Item = (&ObjectOrigin, &ForeignMeshSettings)> {
        self.settings.permitted_settings().filter(|_| !self.has_custom_mesh_config())
    }

    /// Returns true if our MeshConfig specifies more than the trust domain, which is the only field set by
    /// `leno install`.
    fn has_custom_mesh_config(&self) -> bool {
        let fields = self.own_fields();
        fields.is_some_and(|fields| fields.iter().any(|field| field.as_str() != TRUST_DOMAIN_FIELD))
    }

    /// Returns true if the mesh allows by default although the settings of another mesh deny, and no
    /// MeshConfig of Leno has a default policy.
    fn is_weaker_than(&self, foreign_settings: &ForeignMeshSettings) -> bool {
        if foreign_settings.default_policy != DefaultPolicy::Deny
            || self.specifies_field(DEFAULT_POLICY_FIELD)
        {
            return false;
        }
        let config = self.mesh_config().unwrap_or_default();
        let default_policy = config
            .floor
            .default_policy
            .map_or(config.default_policy, |floor| config.default_policy.stricter(floor));
        default_policy == DefaultPolicy::Allow
    }

    /// Sets the trust domain that applies if no MeshConfig of Leno specifies one.
    pub(crate) fn set_trust_domain(&mut self, trust_domain: TrustDomain) {
        self.settings.assumed_trust_domain = Some(trust_domain);
        self.mark_settings_changed();
    }

    pub(super) fn apply_foreign_settings(
        &mut self,
        origin: &ObjectOrigin,
        foreign_settings: ForeignMeshSettings,
    ) {
        self.add_diagnostics(origin, Vec::new(), foreign_settings.warnings.clone());
        self.settings.foreign_settings.insert(origin.clone(), foreign_settings);
        self.mark_settings_changed();
    }

    /// Replaces the addresses of the API server that an object lists.
    pub(super) fn apply_api_server(
        &mut self,
        origin: &ObjectOrigin,
        addresses: BTreeSet<SocketAddr>,
    ) {
        self.settings.api_server.insert(origin.clone(), addresses);
        self.dirty.insert(ObjectKey::MeshConfig);
    }

    pub(super) fn remove_settings(&mut self, origin: &ObjectOrigin) {
        let had_own_fields = self.settings.specified_fields.remove(origin).is_some();
        if self.settings.foreign_settings.remove(origin).is_some() || had_own_fields {
            self.mark_settings_changed();
        }
    }

    /// Replaces the fields that a MeshConfig specifies.
    pub(super) fn set_specified_fields(
        &mut self,
        origin: &ObjectOrigin,
        specified_fields: BTreeSet<String>,
    ) {
        let is_changed = self
            .settings
            .specified_fields
            .get(origin)
            .map_or(!specified_fields.is_empty(), |previous_fields| {
                *previous_fields != specified_fields
            });
        if is_changed {
            self.settings.specified_fields.insert(origin.clone(), specified_fields);
            self.mark_settings_changed();
        }
    }

    fn mark_settings_changed(&mut self) {
        self.dirty.insert(ObjectKey::MeshConfig);
        self.statuses_stale = true;
        self.external_principals.mark_changed();
    }

    /// Returns the exclusions from redirection for all pods of the mesh.
    pub(crate) fn mesh_exclusions(&self) -> Exclusions {
        let mut merged = Exclusions::default();
        for (_, ForeignMeshSettings { exclusions, .. }) in self.applied_settings() {
            let exclusions = exclusions.clone();
            merged.outbound_ports.extend(exclusions.outbound_ports);
            merged.inbound_ports.extend(exclusions.inbound_ports);
            merged.outbound_ranges.extend(exclusions.outbound_ranges);
            merged.redirected_outbound_ranges.extend(exclusions.redirected_outbound_ranges);
            merged.interfaces.extend(exclusions.interfaces);
        }
        merged
    }

    /// Returns the certificates for ingress gateways that the settings of other meshes request, each with the
    /// creation time of the settings in Unix seconds.
    pub(super) fn ingress_gateways(
        &self,
    ) -> impl Iterator<Item = (&ObjectOrigin, &IngressCertificateRequest, i64)> {
        self.applied_settings().filter_map(|(origin, foreign_settings)| {
            let request = foreign_settings.ingress_gateway.as_ref()?.as_ref().ok()?;
            Some((origin, request, foreign_settings.created))
        })
    }

    /// Returns the settings with an invalid certificate request.
    pub(super) fn invalid_gateway_requests(&self) -> impl Iterator<Item = &ObjectOrigin> {
        let is_invalid = |foreign_settings: &ForeignMeshSettings| {
            matches!(foreign_settings.ingress_gateway, Some(Err(_)))
        };
        self.applied_settings()
            .filter(move |(_, foreign_settings)| is_invalid(foreign_settings))
            .map(|(origin, _)| origin)
    }

    /// Returns the default policy and egress mode of other meshes' settings, the strictest of each; `None`
    /// without such settings.
    fn foreign_modes(&self) -> Option<(DefaultPolicy, Egress)> {
        let list_settings =
            || self.applied_settings().map(|(_, foreign_settings)| foreign_settings);
        let first_settings = list_settings().next()?;
        let denies_clients =
            list_settings().any(|settings| settings.default_policy == DefaultPolicy::Deny);
        let denies_egress = list_settings().any(|settings| settings.egress == Egress::Deny);
        Some((
            if denies_clients { DefaultPolicy::Deny } else { first_settings.default_policy },
            if denies_egress { Egress::Deny } else { first_settings.egress },
        ))
    }

    /// Returns true if our MeshConfig specifies a field.
    fn specifies_field(&self, field: &str) -> bool {
        self.own_fields().is_some_and(|fields| fields.contains(field))
    }

    /// Returns the fields of our MeshConfig in force.
    fn own_fields(&self) -> Option<&BTreeSet<String>> {
        let origin = self.custom_resources.origin_in_force(&ObjectKey::MeshConfig)?;
        self.settings.specified_fields.get(origin)
    }

    pub(super) fn own_config(&self) -> Option<&MeshConfig> {
        match self.custom_resources.get(&ObjectKey::MeshConfig) {
            Some(Object::MeshConfig(config)) => Some(config),
            _ => None,
        }
    }

    /// Returns the MeshConfig of Leno, or the settings of another mesh if it specifies at most the trust
    /// domain. For each namespace, its annotations apply to the settings that the MeshConfig leaves unset.
    pub(super) fn mesh_config(&self) -> Option<MeshConfig> {
        let (configured, foreign_modes) = (self.own_config().cloned(), self.foreign_modes());
        let assumed_trust_domain = self.settings.assumed_trust_domain.as_ref();
        let is_unset =
            configured.is_none() && foreign_modes.is_none() && self.namespace_admission.is_empty();
        if is_unset && assumed_trust_domain.is_none() {
            return None;
        }
        let mut config = configured.unwrap_or_default();
        if let Some(assumed_trust_domain) =
            assumed_trust_domain.filter(|_| !self.specifies_field(TRUST_DOMAIN_FIELD))
        {
            config.trust_domain = assumed_trust_domain.clone();
        }
        if let Some((default_policy, egress)) = foreign_modes {
            config.default_policy = default_policy;
            config.egress = egress;
        }
        if config.egress == Egress::Deny && config.api_server_egress == Egress::Allow {
            config.api_server = self.settings.api_server.values().flatten().copied().collect();
        }
        for (name, annotated_admission) in &self.namespace_admission {
            if !config.namespaces.contains_key(name) {
                config.annotated.insert(name.clone());
            }
            let admission = config.namespaces.entry(name.clone()).or_default();
            admission.default_policy =
                admission.default_policy.or(annotated_admission.default_policy);
            admission.mtls = admission.mtls.or(annotated_admission.mtls);
        }
        Some(config)
    }

    /// Returns a warning if these settings of another mesh are ignored, or if the certificate that they request is missing.
    /// Empty for other objects.
    pub(super) fn foreign_settings_warnings(&self, origin: &ObjectOrigin) -> Vec<Warning> {
        let Some(foreign_settings) = self.settings.foreign_settings.get(origin) else {
            return Vec::new();
        };
        let is_weaker = self.is_weaker_than(foreign_settings);
        let overridden_warning = || {
            let own_origin = self.custom_resources.origin_in_force(&ObjectKey::MeshConfig);
            let name = &own_origin.filter(|_| self.has_custom_mesh_config())?.id.name;
            let (addition, suggestion) = match is_weaker {
                true => (format!(", {WEAKER}"), ", such as `defaultPolicy: deny`"),
                false => (String::new(), ""),
            };
            Some(Warning {
                location: settings_location(origin, "spec"),
                problem: format!(
                    "is ignored: the MeshConfig {name} of leno.dev is in force{addition}"
                ),
                hint: format!("move the settings to {name}{suggestion}, and remove this one"),
            })
        };
        let ignored_warning =
            self.settings.ignored_reason(origin, is_weaker).or_else(overridden_warning);
        ignored_warning.or_else(|| self.missing_certificate_warning(origin)).into_iter().collect()
    }

    /// Returns the warnings about an object in force, one per line; `None` if it has none.
    pub(super) fn warnings_message(&self, origin: &ObjectOrigin) -> Option<String> {
        let diagnostics = self.diagnostics.get(origin).filter(|_| self.belongs_to_mesh(origin));
        let object_warnings = diagnostics.map(|(_, warnings)| warnings.as_slice());
        let mut further_warnings = self.foreign_settings_warnings(origin);
        further_warnings.extend(self.floor_warnings(origin));
        let listed_warnings = object_warnings
            .unwrap_or_default()
            .iter()
            .chain(&further_warnings)
            .take(MAX_DIAGNOSTICS);
        let messages: Vec<String> = listed_warnings
            .map(|warning| {
                let field = warning.location.field.as_deref().unwrap_or_default();
                format!("{field} {}; {}", warning.problem, warning.hint)
            })
            .collect();
        (!messages.is_empty()).then(|| messages.join("\n"))
    }

    /// Returns the warnings of all settings of other meshes.
    pub(super) fn all_foreign_settings_warnings(&self) -> impl Iterator<Item = Warning> {
        self.settings
            .foreign_settings
            .keys()
            .flat_map(|origin| self.foreign_settings_warnings(origin))
    }

    /// Returns a warning for each namespace with another default policy than the `MeshConfig` sets for it.
    pub(super) fn default_policy_warnings(&self) -> Vec<Warning> {
        let Some(config) = self.own_config() else { return Vec::new() };
        let policy_warning = |(name, annotated): (&Name, &AdmissionSettings)| {
            let default_policy = annotated.default_policy?;
            let configured = config
                .namespaces
                .get(name)?
                .default_policy
                .filter(|configured| *configured != default_policy)?;
            Some(Warning {
                location: DocumentLocation {
                    kind: Some("Namespace".to_owned()),
                    name: Some(name.to_string()),
                    field: Some("metadata.annotations".to_owned()),
                    ..DocumentLocation::default()
                },
                problem: format!(
                    "requests {}, but the MeshConfig sets {}, which is in force",
                    default_policy.as_str(),
                    configured.as_str()
                ),
                hint: "remove one of the two".to_owned(),
            })
        };
        self.namespace_admission.iter().filter_map(policy_warning).collect()
    }
}

/// Returns the location of a field in another mesh's settings.
pub(super) fn settings_location(origin: &ObjectOrigin, field: &str) -> DocumentLocation {
    DocumentLocation {
        kind: Some("MeshConfig".to_owned()),
        namespace: Some(origin.id.namespace.clone()).filter(|text| !text.is_empty()),
        name: Some(origin.id.name.clone()),
        field: Some(field.to_owned()),
        ..DocumentLocation::default()
    }
}

fn describe_origin(origin: &ObjectOrigin) -> String {
    match &*origin.id.namespace {
        "" => origin.id.name.clone(),
        namespace => format!("{namespace}/{}", origin.id.name),
    }
}

/// The maximum number of warnings reported for one object.
const MAX_DIAGNOSTICS: usize = 5;
const TRUST_DOMAIN_FIELD: &str = "trustDomain";
const DEFAULT_POLICY_FIELD: &str = "defaultPolicy";
const WEAKER: &str = "and the mesh allows by default although this object denies";
const NOT_PERMITTED: &str =
    "is ignored: mesh-wide settings are read only from the namespaces that the operator configures";
