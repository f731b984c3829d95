//! Watches the objects of one kind: finds the version that the server serves, lists, and watches. Objects are
//! converted immediately to save memory.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::watcher::{Config, Event};
use kube::{Client, Resource};
use leno_registry::ServedKind;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::definitions::PAGE_SIZE;
use super::event::{ConvertedObject, ObjectId, WatchEvent};
use crate::api::{ApiError, ObjectApi, list_api_resources};
use crate::well_known::{API_SERVER, API_SERVER_NAMESPACE, GATEWAY_PART};

/// A watched kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchedKind {
    Pods,
    Services,
    Namespaces,
    /// Nodes, for their zones.
    Nodes,
    /// The Service of the API server.
    ApiServerService,
    /// The endpoints of the API server.
    ApiServerEndpoints,
    /// Endpoints of Services without a selector.
    Slices,
    /// Certificates that gateways refer to.
    Secrets,
    /// The Deployments of gateways.
    Deployments,
    /// The Services of gateways.
    GatewayServices,
    Custom(ServedKind),
}

impl WatchedKind {
    /// Returns the name of the kind.
    pub(crate) fn kind_name(self) -> &'static str {
        match self {
            Self::Pods => "Pod",
            Self::Services => "Service",
            Self::Namespaces => "Namespace",
            Self::Nodes => "Node",
            Self::ApiServerService => "Service of the API server",
            Self::ApiServerEndpoints => "EndpointSlice of the API server",
            Self::Slices => "EndpointSlice",
            Self::Secrets => "Secret",
            Self::Deployments => "Deployment",
            Self::GatewayServices => "Service of a gateway",
            Self::Custom(kind) => kind.kind,
        }
    }

    /// Returns true if the kind determines mesh membership or authorization. No update is sent before it is
    /// known.
    pub(crate) fn decides_access(self) -> bool {
        match self {
            Self::Pods | Self::Services | Self::Namespaces => true,
            Self::Custom(kind) => {
                ["MeshConfig", "TrafficTarget", "AccessPolicy"].contains(&kind.kind)
            }
            Self::Nodes
            | Self::ApiServerService
            | Self::ApiServerEndpoints
            | Self::Slices
            | Self::Secrets
            | Self::Deployments
            | Self::GatewayServices => false,
        }
    }
}

/// The watch of one kind.
pub(crate) struct KindWatch {
    pub(crate) client: Client,
    pub(crate) watched: WatchedKind,
    /// The index of the kind in events.
    pub(crate) kind_index: usize,
    /// The number of changes of CustomResourceDefinitions so far.
    pub(crate) definition_changes: watch::Receiver<u64>,
    /// The Secrets that gateways refer to.
    pub(crate) referenced_secrets: watch::Receiver<Arc<BTreeSet<ObjectId>>>,
    /// The Secrets that the watch covers; `None` for watches of all objects.
    pub(crate) covered_secrets: Option<CoveredSecrets>,
    pub(crate) events: mpsc::Sender<(usize, WatchEvent)>,
    pub(crate) discovery_interval: Duration,
}

/// The Secrets that a watch covers.
pub(crate) struct CoveredSecrets {
    referenced_secrets: Arc<BTreeSet<ObjectId>>,
    /// Receives true when all of these Secrets have been listed.
    listed_sender: watch::Sender<bool>,
}

/// The receiver of the events was dropped.
struct ReceiverDropped;

/// The reason that a watch ended.
enum WatchEnd {
    /// The server lacks the kind, or this version of it.
    KindNotServed,
    ReceiverDropped,
}

/// The result of discovery for a kind.
pub(crate) enum DiscoveredKind {
    /// The server has the kind: a client for its objects, and its API resource.
    Served(Box<(ObjectApi<DynamicObject>, ApiResource)>),
    /// The server has no supported version of the kind.
    NotServed,
}

