//! Custom resources by mesh object: of several that define the same object, one is in force.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{Object, ObjectKey};
use leno_registry::{DocumentLocation, RejectedDocument};

use super::ObjectOrigin;

/// Custom resources, and for each object the one in force: the oldest, so that every control plane selects the
/// same one.
#[derive(Default)]
pub(super) struct ObjectsInForce {
    held: BTreeMap<ObjectOrigin, StoredObject>,
    by_key: BTreeMap<ObjectKey, BTreeSet<ObjectOrigin>>,
}

struct StoredObject {
    object: Object,
    /// The creation time, in Unix seconds.
    created: i64,
}

impl ObjectsInForce {
    /// Returns the object in force.
    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Object> {
        let origin = self.in_force(key)?;
        self.held.get(origin).map(|held| &held.object)
    }

    /// Stores a valid version; returns the keys that may have changed.
    pub(super) fn store_version(
        &mut self,
        origin: &ObjectOrigin,
        object: Object,
        created: i64,
    ) -> Vec<ObjectKey> {
        let key = object.object_key();
        let before = self.held.insert(origin.clone(), StoredObject { object, created });
        let mut affected = vec![key.clone()];
        if let Some(before) = before.map(|held| held.object.object_key())
            && before != key
        {
            self.unlist(&before, origin);
            affected.push(before);
        }
        self.by_key.entry(key).or_default().insert(origin.clone());
        affected
    }

    /// Removes one; returns the key that may have changed.
    pub(super) fn remove(&mut self, origin: &ObjectOrigin) -> Option<ObjectKey> {
        let key = self.held.remove(origin)?.object.object_key();
        self.unlist(&key, origin);
        Some(key)
    }

    /// Returns the ones that are not in force because another one is.
    pub(super) fn list_duplicates(&self) -> Vec<RejectedDocument> {
        let contested = self.by_key.iter().filter(|(_, origins)| origins.len() > 1);
        let losers = contested.flat_map(|(key, origins)| {
            let winner = self.in_force(key);
            let losers = origins.iter().filter(move |origin| Some(*origin) != winner);
            losers.filter_map(move |loser| Some(duplicate_rejection(key, loser, winner?)))
        });
        losers.collect()
    }

    /// Returns the object of a custom resource, in force or not.
    pub(super) fn get_by_origin(&self, origin: &ObjectOrigin) -> Option<&Object> {
        self.held.get(origin).map(|held| &held.object)
    }

    /// Returns all objects.
    pub(super) fn all(&self) -> impl Iterator<Item = &Object> {
        self.held.values().map(|held| &held.object)
    }

    /// Returns all objects in force, with their origin and creation time in Unix seconds.
    pub(super) fn in_force_all(&self) -> impl Iterator<Item = (&ObjectOrigin, &Object, i64)> {
        let winners = self.by_key.keys().filter_map(|key| self.in_force(key));
        winners.filter_map(|origin| {
            let held = self.held.get(origin)?;
            Some((origin, &held.object, held.created))
        })
    }

    /// Returns the reason that a valid custom resource is not in force.
    pub(super) fn duplicate_reason(&self, origin: &ObjectOrigin) -> Option<RejectedDocument> {
        let key = self.held.get(origin)?.object.object_key();
        let winner = self.in_force(&key)?;
        (winner != origin).then(|| duplicate_rejection(&key, origin, winner))
    }

    /// Returns the custom resource that is in force.
    pub(super) fn in_force(&self, key: &ObjectKey) -> Option<&ObjectOrigin> {
        let age = |origin: &&ObjectOrigin| self.held.get(origin).map(|held| held.created);
        self.by_key.get(key)?.iter().min_by_key(age)
    }

    fn unlist(&mut self, key: &ObjectKey, origin: &ObjectOrigin) {
        if let Some(origins) = self.by_key.get_mut(key) {
            origins.remove(origin);
            if origins.is_empty() {
                self.by_key.remove(key);
            }
        }
    }
}

fn duplicate_rejection(
    key: &ObjectKey,
    loser: &ObjectOrigin,
    winner: &ObjectOrigin,
) -> RejectedDocument {
    let printed = key.to_string();
    let kind = printed.split(' ').next().unwrap_or_default();
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let at = DocumentLocation {
        kind: some(kind),
        namespace: some(&loser.id.namespace),
        name: some(&loser.id.name),
        field: Some("metadata.name".to_owned()),
        ..DocumentLocation::default()
    };
    let problem = match key {
        ObjectKey::MeshConfig => {
            format!("a mesh has one MeshConfig, and {} is in force", winner.id.name)
        }
        _ => "one of another API group has its name, and is in force".to_owned(),
    };
    RejectedDocument { at, problem, hint: "remove one of the two, or rename it".to_owned() }
}
