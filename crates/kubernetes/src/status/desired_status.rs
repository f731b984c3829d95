//! Desired status of one object, and the patch that applies it. Pure.

use std::fmt;
use std::sync::Arc;

use kube::core::ApiResource;
use leno_registry::ServedKind;
use serde_json::{Map, Value, json};

use crate::gateway::{GatewayAddress, GatewayStatus, RouteParentStatus, supported_features};
use crate::words::GATEWAY_CONTROLLER;

/// The desired status and events of one object.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredStatus {
    pub(crate) target: StatusTarget,
    pub(crate) resource: Arc<ApiResource>,
    pub(crate) resource_version: String,
    /// The latest generation. The statuses of gateways, classes and routes may still be about an earlier one.
    pub(crate) generation: i64,
    /// The current status, reduced to the part that is written.
    pub(crate) current_status: Value,
    pub(crate) content: StatusContent,
    /// The reason for rejection, if the object is rejected.
    pub(crate) refusal: Option<String>,
    /// A warning about unsupported fields, if any.
    pub(crate) diagnostic: Option<String>,
    /// The object that takes precedence, for kinds with no place for it in the status.
    pub(crate) conflict: Option<String>,
    /// A missing object that it refers to, for kinds without a status.
    pub(crate) dangling: Option<String>,
}

/// The identity of the object.
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
    /// The statuses of a route, for each parent, with the controller's name.
    Parents(Vec<RouteParentStatus>),
    Conditions(Vec<StatusCondition>),
    Gateway(GatewayStatus),
    /// The conditions of a GatewayClass, with its generation.
    Class(i64, Vec<StatusCondition>),
    /// The status in OSM's form: in force, or an error.
    Current(Result<(), String>),
    /// The kind has no status.
    Nothing,
}

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatusCondition {
    pub(crate) word: &'static str,
    /// `True`, `False` or `Unknown`.
    pub(crate) status: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl StatusCondition {
    /// Creates the `Programmed` condition from `Accepted`. `reported` is the message for an accepted object.
    pub(crate) fn from_accepted(accepted: &Self, reported: &str) -> Self {
        let (status, reason, message) = match accepted.status {
            "True" => ("True", "Programmed", reported),
            _ => ("False", "Invalid", "this generation is not in force"),
        };
        Self { word: "Programmed", status, reason, message: message.to_owned() }
    }
}

/// The form of a kind's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusForm {
    Parents,
    Conditions,
    Gateway,
    Class,
    Current,
    Nothing,
}

impl StatusForm {
    pub(crate) fn for_kind(kind: ServedKind) -> Self {
        match kind.group {
            "gateway.networking.k8s.io" if kind.kind.ends_with("Route") => Self::Parents,
            "gateway.networking.k8s.io" if kind.kind == "Gateway" => Self::Gateway,
            "gateway.networking.k8s.io" if kind.kind == "GatewayClass" => Self::Class,
            "leno.dev" => Self::Conditions,
            group if group.starts_with("policy.") => Self::Current,
            _ => Self::Nothing,
        }
    }

    /// Extracts the part of a status that is read and written.
    pub(crate) fn extract_current(self, status: Option<&Value>) -> Value {
        let part = |key: &str| status.and_then(|status| status.get(key)).cloned();
        match self {
            Self::Parents => part("parents").unwrap_or(Value::Null),
            Self::Conditions => part("conditions").unwrap_or(Value::Null),
            Self::Gateway => json!({
                "conditions": part("conditions"),
                "addresses": part("addresses"),
                "listeners": part("listeners"),
            }),
            Self::Class => json!({
                "conditions": part("conditions"),
                "supportedFeatures": part("supportedFeatures"),
            }),
            Self::Current => json!([part("currentStatus"), part("reason")]),
            Self::Nothing => Value::Null,
        }
    }
}

