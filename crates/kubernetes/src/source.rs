//! Reads configuration from the API server: watches all kinds, merges their events in an object store, and
//! publishes changes, statuses and the desired objects of gateways.

mod definitions;
mod event;
mod kinds;
mod progress;
mod sidecar_settings;
mod status_record;
mod store;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use leno_model::{Name, SecurityFloor, TrustDomain};
use leno_registry::{RegistryUpdate, Warning, served_kinds};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use self::definitions::watch_definitions;
pub(crate) use self::event::ObjectId;
use self::event::WatchEvent;
pub(crate) use self::kinds::{DiscoveredKind, find_version};
use self::kinds::{KindWatch, WatchedKind};
pub use self::progress::ListProgress;
pub use self::sidecar_settings::read_sidecar_settings;
use self::store::ObjectStore;
use crate::external_principals::{CertificateOutcomes, DesiredCertificates, SecretPermissions};
use crate::gateway::{DesiredGateway, GATEWAY_KINDS};
use crate::inject::Exclusions;
use crate::read::FOREIGN_CONFIG_KINDS;
use crate::status::DesiredStatus;

/// A source of objects from an API server: pods, services and namespaces, and custom resources of every kind
/// that files may contain.
///
/// As with files, the last valid version of an object stays in use when a later version is rejected; an object is
/// removed only when it is deleted. The source periodically looks for kinds that the server lacks. A kind that
/// the source may not read causes a warning, and the other kinds are read. However, no update is sent before
/// all kinds that determine mesh membership and authorization are listed.
pub struct KubernetesSource {
    client: Client,
    options: SourceOptions,
    progress: watch::Sender<ListProgress>,
    desired_statuses: watch::Sender<Arc<Vec<DesiredStatus>>>,
    desired_gateways: watch::Sender<Arc<Vec<DesiredGateway>>>,
    external_principals: watch::Sender<Arc<DesiredCertificates>>,
    secret_permissions: SecretPermissions,
    certificate_outcomes: watch::Receiver<Arc<CertificateOutcomes>>,
    unwritten_statuses: watch::Receiver<Arc<Vec<Warning>>>,
    exclusions: watch::Sender<Exclusions>,
    floor: watch::Sender<SecurityFloor>,
    default_trust_domain: Option<TrustDomain>,
    settings_namespaces: BTreeSet<Name>,
    sidecar_image: Option<String>,
}

/// Options of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceOptions {
    /// The time without further changes after which changes are published.
    pub quiet_period: Duration,
    /// The maximum time from the first unpublished change to its publication.
    pub max_delay: Duration,
    /// The interval between checks for a kind that the server lacks.
    pub discovery_interval: Duration,
    /// True to also watch the kinds that only gateways need: their own, Secrets and Deployments.
    pub gateways: bool,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            quiet_period: Duration::from_millis(50),
            max_delay: Duration::from_millis(250),
            discovery_interval: Duration::from_secs(30),
            gateways: false,
        }
    }
}

impl fmt::Debug for KubernetesSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("options", &self.options).finish_non_exhaustive()
    }
}

impl KubernetesSource {
    /// Creates a source of all objects that this client may read. Nothing is read yet.
    #[must_use]
    pub fn new(client: Client, options: SourceOptions) -> Self {
        let progress = watch::Sender::new(ListProgress {
            unlisted: INITIAL_KINDS.to_vec(),
            forbidden: Vec::new(),
        });
        Self {
            client,
            options,
            progress,
            desired_statuses: watch::Sender::default(),
            desired_gateways: watch::Sender::default(),
            external_principals: watch::Sender::default(),
            secret_permissions: SecretPermissions::default(),
            certificate_outcomes: watch::Sender::default().subscribe(),
            unwritten_statuses: watch::Sender::default().subscribe(),
            exclusions: watch::Sender::default(),
            floor: watch::Sender::default(),
            default_trust_domain: None,
            settings_namespaces: BTreeSet::new(),
            sidecar_image: None,
        }
    }

