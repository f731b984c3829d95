//! One kind is found, listed and watched; what it tells is read at once, so that little is kept.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::{Config, Event};
use kube::{Client, Resource};
use leno_registry::ServedKind;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::arrivals::PAGE_SIZE;
use super::news::{Id, News, Seen};
use crate::api::{ApiError, ObjectApi, resources_of};
use crate::words::{API_SERVER, API_SERVER_NAMESPACE, GATEWAY_PART};

/// What is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watched {
    Pods,
    Services,
    Namespaces,
    /// In which zone they are.
    Nodes,
    /// The Service of the API server,
    ApiServerService,
    /// and its endpoints.
    ApiServerEndpoints,
    /// Endpoints of Services without a selector.
    Slices,
    /// Certificates that gateways refer to.
    Secrets,
    /// The Deployments of gateways,
    Deployments,
    /// and their Services.
    Entrances,
    Custom(ServedKind),
}

impl Watched {
    /// The kind.
    pub(crate) fn word(self) -> &'static str {
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
            Self::Entrances => "Service of a gateway",
            Self::Custom(kind) => kind.kind,
        }
    }

    /// Whether it says who is in the mesh and who may call whom: without it nothing is decided.
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
            | Self::Entrances => false,
        }
    }
}

/// One kind under watch.
pub(crate) struct Following {
    pub(crate) client: Client,
    pub(crate) watched: Watched,
    /// The kind's name in the news.
    pub(crate) index: usize,
    /// How often a definition has changed.
    pub(crate) arrivals: watch::Receiver<u64>,
    /// The secrets that gateways refer to.
    pub(crate) secrets: watch::Receiver<Arc<BTreeSet<Id>>>,
    /// What the stream is about, when that is not all.
    pub(crate) covering: Option<Covering>,
    pub(crate) news: mpsc::Sender<(usize, News)>,
    pub(crate) look_again: Duration,
}

/// What a stream of secrets is about.
pub(crate) struct Covering {
    secrets: Arc<BTreeSet<Id>>,
    /// Whether all of them have been listed.
    listed: watch::Sender<bool>,
}

/// Nobody listens any more.
struct Over;

/// Why a stream ended.
enum End {
    /// The server does not have the kind, or not in this version.
    Absent,
    Over,
}

/// What the server has of a kind.
pub(crate) enum Found {
    Served(Box<(ObjectApi<DynamicObject>, ApiResource)>),
    Absent,
}

impl Following {
    /// Until nobody listens any more.
    pub(crate) async fn run(mut self) {
        let client = self.client.clone();
        match self.watched {
            Watched::Pods => {
                // Those that have ended count as gone.
                let config = Config::default()
                    .fields("status.phase!=Succeeded,status.phase!=Failed")
                    .page_size(PAGE_SIZE);
                self.stream(ObjectApi::<Pod>::all(client), config, Seen::pod).await;
            }
            Watched::Services => {
                let config = Config::default().page_size(PAGE_SIZE);
                self.stream(ObjectApi::<Service>::all(client), config, Seen::service).await;
            }
            Watched::Namespaces => {
                let config = Config::default().page_size(PAGE_SIZE);
                self.stream(ObjectApi::<Namespace>::all(client), config, Seen::namespace).await;
            }
            Watched::Nodes => {
                let config = Config::default().page_size(PAGE_SIZE);
                let api = ObjectApi::<PartialObjectMeta<Node>>::all(client);
                self.stream(api, config, Seen::node).await;
            }
            Watched::ApiServerService => {
                let api = ObjectApi::<Service>::namespaced(client, &API_SERVER_NAMESPACE);
                self.stream(api, api_server(), Seen::api_server_service).await;
            }
            Watched::ApiServerEndpoints => {
                let api = ObjectApi::<EndpointSlice>::namespaced(client, &API_SERVER_NAMESPACE);
                self.stream(api, api_server(), Seen::api_server_endpoints).await;
            }
            Watched::Slices => {
                // The cluster's own are made of pods, which are known.
                let config = Config::default().labels(NOT_OF_PODS).page_size(PAGE_SIZE);
                self.stream(ObjectApi::<EndpointSlice>::all(client), config, Seen::slice).await;
            }
            Watched::Secrets => {
                self.secrets().await.ok();
            }
            Watched::Deployments => {
                let config = Config::default().labels(GATEWAY_PART).page_size(PAGE_SIZE);
                self.stream(ObjectApi::<Deployment>::all(client), config, Seen::deployment).await;
            }
            Watched::Entrances => {
                let config = Config::default().labels(GATEWAY_PART).page_size(PAGE_SIZE);
                self.stream(ObjectApi::<Service>::all(client), config, Seen::entrance).await;
            }
            Watched::Custom(kind) => {
                // Who listens no more ends the task.
                self.custom(kind).await.ok();
            }
        }
    }

    /// Nothing is asked for while no gateway refers to any, and none but those are kept.
    async fn secrets(&mut self) -> Result<(), Over> {
        loop {
            let mut told = self.secrets.clone();
            let wanted = Arc::clone(&told.borrow_and_update());
            if wanted.is_empty() {
                self.tell(News::Covered(wanted)).await?;
                told.changed().await.map_err(|_| Over)?;
                continue;
            }
            let (listed, is_listed) = watch::channel(false);
            self.covering = Some(Covering { secrets: Arc::clone(&wanted), listed });
            let api: ObjectApi<Secret> = ObjectApi::all(self.client.clone());
            let config = Config::default().fields("type=kubernetes.io/tls").page_size(PAGE_SIZE);
            let read = |secret| Seen::secret(secret, &wanted);
            tokio::select! {
                end = self.stream_of(api, config, read) => match end {
                    End::Over => return Err(Over),
                    End::Absent => sleep(PAUSE_MIN).await,
                },
                // What is new was not kept, and what is wanted no more is not to be.
                changed = until_others(&mut told, &wanted, is_listed) => changed?,
            }
        }
    }

