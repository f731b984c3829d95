//! Events: warnings beside an object, for who looks at it.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use crate::words::CONTROL;

/// Writes events of a control plane; `instance` is its name among all.
pub(crate) fn recorder(client: Client, instance: Option<String>) -> Recorder {
    Recorder::new(client, Reporter { controller: CONTROL.to_owned(), instance })
}

/// Writes a warning: `reason` is a word for what happened, `action` for what was tried. One that cannot
/// be written is lost: statuses and logs say it too.
pub(crate) async fn warn(
    recorder: &Recorder,
    object: &ObjectReference,
    (reason, action): (&str, &str),
    note: &str,
) {
    let event = Event {
        type_: EventType::Warning,
        reason: reason.to_owned(),
        note: Some(note.chars().take(NOTE_CHARACTERS_MAX).collect()),
        action: action.to_owned(),
        secondary: None,
    };
    if let Err(error) = recorder.publish(&event, object).await {
        tracing::debug!(kind = object.kind, name = object.name, %error, "an event cannot be written");
    }
}

/// An event's note has at most a kilobyte; characters may have four bytes.
const NOTE_CHARACTERS_MAX: usize = 250;
