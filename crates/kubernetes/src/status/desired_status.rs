//! Merges the desired status of one object into its current status, without I/O.

use std::fmt;
use std::sync::Arc;

use kube::core::ApiResource;
use leno_registry::ServedKind;
use serde_json::{Map, Value, json};

use crate::gateway::{GatewayAddress, GatewayStatus, RouteParentStatus, supported_features};
use crate::well_known::GATEWAY_CONTROLLER;

/// The desired status and events of one object.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredStatus {
    pub(crate) target: StatusTarget,
    pub(crate) resource: Arc<ApiResource>,
    pub(crate) resource_version: String,
    /// The latest generation. The statuses of gateways, classes and routes may be about an earlier generation.
    pub(crate) generation: i64,
    /// The current status, reduced to the fields that control planes write.
    pub(crate) current_status: Value,
    pub(crate) content: StatusContent,
    /// The reason for rejection, if the object is rejected.
    pub(crate) rejection: Option<String>,
    /// The warnings about the object, such as unsupported fields, one per line; `None` without warnings.
    pub(crate) diagnostic: Option<String>,
    /// A description of the object that takes precedence, for kinds without a status.
    pub(crate) conflict: Option<String>,
    /// A description of the missing object to which the object refers, for kinds without a status.
    pub(crate) missing_reference: Option<String>,
}

/// The identity of an object with a status or events.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct StatusTarget {
    pub(crate) kind: &'static str,
    /// Empty for cluster-scoped kinds.
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// The content of the status.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum StatusContent {
    /// The status of a route for each of its parents.
    Parents(Vec<RouteParentStatus>),
    Conditions(Vec<StatusCondition>),
    Gateway(GatewayStatus),
    /// The conditions of a GatewayClass, with its generation.
    Class(i64, Vec<StatusCondition>),
    /// The status in OSM's form: in force, or the reason that the object is not in force.
    Current(Result<(), String>),
    /// The kind has no status.
    NoStatus,
}

/// One condition of a status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatusCondition {
    /// The type of the condition, such as `Accepted`.
    pub(crate) name: &'static str,
    /// `True`, `False` or `Unknown`.
    pub(crate) status: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl StatusCondition {
    /// Creates the `Programmed` condition from `Accepted`. `accepted_message` is the message for an accepted
    /// object.
    pub(crate) fn from_accepted(accepted: &Self, accepted_message: &str) -> Self {
        let (status, reason, message) = match accepted.status {
            "True" => ("True", "Programmed", accepted_message),
            _ => ("False", "Invalid", "this generation is not in force"),
        };
        Self { name: "Programmed", status, reason, message: message.to_owned() }
    }
}

/// The form of a kind's status: the fields that control planes write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusForm {
    /// `status.parents`, for routes.
    Parents,
    /// `status.conditions`, for the kinds of Leno.
    Conditions,
    /// Conditions, addresses and listeners, for Gateways.
    Gateway,
    /// Conditions and supported features, for GatewayClasses.
    Class,
    /// `status.currentStatus` and `status.reason`, for policies of OSM and FSM.
    Current,
    /// No status: the kind has none, or control planes do not write it.
    NoStatus,
}

impl StatusForm {
    pub(crate) fn for_kind(kind: ServedKind) -> Self {
        match kind.group {
            "gateway.networking.k8s.io" if kind.kind.ends_with("Route") => Self::Parents,
            "gateway.networking.k8s.io" if kind.kind == "Gateway" => Self::Gateway,
            "gateway.networking.k8s.io" if kind.kind == "GatewayClass" => Self::Class,
            "leno.dev" => Self::Conditions,
            group if group.starts_with("policy.") => Self::Current,
            _ => Self::NoStatus,
        }
    }

