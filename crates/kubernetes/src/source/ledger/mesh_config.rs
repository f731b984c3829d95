//! The settings of the mesh: what its own object says, what another mesh's does, and what namespaces do.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use leno_model::{
    Admission, Egress, MeshConfig, Name, Object, ObjectKey, TrafficMode, TrustDomain,
};
use leno_registry::{Place, Warning};

use super::{Ledger, Origin};
use crate::inject::Exclusions;
use crate::read::{Foreign, IngressGateway};

/// Settings beside the object of ours.
#[derive(Default)]
pub(super) struct Settings {
    /// Those of other meshes.
    foreign: BTreeMap<Origin, Foreign>,
    /// What each object of ours mentions: what it does not, another mesh's may say.
    mentioned: BTreeMap<Origin, BTreeSet<String>>,
    /// The addresses of the API server.
    api_server: BTreeMap<Origin, BTreeSet<SocketAddr>>,
    /// Of which trust domain the mesh is while no object of ours says it.
    assumed: Option<TrustDomain>,
    /// The namespaces that may have objects about the whole mesh, as the operator names them.
    namespaces: BTreeSet<Name>,
}

impl Settings {
    /// The operator names the namespaces that may have objects about the whole mesh.
    fn is_named(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|name| name.as_str() == namespace)
    }

    /// The settings of other meshes in the named namespaces: of each mesh the oldest, so that every control plane
    /// applies the same.
    fn named(&self) -> impl Iterator<Item = (&Origin, &Foreign)> {
        let mut oldest: BTreeMap<usize, (&Origin, &Foreign)> = BTreeMap::new();
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

    /// The reason that settings of another mesh are ignored, whatever the settings of ours are. `is_weaker` when the
    /// mesh is permissive although these settings are strict.
    fn ignored(&self, origin: &Origin, is_weaker: bool) -> Option<Warning> {
        if !self.is_named(&origin.id.namespace) {
            let namespace = &origin.id.namespace;
            let (problem, written) = match is_weaker {
                true => (format!("{NOT_NAMED}, {WEAKER}"), " with `trafficMode: strict`"),
                false => (NOT_NAMED.to_owned(), ""),
            };
            let remedy = format!(
                "write a MeshConfig of leno.dev{written}, or install with `--settings-namespaces {namespace}`"
            );
            return Some(Warning { at: place(origin, "metadata.namespace"), problem, remedy });
        }
        let (oldest, _) = self.named().find(|(oldest, _)| oldest.kind == origin.kind)?;
        (oldest != origin).then(|| Warning {
            at: place(origin, "metadata.name"),
            problem: format!("is ignored: {} is older", shown(oldest)),
            remedy: "remove one of the two".to_owned(),
        })
    }
}

impl Ledger {
    /// Objects of these namespaces may be about the whole mesh.
    pub(crate) fn take_settings_of(&mut self, namespaces: BTreeSet<Name>) {
        self.settings.namespaces = namespaces;
        self.touch_settings();
    }

    /// The operator names the namespaces that may have objects about the whole mesh.
    pub(super) fn may_set_all(&self, namespace: &Name) -> bool {
        self.settings.namespaces.contains(namespace)
    }

    /// The settings of other meshes that apply: none once a `MeshConfig` of ours says more than the trust domain.
    fn applied(&self) -> impl Iterator<Item = (&Origin, &Foreign)> {
        self.settings.named().filter(|_| !self.is_configured())
    }

    /// The object of ours says more than the trust domain, which is all that `leno install` writes into one.
    fn is_configured(&self) -> bool {
        let fields = self.own_fields();
        fields.is_some_and(|fields| fields.iter().any(|field| field.as_str() != TRUST_DOMAIN))
    }

    /// The mesh is permissive although the settings of another mesh are strict, and no object of ours says a mode.
    fn is_weaker_than(&self, foreign: &Foreign) -> bool {
        if foreign.mode != TrafficMode::Strict || self.mentions(TRAFFIC_MODE) {
            return false;
        }
        let config = self.mesh_config().unwrap_or_default();
        let mode = config.floor.mode.map_or(config.mode, |least| config.mode.stricter(least));
        mode == TrafficMode::Permissive
    }

    /// The trust domain of the mesh while no object of ours says one.
    pub(crate) fn assume(&mut self, trust_domain: TrustDomain) {
        self.settings.assumed = Some(trust_domain);
        self.touch_settings();
    }

