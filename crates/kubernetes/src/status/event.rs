//! Events: warnings beside an object, for who looks at it.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event as Written, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api::{ApiError, NamespaceName, ObjectApi, ObjectName};
use crate::words::CONTROL;

/// A warning beside an object that stands there as long as what it tells: the server forgets an event after
/// an hour, and this one is counted up before.
pub(crate) struct Told {
    note: String,
    event: Written,
    count: i32,
    at: Instant,
}

impl Told {
    /// Writes a warning beside an object in the name of `instance`; `reason` is a word for what happened.
    pub(crate) async fn write(
        client: &Client,
        (instance, object): (&str, &ObjectReference),
        (reason, note): (&str, &str),
        now: Instant,
    ) -> Option<Self> {
        let event = warning(instance, object, (reason, "Read"), note);
        let name = object.name.as_deref().unwrap_or_default();
        match create(client, &event).await {
            Ok(()) => Some(Self { note: note.to_owned(), event, count: 1, at: now }),
            Err(error) => {
                tracing::debug!(kind = object.kind, name, %error, "an event cannot be written");
                None
            }
        }
    }

    /// Whether it tells this.
    pub(crate) fn tells(&self, note: &str) -> bool {
        self.note == note
    }

    /// Counts it up if it is time to. Whether it still stands there.
    pub(crate) async fn renew(&mut self, client: &Client, now: Instant) -> bool {
        if now.duration_since(self.at) < RENEW_EVERY {
            return true;
        }
        let count = self.count.saturating_add(1);
        let series = EventSeries { count, last_observed_time: MicroTime(Timestamp::now()) };
        let patch = Patch::Merge(json!({"series": series}));
        match self.patch(client, &patch).await {
            Ok(()) => (self.at, self.count) = (now, count),
            Err(error) if error.code() == Some(404) => return false,
            // Tried again in the next round.
            Err(error) => {
                let name = self.event.metadata.name.as_deref();
                tracing::debug!(name, %error, "an event cannot be renewed");
            }
        }
        true
    }

    async fn patch(&self, client: &Client, patch: &Patch<Value>) -> Result<(), ApiError> {
        let name = ObjectName::new(self.event.metadata.name.as_deref().unwrap_or_default())?;
        let api = api(client, &self.event)?;
        api.patch(&name, &PatchParams::default(), patch).await.map(drop)
    }
}

/// A warning about `object` in the name of `instance`; `reason` and `action` are words of the API.
fn warning(
    instance: &str,
    object: &ObjectReference,
    (reason, action): (&str, &str),
    note: &str,
) -> Written {
    let wall = Timestamp::now();
    let name = object.name.as_deref().unwrap_or(CONTROL);
    let namespace = object.namespace.clone().unwrap_or_else(|| "default".to_owned());
    Written {
        metadata: ObjectMeta {
            // As the name of an object may have 253 characters, so may this one.
            name: Some(format!(
                "{}.{:x}",
                cut(name, NAME_CHARACTERS_MAX).trim_end_matches(['.', '-']),
                wall.as_nanosecond()
            )),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some(reason.to_owned()),
        action: Some(action.to_owned()),
        note: Some(shortened(note, NOTE_BYTES_MAX)),
        regarding: Some(object.clone()),
        event_time: Some(MicroTime(wall)),
        reporting_controller: Some(CONTROL.to_owned()),
        reporting_instance: Some(cut(instance, INSTANCE_CHARACTERS_MAX)),
        ..Written::default()
    }
}

async fn create(client: &Client, event: &Written) -> Result<(), ApiError> {
    api(client, event)?.create(&PostParams::default(), event).await.map(drop)
}

fn api(client: &Client, event: &Written) -> Result<ObjectApi<Written>, ApiError> {
    let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
    Ok(ObjectApi::namespaced(client.clone(), &NamespaceName::new(namespace)?))
}

/// A text with `…` in place of its middle if it has more bytes than this: object and field are at its beginning, and the
/// hint is at its end.
pub(crate) fn shortened(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let room = bytes.saturating_sub(ELLIPSIS.len());
    let head = text.floor_char_boundary(room.div_ceil(2));
    let tail = text.ceil_char_boundary(text.len().saturating_sub(room.saturating_sub(head)));
    format!("{}{ELLIPSIS}{}", &text[..head], &text[tail..])
}

fn cut(text: &str, characters: usize) -> String {
    text.chars().take(characters).collect()
}

/// Writes a warning: `reason` is a word for what happened, `action` for what was tried. One that cannot
/// be written is lost: statuses and logs say it too.
pub(crate) async fn warn(
    client: &Client,
    object: &ObjectReference,
    (reason, action): (&str, &str),
    note: &str,
) {
    let event = warning(CONTROL, object, (reason, action), note);
    if let Err(error) = create(client, &event).await {
        tracing::debug!(kind = object.kind, name = object.name, %error, "an event cannot be written");
    }
}

/// The API server takes no longer note.
const NOTE_BYTES_MAX: usize = 1024;
const ELLIPSIS: &str = "…";
/// A name has at most 253 characters; those that are left are for the time.
const NAME_CHARACTERS_MAX: usize = 220;
const INSTANCE_CHARACTERS_MAX: usize = 128;
/// Often enough that one that fails once, or comes late, is still in time.
const RENEW_EVERY: Duration = Duration::from_secs(20 * 60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Server;

    #[test]
    fn a_long_note_keeps_its_beginning_and_its_hint() {
        assert_eq!(shortened("short", 1024), "short");
        let middle = "é".repeat(2000);
        let note = format!("spec.rules[0]: {middle}; use another one");
        let cut = shortened(&note, 1024);
        assert!(cut.len() <= 1024 && cut.len() > 1015, "{}", cut.len());
        assert!(cut.starts_with("spec.rules[0]: é") && cut.ends_with("é; use another one"));
        assert_eq!(cut.matches('…').count(), 1);
        for bytes in 0..20 {
            assert!(shortened("ééééééééééé", bytes).len() <= bytes.max(3));
        }
    }

    #[tokio::test]
    async fn it_is_counted_up_while_it_stands() {
        let server = Server::open().await;
        let object = ObjectReference {
            kind: Some("HTTPRouteGroup".to_owned()),
            name: Some("g".to_owned()),
            namespace: Some("shop".to_owned()),
            ..ObjectReference::default()
        };
        let start = Instant::now();
        let said = ("Refused", "no");
        let mut standing =
            Told::write(&server.client, ("one", &object), said, start).await.unwrap();
        assert!(standing.tells("no") && !standing.tells("yes"));
        let events =
            || -> Vec<Value> { server.store.lock().unwrap().objects.values().cloned().collect() };
        // Well before the server forgets it, in an hour; not all the time.
        for (minutes, count) in [(1, None), (19, None), (21, Some(2)), (22, Some(2)), (42, Some(3))]
        {
            let now = start + Duration::from_secs(minutes * 60);
            assert!(standing.renew(&server.client, now).await);
            let [event] = &events()[..] else { panic!("one event stands there") };
            assert_eq!(event["series"]["count"].as_i64(), count, "after {minutes} minutes");
            assert_eq!((&event["reason"], &event["note"]), (&json!("Refused"), &json!("no")));
        }
        server.store.lock().unwrap().objects.clear();
        assert!(standing.renew(&server.client, start + Duration::from_secs(50 * 60)).await);
        let much_later = start + Duration::from_secs(70 * 60);
        assert!(!standing.renew(&server.client, much_later).await, "it is to be written anew");
    }
}
