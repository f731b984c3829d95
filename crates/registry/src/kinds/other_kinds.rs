//! Rejects references to objects of other kinds than Service.

use crate::field::MapFields;

/// Rejects a reference to an object of another kind than Service, by the Gateway API fields `group` and `kind`. With
/// `kind_required`, a reference without `kind` is rejected as well.
pub(super) fn reject_other_kinds(fields: &MapFields<'_>, kind_required: bool) {
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
        None if kind_required => fields.map_field().reject(
            "has no `kind`, which defaults to Gateway; routes are attached to services here",
            "add `group: \"\"` and `kind: Service`",
        ),
        None => {}
    }
}
