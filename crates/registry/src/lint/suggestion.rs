//! Hints for a reference to a missing object: a similar name, or another namespace.

use leno_model::Name;

use crate::suggest::{closest_word, one_of};

/// The name of an existing object.
pub(super) struct ExistingObject<'a> {
    pub(super) namespace: &'a Name,
    pub(super) name: &'a Name,
}

/// Collects the names of objects of any kind.
macro_rules! known {
    ($names:expr) => {
        $names.map(|it| $crate::lint::suggestion::ExistingObject {
            namespace: &it.namespace,
            name: &it.name,
        })
    };
}
pub(super) use known;

/// Returns the hint for a missing name: the same name in another namespace, a similar name in the same one, or
/// `otherwise`.
pub(super) fn suggest_name<'a>(
    namespace: &Name,
    name: &Name,
    known: impl Iterator<Item = ExistingObject<'a>>,
    otherwise: &str,
) -> String {
    let (mut other_namespaces, mut near) = (Vec::new(), Vec::new());
    for known in known {
        if known.namespace == namespace {
            near.push(known.name.as_str());
        } else if known.name == name {
            other_namespaces.push(known.namespace.as_str());
        }
    }
    match (other_namespaces.as_slice(), closest_word(name.as_str(), &near)) {
        ([], Some(meant)) => format!("did you mean `{meant}`?"),
        ([], None) => otherwise.to_owned(),
        ([one], _) => format!("there is one in the namespace `{one}`: use that namespace"),
        (several, _) => {
            let shown = several.get(..several.len().min(NAMESPACES_MAX)).unwrap_or_default();
            format!(
                "there is one in each of the namespaces {}: use one of them",
                one_of(shown).replace(" or ", " and ")
            )
        }
    }
}

/// Limit of the namespaces listed.
const NAMESPACES_MAX: usize = 5;
