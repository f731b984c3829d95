//! Object statuses and events, written by the leading control plane.

mod desired_status;
pub(crate) mod event;
mod lease;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Patch, PatchParams};
use leno_model::SidecarFacts;
use leno_registry::{DocumentLocation, Warning};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, interval};

pub use self::desired_status::DesiredStatus;
pub(crate) use self::desired_status::{
    CONTROLLER, StatusCondition, StatusContent, StatusForm, StatusTarget, is_ours,
};
pub use self::lease::hold_lease;
pub(crate) use self::lease::noted_connections;
use crate::api::{ApiError, NamespaceName, ObjectApi, ObjectName};
use crate::words::CONTROL;

/// The identity of a control plane for leader election.
#[derive(Debug, Clone)]
pub struct ElectionIdentity {
    /// The namespace of the Lease.
    pub namespace: NamespaceName,
    /// The unique name of this control plane: that of its pod.
    pub name: String,
    /// Facts about sidecars. The leader publishes their connections in an annotation of the Lease.
    pub facts: watch::Receiver<Arc<SidecarFacts>>,
}

/// Writes the status of objects, and an event for each rejection and each unsupported field, while this control
/// plane is the leader that [holds](hold_lease) the Lease. Failed writes are retried with exponential backoff, and
/// listed in `unwritten`. Never returns.
pub async fn keep_statuses(
    client: Client,
    name: String,
    statements: watch::Receiver<Arc<Vec<DesiredStatus>>>,
    leading: watch::Receiver<bool>,
    unwritten: watch::Sender<Arc<Vec<Warning>>>,
) {
    let scribe = StatusWriter { client, name, written: HashMap::new(), unwritten };
    Box::pin(scribe.run(statements, leading)).await;
}

/// Writes statuses, and remembers them because the watch reports them with a delay.
struct StatusWriter {
    client: Client,
    /// The unique name of this control plane.
    name: String,
    written: HashMap<StatusTarget, WrittenStatus>,
    /// The statuses that cannot be written, for `leno status`.
    unwritten: watch::Sender<Arc<Vec<Warning>>>,
}

/// The last written status of an object.
struct WrittenStatus {
    statement: DesiredStatus,
    /// The time of the last attempt.
    at: Instant,
    /// True if the API server accepted it.
    is_accepted: bool,
    /// Set from the first rejected attempt until one succeeds.
    failure: Option<WriteFailure>,
    /// Its events, by reason.
    reported: HashMap<&'static str, event::WarningEvent>,
}

/// A status that the API server rejects.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WriteFailure {
    problem: String,
    /// The delay before the next attempt.
    pause: Duration,
}

impl WrittenStatus {
    /// Returns true while the same status need not be written again.
    fn is_current(&self, statement: &DesiredStatus, now: Instant) -> bool {
        let is_same = self.statement == *statement
            || self.is_accepted && self.statement.is_repeated_by(statement);
        let pause = self.failure.as_ref().map_or(SAME_AGAIN, |failure| failure.pause);
        is_same && now.duration_since(self.at) < pause
    }

    fn failure_warning(&self) -> Option<Warning> {
        let failure = self.failure.as_ref()?;
        let StatusTarget { kind, namespace, name, .. } = &self.statement.target;
        let at = DocumentLocation {
            kind: Some((*kind).to_owned()),
            namespace: Some(namespace.clone()).filter(|it| !it.is_empty()),
            name: Some(name.clone()),
            field: Some("status".to_owned()),
            ..DocumentLocation::default()
        };
        Some(Warning { at, problem: failure.problem.clone(), hint: UNWRITTEN_REMEDY.to_owned() })
    }
}

impl StatusWriter {
    async fn run(
        mut self,
        mut statements: watch::Receiver<Arc<Vec<DesiredStatus>>>,
        mut leading: watch::Receiver<bool>,
    ) {
        let mut again = interval(AGAIN_EVERY);
        loop {
            tokio::select! {
                Ok(()) = statements.changed() => {}
                Ok(()) = leading.changed() => {}
                _ = again.tick() => {}
            }
            let batch = Arc::clone(&statements.borrow_and_update());
            let due: HashMap<&StatusTarget, &DesiredStatus> =
                batch.iter().map(|statement| (&statement.target, statement)).collect();
            self.written.retain(|target, _| due.contains_key(target));
            for statement in batch.iter() {
                if !*leading.borrow() {
                    break;
                }
                Box::pin(self.write_statement(statement)).await;
            }
            self.publish_failures(*leading.borrow());
        }
    }

    /// Publishes the statuses that cannot be written. Only the leader reports them.
    fn publish_failures(&self, leads: bool) {
        let failed =
            self.written.values().filter(|_| leads).filter_map(WrittenStatus::failure_warning);
        let mut failed: Vec<Warning> = failed.collect();
        failed.sort_by_cached_key(ToString::to_string);
        self.unwritten.send_if_modified(|known| {
            let is_new = **known != failed;
            if is_new {
                *known = Arc::new(failed);
            }
            is_new
        });
    }