    /// Extracts the fields of a status that control planes read and write; `null` if they are absent.
    pub(crate) fn extract_current(self, status: Option<&Value>) -> Value {
        let status_field = |key: &str| status.and_then(|status| status.get(key)).cloned();
        match self {
            Self::Parents => status_field("parents").unwrap_or(Value::Null),
            Self::Conditions => status_field("conditions").unwrap_or(Value::Null),
            Self::Gateway => json!({
                "conditions": status_field("conditions"),
                "addresses": status_field("addresses"),
                "listeners": status_field("listeners"),
            }),
            Self::Class => json!({
                "conditions": status_field("conditions"),
                "supportedFeatures": status_field("supportedFeatures"),
            }),
            Self::Current => json!([status_field("currentStatus"), status_field("reason")]),
            Self::NoStatus => Value::Null,
        }
    }
}

impl DesiredStatus {
    /// Returns the status to write; `None` if it equals the current one. An unchanged condition keeps its
    /// transition time.
    pub(crate) fn changed_status(&self, now: &Value) -> Option<Value> {
        match &self.content {
            StatusContent::NoStatus => None,
            StatusContent::Conditions(conditions) => {
                let merged =
                    merge_conditions(conditions, self.generation, &self.current_status, now);
                (merged != self.current_status).then(|| json!({"conditions": merged}))
            }
            StatusContent::Gateway(content) => {
                let merged = self.gateway_status(content, now);
                (merged != self.current_status).then_some(merged)
            }
            StatusContent::Class(generation, conditions) => {
                let current_conditions =
                    self.current_status.get("conditions").unwrap_or(&Value::Null);
                let names = supported_features().iter().map(|name| json!({"name": name}));
                let merged = json!({
                    "conditions": merge_conditions(conditions, *generation, current_conditions, now),
                    "supportedFeatures": names.collect::<Vec<_>>(),
                });
                (merged != self.current_status).then_some(merged)
            }
            StatusContent::Current(outcome) => {
                let (current, reason) = match outcome {
                    Ok(()) => ("committed", "in force"),
                    Err(reason) => ("error", reason.as_str()),
                };
                // A running OSM may use another reason for an object in force.
                let is_current = match outcome {
                    Ok(()) => self.current_status.get(0).is_some_and(|status| status == current),
                    Err(_) => self.current_status == json!([current, reason]),
                };
                (!is_current).then(|| json!({"currentStatus": current, "reason": reason}))
            }
            StatusContent::Parents(parents) => {
                let merged = self.parent_statuses(parents, now);
                let is_unset = merged.is_empty() && self.current_status.is_null();
                let merged = Value::Array(merged);
                (!is_unset && merged != self.current_status).then(|| json!({"parents": merged}))
            }
        }
    }

    fn gateway_status(&self, content: &GatewayStatus, now: &Value) -> Value {
        let status_field = |key: &str| self.current_status.get(key).unwrap_or(&Value::Null);
        let current_listeners =
            status_field("listeners").as_array().map(Vec::as_slice).unwrap_or_default();
        let listeners = content.listeners.iter().map(|listener| {
            let has_name = |listener_status: &&Value| {
                listener_status.get("name").is_some_and(|name| *name == listener.name)
            };
            let current_listener = current_listeners.iter().find(has_name);
            let current_conditions = current_listener.and_then(|status| status.get("conditions"));
            let current_conditions = current_conditions.unwrap_or(&Value::Null);
            json!({
                "name": listener.name,
                "supportedKinds": listener.supported_kinds(),
                "attachedRoutes": listener.attached_route_count,
                "conditions": merge_conditions(&listener.conditions, content.generation, current_conditions, now),
            })
        });
        let address =
            |address: &GatewayAddress| json!({"type": address.kind, "value": address.value});
        json!({
            "conditions": merge_conditions(&content.conditions, content.generation, status_field("conditions"), now),
            "addresses": content.addresses.iter().map(address).collect::<Vec<_>>(),
            "listeners": listeners.collect::<Vec<_>>(),
        })
    }