    /// Sets the trust domain that applies if no `MeshConfig` of Leno specifies one.
    #[must_use]
    pub fn with_trust_domain(self, trust_domain: Option<TrustDomain>) -> Self {
        Self { default_trust_domain: trust_domain, ..self }
    }

    /// Sets the namespaces that may have mesh-wide objects.
    #[must_use]
    pub fn with_settings_namespaces(self, namespaces: BTreeSet<Name>) -> Self {
        Self { settings_namespaces: namespaces, ..self }
    }

    /// Sets the default image of sidecars.
    #[must_use]
    pub fn with_image(self, sidecar_image: Option<String>) -> Self {
        Self { sidecar_image, ..self }
    }

    /// Sets the namespaces for certificates of external principals, and the channel with their
    /// `certificate_outcomes`.
    #[must_use]
    pub fn with_secret_permissions(
        self,
        secret_permissions: SecretPermissions,
        certificate_outcomes: watch::Receiver<Arc<CertificateOutcomes>>,
    ) -> Self {
        Self { secret_permissions, certificate_outcomes, ..self }
    }

    /// Adds the statuses that [`reconcile_statuses`](crate::status::reconcile_statuses) cannot write to the
    /// warnings of this source.
    #[must_use]
    pub fn with_unwritten_statuses(
        self,
        unwritten_statuses: watch::Receiver<Arc<Vec<Warning>>>,
    ) -> Self {
        Self { unwritten_statuses, ..self }
    }

    /// Subscribes to the kinds that have not been listed yet, for readiness.
    #[must_use]
    pub fn subscribe_progress(&self) -> watch::Receiver<ListProgress> {
        self.progress.subscribe()
    }

    /// Subscribes to the statuses and events to write, for
    /// [`reconcile_statuses`](crate::status::reconcile_statuses).
    #[must_use]
    pub fn subscribe_statuses(&self) -> watch::Receiver<Arc<Vec<DesiredStatus>>> {
        self.desired_statuses.subscribe()
    }

    /// Subscribes to the desired objects of gateways, for
    /// [`provision_gateways`](crate::gateway::provision_gateways).
    #[must_use]
    pub fn subscribe_gateways(&self) -> watch::Receiver<Arc<Vec<DesiredGateway>>> {
        self.desired_gateways.subscribe()
    }

    /// Subscribes to the desired certificates of external principals, for
    /// [`reconcile_external_principals`](crate::external_principals::reconcile_external_principals).
    #[must_use]
    pub fn subscribe_external_principals(&self) -> watch::Receiver<Arc<DesiredCertificates>> {
        self.external_principals.subscribe()
    }

    /// Subscribes to the exclusions from redirection in the settings of another mesh.
    #[must_use]
    pub fn subscribe_exclusions(&self) -> watch::Receiver<Exclusions> {
        self.exclusions.subscribe()
    }

    /// Subscribes to the floor for sidecar injection: settings of the `MeshConfig` that pods and namespaces
    /// cannot relax.
    #[must_use]
    pub fn subscribe_floor(&self) -> watch::Receiver<SecurityFloor> {
        self.floor.subscribe()
    }

