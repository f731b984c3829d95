//! What a proxy refused and should not be sent again before something changes.

use std::collections::BTreeMap;

use leno_model::Snapshot;

use crate::envelope::{REASON_BYTES_MAX, cut};
use crate::holdings::{Holdings, endpoints_of};
use crate::key::{ChangeId, ResourceKey, Version};
use crate::message::{Refusal, Update};
use crate::resource::{
    encode_endpoint, encode_occupant, encode_plan, encode_service, encode_whereabouts,
};

/// Resources that the proxy refused, at most one entry for each that it was ever sent.
#[derive(Debug, Default)]
pub(super) struct Withheld {
    entries: BTreeMap<ResourceKey, Entry>,
}

/// One refused resource.
#[derive(Debug)]
struct Entry {
    /// The refused content; `None` when its removal was refused.
    version: Option<Version>,
    reason: String,
    until: Until,
}

/// What has to change before the same content is worth another try.
#[derive(Debug)]
enum Until {
    /// The content itself.
    Changed,
    /// The situation of another resource.
    Circumstance(ResourceKey, Circumstance),
    /// Anything at all: the proxy did not say which part of the delta was wrong.
    NextOffer(ChangeId),
}

/// How things stand with a resource that another one depends on.
#[derive(Debug, PartialEq, Eq)]
struct Circumstance {
    wanted: Option<Version>,
    held: Option<Version>,
    absent: bool,
}

impl Withheld {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether exactly this content, or the removal, was refused.
    pub(super) fn contains(&self, key: &ResourceKey, version: Option<Version>) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.version == version)
    }

    pub(super) fn list(&self) -> impl Iterator<Item = Refusal> {
        self.entries.iter().map(|(key, entry)| Refusal {
            key: key.clone(),
            reason: entry.reason.clone(),
            because: match &entry.until {
                Until::Circumstance(key, _) => Some(key.clone()),
                Until::Changed | Until::NextOffer(_) => None,
            },
        })
    }

    pub(super) fn set_aside(&mut self, key: ResourceKey, version: Version, reason: &str) {
        let reason = reason.to_owned();
        self.entries.insert(key, Entry { version: Some(version), reason, until: Until::Changed });
    }

    /// Remembers the refusals of a delta; says whether any of them names a part of it.
    pub(super) fn refused(
        &mut self,
        sent: &[(ResourceKey, Option<Version>)],
        refusals: &[Refusal],
        update: &Update,
        held: &Holdings,
    ) -> bool {
        let by_key: BTreeMap<_, _> = refusals.iter().map(|r| (&r.key, r)).collect();
        let mut named = false;
        for (key, version) in sent {
            let Some(refusal) = by_key.get(key) else {
                continue;
            };
            named = true;
            let until = match &refusal.because {
                Some(other) => {
                    let circumstance = Circumstance::new(other, update, held);
                    Until::Circumstance(other.clone(), circumstance)
                }
                None if version.is_some() => Until::Changed,
                None => Until::NextOffer(update.change),
            };
            let reason = cut(&refusal.reason, REASON_BYTES_MAX).to_owned();
            self.entries.insert(key.clone(), Entry { version: *version, reason, until });
        }
        named
    }

    /// Remembers a delta of which no part was named. Nothing of it is sent again before the next
    /// offer: otherwise the same delta would go back and forth for ever.
    pub(super) fn refused_unnamed(
        &mut self,
        sent: &[(ResourceKey, Option<Version>)],
        refusals: &[Refusal],
        change: ChangeId,
    ) {
        let reason = match refusals.first() {
            Some(first) => cut(&first.to_string(), REASON_BYTES_MAX).to_owned(),
            None => "refused without a reason".to_owned(),
        };
        for (key, version) in sent {
            let (reason, until) = (reason.clone(), Until::NextOffer(change));
            self.entries.insert(key.clone(), Entry { version: *version, reason, until });
        }
    }

    /// Lets go of all that waits for the situation of another resource; says whether there was any.
    pub(super) fn let_go(&mut self) -> bool {
        let before = self.entries.len();
        self.absent_accepted();
        self.entries.len() < before
    }

    /// The proxy knows now which services are absent: references that it could not follow may be
    /// good, and what could not go because something referred to it may go.
    pub(super) fn absent_accepted(&mut self) {
        self.entries.retain(|_, entry| !matches!(entry.until, Until::Circumstance(..)));
    }

    /// Lets go of what is no longer wanted in the refused form, and of what may now be accepted.
    pub(super) fn release(&mut self, update: &Update, held: &Holdings) {
        self.entries.retain(|key, entry| {
            let wanted = wanted(&update.snapshot, key);
            let kept = match &entry.until {
                Until::Changed => true,
                Until::Circumstance(other, then) => Circumstance::new(other, update, held) == *then,
                Until::NextOffer(change) => update.change == *change,
            };
            kept && wanted == entry.version && wanted != held.version(key)
        });
    }
}

impl Circumstance {
    fn new(key: &ResourceKey, update: &Update, held: &Holdings) -> Self {
        Self {
            wanted: wanted(&update.snapshot, key),
            held: held.version(key),
            absent: key.service().is_some_and(|service| update.absent.contains(service)),
        }
    }
}

/// The version that the proxy should hold, if any.
fn wanted(snapshot: &Snapshot, key: &ResourceKey) -> Option<Version> {
    let content = match key {
        ResourceKey::Plan => encode_plan(&snapshot.plan),
        ResourceKey::Service(name) => encode_service(snapshot.services.get(name)?),
        ResourceKey::Address(address) => encode_occupant(snapshot.addresses.get(address)?),
        ResourceKey::Name(name) => encode_whereabouts(snapshot.names.get(name)?),
        ResourceKey::Endpoint(id) => {
            let mut endpoints = endpoints_of(snapshot.services.get(&id.service)?);
            encode_endpoint(endpoints.find(|(_, endpoint)| endpoint.id == *id)?.1)
        }
    };
    Some(Version::of(&content))
}
