//! Remedies for a reference to an object that does not exist: the name that was meant, or its namespace.

use leno_model::Name;

use crate::suggest::{closest, one_of};

/// The name of an object that exists.
pub(super) struct Known<'a> {
    pub(super) namespace: &'a Name,
    pub(super) name: &'a Name,
}

/// The names of objects, of whichever kind.
macro_rules! known {
    ($names:expr) => {
        $names
            .map(|it| $crate::lint::suggestion::Known { namespace: &it.namespace, name: &it.name })
    };
}
pub(super) use known;

/// The remedy for a name without an object: the same name in another namespace, a similar name in the same one, or
/// `otherwise`.
pub(super) fn suggestion<'a>(
    (namespace, name): (&Name, &Name),
    known: impl Iterator<Item = Known<'a>>,
    otherwise: &str,
) -> String {
    let (mut elsewhere, mut near) = (Vec::new(), Vec::new());
    for known in known {
        if known.namespace == namespace {
            near.push(known.name.as_str());
        } else if known.name == name {
            elsewhere.push(known.namespace.as_str());
        }
    }
    match (elsewhere.as_slice(), closest(name.as_str(), &near)) {
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

/// The most namespaces that are listed.
const NAMESPACES_MAX: usize = 5;
