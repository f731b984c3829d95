//! The settings of the mesh: what its own object says, what another mesh's does, and what namespaces do.

use std::collections::{BTreeMap, BTreeSet};

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
    /// Of which trust domain the mesh is while no object of ours says it.
    assumed: Option<TrustDomain>,
}

impl Settings {
    /// Those that are heeded: of each other mesh the oldest, so that every control plane heeds the same.
    fn heeded(&self) -> impl Iterator<Item = (&Origin, &Foreign)> {
        let mut oldest: BTreeMap<usize, (&Origin, &Foreign)> = BTreeMap::new();
        for (origin, foreign) in &self.foreign {
            let known = oldest.entry(origin.kind).or_insert((origin, foreign));
            if foreign.created < known.1.created {
                *known = (origin, foreign);
            }
        }
        oldest.into_values()
    }

    /// Why those of this object are not heeded.
    fn outdated(&self, origin: &Origin) -> Option<Warning> {
        let (heeded, _) = self.heeded().find(|(heeded, _)| heeded.kind == origin.kind)?;
        let is_other = heeded != origin && self.foreign.contains_key(origin);
        is_other.then(|| Warning {
            at: place(origin, "metadata.name"),
            problem: format!("is not heeded: {} is older", shown(heeded)),
            remedy: "remove one of the two".to_owned(),
        })
    }
}

impl Ledger {
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
        for (_, Foreign { exclusions, .. }) in self.settings.heeded() {
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
        self.settings.heeded().filter_map(|(origin, foreign)| {
            let wanted = foreign.ingress_gateway.as_ref()?.as_ref().ok()?;
            Some((origin, wanted, foreign.created))
        })
    }

    /// Who wants such a certificate and does not say it so that it can be made.
    pub(super) fn unread_gateways(&self) -> impl Iterator<Item = &Origin> {
        let is_unread = |foreign: &Foreign| matches!(foreign.ingress_gateway, Some(Err(_)));
        let heeded = self.settings.heeded();
        heeded.filter(move |(_, foreign)| is_unread(foreign)).map(|(origin, _)| origin)
    }

    /// What other meshes say: of two, the stricter counts.
    fn of_others(&self) -> Option<(TrafficMode, Egress)> {
        let all = || self.settings.heeded().map(|(_, foreign)| foreign);
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
        let origin = self.customs.in_force(&ObjectKey::MeshConfig);
        let mentioned = origin.and_then(|origin| self.settings.mentioned.get(origin));
        mentioned.is_some_and(|mentioned| mentioned.contains(field))
    }

    fn own_config(&self) -> Option<&MeshConfig> {
        match self.customs.get(&ObjectKey::MeshConfig) {
            Some(Object::MeshConfig(config)) => Some(config),
            _ => None,
        }
    }

    /// What the object says, where it says nothing what another mesh's does, and for namespaces that it
    /// does not list, what they say themselves.
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
            if !self.mentions(MODE) {
                config.mode = mode;
            }
            if !self.mentions(EGRESS) {
                config.egress = egress;
            }
        }
        for (name, wanted) in &self.namespaces {
            let own = config.namespaces.entry(name.clone()).or_default();
            own.mode = own.mode.or(wanted.mode);
            own.plaintext = own.plaintext.or(wanted.plaintext);
        }
        Some(config)
    }

    /// What another mesh's settings say and older ones of its own, or ours, say otherwise, or nobody can do.
    pub(super) fn overridden(&self, origin: &Origin) -> Vec<Warning> {
        if let Some(outdated) = self.settings.outdated(origin) {
            return vec![outdated];
        }
        let unmet = self.settings.foreign.get(origin).and_then(|_| self.unmet(origin));
        let own = self.own_config().zip(self.settings.foreign.get(origin));
        let Some((own, foreign)) = own else { return unmet.into_iter().collect() };
        let fields = [
            (MODE, own.mode != foreign.mode, PERMISSIVE, own.mode.as_str()),
            (EGRESS, own.egress != foreign.egress, ENABLE_EGRESS, own.egress.as_str()),
        ];
        let differing =
            fields.into_iter().filter(|(field, differs, ..)| *differs && self.mentions(field));
        let warning = |(field, _, path, word): (&str, bool, &str, &str)| Warning {
            at: place(origin, path),
            problem: format!(
                "the MeshConfig of leno.dev says `{field}: {word}`, which is in force"
            ),
            remedy: "remove one of the two".to_owned(),
        };
        differing.map(warning).chain(unmet).collect()
    }

    /// What is to be said of an object, in one text, although it is in force.
    pub(super) fn remarks_of(&self, origin: &Origin) -> Option<String> {
        let remarks = self.remarks.get(origin).map(|(_, warnings)| warnings.as_slice());
        let overridden = self.overridden(origin);
        let all = remarks.unwrap_or_default().iter().chain(&overridden).take(REMARKS_MAX);
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
const MODE: &str = "trafficMode";
const EGRESS: &str = "egress";
const PERMISSIVE: &str = "spec.traffic.enablePermissiveTrafficPolicyMode";
const ENABLE_EGRESS: &str = "spec.traffic.enableEgress";
