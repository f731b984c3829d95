//! Statuses after an uninstallation: none claims an effect.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use leno_registry::served_kinds;
use serde_json::{Value, json};

use super::{InstallError, Step};
use crate::api::{NamespaceName, ObjectApi, ObjectName};
use crate::gateway::EDGE_KINDS;
use crate::source::{Found, find};
use crate::status::{Form, is_ours};
use crate::words::{CONTROL, GATEWAY_CONTROLLER};

/// Takes back the claims in the statuses of all objects that the mesh read: that they are in force, and that gateways
/// have addresses. To be called when no control plane is there that writes them again.
///
/// # Errors
/// When the API server rejects a call; statuses before are taken back.
pub async fn retract_statuses(
    client: &Client,
    mut told: impl FnMut(Step),
) -> Result<(), InstallError> {
    let mut classes = BTreeSet::new();
    let now = serde_json::to_value(Time(Timestamp::now())).unwrap_or_default();
    // The classes of gateways come first: they say which gateways are ours.
    for kind in EDGE_KINDS.into_iter().chain(served_kinds()) {
        let form = Form::of(kind);
        if form == Form::Nothing {
            continue;
        }
        let failed = |error| InstallError::of("list", kind.kind, error);
        let Found::Served(found) = find(client, kind).await.map_err(failed)? else { continue };
        let (api, resource) = *found;
        let listed = match api.list(&ListParams::default()).await {
            Ok(listed) => listed,
            // The kind itself is being removed.
            Err(error) if error.code() == Some(404) => continue,
            Err(error) => return Err(failed(error)),
        };
        for object in listed {
            if form == Form::Class && object.data.pointer("/spec/controllerName") == ours().as_ref()
            {
                classes.insert(object.name_any());
            }
            let Some(status) = retracted(form, &object, &classes, &now) else { continue };
            let shown = match object.namespace() {
                Some(namespace) => format!("{} {namespace}/{}", kind.kind, object.name_any()),
                None => format!("{} {}", kind.kind, object.name_any()),
            };
            let failed = |error| InstallError::of("patch", &shown, error);
            let namespace = object.namespace();
            let namespace = namespace.as_deref().map(NamespaceName::new).transpose();
            let namespace = namespace.map_err(|error| failed(error.into()))?;
            let name = ObjectName::new(&object.name_any()).map_err(|error| failed(error.into()))?;
            let api = ObjectApi::dynamic(client.clone(), namespace.as_ref(), &resource);
            let field_manager = Some(CONTROL.to_owned());
            let parameters = PatchParams { field_manager, ..PatchParams::default() };
            let patch = Patch::Merge(json!({
                "metadata": {"resourceVersion": object.resource_version()}, "status": status,
            }));
            match api.map_err(failed)?.patch_status(&name, &parameters, &patch).await {
                Ok(_) => told(Step { object: shown, done: "no longer claims an effect" }),
                // It has gone, or another writer was faster.
                Err(error) if matches!(error.code(), Some(404 | 409)) => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
    Ok(())
}

/// The part of a status to write, if the one of this object claims an effect.
fn retracted(
    form: Form,
    object: &DynamicObject,
    classes: &BTreeSet<String>,
    now: &Value,
) -> Option<Value> {
    let before = object.data.get("status")?;
    let text = |path: &str| object.data.pointer(path).and_then(Value::as_str);
    let conditions = |status: &Value| unknown(status.get("conditions"), now);
    let mut after = before.clone();
    match form {
        Form::Parents => {
            let others = before.get("parents").and_then(Value::as_array)?.iter();
            let others: Vec<&Value> = others.filter(|entry| !is_ours(entry)).collect();
            after["parents"] = json!(others);
        }
        Form::Class if classes.contains(&object.name_any()) => {
            after["conditions"] = conditions(before);
        }
        Form::Gateway if text("/spec/gatewayClassName").is_some_and(|it| classes.contains(it)) => {
            after["conditions"] = conditions(before);
            after["addresses"] = json!([]);
            let listeners = after.get_mut("listeners").and_then(Value::as_array_mut);
            for listener in listeners.into_iter().flatten() {
                let conditions = conditions(listener);
                listener["conditions"] = conditions;
            }
        }
        Form::Conditions => after["conditions"] = conditions(before),
        // OSM, where it runs, says it in other words.
        Form::Current if text("/status/reason") == Some("in force") => {
            after = json!({"currentStatus": "pending", "reason": MESSAGE});
        }
        Form::Class | Form::Gateway | Form::Current | Form::Nothing => {}
    }
    (after != *before).then_some(after)
}

/// Our conditions, each of them unknown; conditions of others stay.
fn unknown(conditions: Option<&Value>, now: &Value) -> Value {
    let mut all = conditions.and_then(Value::as_array).cloned().unwrap_or_default();
    for condition in &mut all {
        let is_ours = OURS.iter().any(|word| condition["type"] == *word);
        if is_ours && condition["status"] != "Unknown" {
            condition["status"] = json!("Unknown");
            condition["reason"] = json!("Pending");
            condition["message"] = json!(MESSAGE);
            condition["lastTransitionTime"] = now.clone();
        }
    }
    Value::Array(all)
}

fn ours() -> Option<Value> {
    Some(json!(GATEWAY_CONTROLLER))
}

/// The types of the conditions that control planes write.
const OURS: &[&str] = &["Accepted", "ResolvedRefs", "Programmed", "Enforced", "Conflicted"];
const MESSAGE: &str = "no control plane of the mesh is installed";

#[cfg(test)]
mod tests {
    use super::*;

    fn object(mut value: Value) -> DynamicObject {
        value["metadata"] = json!({"name": "it", "namespace": "shop"});
        serde_json::from_value(value).unwrap()
    }

    fn condition(word: &str, status: &str) -> Value {
        json!({"type": word, "status": status, "reason": word, "message": "in force", "lastTransitionTime": "before"})
    }

    fn now_unknown(word: &str) -> Value {
        json!({"type": word, "status": "Unknown", "reason": "Pending", "message": MESSAGE, "lastTransitionTime": "now"})
    }

    #[test]
    fn no_status_claims_an_effect_afterwards() {
        let classes = BTreeSet::from(["leno".to_owned()]);
        let check = |form, spec: Value, status: Value, expected: Option<Value>| {
            let object = object(json!({"spec": spec, "status": status}));
            assert_eq!(retracted(form, &object, &classes, &json!("now")), expected, "{form:?}");
            // Nothing is left to take back.
            let Some(after) = expected else { return };
            let mut object = object;
            object.data["status"] = after;
            assert_eq!(retracted(form, &object, &classes, &json!("later")), None, "{form:?}");
        };
        let (accepted, foreign) = (condition("Accepted", "True"), condition("Theirs", "True"));
        check(
            Form::Conditions,
            json!({}),
            json!({"conditions": [accepted, foreign]}),
            Some(json!({"conditions": [now_unknown("Accepted"), foreign]})),
        );
        let status = json!({
            "addresses": [{"type": "IPAddress", "value": "10.0.0.1"}],
            "conditions": [condition("Programmed", "True")],
            "listeners": [{"name": "a", "conditions": [condition("Programmed", "True")]}],
        });
        let after = json!({
            "addresses": [],
            "conditions": [now_unknown("Programmed")],
            "listeners": [{"name": "a", "conditions": [now_unknown("Programmed")]}],
        });
        check(Form::Gateway, json!({"gatewayClassName": "leno"}), status.clone(), Some(after));
        check(Form::Gateway, json!({"gatewayClassName": "other"}), status, None);
        let entry = |name: &str| json!({"controllerName": name, "parentRef": {"name": "web"}});
        let both =
            json!({"parents": [entry("leno.dev/mesh-controller"), entry("other.example/c")]});
        let theirs = json!({"parents": [entry("other.example/c")]});
        check(Form::Parents, json!({}), both, Some(theirs));
        let current = |word: &str, reason: &str| json!({"currentStatus": word, "reason": reason});
        check(
            Form::Current,
            json!({}),
            current("committed", "in force"),
            Some(current("pending", MESSAGE)),
        );
        check(Form::Current, json!({}), current("committed", "by OSM"), None);
        check(Form::Current, json!({}), current("error", "endpoints not found"), None);
    }
}
