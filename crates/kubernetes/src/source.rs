//! API server as a source of configuration: watches all kinds and publishes changes.

mod arrivals;
mod event;
mod exclusions;
mod kinds;
mod progress;
mod status_record;
mod store;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use leno_model::{Floor, Name, TrustDomain};
use leno_registry::{RegistryUpdate, Warning, served_kinds};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use self::arrivals::watch_arrivals;
pub(crate) use self::event::ObjectId;
use self::event::WatchEvent;
pub use self::exclusions::sidecar_settings;
pub(crate) use self::kinds::{DiscoveredKind, find_version};
use self::kinds::{KindWatch, WatchedKind};
pub use self::progress::ListProgress;
use self::store::ObjectStore;
use crate::external_principals::{CertificateOutcomes, DesiredCertificates, SecretPermissions};
use crate::gateway::{DesiredGateway, EDGE_KINDS};
use crate::inject::Exclusions;
use crate::read::FOREIGN_CONFIGS;
use crate::status::DesiredStatus;

/// A source of objects from an API server: pods, services and namespaces, and custom resources of every kind
/// that files may contain.
///
/// As with files, the last valid version of an object stays in use when a later one is rejected; an object is
/// removed only when it is deleted. The source periodically looks for kinds that the server lacks. A kind that
/// it may not read causes a warning, and the other kinds are read. However, no update is sent before all kinds
/// that determine mesh membership and authorization are listed.
pub struct KubernetesSource {
    client: Client,
    options: SourceOptions,
    progress: watch::Sender<ListProgress>,
    statements: watch::Sender<Arc<Vec<DesiredStatus>>>,
    desired: watch::Sender<Arc<Vec<DesiredGateway>>>,
    external_principals: watch::Sender<Arc<DesiredCertificates>>,
    grants: SecretPermissions,
    outcomes: watch::Receiver<Arc<CertificateOutcomes>>,
    unwritten: watch::Receiver<Arc<Vec<Warning>>>,
    exclusions: watch::Sender<Exclusions>,
    floor: watch::Sender<Floor>,
    assumed: Option<TrustDomain>,
    settings: BTreeSet<Name>,
    image: Option<String>,
}

