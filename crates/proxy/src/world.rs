//! The current world: one atomic pointer to what this proxy knows, and how it asks for more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use leno_discovery::Update;
use leno_identity::Credential;
use leno_model::{Endpoint, Reason, ServiceAccount, ServiceName};
use leno_traffic::{BadPattern, Plans};
use tokio::sync::{mpsc, watch};

use crate::names::Names;

/// The current world, shared by all threads of a proxy.
pub(crate) struct World {
    scene: ArcSwapOption<Scene>,
    credential: ArcSwapOption<Credential>,
    /// Counts swaps; who waits for a change watches this.
    version: watch::Sender<u64>,
    /// Accounts that are no members any more; told of only when they change.
    revoked: watch::Sender<BTreeSet<ServiceAccount>>,
    /// Told when who may come in is decided otherwise than before.
    access: watch::Sender<()>,
    wants: mpsc::Sender<ServiceName>,
    names: Names,
    started: Instant,
}

/// One version of the world. Requests hold one from their first station to their last.
pub(crate) struct Scene {
    pub(crate) plans: Plans,
    /// Services that were asked for and do not exist.
    absent: BTreeSet<ServiceName>,
    /// When each service was last used, in seconds since the start; survives swaps.
    used: BTreeMap<ServiceName, Arc<AtomicU64>>,
    /// Counts up with each swap.
    pub(crate) version: u64,
}

impl World {
    /// An empty world. Services that requests miss are named on the returned queue.
    pub(crate) fn new(names: Names, now: Instant) -> (Arc<Self>, mpsc::Receiver<ServiceName>) {
        let (wants, wanted) = mpsc::channel(WANTS_MAX);
        let world = Self {
            scene: ArcSwapOption::empty(),
            credential: ArcSwapOption::empty(),
            version: watch::channel(0).0,
            revoked: watch::channel(BTreeSet::new()).0,
            access: watch::channel(()).0,
            wants,
            names,
            started: now,
        };
        (Arc::new(world), wanted)
    }

    /// The current version; `None` before the first.
    pub(crate) fn scene(&self) -> Option<Arc<Scene>> {
        self.scene.load_full()
    }

    /// The current key and certificate; `None` before the first.
    pub(crate) fn credential(&self) -> Option<Arc<Credential>> {
        self.credential.load_full()
    }

    /// Which addresses stand for which services in this workload's namespace.
    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// Told at each swap of scene or credential.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Makes an update the current version. Requests under way keep the one they hold.
    pub(crate) fn swap(&self, update: &Update) -> Result<(), BadPattern> {
        let previous = self.scene();
        let plans = Plans::build(update.snapshot.clone(), previous.as_ref().map(|s| &s.plans))?;
        let now = self.seconds();
        let used = plans
            .snapshot
            .services
            .keys()
            .chain(&update.absent)
            .map(|name| {
                let kept = previous.as_ref().and_then(|scene| scene.used.get(name).cloned());
                (name.clone(), kept.unwrap_or_else(|| Arc::new(AtomicU64::new(now))))
            })
            .collect();
        let version = *self.version.borrow() + 1;
        let absent = update.absent.clone();
        let revoked = &update.snapshot.plan.revoked;
        let same_access =
            previous.is_some_and(|before| Arc::ptr_eq(&before.plans.access, &plans.access));
        self.scene.store(Some(Arc::new(Scene { plans, absent, used, version })));
        self.version.send_replace(version);
        self.revoked.send_if_modified(|known| {
            let news = known != revoked;
            if news {
                known.clone_from(revoked);
            }
            news
        });
        if !same_access {
            self.access.send_replace(());
        }
        Ok(())
    }

    /// Told when who may come in is decided otherwise than before.
    pub(crate) fn access_changes(&self) -> watch::Receiver<()> {
        self.access.subscribe()
    }

    /// Resolves when this account is no member any more.
    pub(crate) async fn revoked(&self, account: &ServiceAccount) {
        let mut revoked = self.revoked.subscribe();
        // The world outlives who waits here.
        drop(revoked.wait_for(|revoked| revoked.contains(account)).await);
    }

    /// Makes a new key and certificate the current ones.
    pub(crate) fn renew(&self, credential: Credential) -> Arc<Credential> {
        let credential = Arc::new(credential);
        self.credential.store(Some(credential.clone()));
        self.version.send_modify(|version| *version += 1);
        credential
    }

    /// A version that knows `service`, asking for it and waiting at most `patience` if need be.
    pub(crate) async fn with_service(
        &self,
        service: &ServiceName,
        patience: Duration,
    ) -> Result<Arc<Scene>, Reason> {
        if let Some(found) = self.look_up(service) {
            return found;
        }
        let mut changes = self.changes();
        // A full queue means that the control thread is behind; waiting is all there is to do.
        drop(self.wants.try_send(service.clone()));
        let found = async {
            loop {
                // Looked up once more before the first wait: the answer may have come between the
                // look above and the subscription.
                if let Some(found) = self.look_up(service) {
                    return found;
                }
                changes.changed().await.map_err(|_| Reason::DiscoveryTimeout)?;
            }
        };
        tokio::time::timeout(patience, found).await.unwrap_or(Err(Reason::DiscoveryTimeout))
    }

    /// Whether the current version has this endpoint at this place.
    pub(crate) fn is_current(&self, endpoint: &Endpoint) -> bool {
        let Some(scene) = self.scene() else {
            return false;
        };
        let service = scene.plans.snapshot.services.get(&endpoint.id.service);
        let port = service.and_then(|view| view.ports.get(&endpoint.id.port));
        port.is_some_and(|port| port.endpoints.iter().any(|known| known.is_same_place(endpoint)))
    }

    /// The services that nobody has used for `idle`.
    pub(crate) fn idle_services(&self, idle: Duration) -> Vec<ServiceName> {
        let Some(scene) = self.scene() else {
            return Vec::new();
        };
        let oldest = self.seconds().saturating_sub(idle.as_secs());
        let is_idle = |at: &Arc<AtomicU64>| at.load(Ordering::Relaxed) < oldest;
        scene.used.iter().filter(|(_, at)| is_idle(at)).map(|(name, _)| name.clone()).collect()
    }

    fn look_up(&self, service: &ServiceName) -> Option<Result<Arc<Scene>, Reason>> {
        let scene = self.scene()?;
        let used = scene.used.get(service)?;
        used.store(self.seconds(), Ordering::Relaxed);
        if scene.absent.contains(service) {
            return Some(Err(Reason::UnknownService));
        }
        scene.plans.service(service).is_some().then_some(Ok(scene))
    }

    fn seconds(&self) -> u64 {
        self.started.elapsed().as_secs()
    }
}

impl Scene {
    /// Services that were asked for and do not exist.
    pub(crate) fn absent(&self) -> impl Iterator<Item = &ServiceName> {
        self.absent.iter()
    }
}

/// Questions that wait for the control thread; requests beyond it wait without asking again.
const WANTS_MAX: usize = 1024;
