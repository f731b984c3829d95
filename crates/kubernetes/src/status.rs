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
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, interval};

pub use self::lease::hold;
pub use self::statement::Statement;
pub(crate) use self::statement::{CONTROLLER, Condition, Form, Said, Target, is_ours};
use crate::api::{ApiError, NamespaceName, ObjectApi, ObjectName};
use crate::words::CONTROL;

/// Who writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writer {
    /// The namespace of the lease.
    pub namespace: NamespaceName,
    /// The name of this control plane among all: that of its pod.
    pub name: String,
}

/// Writes what is to be said of objects into their status, and an event for each refusal and for what is not heeded, while
/// this control plane leads: the one that [holds](hold) the lease of all. Never ends by itself.
pub async fn keep_statuses(
    client: Client,
    name: String,
    statements: watch::Receiver<Arc<Vec<Statement>>>,
    leading: watch::Receiver<bool>,
) {
    Scribe { client, name, written: HashMap::new() }.run(statements, leading).await;
}

/// Writes, and remembers what it has written: the watch tells of it a moment later.
struct Scribe {
    client: Client,
    /// The name of this control plane among all.
    name: String,
    written: HashMap<Target, Written>,
}

/// What was last written about an object.
struct Written {
    statement: Statement,
    /// When, if it could be.
    at: Option<Instant>,
    /// Whether the API server took it.
    landed: bool,
    /// The events beside it, in the order of [`Statement::notes`].
    told: [Option<event::Told>; 3],
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
                self.say(statement).await;
            }
        }
    }

    async fn say(&mut self, statement: &Statement) {
        let before = self.written.get(&statement.target);
        let fresh = |at: Instant| at.elapsed() < SAME_AGAIN;
        let same = |it: &&Written| {
            let again = it.statement == *statement || it.landed && it.statement.repeats(statement);
            again && it.at.is_some_and(fresh)
        };
        if before.filter(same).is_some() {
            return;
        }
        let told = self.tell(statement).await;
        let now = serde_json::to_value(Time(Timestamp::now())).unwrap_or_default();
        let (mut at, mut landed) = (Some(Instant::now()), true);
        if let Some(status) = statement.status(&now)
            && let Err(error) = self.write(statement, status).await
        {
            // Somebody else was faster, the object has gone, or its kind has no status.
            let expected = matches!(error.code(), Some(404 | 409));
            let target = &statement.target;
            landed = false;
            match expected {
                true => tracing::debug!(%target, %error, "a status is not written"),
                false => {
                    at = None;
                    tracing::warn!(%target, %error, "a status cannot be written");
                }
            }
        }
        let written = Written { statement: statement.clone(), at, landed, told };
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
    async fn tell(&mut self, statement: &Statement) -> [Option<event::Told>; 3] {
        let Statement { target, resource, .. } = statement;
        let object = ObjectReference {
            api_version: Some(resource.api_version.clone()),
            kind: Some(resource.kind.clone()),
            name: Some(target.name.clone()),
            namespace: Some(target.namespace.clone()).filter(|text| !text.is_empty()),
            uid: Some(target.uid.clone()),
            ..ObjectReference::default()
        };
        let before = self.written.remove(target).map(|before| before.told).unwrap_or_default();
        let now = Instant::now();
        let mut told = [None, None, None];
        for ((told, before), (reason, note)) in told.iter_mut().zip(before).zip(statement.notes()) {
            let Some(note) = note else { continue };
            if let Some(mut standing) = before.filter(|it| it.tells(note))
                && standing.renew(&self.client, now).await
            {
                *told = Some(standing);
                continue;
            }
            let about = (self.name.as_str(), &object);
            *told = event::Told::write(&self.client, about, (reason, note), now).await;
        }
        told
    }
}

/// How often what is not written yet is tried again.
const AGAIN_EVERY: Duration = Duration::from_secs(10);
/// After this time the same is written again, if it still does not stand there.
const SAME_AGAIN: Duration = Duration::from_secs(60);
