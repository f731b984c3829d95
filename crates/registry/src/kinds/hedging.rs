//! Reads the `leno.dev/v1alpha1` `Hedging` kind: a second request to another endpoint if the first one gets no response in
//! time.

use leno_model::{HedgeRule, Name, PolicyScope};

use super::service_policy::{read_duration_within, read_targets};
use crate::document::NodeValue;
use crate::field::Field;

/// Reads the `spec` of a `Hedging`.
pub(super) fn read(namespace: &Name, spec: &Field<'_>) -> Option<(PolicyScope, HedgeRule)> {
    let fields = spec.read_fields(&["targetRefs", "after", "methods"])?;
    let scope = read_targets(&fields, namespace);
    let after = fields
        .require("after")
        .and_then(|field| read_duration_within(field, HedgeRule::MIN_AFTER, HedgeRule::MAX_AFTER));
    let methods = fields.read_each("methods", HedgeRule::MAX_METHODS, |field| {
        let method = field.read_text()?;
        if !HedgeRule::is_valid_method(method) {
            let problem =
                format!("{} is not a method that can be sent twice", field.quoted_value());
            field.reject(problem, "use one such as GET or POST");
            return None;
        }
        Some(method.to_owned())
    });
    let mut unique_methods = methods.clone();
    unique_methods.sort_unstable();
    unique_methods.dedup();
    if let Some(field) = fields.find("methods") {
        if matches!(field.value(), NodeValue::List(list) if list.is_empty()) {
            field.reject("is empty", "name a method, or remove it");
        } else if unique_methods.len() < methods.len() {
            field.reject("names a method twice", "remove one of the two");
        }
    }
    Some((scope?, HedgeRule { after: after?, methods: unique_methods }))
}
