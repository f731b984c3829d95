//! Rejection of references to objects other than services.

use crate::field::MapFields;

/// Rejects references to anything but a service in the same namespace, by `group` and `kind` of the Gateway
/// API.
pub(super) fn reject_other_kinds(fields: &MapFields<'_>, group_required: bool) {
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
        None if group_required => fields.map_field().reject(
            "has no `kind`, which defaults to Gateway; routes are attached to services here",
            "add `group: \"\"` and `kind: Service`",
        ),
        None => {}
    }
}