impl DesiredStatus {
    /// Returns the status to write, if it differs from the current one. An unchanged condition keeps its
    /// transition time.
    pub(crate) fn changed_status(&self, now: &Value) -> Option<Value> {
        match &self.content {
            StatusContent::Nothing => None,
            StatusContent::Conditions(conditions) => {
                let written =
                    merge_conditions(conditions, self.generation, &self.current_status, now);
                (written != self.current_status).then(|| json!({"conditions": written}))
            }
            StatusContent::Gateway(content) => {
                let written = self.gateway_status(content, now);
                (written != self.current_status).then_some(written)
            }
            StatusContent::Class(generation, conditions) => {
                let before = self.current_status.get("conditions").unwrap_or(&Value::Null);
                let names = supported_features().iter().map(|name| json!({"name": name}));
                let written = json!({
                    "conditions": merge_conditions(conditions, *generation, before, now),
                    "supportedFeatures": names.collect::<Vec<_>>(),
                });
                (written != self.current_status).then_some(written)
            }
            StatusContent::Current(outcome) => {
                let (current, reason) = match outcome {
                    Ok(()) => ("committed", "in force"),
                    Err(cause) => ("error", cause.as_str()),
                };
                // A running OSM may use another reason for an object in force.
                let stands = match outcome {
                    Ok(()) => self.current_status.get(0).is_some_and(|word| word == current),
                    Err(_) => self.current_status == json!([current, reason]),
                };
                (!stands).then(|| json!({"currentStatus": current, "reason": reason}))
            }
            StatusContent::Parents(parents) => {
                let written = self.parent_statuses(parents, now);
                let nothing = written.is_empty() && self.current_status.is_null();
                let written = Value::Array(written);
                (!nothing && written != self.current_status).then(|| json!({"parents": written}))
            }
        }
    }

    fn gateway_status(&self, content: &GatewayStatus, now: &Value) -> Value {
        let part = |key: &str| self.current_status.get(key).unwrap_or(&Value::Null);
        let before = part("listeners").as_array().map(Vec::as_slice).unwrap_or_default();
        let listeners = content.listeners.iter().map(|listener| {
            let is_it = |it: &&Value| it.get("name").is_some_and(|name| *name == listener.name);
            let before = before.iter().find(is_it).and_then(|it| it.get("conditions"));
            let before = before.unwrap_or(&Value::Null);
            json!({
                "name": listener.name,
                "supportedKinds": listener.supported_kinds(),
                "attachedRoutes": listener.attached,
                "conditions": merge_conditions(&listener.conditions, content.generation, before, now),
            })
        });
        let address = |it: &GatewayAddress| json!({"type": it.kind, "value": it.value});
        json!({
            "conditions": merge_conditions(&content.conditions, content.generation, part("conditions"), now),
            "addresses": content.addresses.iter().map(address).collect::<Vec<_>>(),
            "listeners": listeners.collect::<Vec<_>>(),
        })
    }

    /// Returns the entries of other controllers unchanged, followed by ours.
    fn parent_statuses(&self, ours: &[RouteParentStatus], now: &Value) -> Vec<Value> {
        let current_status = self.current_status.as_array().map(Vec::as_slice).unwrap_or_default();
        let is_ours = |entry: &&Value| is_ours(entry);
        let mut all: Vec<Value> =
            current_status.iter().filter(|entry| !is_ours(entry)).cloned().collect();
        for RouteParentStatus { parent, controller, generation, conditions } in ours {
            let is_it = |it: &&Value| {
                it.get("parentRef") == Some(parent)
                    && it.get("controllerName").is_some_and(|name| name == controller)
            };
            let before = current_status.iter().find(is_it);
            let before = before.and_then(|entry| entry.get("conditions")).unwrap_or(&Value::Null);
            all.push(json!({
                "parentRef": parent,
                "controllerName": controller,
                "conditions": merge_conditions(conditions, *generation, before, now),
            }));
        }
        // Keep the current order, so that order alone causes no write.
        let place = |entry: &Value| current_status.iter().position(|it| is_same_parent(it, entry));
        all.sort_by_key(|entry| place(entry).unwrap_or(usize::MAX));
        all.truncate(PARENTS_MAX);
        all
    }

