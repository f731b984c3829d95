//! Extracts the data of an object that its status and events need. The object store retains this data.

use std::sync::Arc;

use kube::Resource;
use kube::core::{ApiResource, DynamicObject};
use leno_registry::ServedKind;
use serde_json::Value;

use crate::read::is_service_parent;
use crate::status::{StatusForm, StatusTarget, is_own_entry};

/// The data of an object for its status and events.
pub(crate) struct StatusRecord {
    pub(crate) form: StatusForm,
    /// The API resource to which the status is written.
    pub(crate) resource: Arc<ApiResource>,
    pub(crate) target: StatusTarget,
    pub(crate) generation: i64,
    pub(crate) resource_version: String,
    /// The Service parents of a route, as written.
    pub(crate) parents: Vec<Value>,
    /// The current status, reduced to the fields that control planes write; `null` for kinds without a status.
    pub(crate) current_status: Value,
}

impl StatusRecord {
    /// Extracts the data for the status of a custom resource; `None` if it has no name.
    pub(crate) fn from_custom(
        kind: ServedKind,
        resource: &Arc<ApiResource>,
        object: &DynamicObject,
    ) -> Option<Self> {
        let form = StatusForm::for_kind(kind);
        let meta = &object.metadata;
        let current_status = form.extract_current(object.data.get("status"));
        let parent_refs = match form {
            StatusForm::Parents => {
                object.data.pointer("/spec/parentRefs").and_then(Value::as_array)
            }
            _ => None,
        };
        let parents = parent_refs.into_iter().flatten().filter(|parent| is_service_parent(parent));
        Some(Self {
            form,
            resource: Arc::clone(resource),
            target: StatusTarget {
                kind: kind.kind,
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone()?,
                uid: meta.uid.clone().unwrap_or_default(),
            },
            generation: meta.generation.unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            parents: parents.cloned().collect(),
            current_status,
        })
    }

    /// Extracts the data of a built-in object that needs an event.
    pub(crate) fn from_builtin<K>(object: &K) -> Self
    where
        K: Resource<DynamicType = ()> + k8s_openapi::Resource,
    {
        let meta = object.meta();
        Self {
            form: StatusForm::NoStatus,
            resource: Arc::new(ApiResource::erase::<K>(&())),
            target: StatusTarget {
                kind: <K as k8s_openapi::Resource>::KIND,
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone().unwrap_or_default(),
                uid: meta.uid.clone().unwrap_or_default(),
            },
            generation: meta.generation.unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            parents: Vec::new(),
            current_status: Value::Null,
        }
    }

    /// Returns true if the status has an entry of our controllers.
    pub(crate) fn has_own_entry(&self) -> bool {
        let entries = self.current_status.as_array().map(Vec::as_slice).unwrap_or_default();
        self.form == StatusForm::Parents && entries.iter().any(is_own_entry)
    }
}