    /// Watches all kinds and sends updates. The first update is sent when every kind has been listed or cannot be
    /// listed. Later updates are sent when objects, rejections or warnings change. Returns when the receiver of the
    /// updates is dropped.
    pub async fn send_updates(self, update_sender: mpsc::Sender<RegistryUpdate>) {
        let kinds = watched_kinds(self.options.gateways);
        let (event_sender, event_receiver) = mpsc::channel(MAX_WATCH_EVENTS);
        let definition_sender = Arc::new(watch::Sender::new(0));
        let secrets_sender = watch::Sender::new(Arc::new(BTreeSet::new()));
        let mut tasks = JoinSet::new();
        for (index, watched) in kinds.iter().enumerate() {
            let kind_watch = KindWatch {
                client: self.client.clone(),
                watched: *watched,
                kind_index: index,
                definition_changes: definition_sender.subscribe(),
                referenced_secrets: secrets_sender.subscribe(),
                covered_secrets: None,
                events: event_sender.clone(),
                discovery_interval: self.options.discovery_interval,
            };
            tasks.spawn(kind_watch.run());
        }
        tasks.spawn(watch_definitions(self.client.clone(), definition_sender));
        let mut store = ObjectStore::new(kinds);
        if let Some(trust_domain) = self.default_trust_domain {
            store.set_trust_domain(trust_domain);
        }
        store.set_secret_permissions(self.secret_permissions);
        store.set_settings_namespaces(self.settings_namespaces);
        if let Some(sidecar_image) = &self.sidecar_image {
            store.set_image(sidecar_image);
        }
        let Self {
            options,
            progress,
            desired_statuses,
            desired_gateways,
            external_principals,
            exclusions,
            ..
        } = self;
        let (floor, certificate_outcomes, unwritten_statuses) =
            (self.floor, self.certificate_outcomes, self.unwritten_statuses);
        let outputs = Outputs {
            progress,
            desired_statuses,
            desired_gateways,
            external_principals,
            exclusions,
            floor,
            referenced_secrets: secrets_sender,
        };
        let event_loop = EventLoop {
            store,
            options,
            outputs,
            events: event_receiver,
            certificate_outcomes,
            unwritten_statuses,
            last_failure: None,
        };
        event_loop.run(update_sender).await;
    }
}

/// The task that merges the events of all watches.
struct EventLoop {
    store: ObjectStore,
    options: SourceOptions,
    outputs: Outputs,
    /// The events, each with the index of its kind.
    events: mpsc::Receiver<(usize, WatchEvent)>,
    /// The outcomes of certificates of external principals.
    certificate_outcomes: watch::Receiver<Arc<CertificateOutcomes>>,
    /// The statuses that cannot be written.
    unwritten_statuses: watch::Receiver<Arc<Vec<Warning>>>,
    /// The time of the last failed request to the server.
    last_failure: Option<Instant>,
}

/// The channels of the source other than its updates.
struct Outputs {
    progress: watch::Sender<ListProgress>,
    desired_statuses: watch::Sender<Arc<Vec<DesiredStatus>>>,
    desired_gateways: watch::Sender<Arc<Vec<DesiredGateway>>>,
    external_principals: watch::Sender<Arc<DesiredCertificates>>,
    exclusions: watch::Sender<Exclusions>,
    floor: watch::Sender<SecurityFloor>,
    /// The Secrets that gateways refer to, for the watch of Secrets.
    referenced_secrets: watch::Sender<Arc<BTreeSet<ObjectId>>>,
}

impl EventLoop {
    /// Applies events and publishes the results, until the receiver of the updates is dropped.
    async fn run(mut self, update_sender: mpsc::Sender<RegistryUpdate>) {
        loop {
            let indexed_event = tokio::select! {
                () = update_sender.closed() => return,
                Ok(()) = self.certificate_outcomes.changed() => None,
                Ok(()) = self.unwritten_statuses.changed() => None,
                event = self.events.recv() => match event {
                    Some(event) => Some(event),
                    None => return,
                },
            };
            let first_event_at = Instant::now();
            match indexed_event {
                Some((kind_index, event)) => {
                    self.apply_event(kind_index, event);
                    self.receive_pending(first_event_at).await;
                }
                None => {
                    self.store
                        .set_outcomes(Arc::clone(&self.certificate_outcomes.borrow_and_update()));
                    self.store
                        .set_unwritten(Arc::clone(&self.unwritten_statuses.borrow_and_update()));
                }
            }
            self.store.resolve_gateways();
            self.store.validate_external_principals();
            self.publish_state();
            if let Some(mut update) = self.store.flush() {
                update.first_event_at = Some(first_event_at.into_std());
                if update_sender.send(update).await.is_err() {
                    return;
                }
            }
            // Publish statuses after the update, so that they report only configuration that has been sent.
            if let Some(desired_statuses) = self.store.changed_statuses() {
                self.outputs.desired_statuses.send_replace(Arc::new(desired_statuses));
            }
        }
    }

