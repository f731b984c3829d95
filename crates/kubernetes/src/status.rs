//! What the mesh says of objects, written into their status by one control plane of all.

pub(crate) mod event;
mod lease;
mod statement;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Patch, PatchParams};
use leno_model::SidecarFacts;
use leno_registry::{Place, Warning};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, interval};

pub use self::lease::hold;
pub(crate) use self::lease::noted_connections;
pub use self::statement::Statement;
pub(crate) use self::statement::{CONTROLLER, Condition, Form, Said, Target, is_ours};
use crate::api::{ApiError, NamespaceName, ObjectApi, ObjectName};
use crate::words::CONTROL;

/// Who writes.
#[derive(Debug, Clone)]
pub struct Writer {
    /// The namespace of the lease.
    pub namespace: NamespaceName,
    /// The name of this control plane among all: that of its pod.
    pub name: String,
    /// Facts about sidecars: while it holds the lease, their connections stand in an annotation of it.
    pub facts: watch::Receiver<Arc<SidecarFacts>>,
}

/// Writes the status of objects, and an event for each refusal and each field that is not heeded, while this control
/// plane leads: the one that [holds](hold) the lease. Statuses that cannot be written are retried with growing
/// pauses, and listed in `unwritten`. Never ends by itself.
pub async fn keep_statuses(
    client: Client,
    name: String,
    statements: watch::Receiver<Arc<Vec<Statement>>>,
    leading: watch::Receiver<bool>,
    unwritten: watch::Sender<Arc<Vec<Warning>>>,
) {
    let scribe = Scribe { client, name, written: HashMap::new(), unwritten };
    Box::pin(scribe.run(statements, leading)).await;
}

/// Writes, and remembers what it has written: the watch tells of it a moment later.
struct Scribe {
    client: Client,
    /// The name of this control plane among all.
    name: String,
    written: HashMap<Target, Written>,
    /// The statuses that cannot be written, for `leno status`.
    unwritten: watch::Sender<Arc<Vec<Warning>>>,
}

/// What was last written about an object.
struct Written {
    statement: Statement,
    /// The time of the last attempt.
    at: Instant,
    /// Whether the API server took it.
    landed: bool,
    /// Set from the first rejected attempt until one succeeds.
    failure: Option<Failure>,
    /// Its events, by their reasons.
    told: HashMap<&'static str, event::Told>,
}

/// A status that the API server rejects.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure {
    problem: String,
    /// The time until the next attempt.
    pause: Duration,
}

impl Written {
    /// True while the same need not be written again.
    fn stands(&self, statement: &Statement, now: Instant) -> bool {
        let is_same =
            self.statement == *statement || self.landed && self.statement.repeats(statement);
        let pause = self.failure.as_ref().map_or(SAME_AGAIN, |failure| failure.pause);
        is_same && now.duration_since(self.at) < pause
    }

    fn warning(&self) -> Option<Warning> {
        let failure = self.failure.as_ref()?;
        let Target { kind, namespace, name, .. } = &self.statement.target;
        let at = Place {
            kind: Some((*kind).to_owned()),
            namespace: Some(namespace.clone()).filter(|it| !it.is_empty()),
            name: Some(name.clone()),
            field: Some("status".to_owned()),
            ..Place::default()
        };
        Some(Warning { at, problem: failure.problem.clone(), remedy: UNWRITTEN_REMEDY.to_owned() })
    }
}

