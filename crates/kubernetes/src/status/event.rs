//! Creates Warning Events about Kubernetes objects, and renews them while their cause exists.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event as KubeEvent, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::Instant;

use crate::api::{ApiError, NamespaceName, ObjectApi, ObjectName};
use crate::well_known::CONTROL;

/// A warning event that exists as long as its cause: the API server deletes an event after an hour unless its
/// count is increased.
pub(crate) struct WarningEvent {
    note: String,
    event: KubeEvent,
    /// The number of occurrences, as last written.
    count: i32,
    /// The time of the last write.
    last_write: Instant,
}

impl WarningEvent {
    /// Writes a warning event about an object, reported by `instance`, with the given reason. Returns `None` if the
    /// write fails.
    pub(crate) async fn write(
        client: &Client,
        instance: &str,
        object: &ObjectReference,
        reason: &str,
        note: &str,
        now: Instant,
    ) -> Option<Self> {
        let event = warning_event(instance, object, reason, "Read", note);
        let name = object.name.as_deref().unwrap_or_default();
        match create_or_count(client, &event).await {
            Ok(count) => Some(Self { note: note.to_owned(), event, count, last_write: now }),
            Err(error) => {
                tracing::debug!(kind = object.kind, name, %error, "cannot write an event");
                None
            }
        }
    }

    /// Returns true if the event has this note.
    pub(crate) fn has_note(&self, note: &str) -> bool {
        self.note == note
    }

    /// Increases the count if the last write is at least [`RENEWAL_INTERVAL`] ago. Returns false if the event
    /// does not exist any more.
    pub(crate) async fn renew_count(&mut self, client: &Client, now: Instant) -> bool {
        if now.duration_since(self.last_write) < RENEWAL_INTERVAL {
            return true;
        }
        let count = self.count.saturating_add(1);
        match write_count(client, &self.event, count).await {
            Ok(()) => (self.last_write, self.count) = (now, count),
            Err(error) if error.status_code() == Some(404) => return false,
            // The renewal is retried after the next check.
            Err(error) => {
                let name = self.event.metadata.name.as_deref();
                tracing::debug!(name, %error, "cannot renew an event");
            }
        }
        true
    }
}

/// Returns the name of an event. It depends on object, reason and note only, so that the next leader increases
/// the count of the previous leader's event.
fn event_name(object: &ObjectReference, reason: &str, note: &str) -> String {
    let name = object.name.as_deref().unwrap_or(CONTROL);
    let (uid, kind) = (object.uid.as_deref(), object.kind.as_deref());
    let name_parts = [uid.unwrap_or_default(), kind.unwrap_or_default(), name, reason, note];
    // FNV-1a, with a separator byte that no part contains.
    let bytes = name_parts.iter().flat_map(|part| part.bytes().chain([0xff]));
    let hash =
        bytes.fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
    format!(
        "{}.{hash:016x}",
        truncate_characters(name, MAX_NAME_CHARACTERS).trim_end_matches(['.', '-'])
    )
}