/// Options of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceOptions {
    /// The time without further changes after which changes are published.
    pub quiet: Duration,
    /// The maximum delay of changes.
    pub quiet_max: Duration,
    /// The interval between checks for a kind that the server lacks.
    pub look_again: Duration,
    /// True to also watch the kinds that only gateways need: their own, Secrets and Deployments.
    pub gateways: bool,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            quiet: Duration::from_millis(50),
            quiet_max: Duration::from_millis(250),
            look_again: Duration::from_secs(30),
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
            waiting: WATCHED_FIRST.to_vec(),
            forbidden: Vec::new(),
        });
        Self {
            client,
            options,
            progress,
            statements: watch::Sender::default(),
            desired: watch::Sender::default(),
            external_principals: watch::Sender::default(),
            grants: SecretPermissions::default(),
            outcomes: watch::Sender::default().subscribe(),
            unwritten: watch::Sender::default().subscribe(),
            exclusions: watch::Sender::default(),
            floor: watch::Sender::default(),
            assumed: None,
            settings: BTreeSet::new(),
            image: None,
        }
    }

    /// Sets the trust domain for the case that no `MeshConfig` of ours specifies it.
    #[must_use]
    pub fn with_trust_domain(self, trust_domain: Option<TrustDomain>) -> Self {
        Self { assumed: trust_domain, ..self }
    }

    /// Sets the namespaces that may have mesh-wide objects.
    #[must_use]
    pub fn with_settings_of(self, namespaces: BTreeSet<Name>) -> Self {
        Self { settings: namespaces, ..self }
    }

    /// Sets the default image of sidecars.
    #[must_use]
    pub fn with_image(self, image: Option<String>) -> Self {
        Self { image, ..self }
    }

    /// Sets the namespaces for certificates of external principals, and the channel with their `outcomes`.
    #[must_use]
    pub fn with_grants(
        self,
        grants: SecretPermissions,
        outcomes: watch::Receiver<Arc<CertificateOutcomes>>,
    ) -> Self {
        Self { grants, outcomes, ..self }
    }

    /// Adds the statuses that [`keep_statuses`](crate::status::keep_statuses) cannot write to the warnings of
    /// this source.
    #[must_use]
    pub fn with_unwritten(self, unwritten: watch::Receiver<Arc<Vec<Warning>>>) -> Self {
        Self { unwritten, ..self }
    }

    /// Returns the kinds that have not been listed yet, for readiness.
    #[must_use]
    pub fn subscribe_progress(&self) -> watch::Receiver<ListProgress> {
        self.progress.subscribe()
    }

    /// Returns the statuses and events to write, for [`keep_statuses`](crate::status::keep_statuses).
    #[must_use]
    pub fn subscribe_statements(&self) -> watch::Receiver<Arc<Vec<DesiredStatus>>> {
        self.statements.subscribe()
    }

    /// Returns the desired objects of gateways, for [`provision_gateways`](crate::gateway::provision_gateways).
    #[must_use]
    pub fn subscribe_gateways(&self) -> watch::Receiver<Arc<Vec<DesiredGateway>>> {
        self.desired.subscribe()
    }

    /// Returns the desired certificates of external principals, for
    /// [`keep_external_principals`](crate::external_principals::keep_external_principals).
    #[must_use]
    pub fn external_principals(&self) -> watch::Receiver<Arc<DesiredCertificates>> {
        self.external_principals.subscribe()
    }

    /// Returns the exclusions from redirection in the settings of another mesh.
    #[must_use]
    pub fn subscribe_exclusions(&self) -> watch::Receiver<Exclusions> {
        self.exclusions.subscribe()
    }

    /// Returns the floor for sidecar injection.
    #[must_use]
    pub fn subscribe_floor(&self) -> watch::Receiver<Floor> {
        self.floor.subscribe()
    }

    /// Watches all kinds and sends updates. The first update is sent when every kind has been listed; later
    /// ones when objects, rejections or warnings change. Returns when the receiver of the updates is dropped.
    pub async fn send_updates(self, updates: mpsc::Sender<RegistryUpdate>) {
        let kinds = watched_kinds(self.options.gateways);
        let (event, reported) = mpsc::channel(WATCH_EVENT_MAX);
        let arrivals = Arc::new(watch::Sender::new(0));
        let secrets = watch::Sender::new(Arc::new(BTreeSet::new()));
        let mut tasks = JoinSet::new();
        for (index, watched) in kinds.iter().enumerate() {
            let following = KindWatch {
                client: self.client.clone(),
                watched: *watched,
                index,
                arrivals: arrivals.subscribe(),
                secrets: secrets.subscribe(),
                covering: None,
                event: event.clone(),
                look_again: self.options.look_again,
            };
            tasks.spawn(following.run());
        }
        tasks.spawn(watch_arrivals(self.client.clone(), arrivals));
        let mut store = ObjectStore::new(kinds);
        if let Some(trust_domain) = self.assumed {
            store.set_trust_domain(trust_domain);
        }
        store.set_grants(self.grants);
        store.take_settings_of(self.settings);
        if let Some(image) = &self.image {
            store.take_image(image);
        }
        let Self {
            options, progress, statements, desired, external_principals, exclusions, ..
        } = self;
        let (floor, outcomes, unwritten) = (self.floor, self.outcomes, self.unwritten);
        let out =
            Out { progress, statements, desired, external_principals, exclusions, floor, secrets };
        let joined = Joined { store, options, out, reported, outcomes, unwritten, failed: None };
        joined.run(updates).await;
    }
}

/// The task that merges the events of all watches.
struct Joined {
    store: ObjectStore,
    options: SourceOptions,
    out: Out,
    reported: mpsc::Receiver<(usize, WatchEvent)>,
    /// The outcomes of certificates of external principals.
    outcomes: watch::Receiver<Arc<CertificateOutcomes>>,
    /// The statuses that cannot be written.
    unwritten: watch::Receiver<Arc<Vec<Warning>>>,
    /// The time of the last failed request to the server.
    failed: Option<Instant>,
}

/// The outputs in addition to the updates.
struct Out {
    progress: watch::Sender<ListProgress>,
    statements: watch::Sender<Arc<Vec<DesiredStatus>>>,
    desired: watch::Sender<Arc<Vec<DesiredGateway>>>,
    external_principals: watch::Sender<Arc<DesiredCertificates>>,
    exclusions: watch::Sender<Exclusions>,
    floor: watch::Sender<Floor>,
    /// The Secrets that gateways refer to, for the watch of Secrets.
    secrets: watch::Sender<Arc<BTreeSet<ObjectId>>>,
}