    async fn write_statement(&mut self, statement: &DesiredStatus) {
        let now = Instant::now();
        let before = self.written.get(&statement.target);
        if before.is_some_and(|it| it.is_current(statement, now)) {
            return;
        }
        let before = self.written.remove(&statement.target);
        let (failure, reported) = before.map(|it| (it.failure, it.reported)).unwrap_or_default();
        let stamp = serde_json::to_value(Time(Timestamp::now())).unwrap_or_default();
        let outcome = match statement.changed_status(&stamp) {
            Some(status) => self.write(statement, status).await,
            None => Ok(()),
        };
        let is_accepted = outcome.is_ok();
        let failure = next_failure(&statement.target, outcome, failure);
        let reported = self.write_events(statement, failure.as_ref(), reported).await;
        let written =
            WrittenStatus { statement: statement.clone(), at: now, is_accepted, failure, reported };
        self.written.insert(statement.target.clone(), written);
    }

    /// Writes a status. Lists in a status have several writers but are replaced as a whole, so the write is
    /// conditional on the version that was read.
    async fn write(&self, statement: &DesiredStatus, status: Value) -> Result<(), ApiError> {
        let (target, resource) = (&statement.target, &*statement.resource);
        let namespace = Some(target.namespace.as_str()).filter(|text| !text.is_empty());
        let namespace = namespace.map(NamespaceName::new).transpose()?;
        let name = ObjectName::new(&target.name)?;
        let api = ObjectApi::for_dynamic_kind(self.client.clone(), namespace.as_ref(), resource)?;
        let patch = json!({
            "metadata": {"uid": target.uid, "resourceVersion": statement.resource_version},
            "status": status,
        });
        let field_manager = Some(CONTROL.to_owned());
        let parameters = PatchParams { field_manager, ..PatchParams::default() };
        api.patch_status(&name, &parameters, &Patch::Merge(patch)).await.map(drop)
    }

    /// Writes events, and renews existing ones that still apply.
    async fn write_events(
        &self,
        statement: &DesiredStatus,
        failure: Option<&WriteFailure>,
        mut before: HashMap<&'static str, event::WarningEvent>,
    ) -> HashMap<&'static str, event::WarningEvent> {
        let DesiredStatus { target, resource, .. } = statement;
        let object = ObjectReference {
            api_version: Some(resource.api_version.clone()),
            kind: Some(resource.kind.clone()),
            name: Some(target.name.clone()),
            namespace: Some(target.namespace.clone()).filter(|text| !text.is_empty()),
            uid: Some(target.uid.clone()),
            ..ObjectReference::default()
        };
        let now = Instant::now();
        let mut reported = HashMap::new();
        let unwritten = (UNWRITTEN, failure.map(|failure| failure.problem.as_str()));
        for (reason, note) in statement.event_notes().into_iter().chain([unwritten]) {
            let Some(note) = note else { continue };
            if let Some(mut current_status) = before.remove(reason).filter(|it| it.has_note(note))
                && current_status.renew_count(&self.client, now).await
            {
                reported.insert(reason, current_status);
                continue;
            }
            let written = event::WarningEvent::write(
                &self.client,
                self.name.as_str(),
                &object,
                reason,
                note,
                now,
            )
            .await;
            reported.extend(written.map(|written| (reason, written)));
        }
        reported
    }
}

/// Returns the state after an attempt. Logs a warning for the first of several failures and a message when they
/// end.
fn next_failure(
    target: &StatusTarget,
    outcome: Result<(), ApiError>,
    before: Option<WriteFailure>,
) -> Option<WriteFailure> {
    let error = match outcome {
        Ok(()) => {
            if before.is_some() {
                tracing::info!(%target, "the API server accepts the status again");
            }
            return None;
        }
        Err(error) => error,
    };
    // A conflict with another writer, a deleted object, or a kind without a status.
    if matches!(error.status_code(), Some(404 | 409)) {
        tracing::debug!(%target, %error, "status not written");
        return before;
    }
    if let Some(before) = before {
        tracing::debug!(%target, %error, "cannot write a status yet");
        return Some(WriteFailure { pause: (before.pause * 2).min(RETRY_PAUSE_MAX), ..before });
    }
    tracing::warn!(%target, %error, "cannot write a status; the write is retried, and this is \
                                     reported once");
    let error = event::shorten_middle(&error.to_string(), PROBLEM_BYTES_MAX);
    let problem = format!("the API server rejects the status: {error}");
    Some(WriteFailure { problem, pause: RETRY_PAUSE_MIN })
}

/// The reason of the event for a status that cannot be written.
const UNWRITTEN: &str = "StatusUpdateFailed";
const UNWRITTEN_REMEDY: &str = "compare the CustomResourceDefinition and the permissions of \
                                leno-control with the output of `leno install`; the write is \
                                retried";
/// The maximum length of an error in an event.
const PROBLEM_BYTES_MAX: usize = 700;
/// The interval between checks for due statuses.
const AGAIN_EVERY: Duration = Duration::from_secs(5);
/// The time after which the same status is written again if the object does not have it.
const SAME_AGAIN: Duration = Duration::from_secs(60);
/// The initial delay after a rejected write, which doubles up to `RETRY_PAUSE_MAX`.
const RETRY_PAUSE_MIN: Duration = Duration::from_secs(5);
/// The maximum delay.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests;
