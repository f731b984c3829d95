//! Builds hints for references to missing objects: a similar name, or the same name in another namespace.

use leno_model::Name;

use crate::suggest::{closest_word, join_with_and};

/// The name of an existing object.
pub(super) struct ExistingObject<'a> {
    pub(super) namespace: &'a Name,
    pub(super) name: &'a Name,
}

/// Maps an iterator over objects or names of any kind to [`ExistingObject`]s.
macro_rules! existing_objects {
    ($objects:expr) => {
        $objects.map(|object| $crate::lint::suggestion::ExistingObject {
            namespace: &object.namespace,
            name: &object.name,
        })
    };
}
pub(super) use existing_objects;

/// Returns the hint for a missing name: the same name in another namespace, a similar name in the same namespace, or
/// `default_hint`.
pub(super) fn suggest_name<'a>(
    namespace: &Name,
    name: &Name,
    existing_objects: impl Iterator<Item = ExistingObject<'a>>,
    default_hint: &str,
) -> String {
    let (mut other_namespaces, mut same_namespace) = (Vec::new(), Vec::new());
    for existing in existing_objects {
        if existing.namespace == namespace {
            same_namespace.push(existing.name.as_str());
        } else if existing.name == name {
            other_namespaces.push(existing.namespace.as_str());
        }
    }
    match (other_namespaces.as_slice(), closest_word(name.as_str(), &same_namespace)) {
        ([], Some(closest)) => format!("did you mean `{closest}`?"),
        ([], None) => default_hint.to_owned(),
        ([namespace], _) => {
            format!("there is one in the namespace `{namespace}`: use that namespace")
        }
        (namespaces, _) => {
            let listed_namespaces =
                namespaces.get(..namespaces.len().min(MAX_NAMESPACES)).unwrap_or_default();
            format!(
                "there is one in each of the namespaces {}: use one of them",
                join_with_and(listed_namespaces)
            )
        }
    }
}

/// Maximum number of namespaces that a hint lists.
const MAX_NAMESPACES: usize = 5;