/// Creates a warning event about `object`, reported by `instance`. `action` is the action that failed, such as `Read`.
fn warning_event(
    instance: &str,
    object: &ObjectReference,
    reason: &str,
    action: &str,
    note: &str,
) -> KubeEvent {
    let timestamp = Timestamp::now();
    let namespace = object.namespace.clone().unwrap_or_else(|| "default".to_owned());
    KubeEvent {
        metadata: ObjectMeta {
            name: Some(event_name(object, reason, note)),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some(reason.to_owned()),
        action: Some(action.to_owned()),
        note: Some(shorten_middle(note, MAX_NOTE_BYTES)),
        regarding: Some(object.clone()),
        event_time: Some(MicroTime(timestamp)),
        reporting_controller: Some(CONTROL.to_owned()),
        reporting_instance: Some(truncate_characters(instance, MAX_INSTANCE_CHARACTERS)),
        ..KubeEvent::default()
    }
}

/// Creates an event, or increases the count of an existing one. Returns the new count.
async fn create_or_count(client: &Client, event: &KubeEvent) -> Result<i32, ApiError> {
    let api = event_api(client, event)?;
    match api.create(&PostParams::default(), event).await {
        Ok(_) => return Ok(1),
        // The event exists, so its count is increased below.
        Err(error) if error.status_code() == Some(CONFLICT) => {}
        Err(error) => return Err(error),
    }
    // The response to an empty patch contains the event: control planes lack permission to read events.
    let name = ObjectName::new(event.metadata.name.as_deref().unwrap_or_default())?;
    let empty_patch = Patch::Merge(json!({}));
    let existing_event = api.patch(&name, &PatchParams::default(), &empty_patch).await?;
    let count = existing_event.series.map_or(1, |series| series.count).saturating_add(1);
    write_count(client, event, count).await?;
    Ok(count)
}

async fn write_count(client: &Client, event: &KubeEvent, count: i32) -> Result<(), ApiError> {
    let series = EventSeries { count, last_observed_time: MicroTime(Timestamp::now()) };
    let patch = Patch::Merge(json!({"series": series}));
    let name = ObjectName::new(event.metadata.name.as_deref().unwrap_or_default())?;
    event_api(client, event)?.patch(&name, &PatchParams::default(), &patch).await.map(drop)
}

fn event_api(client: &Client, event: &KubeEvent) -> Result<ObjectApi<KubeEvent>, ApiError> {
    let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
    Ok(ObjectApi::for_namespace(client.clone(), &NamespaceName::new(namespace)?))
}

/// Shortens a text to this many bytes by replacing its middle with `…`: the object and field are at its start,
/// and the hint is at its end.
pub(crate) fn shorten_middle(text: &str, max_bytes: usize) -> String {
    if text.len() <= max_bytes {
        return text.to_owned();
    }
    let available = max_bytes.saturating_sub(ELLIPSIS.len());
    let head_end = text.floor_char_boundary(available.div_ceil(2));
    let tail_start =
        text.ceil_char_boundary(text.len().saturating_sub(available.saturating_sub(head_end)));
    format!("{}{ELLIPSIS}{}", &text[..head_end], &text[tail_start..])
}

fn truncate_characters(text: &str, max_characters: usize) -> String {
    text.chars().take(max_characters).collect()
}

/// Writes a warning event with this reason and action. A failed write is ignored: statuses and logs report the
/// problem too.
pub(crate) async fn write_warning(
    client: &Client,
    object: &ObjectReference,
    reason: &str,
    action: &str,
    note: &str,
) {
    let event = warning_event(CONTROL, object, reason, action, note);
    if let Err(error) = create_or_count(client, &event).await {
        tracing::debug!(kind = object.kind, name = object.name, %error, "cannot write an event");
    }
}

/// The maximum length of a note in the API.
const MAX_NOTE_BYTES: usize = 1024;
const ELLIPSIS: &str = "…";
/// The maximum length of the object's name in the name of an event. Names have at most 253 characters; the rest
/// is for the hash.
const MAX_NAME_CHARACTERS: usize = 220;
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;
const CONFLICT: u16 = 409;
/// The maximum length of the reporting instance in the API.
const MAX_INSTANCE_CHARACTERS: usize = 128;
/// The interval between renewals: short enough that a failed or late renewal is still in time.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(20 * 60);

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::Server;

    #[test]
    fn a_long_note_keeps_its_beginning_and_its_hint() {
        assert_eq!(shorten_middle("short", 1024), "short");
        let middle = "é".repeat(2000);
        let note = format!("spec.rules[0]: {middle}; use another one");
        let cut = shorten_middle(&note, 1024);
        assert!(cut.len() <= 1024 && cut.len() > 1015, "{}", cut.len());
        assert!(cut.starts_with("spec.rules[0]: é") && cut.ends_with("é; use another one"));
        assert_eq!(cut.matches('…').count(), 1);
        for bytes in 0..20 {
            assert!(shorten_middle("ééééééééééé", bytes).len() <= bytes.max(3));
        }
    }

    #[tokio::test]
    async fn the_next_leader_increases_the_count_of_the_same_event() {
        let server = Server::start_server().await;
        let object = |uid: &str| ObjectReference {
            kind: Some("Namespace".to_owned()),
            name: Some("shop".to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        let now = Instant::now();
        let write = async |instance: &str, uid: &str, note: &str| {
            let object = object(uid);
            WarningEvent::write(&server.client, instance, &object, "Rejected", note, now)
                .await
                .unwrap()
                .count
        };
        let counts = || -> Vec<Option<i64>> {
            let store = server.store.lock().unwrap();
            store.objects.values().map(|object| object["series"]["count"].as_i64()).collect()
        };
        assert_eq!(write("one", "u1", "no").await, 1);
        assert_eq!(counts(), [None]);
        assert_eq!(write("two", "u1", "no").await, 2);
        assert_eq!(write("one", "u1", "no").await, 3);
        assert_eq!(counts(), [Some(3)]);
        // Another note, and another object of the same name, have events of their own.
        assert_eq!(write("one", "u1", "yes").await, 1);
        assert_eq!(write("one", "u2", "no").await, 1);
        assert_eq!(counts().len(), 3);
    }

    #[tokio::test]
    async fn an_event_is_renewed_while_its_cause_exists() {
        let server = Server::start_server().await;
        let object = ObjectReference {
            kind: Some("HTTPRouteGroup".to_owned()),
            name: Some("g".to_owned()),
            namespace: Some("shop".to_owned()),
            ..ObjectReference::default()
        };
        let start = Instant::now();
        let mut event_record =
            WarningEvent::write(&server.client, "one", &object, "Rejected", "no", start)
                .await
                .unwrap();
        assert!(event_record.has_note("no") && !event_record.has_note("yes"));
        let events =
            || -> Vec<Value> { server.store.lock().unwrap().objects.values().cloned().collect() };
        // Well before the server deletes it after an hour, but not constantly.
        for (minutes, count) in [(1, None), (19, None), (21, Some(2)), (22, Some(2)), (42, Some(3))]
        {
            let now = start + Duration::from_secs(minutes * 60);
            assert!(event_record.renew_count(&server.client, now).await);
            let [event] = &events()[..] else { panic!("there is one event") };
            assert_eq!(event["series"]["count"].as_i64(), count, "after {minutes} minutes");
            assert_eq!((&event["reason"], &event["note"]), (&json!("Rejected"), &json!("no")));
        }
        server.store.lock().unwrap().objects.clear();
        assert!(
            event_record.renew_count(&server.client, start + Duration::from_secs(50 * 60)).await
        );
        let much_later = start + Duration::from_secs(70 * 60);
        assert!(
            !event_record.renew_count(&server.client, much_later).await,
            "the event has to be written again"
        );
    }
}
