//! Mesh settings, merged from our MeshConfig, settings of other meshes, and namespace annotations.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use leno_model::{
    AdmissionSettings, DefaultPolicy, Egress, MeshConfig, Name, Object, ObjectKey, TrustDomain,
};
use leno_registry::{DocumentLocation, Warning};

use super::{ObjectOrigin, ObjectStore};
use crate::inject::Exclusions;
use crate::read::{ForeignMeshSettings, IngressGateway};

/// Settings in addition to our MeshConfig.
#[derive(Default)]
pub(super) struct MeshSettings {
    /// The settings of other meshes.
    foreign: BTreeMap<ObjectOrigin, ForeignMeshSettings>,
    /// The fields that each MeshConfig of ours specifies. Others may come from the settings of another mesh.
    mentioned: BTreeMap<ObjectOrigin, BTreeSet<String>>,
    /// The addresses of the API server.
    api_server: BTreeMap<ObjectOrigin, BTreeSet<SocketAddr>>,
    /// The trust domain for the case that no object of ours specifies it.
    assumed: Option<TrustDomain>,
    /// The namespaces in which the operator permits mesh-wide objects.
    namespaces: BTreeSet<Name>,
}

impl MeshSettings {
    /// Returns true if the operator permits mesh-wide objects in the namespace.
    fn is_named(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|name| name.as_str() == namespace)
    }

    /// Returns the settings of other meshes in the permitted namespaces: the oldest of each mesh, so that every
    /// control plane applies the same.
    fn permitted_settings(&self) -> impl Iterator<Item = (&ObjectOrigin, &ForeignMeshSettings)> {
        let mut oldest: BTreeMap<usize, (&ObjectOrigin, &ForeignMeshSettings)> = BTreeMap::new();
        for (origin, foreign) in &self.foreign {
            if !self.is_named(&origin.id.namespace) {
                continue;
            }
            let known = oldest.entry(origin.kind).or_insert((origin, foreign));
            if foreign.created < known.1.created {
                *known = (origin, foreign);
            }
        }
        oldest.into_values()
    }

    /// Returns the reason that settings of another mesh are ignored regardless of ours. `is_weaker` is true if
    /// the mesh allows by default although these settings deny.
    fn ignored_reason(&self, origin: &ObjectOrigin, is_weaker: bool) -> Option<Warning> {
        if !self.is_named(&origin.id.namespace) {
            let namespace = &origin.id.namespace;
            let (problem, written) = match is_weaker {
                true => (format!("{NOT_NAMED}, {WEAKER}"), " with `defaultPolicy: deny`"),
                false => (NOT_NAMED.to_owned(), ""),
            };
            let hint = format!(
                "write a MeshConfig of leno.dev{written}, or install with `--settings-namespaces {namespace}`"
            );
            return Some(Warning {
                at: place_of_field(origin, "metadata.namespace"),
                problem,
                hint,
            });
        }
        let (oldest, _) =
            self.permitted_settings().find(|(oldest, _)| oldest.kind == origin.kind)?;
        (oldest != origin).then(|| Warning {
            at: place_of_field(origin, "metadata.name"),
            problem: format!("is ignored: {} is older", describe_origin(oldest)),
            hint: "remove one of the two".to_owned(),
        })
    }
}

impl ObjectStore {
    /// Sets the namespaces in which mesh-wide objects are permitted.
    pub(crate) fn take_settings_of(&mut self, namespaces: BTreeSet<Name>) {
        self.settings.namespaces = namespaces;
        self.touch_settings();
    }

    /// Returns true if the operator permits mesh-wide objects in the namespace.
    pub(super) fn may_set_all(&self, namespace: &Name) -> bool {
        self.settings.namespaces.contains(namespace)
    }

    /// Returns the settings of other meshes that apply: none if a `MeshConfig` of ours specifies more than the
    /// trust domain.
    fn applied_settings(&self) -> impl Iterator<Item = (&ObjectOrigin, &ForeignMeshSettings)> {
        self.settings.permitted_settings().filter(|_| !self.is_configured())
    }

    /// Returns true if our MeshConfig specifies more than the trust domain, which is the only field set by
    /// `leno install`.
    fn is_configured(&self) -> bool {
        let fields = self.own_fields();
        fields.is_some_and(|fields| fields.iter().any(|field| field.as_str() != TRUST_DOMAIN))
    }

    /// Returns true if the mesh allows by default although the settings of another mesh deny, and no object of
    /// ours has a default policy.
    fn is_weaker_than(&self, foreign: &ForeignMeshSettings) -> bool {
        if foreign.default_policy != DefaultPolicy::Deny || self.is_mentioned(DEFAULT_POLICY) {
            return false;
        }
        let config = self.mesh_config().unwrap_or_default();
        let default_policy = config
            .floor
            .default_policy
            .map_or(config.default_policy, |least| config.default_policy.stricter(least));
        default_policy == DefaultPolicy::Allow
    }