impl KindWatch {
    /// Runs until the receiver is dropped.
    pub(crate) async fn run(mut self) {
        let client = self.client.clone();
        match self.watched {
            WatchedKind::Pods => {
                // Terminated pods count as deleted.
                let config = Config::default()
                    .fields("status.phase!=Succeeded,status.phase!=Failed")
                    .page_size(PAGE_SIZE);
                self.watch_all(config, ConvertedObject::from_pod).await;
            }
            WatchedKind::Services => {
                let config = Config::default().page_size(PAGE_SIZE);
                self.watch_all(config, ConvertedObject::from_service).await;
            }
            WatchedKind::Namespaces => {
                let config = Config::default().page_size(PAGE_SIZE);
                self.watch_all(config, ConvertedObject::from_namespace).await;
            }
            WatchedKind::Nodes => {
                let config = Config::default().page_size(PAGE_SIZE);
                self.watch_all(config, ConvertedObject::from_node).await;
            }
            WatchedKind::ApiServerService => {
                let api = ObjectApi::<Service>::for_namespace(client, &API_SERVER_NAMESPACE);
                self.watch_builtin(
                    api,
                    api_server_selector(),
                    ConvertedObject::from_api_server_service,
                )
                .await;
            }
            WatchedKind::ApiServerEndpoints => {
                let api = ObjectApi::<EndpointSlice>::for_namespace(client, &API_SERVER_NAMESPACE);
                self.watch_builtin(
                    api,
                    api_server_selector(),
                    ConvertedObject::from_api_server_endpoints,
                )
                .await;
            }
            WatchedKind::Slices => {
                // Slices of the built-in controller list pods that are watched anyway.
                let config = Config::default().labels(MANUAL_SLICE_SELECTOR).page_size(PAGE_SIZE);
                self.watch_all(config, ConvertedObject::from_slice).await;
            }
            WatchedKind::Secrets => {
                // A dropped receiver ends the task.
                self.watch_secrets().await.ok();
            }
            WatchedKind::Deployments => {
                let config = Config::default().labels(GATEWAY_PART).page_size(PAGE_SIZE);
                self.watch_all(config, ConvertedObject::from_deployment).await;
            }
            WatchedKind::GatewayServices => {
                let config = Config::default().labels(GATEWAY_PART).page_size(PAGE_SIZE);
                self.watch_all(config, ConvertedObject::from_gateway_service).await;
            }
            WatchedKind::Custom(kind) => {
                // A dropped receiver ends the task.
                self.watch_custom(kind).await.ok();
            }
        }
    }

    /// Watches the Secrets that gateways refer to, and keeps no others. Sends no request while there are none.
    async fn watch_secrets(&mut self) -> Result<(), ReceiverDropped> {
        loop {
            let mut secrets_receiver = self.referenced_secrets.clone();
            let referenced_secrets = Arc::clone(&secrets_receiver.borrow_and_update());
            if referenced_secrets.is_empty() {
                self.send_event(WatchEvent::SecretsReceived(referenced_secrets)).await?;
                secrets_receiver.changed().await.map_err(|_| ReceiverDropped)?;
                continue;
            }
            let (listed_sender, listed_receiver) = watch::channel(false);
            self.covered_secrets = Some(CoveredSecrets {
                referenced_secrets: Arc::clone(&referenced_secrets),
                listed_sender,
            });
            let api: ObjectApi<Secret> = ObjectApi::for_all_namespaces(self.client.clone());
            let config = Config::default().fields("type=kubernetes.io/tls").page_size(PAGE_SIZE);
            let convert = |secret| ConvertedObject::from_secret(secret, &referenced_secrets);
            tokio::select! {
                end = self.watch_objects(api, config, convert) => match end {
                    WatchEnd::ReceiverDropped => return Err(ReceiverDropped),
                    WatchEnd::KindNotServed => sleep(MIN_RETRY_DELAY).await,
                },
                // Restart: Secrets that are newly referred to were not kept, and others must be dropped.
                changed = wait_for_other_secrets(&mut secrets_receiver, &referenced_secrets, listed_receiver) => changed?,
            }
        }
    }

