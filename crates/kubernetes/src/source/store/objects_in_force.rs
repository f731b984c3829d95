//! Stores custom resources by the mesh object that they define. Of several resources that define the same
//! object, the oldest is in force.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::{Object, ObjectKey};
use leno_registry::{DocumentLocation, RejectedDocument};

use super::ObjectOrigin;

/// Custom resources, and for each object the resource in force: the oldest, so that every control plane selects
/// the same resource.
#[derive(Default)]
pub(super) struct ObjectsInForce {
    objects: BTreeMap<ObjectOrigin, StoredObject>,
    origins_by_key: BTreeMap<ObjectKey, BTreeSet<ObjectOrigin>>,
}

struct StoredObject {
    object: Object,
    /// The creation time, in Unix seconds.
    created: i64,
}

impl ObjectsInForce {
    /// Returns the object that is in force for a key.
    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Object> {
        let origin = self.origin_in_force(key)?;
        self.objects.get(origin).map(|stored_object| &stored_object.object)
    }

    /// Stores a valid version of a custom resource. Returns the keys for which another object may be in force now.
    pub(super) fn store_version(
        &mut self,
        origin: &ObjectOrigin,
        object: Object,
        created: i64,
    ) -> Vec<ObjectKey> {
        let key = object.object_key();
        let replaced_object = self.objects.insert(origin.clone(), StoredObject { object, created });
        let mut affected_keys = vec![key.clone()];
        if let Some(previous_key) =
            replaced_object.map(|stored_object| stored_object.object.object_key())
            && previous_key != key
        {
            self.remove_key(&previous_key, origin);
            affected_keys.push(previous_key);
        }
        self.origins_by_key.entry(key).or_default().insert(origin.clone());
        affected_keys
    }

    /// Removes an object, and returns its key: another object of the key may be in force now.
    pub(super) fn remove(&mut self, origin: &ObjectOrigin) -> Option<ObjectKey> {
        let key = self.objects.remove(origin)?.object.object_key();
        self.remove_key(&key, origin);
        Some(key)
    }

    /// Returns a rejection for each object that is not in force because another object has the same key.
    pub(super) fn list_duplicates(&self) -> Vec<RejectedDocument> {
        let duplicated_keys = self.origins_by_key.iter().filter(|(_, origins)| origins.len() > 1);
        let rejections = duplicated_keys.flat_map(|(key, origins)| {
            let in_force = self.origin_in_force(key);
            let duplicates = origins.iter().filter(move |origin| Some(*origin) != in_force);
            duplicates
                .filter_map(move |duplicate| Some(duplicate_rejection(key, duplicate, in_force?)))
        });
        rejections.collect()
    }

    /// Returns the object of a custom resource, in force or not.
    pub(super) fn get_by_origin(&self, origin: &ObjectOrigin) -> Option<&Object> {
        self.objects.get(origin).map(|stored_object| &stored_object.object)
    }

    /// Returns all objects, in force or not.
    pub(super) fn all(&self) -> impl Iterator<Item = &Object> {
        self.objects.values().map(|stored_object| &stored_object.object)
    }

    /// Returns all objects in force, with their origin and creation time in Unix seconds.
    pub(super) fn all_in_force(&self) -> impl Iterator<Item = (&ObjectOrigin, &Object, i64)> {
        let origins = self.origins_by_key.keys().filter_map(|key| self.origin_in_force(key));
        origins.filter_map(|origin| {
            let stored_object = self.objects.get(origin)?;
            Some((origin, &stored_object.object, stored_object.created))
        })
    }

    /// Returns the reason that a valid custom resource is not in force; `None` if it is.
    pub(super) fn duplicate_reason(&self, origin: &ObjectOrigin) -> Option<RejectedDocument> {
        let key = self.objects.get(origin)?.object.object_key();
        let in_force = self.origin_in_force(&key)?;
        (in_force != origin).then(|| duplicate_rejection(&key, origin, in_force))
    }

    /// Returns the custom resource that is in force for a key: the oldest, or of equally old resources the first by
    /// kind and name.
    pub(super) fn origin_in_force(&self, key: &ObjectKey) -> Option<&ObjectOrigin> {
        let creation_time = |origin: &&ObjectOrigin| {
            self.objects.get(origin).map(|stored_object| stored_object.created)
        };
        self.origins_by_key.get(key)?.iter().min_by_key(creation_time)
    }

    fn remove_key(&mut self, key: &ObjectKey, origin: &ObjectOrigin) {
        if let Some(origins) = self.origins_by_key.get_mut(key) {
            origins.remove(origin);
            if origins.is_empty() {
                self.origins_by_key.remove(key);
            }
        }
    }
}

fn duplicate_rejection(
    key: &ObjectKey,
    duplicate: &ObjectOrigin,
    in_force: &ObjectOrigin,
) -> RejectedDocument {
    let key_text = key.to_string();
    let kind = key_text.split(' ').next().unwrap_or_default();
    let non_empty = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let location = DocumentLocation {
        kind: non_empty(kind),
        namespace: non_empty(&duplicate.id.namespace),
        name: non_empty(&duplicate.id.name),
        field: Some("metadata.name".to_owned()),
        ..DocumentLocation::default()
    };
    let problem = match key {
        ObjectKey::MeshConfig => {
            format!("a mesh has one MeshConfig, and {} is in force", in_force.id.name)
        }
        _ => "one of another API group has its name, and is in force".to_owned(),
    };
    RejectedDocument { location, problem, hint: "remove one of the two, or rename it".to_owned() }
}