    /// Sets the trust domain for the case that no object of ours specifies it.
    pub(crate) fn set_trust_domain(&mut self, trust_domain: TrustDomain) {
        self.settings.assumed = Some(trust_domain);
        self.touch_settings();
    }

    pub(super) fn see_foreign(&mut self, origin: &ObjectOrigin, foreign: ForeignMeshSettings) {
        self.add_diagnostics(origin, Vec::new(), foreign.warnings.clone());
        self.settings.foreign.insert(origin.clone(), foreign);
        self.touch_settings();
    }

    /// Replaces the addresses of the API server from an object.
    pub(super) fn see_api_server(
        &mut self,
        origin: &ObjectOrigin,
        addresses: BTreeSet<SocketAddr>,
    ) {
        self.settings.api_server.insert(origin.clone(), addresses);
        self.dirty.insert(ObjectKey::MeshConfig);
    }

    pub(super) fn forget_settings(&mut self, origin: &ObjectOrigin) {
        let own = self.settings.mentioned.remove(origin).is_some();
        if self.settings.foreign.remove(origin).is_some() || own {
            self.touch_settings();
        }
    }

    /// Replaces the fields that an object specifies.
    pub(super) fn set_mentioned(&mut self, origin: &ObjectOrigin, mentioned: BTreeSet<String>) {
        let is_new = self
            .settings
            .mentioned
            .get(origin)
            .map_or(!mentioned.is_empty(), |before| *before != mentioned);
        if is_new {
            self.settings.mentioned.insert(origin.clone(), mentioned);
            self.touch_settings();
        }
    }

    fn touch_settings(&mut self) {
        self.dirty.insert(ObjectKey::MeshConfig);
        self.statuses_stale = true;
        self.external_principals.mark_changed();
    }

    /// Returns the exclusions from redirection for all pods of the mesh.
    pub(crate) fn mesh_exclusions(&self) -> Exclusions {
        let mut all = Exclusions::default();
        for (_, ForeignMeshSettings { exclusions, .. }) in self.applied_settings() {
            let exclusions = exclusions.clone();
            all.outbound_ports.extend(exclusions.outbound_ports);
            all.inbound_ports.extend(exclusions.inbound_ports);
            all.outbound_ranges.extend(exclusions.outbound_ranges);
            all.included_ranges.extend(exclusions.included_ranges);
            all.interfaces.extend(exclusions.interfaces);
        }
        all
    }

    /// Returns the certificates for ingress gateways that the settings of other meshes request, each with the
    /// creation time of the settings in Unix seconds.
    pub(super) fn ingress_gateways(
        &self,
    ) -> impl Iterator<Item = (&ObjectOrigin, &IngressGateway, i64)> {
        self.applied_settings().filter_map(|(origin, foreign)| {
            let wanted = foreign.ingress_gateway.as_ref()?.as_ref().ok()?;
            Some((origin, wanted, foreign.created))
        })
    }

    /// Returns the settings with an invalid certificate request.
    pub(super) fn unread_gateways(&self) -> impl Iterator<Item = &ObjectOrigin> {
        let is_unread =
            |foreign: &ForeignMeshSettings| matches!(foreign.ingress_gateway, Some(Err(_)));
        self.applied_settings()
            .filter(move |(_, foreign)| is_unread(foreign))
            .map(|(origin, _)| origin)
    }

    /// Returns the modes of other meshes; the strictest one wins.
    fn of_others(&self) -> Option<(DefaultPolicy, Egress)> {
        let all = || self.applied_settings().map(|(_, foreign)| foreign);
        let first = all().next()?;
        let is_strict = all().any(|it| it.default_policy == DefaultPolicy::Deny);
        let is_closed = all().any(|it| it.egress == Egress::Deny);
        Some((
            if is_strict { DefaultPolicy::Deny } else { first.default_policy },
            if is_closed { Egress::Deny } else { first.egress },
        ))
    }

    /// Returns true if our MeshConfig specifies a field.
    fn is_mentioned(&self, field: &str) -> bool {
        self.own_fields().is_some_and(|fields| fields.contains(field))
    }

    /// Returns the fields of our MeshConfig in force.
    fn own_fields(&self) -> Option<&BTreeSet<String>> {
        let origin = self.custom_resources.in_force(&ObjectKey::MeshConfig)?;
        self.settings.mentioned.get(origin)
    }

    pub(super) fn own_config(&self) -> Option<&MeshConfig> {
        match self.custom_resources.get(&ObjectKey::MeshConfig) {
            Some(Object::MeshConfig(config)) => Some(config),
            _ => None,
        }
    }

