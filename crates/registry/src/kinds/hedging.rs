//! Reader of the `leno.dev/v1alpha1` `Hedging` kind.

use leno_model::{HedgeRule, Name, PolicyScope};

use super::service_policy::{targets, time};
use crate::document::Value;
use crate::field::Field;

pub(super) fn read(namespace: &Name, spec: &Field<'_>) -> Option<(PolicyScope, HedgeRule)> {
    let fields = spec.fields(&["targetRefs", "after", "methods"])?;
    let scope = targets(&fields, namespace);
    let after = fields.require("after");
    let after = after.and_then(|it| time(it, HedgeRule::AFTER_MIN, HedgeRule::AFTER_MAX));
    let methods = fields.each("methods", HedgeRule::METHODS_MAX, |field| {
        let method = field.text()?;
        if !HedgeRule::is_method(method) {
            let problem = format!("{} is not a method that can be sent twice", field.shown());
            field.refuse(problem, "use one such as GET or POST");
            return None;
        }
        Some(method.to_owned())
    });
    let mut once = methods.clone();
    once.sort_unstable();
    once.dedup();
    if let Some(field) = fields.find("methods") {
        if matches!(field.value(), Value::List(list) if list.is_empty()) {
            field.refuse("is empty", "name a method, or remove it");
        } else if once.len() < methods.len() {
            field.refuse("names a method twice", "remove one of the two");
        }
    }
    Some((scope?, HedgeRule { after: after?, methods: once }))
}