    /// Returns true if another statement repeats this one for the same generation, for a form that allows one
    /// writer only: two writers that disagree would overwrite each other forever.
    pub(crate) fn is_repeated_by(&self, other: &Self) -> bool {
        matches!(self.content, StatusContent::Current(_))
            && (&self.content, self.generation) == (&other.content, other.generation)
    }

    /// Returns the notes of events, each with its reason.
    pub(crate) fn event_notes(&self) -> [(&'static str, Option<&str>); 4] {
        [
            ("Rejected", self.refusal.as_deref()),
            ("UnsupportedField", self.diagnostic.as_deref()),
            ("Conflicted", self.conflict.as_deref()),
            ("RefNotFound", self.dangling.as_deref()),
        ]
    }

    /// Returns true if a status or event has to be written.
    pub(crate) fn is_due(&self) -> bool {
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

/// Merges our conditions into the current ones. Conditions of other types stay unchanged.
fn merge_conditions(
    ours: &[StatusCondition],
    generation: i64,
    before: &Value,
    now: &Value,
) -> Value {
    let before = before.as_array().map(Vec::as_slice).unwrap_or_default();
    let is_of = |entry: &Value, condition: &StatusCondition| {
        entry.get("type").is_some_and(|word| word == condition.word)
    };
    let mut all: Vec<Value> = before
        .iter()
        .filter(|entry| !ours.iter().any(|condition| is_of(entry, condition)))
        .take(CONDITIONS_MAX.saturating_sub(ours.len()))
        .cloned()
        .collect();
    for condition in ours {
        let known = before.iter().find(|entry| is_of(entry, condition));
        let same = known.filter(|it| it.get("status").is_some_and(|it| it == condition.status));
        let since = same.and_then(|it| it.get("lastTransitionTime")).unwrap_or(now);
        let mut entry = Map::new();
        entry.insert("type".to_owned(), json!(condition.word));
        entry.insert("status".to_owned(), json!(condition.status));
        entry.insert("reason".to_owned(), json!(condition.reason));
        entry.insert("message".to_owned(), json!(condition.message));
        entry.insert("observedGeneration".to_owned(), json!(generation));
        entry.insert("lastTransitionTime".to_owned(), since.clone());
        all.push(Value::Object(entry));
    }
    // Keep the current order, so that order alone causes no write.
    let place = |entry: &Value| before.iter().position(|it| it.get("type") == entry.get("type"));
    all.sort_by_key(|entry| place(entry).unwrap_or(usize::MAX));
    Value::Array(all)
}

/// Returns true if one of our controllers wrote an entry of `status.parents`.
pub(crate) fn is_ours(entry: &Value) -> bool {
    let name = entry.get("controllerName");
    name.is_some_and(|name| name == CONTROLLER || name == GATEWAY_CONTROLLER)
}

fn is_same_parent(one: &Value, other: &Value) -> bool {
    ["controllerName", "parentRef"].iter().all(|key| one.get(key) == other.get(key))
}

/// The controller name in the statuses of routes.
pub(crate) const CONTROLLER: &str = "leno.dev/mesh-controller";
/// The maximum number of conditions that every schema allows.
const CONDITIONS_MAX: usize = 8;
/// The maximum number of entries that the schema of routes allows.
const PARENTS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn statement_with_status(current_status: Value, content: StatusContent) -> DesiredStatus {
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
            refusal: None,
            diagnostic: None,
            conflict: None,
            dangling: None,
        }
    }

    fn accepted_condition(status: &'static str) -> StatusCondition {
        StatusCondition { word: "Accepted", status, reason: "Accepted", message: String::new() }
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
                statement_with_status(current_status, content()).changed_status(&now),
                expected
            );
        }
    }

    #[test]
    fn what_another_mesh_says_in_its_own_words_stays() {
        let osm = json!(["committed", "successfully committed by the system"]);
        assert!(!statement_with_status(osm.clone(), StatusContent::Current(Ok(()))).is_due());
        let rejected =
            statement_with_status(osm, StatusContent::Current(Err("no such service".to_owned())));
        let expected = json!({"currentStatus": "error", "reason": "no such service"});
        assert_eq!(rejected.changed_status(&Value::Null), Some(expected));
        // The same status is not written again, even if the current one differs; for another generation it is.
        let again = statement_with_status(json!(["pending", null]), rejected.content.clone());
        assert!(rejected.is_repeated_by(&again));
        let newer = DesiredStatus { generation: again.generation + 1, ..again };
        assert!(!rejected.is_repeated_by(&newer));
    }

    #[test]
    fn conditions_of_others_stay_and_are_no_difference() {
        let now = json!("now");
        let theirs = json!({"type": "Audited", "status": "True", "lastTransitionTime": "then"});
        for (current_status, expected) in [
            (json!([theirs, condition_entry("True", 2, "then")]), None),
            (json!([condition_entry("True", 2, "then"), theirs]), None),
            (json!([theirs]), Some(json!([theirs, condition_entry("True", 2, "now")]))),
            (
                json!([condition_entry("True", 1, "then"), theirs]),
                Some(json!([condition_entry("True", 2, "then"), theirs])),
            ),
        ] {
            let expected = expected.map(|conditions| json!({"conditions": conditions}));
            let content = StatusContent::Conditions(vec![accepted_condition("True")]);
            assert_eq!(
                statement_with_status(current_status, content).changed_status(&now),
                expected
            );
        }
    }

    #[test]
    fn a_gateway_is_said_to_be_of_the_version_that_was_looked_at() {
        let content = GatewayStatus {
            generation: 1,
            conditions: vec![accepted_condition("True")],
            listeners: Vec::new(),
            addresses: Vec::new(),
        };
        let status = statement_with_status(json!({}), StatusContent::Gateway(content))
            .changed_status(&json!("now"))
            .unwrap();
        assert_eq!(status["conditions"], json!([condition_entry("True", 1, "now")]));
    }

    #[test]
    fn what_others_say_of_parents_stays() {
        let service = json!({"group": "", "kind": "Service", "name": "web"});
        let theirs =
            json!({"parentRef": {"name": "edge"}, "controllerName": "x/y", "conditions": []});
        let ours = |since: &str| {
            json!({"parentRef": service, "controllerName": CONTROLLER,
                   "conditions": [condition_entry("True", 2, since)]})
        };
        let gone =
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
            (json!(null), content(), Some(json!([ours("now")]))),
            (json!([theirs]), content(), Some(json!([theirs, ours("now")]))),
            (json!([ours("then"), theirs]), content(), None),
            (json!([gone, ours("then"), theirs]), content(), Some(json!([ours("then"), theirs]))),
            (json!([theirs, ours("then")]), StatusContent::Parents(vec![]), Some(json!([theirs]))),
            (json!(null), StatusContent::Parents(vec![]), None),
        ] {
            let expected = expected.map(|parents| json!({"parents": parents}));
            assert_eq!(
                statement_with_status(current_status.clone(), content)
                    .changed_status(&json!("now")),
                expected,
                "{current_status}"
            );
        }
    }

    #[test]
    fn policies_of_osm_say_it_in_their_words() {
        for (current_status, outcome, expected) in [
            (json!([null, null]), Ok(()), Some(json!(["committed", "in force"]))),
            (json!(["committed", "in force"]), Ok(()), None),
            (json!(["committed", "in force"]), Err("no".to_owned()), Some(json!(["error", "no"]))),
        ] {
            let status = statement_with_status(current_status, StatusContent::Current(outcome))
                .changed_status(&Value::Null);
            let found = status.map(|it| json!([it["currentStatus"], it["reason"]]));
            assert_eq!(found, expected);
        }
    }
}
