//! The settings of the mesh: what its own object says, what another mesh's does, and what namespaces do.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{Admission, Egress, MeshConfig, Name, Object, ObjectKey, TrafficMode};
use leno_registry::{Place, Warning};

use super::{Ledger, Origin};
use crate::inject::Exclusions;
use crate::read::Foreign;

/// Settings beside the object of ours.
#[derive(Default)]
pub(super) struct Settings {
    /// Those of other meshes.
    foreign: BTreeMap<Origin, Foreign>,
    /// What each object of ours mentions: what it does not, another mesh's may say.
    mentioned: BTreeMap<Origin, BTreeSet<String>>,
}

impl Ledger {
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
        let is_news = self.settings.mentioned.get(origin).map_or(!mentioned.is_empty(), |before| {
            *before != mentioned
        });
        if is_news {
            self.settings.mentioned.insert(origin.clone(), mentioned);
            self.touch_settings();
        }
    }

    fn touch_settings(&mut self) {
        self.dirty.insert(ObjectKey::MeshConfig);
        self.unjudged = true;
    }

    /// What no pod of the mesh sends through its sidecar.
    pub(crate) fn exclusions(&self) -> Exclusions {
        let mut all = Exclusions::default();
        for Foreign { exclusions, .. } in self.settings.foreign.values().cloned() {
            all.outbound_ports.extend(exclusions.outbound_ports);
            all.inbound_ports.extend(exclusions.inbound_ports);
            all.outbound_ranges.extend(exclusions.outbound_ranges);
            all.included_ranges.extend(exclusions.included_ranges);
            all.interfaces.extend(exclusions.interfaces);
        }
        all
    }

    /// What other meshes say: of several, the stricter counts.
    fn of_others(&self) -> Option<(TrafficMode, Egress)> {
        let all = || self.settings.foreign.values();
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
        if written.is_none() && others.is_none() && self.namespaces.is_empty() {
            return None;
        }
        let mut config = written.unwrap_or_default();
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

    /// What another mesh's settings say and ours say otherwise.
    pub(super) fn overridden(&self, origin: &Origin) -> Vec<Warning> {
        let own = self.own_config().zip(self.settings.foreign.get(origin));
        let Some((own, foreign)) = own else { return Vec::new() };
        let fields = [
            (MODE, own.mode != foreign.mode, PERMISSIVE, own.mode.as_str()),
            (EGRESS, own.egress != foreign.egress, ENABLE_EGRESS, own.egress.as_str()),
        ];
        let differing =
            fields.into_iter().filter(|(field, differs, ..)| *differs && self.mentions(field));
        let warning = |(field, _, path, word): (&str, bool, &str, &str)| Warning {
            at: Place {
                kind: Some("MeshConfig".to_owned()),
                namespace: Some(origin.id.namespace.clone()).filter(|text| !text.is_empty()),
                name: Some(origin.id.name.clone()),
                field: Some(path.to_owned()),
                ..Place::default()
            },
            problem: format!(
                "the MeshConfig of leno.dev says `{field}: {word}`, which is in force"
            ),
            remedy: "remove one of the two".to_owned(),
        };
        differing.map(warning).collect()
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

/// The most remarks told of one object.
const REMARKS_MAX: usize = 5;
const MODE: &str = "trafficMode";
const EGRESS: &str = "egress";
const PERMISSIVE: &str = "spec.traffic.enablePermissiveTrafficPolicyMode";
const ENABLE_EGRESS: &str = "spec.traffic.enableEgress";