    async fn custom(&mut self, kind: ServedKind) -> Result<(), Over> {
        let mut pause = PAUSE_MIN;
        loop {
            match find(&self.client, kind).await {
                Ok(Found::Served(served)) => {
                    let (api, resource) = *served;
                    let resource = Arc::new(resource);
                    let config = Config::default().page_size(PAGE_SIZE);
                    let read = move |object| Seen::custom(kind, &resource, object);
                    match self.stream_of(api, config, read).await {
                        End::Over => return Err(Over),
                        End::Absent => sleep(PAUSE_MIN).await,
                    }
                    pause = PAUSE_MIN;
                }
                Ok(Found::Absent) => {
                    self.tell(News::Absent).await?;
                    self.wait_for_arrival(kind).await;
                    pause = PAUSE_MIN;
                }
                Err(error) => {
                    let news = match error.code() {
                        Some(403) => News::Forbidden(error.to_string()),
                        _ => News::Failing(error.to_string()),
                    };
                    self.tell(news).await?;
                    sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Until the kind may be there: at the latest after a while, and at once, repeatedly, when a
    /// definition of its group has changed, because it is served a moment later.
    async fn wait_for_arrival(&mut self, kind: ServedKind) {
        let latest = Instant::now() + self.look_again;
        tokio::select! {
            () = sleep_until(latest) => return,
            Ok(()) = self.arrivals.changed() => {}
        }
        for _ in 0..LOOKS_AFTER_ARRIVAL {
            if matches!(find(&self.client, kind).await, Ok(Found::Served(..))) {
                return;
            }
            sleep(PAUSE_MIN).await;
        }
    }

    async fn tell(&self, news: News) -> Result<(), Over> {
        self.news.send((self.index, news)).await.map_err(|_| Over)
    }

    /// A kind that every server has.
    async fn stream<K>(&self, api: ObjectApi<K>, config: Config, read: impl Fn(K) -> Seen)
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
        K::DynamicType: Clone,
    {
        while let End::Absent = self.stream_of(api.clone(), config.clone(), &read).await {
            sleep(PAUSE_MIN).await;
        }
    }

    async fn stream_of<K>(&self, api: ObjectApi<K>, config: Config, read: impl Fn(K) -> Seen) -> End
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let mut events = pin!(api.watch(config));
        while let Some(event) = events.next().await {
            let news = match event {
                Ok(Event::Init) => News::Begin,
                Ok(Event::InitApply(object) | Event::Apply(object)) => {
                    News::Seen(Box::new(read(object)))
                }
                Ok(Event::InitDone) => match &self.covering {
                    Some(covering) => {
                        let covered = News::Covered(Arc::clone(&covering.secrets));
                        for news in [News::Complete, covered] {
                            if self.tell(news).await.is_err() {
                                return End::Over;
                            }
                        }
                        covering.listed.send_replace(true);
                        continue;
                    }
                    None => News::Complete,
                },
                Ok(Event::Delete(object)) => News::Gone(Id::of(&object)),
                Err(error) => match error.code() {
                    Some(404) => return End::Absent,
                    // Asked to list again: that is no trouble.
                    Some(410) => continue,
                    Some(403) => News::Forbidden(error.to_string()),
                    _ => News::Failing(error.to_string()),
                },
            };
            if self.tell(news).await.is_err() {
                return End::Over;
            }
        }
        End::Over
    }
}

/// Until others are wanted than these, but not before these have been listed: who changes them again
/// and again keeps nobody from seeing any.
async fn until_others(
    told: &mut watch::Receiver<Arc<BTreeSet<Id>>>,
    covered: &Arc<BTreeSet<Id>>,
    mut is_listed: watch::Receiver<bool>,
) -> Result<(), Over> {
    if is_listed.wait_for(|listed| *listed).await.is_err() {
        return std::future::pending().await;
    }
    // Also those that came back in between were not kept in between.
    told.wait_for(|now| !Arc::ptr_eq(now, covered)).await.map(drop).map_err(|_| Over)
}

/// The best version of a kind that the server has.
pub(crate) async fn find(client: &Client, kind: ServedKind) -> Result<Found, ApiError> {
    for api_version in kind.api_versions {
        let list = match resources_of(client, api_version).await {
            Ok(list) => list,
            Err(error) if error.code() == Some(404) => continue,
            Err(error) => return Err(error),
        };
        let found =
            list.resources.into_iter().find(|it| it.kind == kind.kind && !it.name.contains('/'));
        if let Some(resource) = found {
            let version = api_version.rsplit('/').next().unwrap_or_default();
            let resource = ApiResource {
                group: kind.group.to_owned(),
                version: version.to_owned(),
                api_version: (*api_version).to_owned(),
                kind: kind.kind.to_owned(),
                plural: resource.name,
            };
            let api = ObjectApi::dynamic(client.clone(), None, &resource)?;
            return Ok(Found::Served(Box::new((api, resource))));
        }
    }
    Ok(Found::Absent)
}

/// The object of the API server itself: its Service and its slice have the same name.
fn api_server() -> Config {
    Config::default().fields(&format!("metadata.name={API_SERVER}")).page_size(PAGE_SIZE)
}

/// Slices of endpoints that are not made of the pods that a service selects.
const NOT_OF_PODS: &str = "endpointslice.kubernetes.io/managed-by!=endpointslice-controller.k8s.io";
/// How long to wait at least before asking again.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// And at most.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How often to look, after its definition has changed, for a kind.
const LOOKS_AFTER_ARRIVAL: usize = 5;
