//! Writes the statuses of objects and events about them, in the leading control plane.

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
    CONTROLLER, StatusCondition, StatusContent, StatusForm, StatusTarget, is_own_entry,
};
pub(crate) use self::lease::annotated_connections;
pub use self::lease::hold_lease;
use crate::api::{ApiError, NamespaceName, ObjectApi, ObjectName};
use crate::well_known::CONTROL;

/// The identity of a control plane for leader election.
#[derive(Debug, Clone)]
pub struct ElectionIdentity {
    /// The namespace of the Lease.
    pub namespace: NamespaceName,
    /// The unique name of this control plane: the name of its pod.
    pub name: String,
    /// The reports of sidecars. The leader publishes their connections in an annotation of the Lease.
    pub sidecar_facts: watch::Receiver<Arc<SidecarFacts>>,
}

/// Writes the status of objects, and an event for each rejection and each unsupported field, while this control
/// plane is the leader that [holds](hold_lease) the Lease. Failed writes are retried with exponential backoff,
/// and listed in `unwritten_statuses`. Never returns.
pub async fn reconcile_statuses(
    client: Client,
    name: String,
    desired_statuses: watch::Receiver<Arc<Vec<DesiredStatus>>>,
    is_leader: watch::Receiver<bool>,
    unwritten_statuses: watch::Sender<Arc<Vec<Warning>>>,
) {
    let writer =
        StatusWriter { client, name, written_statuses: HashMap::new(), unwritten_statuses };
    Box::pin(writer.run(desired_statuses, is_leader)).await;
}

/// Writes statuses, and remembers them because the watch reports them with a delay.
struct StatusWriter {
    client: Client,
    /// The unique name of this control plane.
    name: String,
    /// The last written status of each object that still has a desired status.
    written_statuses: HashMap<StatusTarget, WrittenStatus>,
    /// The statuses that cannot be written, for `leno status`.
    unwritten_statuses: watch::Sender<Arc<Vec<Warning>>>,
}

/// The last written status of an object.
struct WrittenStatus {
    desired: DesiredStatus,
    /// The time of the last attempt.
    attempt_time: Instant,
    /// True if the API server accepted the status.
    is_accepted: bool,
    /// The failure since the first rejected attempt; `None` after a success.
    failure: Option<WriteFailure>,
    /// The events of the object, by reason.
    events: HashMap<&'static str, event::WarningEvent>,
}

/// A status that the API server rejects.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WriteFailure {
    problem: String,
    /// The delay before the next attempt.
    retry_delay: Duration,
}

impl WrittenStatus {
    /// Returns true if `desired` is the written status, and the time to write it again has not come.
    fn is_current(&self, desired: &DesiredStatus, now: Instant) -> bool {
        let is_same =
            self.desired == *desired || self.is_accepted && self.desired.is_repeated_by(desired);
        let retry_delay =
            self.failure.as_ref().map_or(REWRITE_INTERVAL, |failure| failure.retry_delay);
        is_same && now.duration_since(self.attempt_time) < retry_delay
    }

    /// Returns a warning about a status that cannot be written; `None` if it was written.
    fn failure_warning(&self) -> Option<Warning> {
        let failure = self.failure.as_ref()?;
        let StatusTarget { kind, namespace, name, .. } = &self.desired.target;
        let location = DocumentLocation {
            kind: Some((*kind).to_owned()),
            namespace: Some(namespace.clone()).filter(|namespace| !namespace.is_empty()),
            name: Some(name.clone()),
            field: Some("status".to_owned()),
            ..DocumentLocation::default()
        };
        Some(Warning {
            location,
            problem: failure.problem.clone(),
            hint: UNWRITTEN_HINT.to_owned(),
        })
    }
}

impl StatusWriter {
    async fn run(
        mut self,
        mut desired_statuses: watch::Receiver<Arc<Vec<DesiredStatus>>>,
        mut is_leader: watch::Receiver<bool>,
    ) {
        let mut ticks = interval(DUE_CHECK_INTERVAL);
        loop {
            tokio::select! {
                Ok(()) = desired_statuses.changed() => {}
                Ok(()) = is_leader.changed() => {}
                _ = ticks.tick() => {}
            }
            let current_statuses = Arc::clone(&desired_statuses.borrow_and_update());
            let desired_by_target: HashMap<&StatusTarget, &DesiredStatus> =
                current_statuses.iter().map(|desired| (&desired.target, desired)).collect();
            self.written_statuses.retain(|target, _| desired_by_target.contains_key(target));
            for desired in current_statuses.iter() {
                if !*is_leader.borrow() {
                    break;
                }
                Box::pin(self.write_desired(desired)).await;
            }
            self.publish_failures(*is_leader.borrow());
        }
    }

    /// Publishes the statuses that cannot be written. Only the leader reports them.
    fn publish_failures(&self, is_leader: bool) {
        let failure_warnings = self
            .written_statuses
            .values()
            .filter(|_| is_leader)
            .filter_map(WrittenStatus::failure_warning);
        let mut failure_warnings: Vec<Warning> = failure_warnings.collect();
        failure_warnings.sort_by_cached_key(ToString::to_string);
        self.unwritten_statuses.send_if_modified(|published| {
            let is_changed = **published != failure_warnings;
            if is_changed {
                *published = Arc::new(failure_warnings);
            }
            is_changed
        });
    }