impl Joined {
    async fn run(mut self, updates: mpsc::Sender<RegistryUpdate>) {
        loop {
            let event = tokio::select! {
                () = updates.closed() => return,
                Ok(()) = self.outcomes.changed() => None,
                Ok(()) = self.unwritten.changed() => None,
                event = self.reported.recv() => match event {
                    Some(event) => Some(event),
                    None => return,
                },
            };
            let noticed = Instant::now();
            match event {
                Some((index, event)) => {
                    self.apply_event(index, event);
                    self.receive_pending(noticed).await;
                }
                None => {
                    self.store.take_outcomes(Arc::clone(&self.outcomes.borrow_and_update()));
                    self.store.take_unwritten(Arc::clone(&self.unwritten.borrow_and_update()));
                }
            }
            self.store.resolve_gateways();
            self.store.settle_external_principals();
            self.publish_state();
            if let Some(mut update) = self.store.flush() {
                update.noticed = Some(noticed.into_std());
                if updates.send(update).await.is_err() {
                    return;
                }
            }
            // Publish statuses after the update, so that they report only configuration that has been sent.
            if let Some(statements) = self.store.changed_statements() {
                self.out.statements.send_replace(Arc::new(statements));
            }
        }
    }

    /// Receives events until none arrive for a while.
    async fn receive_pending(&mut self, noticed: Instant) {
        let latest = noticed + self.options.quiet_max;
        loop {
            let until = latest.min(Instant::now() + self.options.quiet);
            match timeout_at(until, self.reported.recv()).await {
                Ok(Some((index, event))) => self.apply_event(index, event),
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn apply_event(&mut self, index: usize, event: WatchEvent) {
        if let WatchEvent::Failing(cause) = &event {
            let now = Instant::now();
            let kind = self.store.kind_name(index);
            match self.failed.replace(now) {
                // When the server fails, all watches fail repeatedly.
                Some(before) if now - before < QUIET_FAILURE => {
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
        self.store.apply_event(index, event);
    }

    fn publish_state(&mut self) {
        let progress = self.store.progress();
        let secrets = self.store.referenced_secrets();
        self.out.secrets.send_if_modified(|known| {
            let event = *known != secrets;
            *known = secrets;
            event
        });
        let desired = self.store.desired_gateways();
        self.out.desired.send_if_modified(|known| {
            let event = known.as_slice() != desired;
            if event {
                *known = Arc::new(desired.to_vec());
            }
            event
        });
        let external_principals = self.store.external_principals();
        self.out.external_principals.send_if_modified(|known| {
            let event = **known != *external_principals;
            if event {
                *known = Arc::new(external_principals.clone());
            }
            event
        });
        let exclusions = self.store.mesh_exclusions();
        self.out.exclusions.send_if_modified(|known| {
            let event = *known != exclusions;
            *known = exclusions;
            event
        });
        let floor = self.store.injection_floor();
        self.out.floor.send_if_modified(|known| {
            let event = *known != floor;
            *known = floor;
            event
        });
        self.out.progress.send_if_modified(|known| {
            let event = *known != progress;
            match event {
                true if progress.is_synced() => tracing::info!("{progress}"),
                true if !progress.forbidden.is_empty() => tracing::error!("{progress}"),
                _ => {}
            }
            *known = progress;
            event
        });
    }
}

/// Returns all watched kinds; events refer to them by index.
fn watched_kinds(gateways: bool) -> Vec<WatchedKind> {
    let first = [WatchedKind::Pods, WatchedKind::Services, WatchedKind::Namespaces];
    let custom_resources =
        served_kinds().into_iter().chain(FOREIGN_CONFIGS).map(WatchedKind::Custom);
    let others = [
        WatchedKind::Nodes,
        WatchedKind::ApiServerService,
        WatchedKind::ApiServerEndpoints,
        WatchedKind::Slices,
    ];
    let mut all: Vec<WatchedKind> =
        first.into_iter().chain(custom_resources).chain(others).collect();
    if gateways {
        all.extend([WatchedKind::Secrets, WatchedKind::Deployments, WatchedKind::GatewayServices]);
        all.extend(EDGE_KINDS.map(WatchedKind::Custom));
    }
    all
}

/// The initial progress, before the kinds are known.
const WATCHED_FIRST: &[&str] = &["Pod", "Service", "Namespace"];
/// The time without failures after which the next one is logged as a warning again.
const QUIET_FAILURE: Duration = Duration::from_secs(90);
/// The capacity of the event channel; the watches wait when it is full.
const WATCH_EVENT_MAX: usize = 1024;

#[cfg(test)]
mod tests;