    /// Returns the entries of other controllers unchanged, and those of this mesh. Existing entries keep their order, and
    /// new ones follow. Entries above the limit of the schema are dropped.
    fn parent_statuses(&self, own_parents: &[RouteParentStatus], now: &Value) -> Vec<Value> {
        let current_entries = self.current_status.as_array().map(Vec::as_slice).unwrap_or_default();
        let mut entries: Vec<Value> =
            current_entries.iter().filter(|entry| !is_own_entry(entry)).cloned().collect();
        for RouteParentStatus { parent, controller, generation, conditions } in own_parents {
            let is_same_parent_status = |entry: &&Value| {
                entry.get("parentRef") == Some(parent)
                    && entry.get("controllerName").is_some_and(|name| name == controller)
            };
            let current_entry = current_entries.iter().find(is_same_parent_status);
            let current_conditions =
                current_entry.and_then(|entry| entry.get("conditions")).unwrap_or(&Value::Null);
            entries.push(json!({
                "parentRef": parent,
                "controllerName": controller,
                "conditions": merge_conditions(conditions, *generation, current_conditions, now),
            }));
        }
        // Keep the current order, so that order alone causes no write.
        let current_index =
            |entry: &Value| current_entries.iter().position(|other| is_same_parent(other, entry));
        entries.sort_by_key(|entry| current_index(entry).unwrap_or(usize::MAX));
        entries.truncate(MAX_PARENTS);
        entries
    }

    /// Returns true if another desired status repeats this one for the same generation, for a form that allows
    /// one writer only: two writers that disagree would overwrite each other forever.
    pub(crate) fn is_repeated_by(&self, other: &Self) -> bool {
        matches!(self.content, StatusContent::Current(_))
            && (&self.content, self.generation) == (&other.content, other.generation)
    }

    /// Returns the reasons of all events, each with its note; `None` if the event does not apply.
    pub(crate) fn event_notes(&self) -> [(&'static str, Option<&str>); 4] {
        [
            ("Rejected", self.rejection.as_deref()),
            ("UnsupportedField", self.diagnostic.as_deref()),
            ("Conflicted", self.conflict.as_deref()),
            ("RefNotFound", self.missing_reference.as_deref()),
        ]
    }

    /// Returns true if a status or event has to be written.
    pub(crate) fn needs_write(&self) -> bool {
        self.event_notes().iter().any(|(_, note)| note.is_some())
            || self.changed_status(&Value::Null).is_some()
    }
}

impl fmt::Display for StatusTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.is_empty() {
            true => write!(f, "{} {}", self.kind, self.name),
            false => write!(f, "{} {}/{}", self.kind, self.namespace, self.name),
        }
    }
}

/// Merges Leno's conditions into the current ones. Conditions of other types stay unchanged, unless the limit of the
/// schema is exceeded.
fn merge_conditions(
    own_conditions: &[StatusCondition],
    generation: i64,
    current_conditions: &Value,
    now: &Value,
) -> Value {
    let current_conditions = current_conditions.as_array().map(Vec::as_slice).unwrap_or_default();
    let has_type = |entry: &Value, condition: &StatusCondition| {
        entry.get("type").is_some_and(|condition_type| condition_type == condition.name)
    };
    let mut entries: Vec<Value> = current_conditions
        .iter()
        .filter(|entry| !own_conditions.iter().any(|condition| has_type(entry, condition)))
        .take(MAX_CONDITIONS.saturating_sub(own_conditions.len()))
        .cloned()
        .collect();
    for condition in own_conditions {
        let current = current_conditions.iter().find(|entry| has_type(entry, condition));
        let unchanged = current
            .filter(|current| current.get("status").is_some_and(|value| value == condition.status));
        let transition_time =
            unchanged.and_then(|current| current.get("lastTransitionTime")).unwrap_or(now);
        let mut entry = Map::new();
        entry.insert("type".to_owned(), json!(condition.name));
        entry.insert("status".to_owned(), json!(condition.status));
        entry.insert("reason".to_owned(), json!(condition.reason));
        entry.insert("message".to_owned(), json!(condition.message));
        entry.insert("observedGeneration".to_owned(), json!(generation));
        entry.insert("lastTransitionTime".to_owned(), transition_time.clone());
        entries.push(Value::Object(entry));
    }
    // Keep the current order, so that order alone causes no write.
    let current_index = |entry: &Value| {
        current_conditions.iter().position(|other| other.get("type") == entry.get("type"))
    };
    entries.sort_by_key(|entry| current_index(entry).unwrap_or(usize::MAX));
    Value::Array(entries)
}

