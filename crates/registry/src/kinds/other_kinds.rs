//! Rejects references to objects of other kinds than Service.

use crate::field::MapFields;

/// The kind that a reference without `kind` means in the Gateway API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DefaultKind {
    /// `Service`, as in `backendRefs`.
    Service,
    /// `Gateway`, as in `parentRefs`: a reference to a Service needs `kind`.
    Gateway,
}

/// Rejects a reference to an object of another kind than Service, by the Gateway API fields `group` and `kind`.
pub(super) fn reject_other_kinds(fields: &MapFields<'_>, default_kind: DefaultKind) {
    if let Some(group) = fields.find("group")
        && let Some(text) = group.read_text()
        && !matches!(text, "" | "core")
    {
        group.reject(format!("{} is not the group of Service", group.quoted_value()), "use \"\"");
    }
    match fields.find("kind") {
        Some(kind) => {
            kind.read_choice(&[("Service", ())]);
        }
        None if default_kind == DefaultKind::Gateway => fields.map_field().reject(
            "has no `kind`, which defaults to Gateway; routes are attached to services here",
            "add `group: \"\"` and `kind: Service`",
        ),
        None => {}
    }
}