    /// Returns our MeshConfig, or the settings of another mesh if ours specifies at most the trust domain.
    /// Annotations apply to namespaces that it does not list.
    pub(super) fn mesh_config(&self) -> Option<MeshConfig> {
        let (written, others) = (self.own_config().cloned(), self.of_others());
        let assumed = self.settings.assumed.as_ref();
        let is_silent = written.is_none() && others.is_none() && self.namespaces.is_empty();
        if is_silent && assumed.is_none() {
            return None;
        }
        let mut config = written.unwrap_or_default();
        if let Some(assumed) = assumed.filter(|_| !self.is_mentioned(TRUST_DOMAIN)) {
            config.trust_domain = assumed.clone();
        }
        if let Some((default_policy, egress)) = others {
            config.default_policy = default_policy;
            config.egress = egress;
        }
        if config.egress == Egress::Deny && config.api_server_egress == Egress::Allow {
            config.api_server = self.settings.api_server.values().flatten().copied().collect();
        }
        for (name, wanted) in &self.namespaces {
            if !config.namespaces.contains_key(name) {
                config.annotated.insert(name.clone());
            }
            let own = config.namespaces.entry(name.clone()).or_default();
            own.default_policy = own.default_policy.or(wanted.default_policy);
            own.mtls = own.mtls.or(wanted.mtls);
        }
        Some(config)
    }

    /// Returns the reason that another mesh's settings are ignored, or the part of them that cannot be
    /// fulfilled.
    pub(super) fn overridden_warnings(&self, origin: &ObjectOrigin) -> Vec<Warning> {
        let Some(foreign) = self.settings.foreign.get(origin) else { return Vec::new() };
        let is_weaker = self.is_weaker_than(foreign);
        let by_ours = || {
            let own = self.custom_resources.in_force(&ObjectKey::MeshConfig);
            let name = &own.filter(|_| self.is_configured())?.id.name;
            let (also, such_as) = match is_weaker {
                true => (format!(", {WEAKER}"), ", such as `defaultPolicy: deny`"),
                false => (String::new(), ""),
            };
            Some(Warning {
                at: place_of_field(origin, "spec"),
                problem: format!("is ignored: the MeshConfig {name} of leno.dev is in force{also}"),
                hint: format!("move the settings to {name}{such_as}, and remove this one"),
            })
        };
        let ignored = self.settings.ignored_reason(origin, is_weaker).or_else(by_ours);
        ignored.or_else(|| self.missing_certificate(origin)).into_iter().collect()
    }

    /// Returns the warnings about an object in force, as one text.
    pub(super) fn diagnostics_of(&self, origin: &ObjectOrigin) -> Option<String> {
        let diagnostics = self.diagnostics.get(origin).filter(|_| self.is_of_mesh(origin));
        let diagnostics = diagnostics.map(|(_, warnings)| warnings.as_slice());
        let mut others = self.overridden_warnings(origin);
        others.extend(self.below_floor(origin));
        let all = diagnostics.unwrap_or_default().iter().chain(&others).take(DIAGNOSTICS_MAX);
        let texts: Vec<String> = all
            .map(|it| {
                let field = it.at.field.as_deref().unwrap_or_default();
                format!("{field} {}; {}", it.problem, it.hint)
            })
            .collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    }

    /// Returns the warnings of all settings of other meshes.
    pub(super) fn all_overridden(&self) -> impl Iterator<Item = Warning> {
        self.settings.foreign.keys().flat_map(|origin| self.overridden_warnings(origin))
    }

    /// Returns warnings about namespaces with another default policy than the one in the `MeshConfig`.
    pub(super) fn mode_warnings(&self) -> Vec<Warning> {
        let Some(config) = self.own_config() else { return Vec::new() };
        let overruled = |(name, wanted): (&Name, &AdmissionSettings)| {
            let default_policy = wanted.default_policy?;
            let given = config
                .namespaces
                .get(name)?
                .default_policy
                .filter(|given| *given != default_policy)?;
            Some(Warning {
                at: DocumentLocation {
                    kind: Some("Namespace".to_owned()),
                    name: Some(name.to_string()),
                    field: Some("metadata.annotations".to_owned()),
                    ..DocumentLocation::default()
                },
                problem: format!(
                    "requests {}, but the MeshConfig sets {}, which is in force",
                    default_policy.as_str(),
                    given.as_str()
                ),
                hint: "remove one of the two".to_owned(),
            })
        };
        self.namespaces.iter().filter_map(overruled).collect()
    }
}

/// Returns the place of a field in another mesh's settings.
pub(super) fn place_of_field(origin: &ObjectOrigin, field: &str) -> DocumentLocation {
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
const DIAGNOSTICS_MAX: usize = 5;
const TRUST_DOMAIN: &str = "trustDomain";
const DEFAULT_POLICY: &str = "defaultPolicy";
const WEAKER: &str = "and the mesh allows by default although this object denies";
const NOT_NAMED: &str =
    "is ignored: mesh-wide settings are read only from the namespaces that the operator configures";