    /// Writes the status and the events of an object, unless they are current.
    async fn write_desired(&mut self, desired: &DesiredStatus) {
        let now = Instant::now();
        let last_written = self.written_statuses.get(&desired.target);
        if last_written.is_some_and(|written_status| written_status.is_current(desired, now)) {
            return;
        }
        let previous = self.written_statuses.remove(&desired.target);
        let (failure, events) = previous
            .map(|written_status| (written_status.failure, written_status.events))
            .unwrap_or_default();
        let timestamp = serde_json::to_value(Time(Timestamp::now())).unwrap_or_default();
        let outcome = match desired.changed_status(&timestamp) {
            Some(status) => self.write_status(desired, status).await,
            None => Ok(()),
        };
        let is_accepted = outcome.is_ok();
        let failure = update_failure(&desired.target, outcome, failure);
        let events = self.write_events(desired, failure.as_ref(), events).await;
        let written_status = WrittenStatus {
            desired: desired.clone(),
            attempt_time: now,
            is_accepted,
            failure,
            events,
        };
        self.written_statuses.insert(desired.target.clone(), written_status);
    }

    /// Writes a status. Lists in a status have several writers but are replaced as a whole, so the write is
    /// conditional on the version that was read.
    async fn write_status(&self, desired: &DesiredStatus, status: Value) -> Result<(), ApiError> {
        let (target, resource) = (&desired.target, &*desired.resource);
        let namespace_text = Some(target.namespace.as_str()).filter(|text| !text.is_empty());
        let namespace = namespace_text.map(NamespaceName::new).transpose()?;
        let name = ObjectName::new(&target.name)?;
        let api = ObjectApi::for_dynamic_kind(self.client.clone(), namespace.as_ref(), resource)?;
        let patch = json!({
            "metadata": {"uid": target.uid, "resourceVersion": desired.resource_version},
            "status": status,
        });
        let field_manager = Some(CONTROL.to_owned());
        let parameters = PatchParams { field_manager, ..PatchParams::default() };
        api.patch_status(&name, &parameters, &Patch::Merge(patch)).await.map(drop)
    }

    /// Writes events, and renews existing ones that still apply.
    async fn write_events(
        &self,
        desired: &DesiredStatus,
        failure: Option<&WriteFailure>,
        mut previous_events: HashMap<&'static str, event::WarningEvent>,
    ) -> HashMap<&'static str, event::WarningEvent> {
        let DesiredStatus { target, resource, .. } = desired;
        let object = ObjectReference {
            api_version: Some(resource.api_version.clone()),
            kind: Some(resource.kind.clone()),
            name: Some(target.name.clone()),
            namespace: Some(target.namespace.clone()).filter(|text| !text.is_empty()),
            uid: Some(target.uid.clone()),
            ..ObjectReference::default()
        };
        let now = Instant::now();
        let mut events = HashMap::new();
        let write_failure = (UNWRITTEN_REASON, failure.map(|failure| failure.problem.as_str()));
        for (reason, note) in desired.event_notes().into_iter().chain([write_failure]) {
            let Some(note) = note else { continue };
            if let Some(mut event) =
                previous_events.remove(reason).filter(|event| event.has_note(note))
                && event.renew_count(&self.client, now).await
            {
                events.insert(reason, event);
                continue;
            }
            let new_event = event::WarningEvent::write(
                &self.client,
                self.name.as_str(),
                &object,
                reason,
                note,
                now,
            )
            .await;
            events.extend(new_event.map(|new_event| (reason, new_event)));
        }
        events
    }
}

/// Returns the failure after an attempt, and `None` after a success. Logs a warning for the first of several
/// failures and a message when they end.
fn update_failure(
    target: &StatusTarget,
    outcome: Result<(), ApiError>,
    previous: Option<WriteFailure>,
) -> Option<WriteFailure> {
    let error = match outcome {
        Ok(()) => {
            if previous.is_some() {
                tracing::info!(%target, "the API server accepts the status again");
            }
            return None;
        }
        Err(error) => error,
    };
    // A conflict with another writer, a deleted object, or a kind without a status: no failure to report.
    if matches!(error.status_code(), Some(404 | 409)) {
        tracing::debug!(%target, %error, "status not written");
        return previous;
    }
    if let Some(previous) = previous {
        tracing::debug!(%target, %error, "cannot write a status yet");
        return Some(WriteFailure {
            retry_delay: (previous.retry_delay * 2).min(MAX_RETRY_DELAY),
            ..previous
        });
    }
    tracing::warn!(%target, %error, "cannot write a status; the write is retried, and this is \
                                     reported once");
    let error = event::shorten_middle(&error.to_string(), MAX_PROBLEM_BYTES);
    let problem = format!("the API server rejects the status: {error}");
    Some(WriteFailure { problem, retry_delay: MIN_RETRY_DELAY })
}

/// The reason of the event for a status that cannot be written.
const UNWRITTEN_REASON: &str = "StatusUpdateFailed";
/// The hint of the warning about a status that cannot be written.
const UNWRITTEN_HINT: &str = "compare the CustomResourceDefinition and the permissions of \
                                leno-control with the output of `leno install`; the write is \
                                retried";
/// The maximum length of an error in an event.
const MAX_PROBLEM_BYTES: usize = 700;
/// The interval between searches for statuses that are due for the next attempt.
const DUE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The time after which the same status is written again if the object does not have it.
const REWRITE_INTERVAL: Duration = Duration::from_secs(60);
/// The initial delay after a rejected write, which doubles up to `MAX_RETRY_DELAY`.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(5);
/// The maximum delay after repeated rejections.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests;