    /// Watches a custom kind as long as the server serves it, and otherwise waits for its definition. Failed
    /// discovery is retried with exponential backoff.
    async fn watch_custom(&mut self, kind: ServedKind) -> Result<(), ReceiverDropped> {
        let mut retry_delay = MIN_RETRY_DELAY;
        loop {
            match find_version(&self.client, kind).await {
                Ok(DiscoveredKind::Served(api_and_resource)) => {
                    let (api, resource) = *api_and_resource;
                    let resource = Arc::new(resource);
                    let config = Config::default().page_size(PAGE_SIZE);
                    let convert =
                        move |object| ConvertedObject::from_custom(kind, &resource, object);
                    match self.watch_objects(api, config, convert).await {
                        WatchEnd::ReceiverDropped => return Err(ReceiverDropped),
                        WatchEnd::KindNotServed => sleep(MIN_RETRY_DELAY).await,
                    }
                    retry_delay = MIN_RETRY_DELAY;
                }
                Ok(DiscoveredKind::NotServed) => {
                    self.send_event(WatchEvent::KindNotServed).await?;
                    self.wait_for_definition(kind).await;
                    retry_delay = MIN_RETRY_DELAY;
                }
                Err(error) => {
                    let event = match error.status_code() {
                        Some(403) => WatchEvent::Forbidden(error.to_string()),
                        _ => WatchEvent::Unavailable(error.to_string()),
                    };
                    self.send_event(event).await?;
                    sleep(retry_delay).await;
                    retry_delay = (retry_delay * 2).min(MAX_RETRY_DELAY);
                }
            }
        }
    }

    /// Waits until the kind may be served, at most for the discovery interval. When a CustomResourceDefinition
    /// changes before, it checks repeatedly, because the server serves a new kind with a delay.
    async fn wait_for_definition(&mut self, kind: ServedKind) {
        let deadline = Instant::now() + self.discovery_interval;
        tokio::select! {
            () = sleep_until(deadline) => return,
            Ok(()) = self.definition_changes.changed() => {}
        }
        for _ in 0..CHECKS_AFTER_CHANGE {
            if matches!(find_version(&self.client, kind).await, Ok(DiscoveredKind::Served(..))) {
                return;
            }
            sleep(MIN_RETRY_DELAY).await;
        }
    }

    async fn send_event(&self, event: WatchEvent) -> Result<(), ReceiverDropped> {
        self.events.send((self.kind_index, event)).await.map_err(|_| ReceiverDropped)
    }

    /// Watches the objects of all namespaces of a kind that every server has.
    async fn watch_all<K>(&self, config: Config, convert: impl Fn(K) -> ConvertedObject)
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
        K::DynamicType: Clone + Default,
    {
        let api = ObjectApi::for_all_namespaces(self.client.clone());
        self.watch_builtin(api, config, convert).await;
    }

