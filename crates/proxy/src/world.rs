//! The current world: one atomic pointer to what this proxy knows, and how it asks for more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use leno_discovery::Update;
use leno_identity::Credential;
use leno_model::{Endpoint, Reason, ServiceAccount, ServiceName};
use leno_traffic::{BadPattern, Plans, ServicePlan};
use tokio::sync::{mpsc, watch};

use crate::names::Names;
use crate::sight::Sights;

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
    /// What operators see of single requests.
    pub(crate) sights: Sights,
}

/// One version of the world. Requests hold one from their first station to their last.
pub(crate) struct Scene {
    pub(crate) plans: Plans,
    /// Services that were asked for.
    known: BTreeMap<ServiceName, Known>,
    /// Counts up with each swap.
    pub(crate) version: u64,
}

/// One version of the world, and a service that it knows.
pub(crate) type Found = (Arc<Scene>, Arc<ServicePlan>);

/// A service that was asked for.
struct Known {
    /// None when there is no such service.
    plan: Option<Arc<ServicePlan>>,
    usage: Arc<Usage>,
}

/// Whether a service is used; survives swaps.
#[derive(Default)]
struct Usage {
    /// A request went there since somebody looked last.
    is_used: AtomicBool,
    /// When that was seen last, in seconds since the start.
    seen: AtomicU64,
}

impl Usage {
    fn note(&self) {
        // Threads share it: what says so already is not written again.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// When the service was seen in use last, looking now.
    fn look(&self, now: u64) -> u64 {
        if self.is_used.swap(false, Ordering::Relaxed) {
            self.seen.store(now, Ordering::Relaxed);
        }
        self.seen.load(Ordering::Relaxed)
    }
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
            sights: Sights::default(),
        };
        (Arc::new(world), wanted)
    }

    /// The current version; `None` before the first.
    pub(crate) fn scene(&self) -> Option<Arc<Scene>> {
        self.scene.load_full()
    }

    /// How long it has been there: the same time for all threads.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
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
        let known = |name: &ServiceName| {
            let before = previous.as_ref().and_then(|scene| scene.known.get(name));
            let usage = before.map(|known| known.usage.clone());
            let usage = usage.unwrap_or_else(|| {
                Arc::new(Usage { seen: AtomicU64::new(now), ..Usage::default() })
            });
            (name.clone(), Known { plan: plans.service(name).cloned(), usage })
        };
        let known = plans.snapshot.services.keys().chain(&update.absent).map(known).collect();
        let version = *self.version.borrow() + 1;
        let revoked = &update.snapshot.plan.revoked;
        let same_access =
            previous.is_some_and(|before| Arc::ptr_eq(&before.plans.access, &plans.access));
        self.scene.store(Some(Arc::new(Scene { plans, known, version })));
        self.sights.say(&update.snapshot.plan.sight);
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

    /// A version that knows `service`, and the service's plan in it; asks for it and waits at most
    /// `patience` if need be.
    pub(crate) async fn with_service(
        &self,
        service: &ServiceName,
        patience: Duration,
    ) -> Result<Found, Reason> {
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

    /// The services that nobody has used for `idle`, if somebody looks more often than that.
    pub(crate) fn idle_services(&self, idle: Duration) -> Vec<ServiceName> {
        let Some(scene) = self.scene() else {
            return Vec::new();
        };
        let now = self.seconds();
        let oldest = now.saturating_sub(idle.as_secs());
        let known = scene.known.iter();
        let idle = known.filter(|(_, known)| known.usage.look(now) < oldest);
        idle.map(|(name, _)| name.clone()).collect()
    }

    fn look_up(&self, service: &ServiceName) -> Option<Result<Found, Reason>> {
        let scene = self.scene()?;
        let known = scene.known.get(service)?;
        known.usage.note();
        let plan = known.plan.clone();
        Some(plan.map(|plan| (scene, plan)).ok_or(Reason::UnknownService))
    }

    fn seconds(&self) -> u64 {
        self.started.elapsed().as_secs()
    }
}

impl Scene {
    /// Services that were asked for and do not exist.
    pub(crate) fn absent(&self) -> impl Iterator<Item = &ServiceName> {
        self.known.iter().filter(|(_, known)| known.plan.is_none()).map(|(name, _)| name)
    }
}

/// Questions that wait for the control thread; requests beyond it wait without asking again.
const WANTS_MAX: usize = 1024;