    /// Applies further events until none arrives for the quiet period, or the maximum delay has passed.
    async fn receive_pending(&mut self, first_event_at: Instant) {
        let deadline = first_event_at + self.options.max_delay;
        loop {
            let wait_deadline = deadline.min(Instant::now() + self.options.quiet_period);
            match timeout_at(wait_deadline, self.events.recv()).await {
                Ok(Some((kind_index, event))) => self.apply_event(kind_index, event),
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn apply_event(&mut self, kind_index: usize, event: WatchEvent) {
        if let WatchEvent::Unavailable(cause) = &event {
            let now = Instant::now();
            let kind = self.store.kind_name(kind_index);
            match self.last_failure.replace(now) {
                // When the server fails, all watches fail repeatedly.
                Some(previous) if now - previous < FAILURE_LOG_INTERVAL => {
                    tracing::debug!(kind, reason = cause, "API server still unavailable")
                }
                _ => {
                    tracing::warn!(
                        kind,
                        reason = cause,
                        "API server unavailable; keeping the known state"
                    )
                }
            }
        }
        self.store.apply_event(kind_index, event);
    }

    /// Publishes each output that has changed, except updates and statuses.
    fn publish_state(&mut self) {
        let progress = self.store.progress();
        let referenced_secrets = self.store.referenced_secrets();
        self.outputs.referenced_secrets.send_if_modified(|published| {
            let is_changed = *published != referenced_secrets;
            *published = referenced_secrets;
            is_changed
        });
        let desired_gateways = self.store.desired_gateways();
        self.outputs.desired_gateways.send_if_modified(|published| {
            let is_changed = published.as_slice() != desired_gateways;
            if is_changed {
                *published = Arc::new(desired_gateways.to_vec());
            }
            is_changed
        });
        let external_principals = self.store.external_principals();
        self.outputs.external_principals.send_if_modified(|published| {
            let is_changed = **published != *external_principals;
            if is_changed {
                *published = Arc::new(external_principals.clone());
            }
            is_changed
        });
        let exclusions = self.store.mesh_exclusions();
        self.outputs.exclusions.send_if_modified(|published| {
            let is_changed = *published != exclusions;
            *published = exclusions;
            is_changed
        });
        let floor = self.store.mesh_floor();
        self.outputs.floor.send_if_modified(|published| {
            let is_changed = *published != floor;
            *published = floor;
            is_changed
        });
        self.outputs.progress.send_if_modified(|published| {
            let is_changed = *published != progress;
            match is_changed {
                true if progress.is_synced() => tracing::info!("{progress}"),
                true if !progress.forbidden.is_empty() => tracing::error!("{progress}"),
                _ => {}
            }
            *published = progress;
            is_changed
        });
    }
}

/// Returns all watched kinds; events refer to them by index. `includes_gateways` adds the kinds that only gateways need.
fn watched_kinds(includes_gateways: bool) -> Vec<WatchedKind> {
    let always_watched = [WatchedKind::Pods, WatchedKind::Services, WatchedKind::Namespaces];
    let custom_resources =
        served_kinds().into_iter().chain(FOREIGN_CONFIG_KINDS).map(WatchedKind::Custom);
    let cluster_kinds = [
        WatchedKind::Nodes,
        WatchedKind::ApiServerService,
        WatchedKind::ApiServerEndpoints,
        WatchedKind::Slices,
    ];
    let mut kinds: Vec<WatchedKind> =
        always_watched.into_iter().chain(custom_resources).chain(cluster_kinds).collect();
    if includes_gateways {
        kinds.extend([
            WatchedKind::Secrets,
            WatchedKind::Deployments,
            WatchedKind::GatewayServices,
        ]);
        kinds.extend(GATEWAY_KINDS.map(WatchedKind::Custom));
    }
    kinds
}

/// The kinds that are reported as unlisted until the source starts.
const INITIAL_KINDS: &[&str] = &["Pod", "Service", "Namespace"];
/// The time without failures after which the next failure is logged as a warning again.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(90);
/// The capacity of the event channel; the watches wait when it is full.
const MAX_WATCH_EVENTS: usize = 1024;

#[cfg(test)]
mod tests;