    /// Watches a kind that every server has.
    async fn watch_builtin<K>(
        &self,
        api: ObjectApi<K>,
        config: Config,
        convert: impl Fn(K) -> ConvertedObject,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
        K::DynamicType: Clone,
    {
        while let WatchEnd::KindNotServed =
            self.watch_objects(api.clone(), config.clone(), &convert).await
        {
            sleep(MIN_RETRY_DELAY).await;
        }
    }

    /// Watches objects until the kind is not served any more, or the receiver of the events is dropped.
    async fn watch_objects<K>(
        &self,
        api: ObjectApi<K>,
        config: Config,
        convert: impl Fn(K) -> ConvertedObject,
    ) -> WatchEnd
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let mut events = pin!(api.watch(config));
        while let Some(result) = events.next().await {
            let event = match result {
                Ok(Event::Init) => WatchEvent::ListStarted,
                Ok(Event::InitApply(object) | Event::Apply(object)) => {
                    WatchEvent::Applied(Box::new(convert(object)))
                }
                Ok(Event::InitDone) => match &self.covered_secrets {
                    Some(covered_secrets) => {
                        let covered_event = WatchEvent::SecretsReceived(Arc::clone(
                            &covered_secrets.referenced_secrets,
                        ));
                        for list_event in [WatchEvent::ListComplete, covered_event] {
                            if self.send_event(list_event).await.is_err() {
                                return WatchEnd::ReceiverDropped;
                            }
                        }
                        covered_secrets.listed_sender.send_replace(true);
                        continue;
                    }
                    None => WatchEvent::ListComplete,
                },
                Ok(Event::Delete(object)) => WatchEvent::Deleted(ObjectId::from_object(&object)),
                Err(error) => match error.status_code() {
                    Some(404) => return WatchEnd::KindNotServed,
                    // The resource version has expired: the client lists again.
                    Some(410) => continue,
                    Some(403) => WatchEvent::Forbidden(error.to_string()),
                    _ => WatchEvent::Unavailable(error.to_string()),
                },
            };
            if self.send_event(event).await.is_err() {
                return WatchEnd::ReceiverDropped;
            }
        }
        // The stream of a watch does not end by itself.
        WatchEnd::ReceiverDropped
    }
}

/// Waits until a different set of Secrets is needed, but not before the current one has been listed: otherwise
/// frequent changes would prevent any list from completing.
async fn wait_for_other_secrets(
    secrets_receiver: &mut watch::Receiver<Arc<BTreeSet<ObjectId>>>,
    covered_secrets: &Arc<BTreeSet<ObjectId>>,
    mut listed_receiver: watch::Receiver<bool>,
) -> Result<(), ReceiverDropped> {
    if listed_receiver.wait_for(|listed| *listed).await.is_err() {
        // The watch of these Secrets has ended, which the caller handles.
        return std::future::pending().await;
    }
    // Compares by pointer, not by value: the set may have changed and changed back. In between, the Secrets
    // were dropped.
    secrets_receiver
        .wait_for(|needed| !Arc::ptr_eq(needed, covered_secrets))
        .await
        .map(drop)
        .map_err(|_| ReceiverDropped)
}

/// Finds the first version of a kind, in order of preference, that the server serves.
pub(crate) async fn find_version(
    client: &Client,
    kind: ServedKind,
) -> Result<DiscoveredKind, ApiError> {
    for api_version in kind.api_versions {
        let resource_list = match list_api_resources(client, api_version).await {
            Ok(resource_list) => resource_list,
            Err(error) if error.status_code() == Some(404) => continue,
            Err(error) => return Err(error),
        };
        let served_resource = resource_list
            .resources
            .into_iter()
            .find(|resource| resource.kind == kind.kind && !resource.name.contains('/'));
        if let Some(served_resource) = served_resource {
            let version = api_version.rsplit('/').next().unwrap_or_default();
            let resource = ApiResource {
                group: kind.group.to_owned(),
                version: version.to_owned(),
                api_version: (*api_version).to_owned(),
                kind: kind.kind.to_owned(),
                plural: served_resource.name,
            };
            let api = ObjectApi::for_dynamic_kind(client.clone(), None, &resource)?;
            return Ok(DiscoveredKind::Served(Box::new((api, resource))));
        }
    }
    Ok(DiscoveredKind::NotServed)
}

/// Returns the watch config for the API server's own Service or EndpointSlice, which have the same name.
fn api_server_selector() -> Config {
    Config::default().fields(&format!("metadata.name={API_SERVER}")).page_size(PAGE_SIZE)
}

/// Selects slices that the built-in controller does not manage.
const MANUAL_SLICE_SELECTOR: &str =
    "endpointslice.kubernetes.io/managed-by!=endpointslice-controller.k8s.io";
/// The minimum delay before a retry.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
/// The maximum delay before a retry.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);
/// The number of checks for a kind after a CustomResourceDefinition has changed, one per second.
const CHECKS_AFTER_CHANGE: usize = 5;
