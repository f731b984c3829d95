//! Detects added and changed CustomResourceDefinitions, so that their kinds are watched without delay.

use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{Config, Event};
use kube::{Client, ResourceExt as _};
use leno_registry::served_kinds;
use tokio::sync::watch;

use crate::api::ObjectApi;
use crate::read::FOREIGN_CONFIG_KINDS;

/// Increases the count in `definition_sender` when a definition in a supported group is added or changed. Without
/// permission to watch definitions, kinds are only looked up periodically.
pub(crate) async fn watch_definitions(client: Client, definition_sender: Arc<watch::Sender<u64>>) {
    let kinds = served_kinds().into_iter().chain(FOREIGN_CONFIG_KINDS);
    let groups: Vec<&str> = kinds.map(|kind| kind.group).collect();
    let api: ObjectApi<PartialObjectMeta<CustomResourceDefinition>> =
        ObjectApi::for_all_namespaces(client);
    let config = Config::default().page_size(PAGE_SIZE);
    let mut events = pin!(api.watch(config));
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => {
                // The name of a definition is `plural.group`.
                let name = object.name_any();
                if name.split_once('.').is_some_and(|(_, group)| groups.contains(&group)) {
                    definition_sender.send_modify(|count| *count += 1);
                }
            }
            // The watch of a kind detects the deletion of its definition itself.
            Ok(Event::Init | Event::InitDone | Event::Delete(_)) => {}
            Err(error) => tracing::debug!(%error, "cannot watch CustomResourceDefinitions"),
        }
    }
}

/// The maximum number of objects in one page of a list.
pub(crate) const PAGE_SIZE: u32 = 500;
