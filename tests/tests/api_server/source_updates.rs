//! Receives the updates of a source and keeps its current objects.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Client;
use leno_kubernetes::source::{KubernetesSource, ListProgress, SourceOptions};
use leno_model::{Change, Object, ObjectKey};
use leno_registry::{RegistryUpdate, RejectedDocument, Warning};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The objects of a source after all its updates, and the rejections and warnings of the last update.
pub(crate) struct SourceUpdates {
    pub(crate) objects: BTreeMap<ObjectKey, Object>,
    pub(crate) rejected: Vec<RejectedDocument>,
    pub(crate) warnings: Vec<Warning>,
    /// The removed objects in order.
    pub(crate) removed: Vec<ObjectKey>,
    pub(crate) update_count: usize,
    pub(crate) progress: watch::Receiver<ListProgress>,
    update_receiver: mpsc::Receiver<RegistryUpdate>,
    _tasks: JoinSet<()>,
}

impl SourceUpdates {
    pub(crate) fn from_client(client: Client) -> Self {
        Self::from_source(KubernetesSource::new(client, SourceOptions::default()))
    }

    /// Starts a source and receives its updates.
    pub(crate) fn from_source(source: KubernetesSource) -> Self {
        let progress = source.subscribe_progress();
        let (update_sender, update_receiver) = mpsc::channel(4);
        let mut tasks = JoinSet::new();
        tasks.spawn(source.send_updates(update_sender));
        Self {
            objects: BTreeMap::new(),
            rejected: Vec::new(),
            warnings: Vec::new(),
            removed: Vec::new(),
            update_count: 0,
            progress,
            update_receiver,
            _tasks: tasks,
        }
    }

    /// Applies updates until a condition is true.
    pub(crate) async fn wait_until(
        &mut self,
        condition_name: &str,
        is_satisfied: impl Fn(&Self) -> bool,
    ) {
        while !is_satisfied(self) {
            let update = timeout(MAX_WAIT, self.update_receiver.recv()).await;
            match update {
                Ok(Some(update)) => self.apply_update(update),
                _ => panic!(
                    "{condition_name} never came: {:?}",
                    self.objects.keys().collect::<Vec<_>>()
                ),
            }
        }
    }

    fn apply_update(&mut self, update: RegistryUpdate) {
        self.update_count += 1;
        for change in update.changes {
            match change {
                Change::Upsert(object) => {
                    let replaced_object = self.objects.insert(object.object_key(), object.clone());
                    assert_ne!(replaced_object, Some(object), "an unchanged object was sent");
                }
                Change::Remove(key) => {
                    assert!(
                        self.objects.remove(&key).is_some(),
                        "{key} was removed before it was sent"
                    );
                    self.removed.push(key);
                }
            }
        }
        assert_eq!(update.object_count, self.objects.len());
        (self.rejected, self.warnings) = (update.rejected, update.warnings);
    }
}

const MAX_WAIT: Duration = Duration::from_secs(120);