impl Scribe {
    async fn run(
        mut self,
        mut statements: watch::Receiver<Arc<Vec<Statement>>>,
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
            let due: HashMap<&Target, &Statement> =
                batch.iter().map(|statement| (&statement.target, statement)).collect();
            self.written.retain(|target, _| due.contains_key(target));
            for statement in batch.iter() {
                if !*leading.borrow() {
                    break;
                }
                Box::pin(self.say(statement)).await;
            }
            self.report(*leading.borrow());
        }
    }

    /// Lists the statuses that cannot be written; another control plane lists them while it leads.
    fn report(&self, leads: bool) {
        let failed = self.written.values().filter(|_| leads).filter_map(Written::warning);
        let mut failed: Vec<Warning> = failed.collect();
        failed.sort_by_cached_key(ToString::to_string);
        self.unwritten.send_if_modified(|known| {
            let is_news = **known != failed;
            if is_news {
                *known = Arc::new(failed);
            }
            is_news
        });
    }

    async fn say(&mut self, statement: &Statement) {
        let now = Instant::now();
        let before = self.written.get(&statement.target);
        if before.is_some_and(|it| it.stands(statement, now)) {
            return;
        }
        let before = self.written.remove(&statement.target);
        let (failure, told) = before.map(|it| (it.failure, it.told)).unwrap_or_default();
        let stamp = serde_json::to_value(Time(Timestamp::now())).unwrap_or_default();
        let outcome = match statement.status(&stamp) {
            Some(status) => self.write(statement, status).await,
            None => Ok(()),
        };
        let landed = outcome.is_ok();
        let failure = settle(&statement.target, outcome, failure);
        let told = self.tell(statement, failure.as_ref(), told).await;
        let written = Written { statement: statement.clone(), at: now, landed, failure, told };
        self.written.insert(statement.target.clone(), written);
    }

    /// Lists in a status belong to several writers, and are replaced whole: so only on top of the
    /// version that was read.
    async fn write(&self, statement: &Statement, status: Value) -> Result<(), ApiError> {
        let (target, resource) = (&statement.target, &*statement.resource);
        let namespace = Some(target.namespace.as_str()).filter(|text| !text.is_empty());
        let namespace = namespace.map(NamespaceName::new).transpose()?;
        let name = ObjectName::new(&target.name)?;
        let api = ObjectApi::dynamic(self.client.clone(), namespace.as_ref(), resource)?;
        let patch = json!({
            "metadata": {"uid": target.uid, "resourceVersion": statement.resource_version},
            "status": status,
        });
        let field_manager = Some(CONTROL.to_owned());
        let parameters = PatchParams { field_manager, ..PatchParams::default() };
        api.patch_status(&name, &parameters, &Patch::Merge(patch)).await.map(drop)
    }

    /// Writes events, and renews those that stand there and still say what is so.
    async fn tell(
        &self,
        statement: &Statement,
        failure: Option<&Failure>,
        mut before: HashMap<&'static str, event::Told>,
    ) -> HashMap<&'static str, event::Told> {
        let Statement { target, resource, .. } = statement;
        let object = ObjectReference {
            api_version: Some(resource.api_version.clone()),
            kind: Some(resource.kind.clone()),
            name: Some(target.name.clone()),
            namespace: Some(target.namespace.clone()).filter(|text| !text.is_empty()),
            uid: Some(target.uid.clone()),
            ..ObjectReference::default()
        };
        let now = Instant::now();
        let mut told = HashMap::new();
        let unwritten = (UNWRITTEN, failure.map(|failure| failure.problem.as_str()));
        for (reason, note) in statement.notes().into_iter().chain([unwritten]) {
            let Some(note) = note else { continue };
            if let Some(mut standing) = before.remove(reason).filter(|it| it.tells(note))
                && standing.renew(&self.client, now).await
            {
                told.insert(reason, standing);
                continue;
            }
            let about = (self.name.as_str(), &object);
            let written = event::Told::write(&self.client, about, (reason, note), now).await;
            told.extend(written.map(|written| (reason, written)));
        }
        told
    }
}

/// The state after an attempt, with one line in the log for the first of several failures and for their end.
fn settle(
    target: &Target,
    outcome: Result<(), ApiError>,
    before: Option<Failure>,
) -> Option<Failure> {
    let error = match outcome {
        Ok(()) => {
            if before.is_some() {
                tracing::info!(%target, "the API server takes the status again");
            }
            return None;
        }
        Err(error) => error,
    };
    // Another writer was faster, the object has gone, or its kind has no status.
    if matches!(error.code(), Some(404 | 409)) {
        tracing::debug!(%target, %error, "a status is not written");
        return before;
    }
    if let Some(before) = before {
        tracing::debug!(%target, %error, "a status still cannot be written");
        return Some(Failure { pause: (before.pause * 2).min(RETRY_PAUSE_MAX), ..before });
    }
    tracing::warn!(%target, %error, "a status cannot be written; it is retried, and this is reported once");
    let error = event::shortened(&error.to_string(), PROBLEM_BYTES_MAX);
    let problem = format!("the API server does not take the status: {error}");
    Some(Failure { problem, pause: RETRY_PAUSE_MIN })
}

/// The reason of the event about an object with a status that cannot be written.
const UNWRITTEN: &str = "StatusNotWritten";
const UNWRITTEN_REMEDY: &str = "compare the CustomResourceDefinition and the rights of leno-control with those \
                                that `leno install` prints; the write is retried";
/// As much of an error as an event has room for.
const PROBLEM_BYTES_MAX: usize = 700;
/// The interval of looks for statuses that are due.
const AGAIN_EVERY: Duration = Duration::from_secs(5);
/// After this time the same is written again, if it still does not stand there.
const SAME_AGAIN: Duration = Duration::from_secs(60);
/// The pause after the first rejected write; it doubles,
const RETRY_PAUSE_MIN: Duration = Duration::from_secs(5);
/// up to this.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests;