    pub(super) fn see_foreign(&mut self, origin: &Origin, foreign: Foreign) {
        self.remark(origin, Vec::new(), foreign.warnings.clone());
        self.settings.foreign.insert(origin.clone(), foreign);
        self.touch_settings();
    }

    /// Takes in addresses of the API server, in place of those that the object had.
    pub(super) fn see_api_server(&mut self, origin: &Origin, addresses: BTreeSet<SocketAddr>) {
        self.settings.api_server.insert(origin.clone(), addresses);
        self.dirty.insert(ObjectKey::MeshConfig);
    }

    pub(super) fn forget_settings(&mut self, origin: &Origin) {
        let own = self.settings.mentioned.remove(origin).is_some();
        if self.settings.foreign.remove(origin).is_some() || own {
            self.touch_settings();
        }
    }

    /// What an object mentions now, in place of what it did.
    pub(super) fn mention(&mut self, origin: &Origin, mentioned: BTreeSet<String>) {
        let is_news = self
            .settings
            .mentioned
            .get(origin)
            .map_or(!mentioned.is_empty(), |before| *before != mentioned);
        if is_news {
            self.settings.mentioned.insert(origin.clone(), mentioned);
            self.touch_settings();
        }
    }

    fn touch_settings(&mut self) {
        self.dirty.insert(ObjectKey::MeshConfig);
        self.unjudged = true;
        self.guests.touch();
    }

    /// What no pod of the mesh sends through its sidecar.
    pub(crate) fn exclusions(&self) -> Exclusions {
        let mut all = Exclusions::default();
        for (_, Foreign { exclusions, .. }) in self.applied() {
            let exclusions = exclusions.clone();
            all.outbound_ports.extend(exclusions.outbound_ports);
            all.inbound_ports.extend(exclusions.inbound_ports);
            all.outbound_ranges.extend(exclusions.outbound_ranges);
            all.included_ranges.extend(exclusions.included_ranges);
            all.interfaces.extend(exclusions.interfaces);
        }
        all
    }

    /// The certificates that the settings of other meshes want for an ingress gateway, each with when they were
    /// made, in seconds.
    pub(super) fn ingress_gateways(&self) -> impl Iterator<Item = (&Origin, &IngressGateway, i64)> {
        self.applied().filter_map(|(origin, foreign)| {
            let wanted = foreign.ingress_gateway.as_ref()?.as_ref().ok()?;
            Some((origin, wanted, foreign.created))
        })
    }

    /// Who wants such a certificate and does not say it so that it can be made.
    pub(super) fn unread_gateways(&self) -> impl Iterator<Item = &Origin> {
        let is_unread = |foreign: &Foreign| matches!(foreign.ingress_gateway, Some(Err(_)));
        self.applied().filter(move |(_, foreign)| is_unread(foreign)).map(|(origin, _)| origin)
    }

    /// What other meshes say: of two, the stricter counts.
    fn of_others(&self) -> Option<(TrafficMode, Egress)> {
        let all = || self.applied().map(|(_, foreign)| foreign);
        let first = all().next()?;
        let is_strict = all().any(|it| it.mode == TrafficMode::Strict);
        let is_closed = all().any(|it| it.egress == Egress::Deny);
        Some((
            if is_strict { TrafficMode::Strict } else { first.mode },
            if is_closed { Egress::Deny } else { first.egress },
        ))
    }

    /// Whether the object of ours says something itself.
    fn mentions(&self, field: &str) -> bool {
        self.own_fields().is_some_and(|fields| fields.contains(field))
    }

    /// The fields of the object of ours that is in force.
    fn own_fields(&self) -> Option<&BTreeSet<String>> {
        let origin = self.customs.in_force(&ObjectKey::MeshConfig)?;
        self.settings.mentioned.get(origin)
    }

    pub(super) fn own_config(&self) -> Option<&MeshConfig> {
        match self.customs.get(&ObjectKey::MeshConfig) {
            Some(Object::MeshConfig(config)) => Some(config),
            _ => None,
        }
    }