/// Returns true if one of Leno's controllers wrote an entry of `status.parents`.
pub(crate) fn is_own_entry(entry: &Value) -> bool {
    let name = entry.get("controllerName");
    name.is_some_and(|name| name == CONTROLLER || name == GATEWAY_CONTROLLER)
}

fn is_same_parent(left: &Value, right: &Value) -> bool {
    ["controllerName", "parentRef"].iter().all(|key| left.get(key) == right.get(key))
}

/// The controller name in the statuses of routes.
pub(crate) const CONTROLLER: &str = "leno.dev/mesh-controller";
/// The maximum number of conditions that every schema allows.
const MAX_CONDITIONS: usize = 8;
/// The maximum number of entries that the schema of routes allows.
const MAX_PARENTS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn desired_with_status(current_status: Value, content: StatusContent) -> DesiredStatus {
        DesiredStatus {
            target: StatusTarget {
                kind: "HTTPRoute",
                namespace: "shop".to_owned(),
                name: "web".to_owned(),
                uid: "u".to_owned(),
            },
            resource: Arc::new(ApiResource {
                group: "gateway.networking.k8s.io".to_owned(),
                version: "v1".to_owned(),
                api_version: "gateway.networking.k8s.io/v1".to_owned(),
                kind: "HTTPRoute".to_owned(),
                plural: "httproutes".to_owned(),
            }),
            resource_version: "7".to_owned(),
            generation: 2,
            current_status,
            content,
            rejection: None,
            diagnostic: None,
            conflict: None,
            missing_reference: None,
        }
    }

    fn accepted_condition(status: &'static str) -> StatusCondition {
        StatusCondition { name: "Accepted", status, reason: "Accepted", message: String::new() }
    }

    fn condition_entry(status: &str, generation: i64, since: &str) -> Value {
        json!({
            "type": "Accepted", "status": status, "reason": "Accepted", "message": "",
            "observedGeneration": generation, "lastTransitionTime": since,
        })
    }

    #[test]
    fn a_condition_keeps_its_time_while_its_status_stays() {
        let now = json!("now");
        let content = || StatusContent::Conditions(vec![accepted_condition("True")]);
        for (current_status, expected) in [
            (json!(null), Some(condition_entry("True", 2, "now"))),
            (json!([condition_entry("True", 2, "then")]), None),
            (json!([condition_entry("True", 1, "then")]), Some(condition_entry("True", 2, "then"))),
            (json!([condition_entry("False", 2, "then")]), Some(condition_entry("True", 2, "now"))),
        ] {
            let expected = expected.map(|condition| json!({"conditions": [condition]}));
            assert_eq!(
                desired_with_status(current_status, content()).changed_status(&now),
                expected
            );
        }
    }

    #[test]
    fn a_committed_status_of_another_mesh_is_kept() {
        let osm = json!(["committed", "successfully committed by the system"]);
        assert!(!desired_with_status(osm.clone(), StatusContent::Current(Ok(()))).needs_write());
        let rejected =
            desired_with_status(osm, StatusContent::Current(Err("no such service".to_owned())));
        let expected = json!({"currentStatus": "error", "reason": "no such service"});
        assert_eq!(rejected.changed_status(&Value::Null), Some(expected));
        // The same status is not written again, even if the current one differs; for another generation it is.
        let repeated = desired_with_status(json!(["pending", null]), rejected.content.clone());
        assert!(rejected.is_repeated_by(&repeated));
        let newer = DesiredStatus { generation: repeated.generation + 1, ..repeated };
        assert!(!rejected.is_repeated_by(&newer));
    }

    #[test]
    fn conditions_of_other_controllers_are_kept_and_cause_no_write() {
        let now = json!("now");
        let foreign_entry =
            json!({"type": "Audited", "status": "True", "lastTransitionTime": "then"});
        for (current_status, expected) in [
            (json!([foreign_entry, condition_entry("True", 2, "then")]), None),
            (json!([condition_entry("True", 2, "then"), foreign_entry]), None),
            (
                json!([foreign_entry]),
                Some(json!([foreign_entry, condition_entry("True", 2, "now")])),
            ),
            (
                json!([condition_entry("True", 1, "then"), foreign_entry]),
                Some(json!([condition_entry("True", 2, "then"), foreign_entry])),
            ),
        ] {
            let expected = expected.map(|conditions| json!({"conditions": conditions}));
            let content = StatusContent::Conditions(vec![accepted_condition("True")]);
            assert_eq!(desired_with_status(current_status, content).changed_status(&now), expected);
        }
    }

    #[test]
    fn a_gateway_status_has_the_generation_that_was_resolved() {
        let content = GatewayStatus {
            generation: 1,
            conditions: vec![accepted_condition("True")],
            listeners: Vec::new(),
            addresses: Vec::new(),
        };
        let status = desired_with_status(json!({}), StatusContent::Gateway(content))
            .changed_status(&json!("now"))
            .unwrap();
        assert_eq!(status["conditions"], json!([condition_entry("True", 1, "now")]));
    }

    #[test]
    fn parent_statuses_of_other_controllers_are_kept() {
        let service = json!({"group": "", "kind": "Service", "name": "web"});
        let foreign_entry =
            json!({"parentRef": {"name": "edge"}, "controllerName": "x/y", "conditions": []});
        let own_entry = |since: &str| {
            json!({"parentRef": service, "controllerName": CONTROLLER,
                   "conditions": [condition_entry("True", 2, since)]})
        };
        let outdated =
            json!({"parentRef": {"name": "old"}, "controllerName": CONTROLLER, "conditions": []});
        let content = || {
            StatusContent::Parents(vec![RouteParentStatus {
                parent: service.clone(),
                controller: CONTROLLER,
                generation: 2,
                conditions: vec![accepted_condition("True")],
            }])
        };
        for (current_status, content, expected) in [
            (json!(null), content(), Some(json!([own_entry("now")]))),
            (json!([foreign_entry]), content(), Some(json!([foreign_entry, own_entry("now")]))),
            (json!([own_entry("then"), foreign_entry]), content(), None),
            (
                json!([outdated, own_entry("then"), foreign_entry]),
                content(),
                Some(json!([own_entry("then"), foreign_entry])),
            ),
            (
                json!([foreign_entry, own_entry("then")]),
                StatusContent::Parents(vec![]),
                Some(json!([foreign_entry])),
            ),
            (json!(null), StatusContent::Parents(vec![]), None),
        ] {
            let expected = expected.map(|parents| json!({"parents": parents}));
            assert_eq!(
                desired_with_status(current_status.clone(), content).changed_status(&json!("now")),
                expected,
                "{current_status}"
            );
        }
    }

    #[test]
    fn policies_of_osm_have_a_status_in_the_form_of_osm() {
        for (current_status, outcome, expected) in [
            (json!([null, null]), Ok(()), Some(json!(["committed", "in force"]))),
            (json!(["committed", "in force"]), Ok(()), None),
            (json!(["committed", "in force"]), Err("no".to_owned()), Some(json!(["error", "no"]))),
        ] {
            let status = desired_with_status(current_status, StatusContent::Current(outcome))
                .changed_status(&Value::Null);
            let written = status.map(|patch| json!([patch["currentStatus"], patch["reason"]]));
            assert_eq!(written, expected);
        }
    }
}