    /// The object of ours, or where it says no more than the trust domain the settings of another mesh, and for
    /// namespaces that it does not list, their annotations.
    pub(super) fn mesh_config(&self) -> Option<MeshConfig> {
        let (written, others) = (self.own_config().cloned(), self.of_others());
        let assumed = self.settings.assumed.as_ref();
        let is_silent = written.is_none() && others.is_none() && self.namespaces.is_empty();
        if is_silent && assumed.is_none() {
            return None;
        }
        let mut config = written.unwrap_or_default();
        if let Some(assumed) = assumed.filter(|_| !self.mentions(TRUST_DOMAIN)) {
            config.trust_domain = assumed.clone();
        }
        if let Some((mode, egress)) = others {
            config.mode = mode;
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
            own.mode = own.mode.or(wanted.mode);
            own.plaintext = own.plaintext.or(wanted.plaintext);
        }
        Some(config)
    }

    /// The reason that another mesh's settings are ignored, or the part of them that cannot be met.
    pub(super) fn overridden(&self, origin: &Origin) -> Vec<Warning> {
        let Some(foreign) = self.settings.foreign.get(origin) else { return Vec::new() };
        let is_weaker = self.is_weaker_than(foreign);
        let by_ours = || {
            let own = self.customs.in_force(&ObjectKey::MeshConfig);
            let name = &own.filter(|_| self.is_configured())?.id.name;
            let (also, such_as) = match is_weaker {
                true => (format!(", {WEAKER}"), ", such as `trafficMode: strict`"),
                false => (String::new(), ""),
            };
            Some(Warning {
                at: place(origin, "spec"),
                problem: format!("is ignored: the MeshConfig {name} of leno.dev is in force{also}"),
                remedy: format!("write into {name} what should hold{such_as}, and remove this one"),
            })
        };
        let ignored = self.settings.ignored(origin, is_weaker).or_else(by_ours);
        ignored.or_else(|| self.unmet(origin)).into_iter().collect()
    }

    /// What is to be said of an object, in one text, although it is in force.
    pub(super) fn remarks_of(&self, origin: &Origin) -> Option<String> {
        let remarks = self.remarks.get(origin).filter(|_| self.is_of_mesh(origin));
        let remarks = remarks.map(|(_, warnings)| warnings.as_slice());
        let mut others = self.overridden(origin);
        others.extend(self.below_floor(origin));
        let all = remarks.unwrap_or_default().iter().chain(&others).take(REMARKS_MAX);
        let texts: Vec<String> = all
            .map(|it| {
                let field = it.at.field.as_deref().unwrap_or_default();
                format!("{field} {}; {}", it.problem, it.remedy)
            })
            .collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    }

    /// The same of all of them.
    pub(super) fn all_overridden(&self) -> impl Iterator<Item = Warning> {
        self.settings.foreign.keys().flat_map(|origin| self.overridden(origin))
    }

    /// Namespaces that want another mode than the `MeshConfig` gives them.
    pub(super) fn overruled(&self) -> Vec<Warning> {
        let Some(config) = self.own_config() else { return Vec::new() };
        let overruled = |(name, wanted): (&Name, &Admission)| {
            let mode = wanted.mode?;
            let given = config.namespaces.get(name)?.mode.filter(|given| *given != mode)?;
            Some(Warning {
                at: Place {
                    kind: Some("Namespace".to_owned()),
                    name: Some(name.to_string()),
                    field: Some("metadata.annotations".to_owned()),
                    ..Place::default()
                },
                problem: format!(
                    "asks for {}, and the MeshConfig gives it {}, which is in force",
                    mode.as_str(),
                    given.as_str()
                ),
                remedy: "remove one of the two".to_owned(),
            })
        };
        self.namespaces.iter().filter_map(overruled).collect()
    }
}

/// A field of another mesh's settings.
pub(super) fn place(origin: &Origin, field: &str) -> Place {
    Place {
        kind: Some("MeshConfig".to_owned()),
        namespace: Some(origin.id.namespace.clone()).filter(|text| !text.is_empty()),
        name: Some(origin.id.name.clone()),
        field: Some(field.to_owned()),
        ..Place::default()
    }
}

fn shown(origin: &Origin) -> String {
    match &*origin.id.namespace {
        "" => origin.id.name.clone(),
        namespace => format!("{namespace}/{}", origin.id.name),
    }
}

/// The most remarks told of one object.
const REMARKS_MAX: usize = 5;
const TRUST_DOMAIN: &str = "trustDomain";
const TRAFFIC_MODE: &str = "trafficMode";
const WEAKER: &str = "and the mesh is permissive although this object is strict";
const NOT_NAMED: &str = "is ignored: settings of the whole mesh are read only from the namespaces that its operator names";
