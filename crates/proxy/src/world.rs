//! The current world: one atomic pointer to what this proxy knows, and how it asks for more.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use leno_discovery::Update;
use leno_identity::{Credential, Peer};
use leno_model::{
    Egress, Endpoint, EndpointId, Occupant, OccupantPort, Plaintext, Protocol, Reason, Revocations,
    ServiceName, Whereabouts,
};
use leno_traffic::{BadPattern, Origin, Outlets, Plans, ServicePlan};
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, watch};

use crate::application_ports::ApplicationPorts;
use crate::conditions::Conditions;
use crate::edge::{self, EdgeConfigs};
use crate::names::Names;
use crate::sight::Sights;
use crate::subscriptions::Priority;

/// The current world, shared by all threads of a proxy.
pub(crate) struct World {
    scene: ArcSwapOption<Scene>,
    credential: ArcSwapOption<Credential>,
    /// Counts swaps; who waits for a change watches this.
    version: watch::Sender<u64>,
    /// Accounts and workloads that are no members any more; told of only when they change.
    revoked: watch::Sender<Revocations>,
    /// Told when who may come in is decided otherwise than before.
    access: watch::Sender<()>,
    /// What becomes of connections that cross the border of the mesh; told of only when that changes.
    borders: watch::Sender<Borders>,
    wants: mpsc::Sender<Want>,
    names: Names,
    /// Where this sidecar accepts mutual TLS of itself, by port of its application.
    own_doors: ArcSwapOption<BTreeMap<u16, SocketAddr>>,
    started: Instant,
    /// What operators see of single requests.
    pub(crate) sights: Sights,
    /// Conditions that break traffic here.
    pub(crate) conditions: Conditions,
    /// The state of the application's ports.
    pub(crate) application: ApplicationPorts,
}

/// One version of the world. Requests hold one from their first station to their last.
pub(crate) struct Scene {
    pub(crate) plans: Plans,
    /// Services that were asked for.
    known: BTreeMap<ServiceName, Known>,
    /// Addresses that were asked for.
    addresses: FxHashMap<IpAddr, KnownAnswer<Occupant>>,
    /// Names that were looked up.
    names: FxHashMap<ServiceName, KnownAnswer<Whereabouts>>,
    /// The sessions that end at ports of the gateway, by port; kept while their certificates are.
    pub(crate) edge: EdgeConfigs,
    /// Counts up with each swap.
    pub(crate) version: u64,
}

/// What becomes of connections out of the mesh; nothing is known before the first version.
#[derive(Debug, Clone, Default)]
pub(crate) struct Borders {
    egress: Option<Egress>,
    outlets: Option<Arc<Outlets>>,
}

impl Borders {
    /// What says the same is the same.
    fn is_same(&self, other: &Self) -> bool {
        let (own, theirs) = (self.outlets.as_ref(), other.outlets.as_ref());
        let same = own.zip(theirs).is_some_and(|(one, two)| Arc::ptr_eq(one, two));
        self.egress == other.egress && same
    }
}

/// What somebody asks the control plane for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Want {
    /// A service.
    Service(ServiceName),
    /// What is at an address.
    Address(IpAddr),
    /// What a name stands for.
    Name(ServiceName),
}

/// One version of the world, and a service that it knows.
pub(crate) type Found = (Arc<Scene>, Arc<ServicePlan>);

/// A service that was asked for.
struct Known {
    /// None when there is no such service.
    plan: Option<Arc<ServicePlan>>,
    usage: Arc<Usage>,
}

/// What the control plane said of an address or a name.
struct KnownAnswer<A> {
    answer: Arc<A>,
    usage: Arc<Usage>,
}

/// Whether a service, an address or a name is used; survives swaps.
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
    /// An empty world with an application that no supervisor started.
    #[cfg(test)]
    pub(crate) fn new(names: Names, now: Instant) -> (Arc<Self>, mpsc::Receiver<Want>) {
        Self::with_application(ApplicationPorts::default(), names, now)
    }

    /// An empty world. What requests miss is named on the returned queue.
    pub(crate) fn with_application(
        application: ApplicationPorts,
        names: Names,
        now: Instant,
    ) -> (Arc<Self>, mpsc::Receiver<Want>) {
        let (wants, wanted) = mpsc::channel(WANTS_MAX);
        let world = Self {
            scene: ArcSwapOption::empty(),
            credential: ArcSwapOption::empty(),
            version: watch::channel(0).0,
            revoked: watch::Sender::default(),
            access: watch::channel(()).0,
            borders: watch::Sender::default(),
            wants,
            names,
            own_doors: ArcSwapOption::empty(),
            started: now,
            sights: Sights::default(),
            conditions: Conditions::default(),
            application,
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
        let before = previous.as_deref();
        let addresses =
            known_answers(&plans.snapshot.addresses, before.map(|scene| &scene.addresses), now);
        let names = known_answers(&plans.snapshot.names, before.map(|scene| &scene.names), now);
        let edge =
            edge::configs(&plans, previous.as_ref().map(|scene| (&scene.plans, &scene.edge)));
        let version = *self.version.borrow() + 1;
        let plan = &update.snapshot.plan;
        let (accounts, workloads) = (&plan.revoked, &plan.revoked_workloads);
        let borders = Borders {
            egress: Some(update.snapshot.plan.egress),
            outlets: Some(Arc::clone(&plans.outlets)),
        };
        let same_access = previous.is_some_and(|before| {
            let guards = (before.plans.guards.as_ref(), plans.guards.as_ref());
            let same_guards = match guards {
                (None, None) => true,
                (Some(before), Some(now)) => Arc::ptr_eq(before, now),
                _ => false,
            };
            // Limits and ports decide as well about bytes in which no request is seen.
            same_guards
                && Arc::ptr_eq(&before.plans.access, &plans.access)
                && Arc::ptr_eq(&before.plans.limits, &plans.limits)
                && before.plans.snapshot.plan.ports == plans.snapshot.plan.ports
        });
        self.scene.store(Some(Arc::new(Scene { plans, known, addresses, names, edge, version })));
        self.sights.say(&update.snapshot.plan.sight);
        self.version.send_replace(version);
        self.revoked.send_if_modified(|known| {
            let news = (&known.accounts, &known.workloads) != (accounts, workloads);
            if news {
                known.accounts.clone_from(accounts);
                known.workloads.clone_from(workloads);
            }
            news
        });
        if !same_access {
            self.access.send_replace(());
        }
        self.borders.send_if_modified(|known| {
            let news = !known.is_same(&borders);
            *known = borders;
            news
        });
        Ok(())
    }

    /// Told when who may come in is decided otherwise than before.
    pub(crate) fn access_changes(&self) -> watch::Receiver<()> {
        self.access.subscribe()
    }

    /// True when a peer's workload is revoked, whatever becomes of its account.
    pub(crate) fn revokes_workload(&self, peer: &Peer) -> bool {
        covers_workload(&self.revoked.borrow(), peer)
    }

    /// Resolves when a peer is no member any more, by its account or by its workload.
    pub(crate) async fn revoked(&self, peer: &Peer) {
        let covers = |revoked: &Revocations| {
            revoked.accounts.contains(&peer.id.account) || covers_workload(revoked, peer)
        };
        let mut revoked = self.revoked.subscribe();
        // The world outlives who waits here.
        drop(revoked.wait_for(covers).await);
    }

    /// Resolves when clients that prove nothing and come this way are let in no more.
    pub(crate) async fn kept_out(&self, port: u16, origin: Origin) {
        let mut changes = self.access_changes();
        loop {
            if self.scene().is_some_and(|scene| !scene.lets_in_unproved(port, &origin)) {
                return;
            }
            if changes.changed().await.is_err() {
                // The world outlives who waits here.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Told when who is let out to what is not of the mesh is decided otherwise than before.
    pub(crate) fn border_changes(&self) -> watch::Receiver<Borders> {
        self.borders.subscribe()
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
        let found = async {
            self.want(Want::Service(service.clone())).await;
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

    /// What is at an address; asks for it and waits at most `patience` if need be.
    ///
    /// Silence of the control plane is no answer: what may be a member of the mesh is not called
    /// in the clear because nobody says so.
    pub(crate) async fn occupant(
        &self,
        address: IpAddr,
        patience: Duration,
    ) -> Result<Arc<Occupant>, Reason> {
        if let Some(occupant) = self.look_at(address) {
            return Ok(occupant);
        }
        let mut changes = self.changes();
        let found = async {
            self.want(Want::Address(address)).await;
            loop {
                // Looked at once more before the first wait, as for services.
                if let Some(occupant) = self.look_at(address) {
                    return Ok(occupant);
                }
                changes.changed().await.map_err(|_| Reason::DiscoveryTimeout)?;
            }
        };
        tokio::time::timeout(patience, found).await.unwrap_or(Err(Reason::DiscoveryTimeout))
    }

    /// The protocol of a port of a service, if the current version has it.
    pub(crate) fn protocol(&self, service: &ServiceName, port: u16) -> Option<Protocol> {
        let scene = self.scene()?;
        scene.plans.service(service)?.ports.get(&port).map(|port| port.protocol)
    }

    /// The protocol at an address of a workload, if the current version has it.
    pub(crate) fn protocol_at(&self, at: SocketAddr) -> Option<Protocol> {
        match &*self.look_at(at.ip())? {
            Occupant::Workload { ports, .. } => ports.get(&at.port()).map(|port| port.protocol),
            Occupant::Service(_) | Occupant::Outside => None,
        }
    }

    /// The port of a workload's application that is at `at`, if that workload is still there.
    pub(crate) async fn pinned(
        &self,
        at: SocketAddr,
        id: &EndpointId,
        patience: Duration,
    ) -> Result<(Arc<Scene>, Arc<Endpoint>), Reason> {
        let occupant = self.occupant(at.ip(), patience).await?;
        let endpoint = match &*occupant {
            Occupant::Workload { workload, ports } if *workload == id.workload => {
                ports.get(&at.port()).and_then(|port| port.endpoint.clone())
            }
            Occupant::Workload { .. } | Occupant::Service(_) | Occupant::Outside => None,
        };
        let scene = self.scene().ok_or(Reason::DiscoveryTimeout)?;
        Ok((scene, endpoint.ok_or(Reason::NoEndpoint)?))
    }

    /// Where this sidecar accepts what it sends to its own application, if this endpoint is that:
    /// the kernel leads connections to its own address straight there.
    pub(crate) fn own_door(&self, endpoint: &Endpoint) -> Option<SocketAddr> {
        let doors = self.own_doors.load();
        let door = *doors.as_ref()?.get(&endpoint.address.port())?;
        let scene = self.scene()?;
        (scene.plans.snapshot.plan.workload == endpoint.id.workload).then_some(door)
    }

    /// Says where that is.
    pub(crate) fn set_own_doors(&self, doors: BTreeMap<u16, SocketAddr>) {
        let doors = Some(doors).filter(|doors| !doors.is_empty());
        self.own_doors.store(doors.map(Arc::new));
    }

    /// Whether the current version has this endpoint at this place.
    pub(crate) fn is_current(&self, endpoint: &Endpoint) -> bool {
        let Some(scene) = self.scene() else {
            return false;
        };
        let service = scene.plans.snapshot.services.get(&endpoint.id.service);
        let port = service.and_then(|view| view.ports.get(&endpoint.id.port));
        port.is_some_and(|port| port.endpoints.iter().any(|known| known.is_same_place(endpoint)))
            || scene.pinned().any(|known| known.is_same_place(endpoint))
    }

    /// The priority of each service when room is made, by its last use.
    pub(crate) fn services_by_use(&self) -> impl Fn(&ServiceName) -> Priority + use<> {
        let (scene, now) = (self.scene(), self.seconds());
        move |name| match scene.as_ref().and_then(|scene| scene.known.get(name)) {
            None => Priority::Pending,
            Some(known) if known.plan.is_none() => Priority::Absent(known.usage.look(now)),
            Some(known) => Priority::Used(known.usage.look(now)),
        }
    }

    /// The same for addresses.
    pub(crate) fn addresses_by_use(&self) -> impl Fn(&IpAddr) -> Priority + use<> {
        let (scene, now) = (self.scene(), self.seconds());
        move |address| by_use(scene.as_ref().and_then(|it| it.addresses.get(address)), now)
    }

    /// The same for names.
    pub(crate) fn names_by_use(&self) -> impl Fn(&ServiceName) -> Priority + use<> {
        let (scene, now) = (self.scene(), self.seconds());
        move |name| by_use(scene.as_ref().and_then(|it| it.names.get(name)), now)
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

    /// The addresses to which nobody has connected for `idle`.
    pub(crate) fn idle_addresses(&self, idle: Duration) -> Vec<IpAddr> {
        let Some(scene) = self.scene() else {
            return Vec::new();
        };
        idle_keys(&scene.addresses, idle, self.seconds())
    }

    /// The names that nobody has looked up for `idle`.
    pub(crate) fn idle_names(&self, idle: Duration) -> Vec<ServiceName> {
        let Some(scene) = self.scene() else {
            return Vec::new();
        };
        idle_keys(&scene.names, idle, self.seconds())
    }

    /// What a name stands for, if the control plane said so.
    pub(crate) fn whereabouts(&self, name: &ServiceName) -> Option<Arc<Whereabouts>> {
        let scene = self.scene.load();
        let known = scene.as_ref()?.names.get(name)?;
        known.usage.note();
        Some(Arc::clone(&known.answer))
    }

    /// Whether it is known what is at an address.
    pub(crate) fn knows_address(&self, address: IpAddr) -> bool {
        self.scene.load().as_ref().is_some_and(|scene| scene.addresses.contains_key(&address))
    }

    /// Asks for it if there is room for the question: nobody waits for the answer, and who needs it
    /// asks again.
    pub(crate) fn want_in_passing(&self, want: Want) {
        self.wants.try_send(want).ok();
    }

    /// Asks for it, as soon as the control thread has room for the question.
    async fn want(&self, want: Want) {
        // The queue is closed when the proxy goes.
        drop(self.wants.send(want).await);
    }

    fn look_at(&self, address: IpAddr) -> Option<Arc<Occupant>> {
        let scene = self.scene.load();
        let known = scene.as_ref()?.addresses.get(&address)?;
        known.usage.note();
        Some(Arc::clone(&known.answer))
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

/// True when the workload of a peer is revoked.
fn covers_workload(revoked: &Revocations, peer: &Peer) -> bool {
    let workload = peer.workload.as_ref();
    workload.is_some_and(|it| revoked.covers_workload(it, peer.instance.as_ref()))
}

/// What is known of addresses or names, with how they were used before.
fn known_answers<K: Clone + Eq + std::hash::Hash, A>(
    answers: &BTreeMap<K, Arc<A>>,
    before: Option<&FxHashMap<K, KnownAnswer<A>>>,
    now: u64,
) -> FxHashMap<K, KnownAnswer<A>> {
    let known = |(key, answer): (&K, &Arc<A>)| {
        let before = before.and_then(|before| before.get(key));
        let usage = before.map(|known| known.usage.clone());
        let usage = usage
            .unwrap_or_else(|| Arc::new(Usage { seen: AtomicU64::new(now), ..Usage::default() }));
        (key.clone(), KnownAnswer { answer: Arc::clone(answer), usage })
    };
    answers.iter().map(known).collect()
}

fn by_use<A>(known: Option<&KnownAnswer<A>>, now: u64) -> Priority {
    known.map_or(Priority::Pending, |known| Priority::Used(known.usage.look(now)))
}

/// Those that nobody has used for `idle`.
fn idle_keys<K: Clone, A>(
    known: &FxHashMap<K, KnownAnswer<A>>,
    idle: Duration,
    now: u64,
) -> Vec<K> {
    let oldest = now.saturating_sub(idle.as_secs());
    let idle = known.iter().filter(|(_, known)| known.usage.look(now) < oldest);
    idle.map(|(key, _)| key.clone()).collect()
}

impl Scene {
    /// The endpoints of workloads that are reached by their own addresses.
    pub(crate) fn pinned(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        let ports = self.addresses.values().flat_map(|known| match &*known.answer {
            Occupant::Workload { ports, .. } => Some(ports.values()),
            Occupant::Service(_) | Occupant::Outside => None,
        });
        ports.flatten().filter_map(|port: &OccupantPort| port.endpoint.as_ref())
    }

    /// What the application speaks at this port, if clients without mutual TLS are let in there: all
    /// of them, or those from this address.
    pub(crate) fn in_clear(&self, port: u16, address: IpAddr) -> Option<Protocol> {
        let plan = &self.plans.snapshot.plan;
        let known = plan.ports.iter().find(|known| known.port == port)?;
        let opened = || self.plans.access.in_clear((port, known.protocol), address);
        match (plan.plaintext, known.protocol) {
            // Where nobody knows what is spoken, whoever opened the port does.
            (Plaintext::Accept, Protocol::Detect) => opened().or(Some(Protocol::Detect)),
            (Plaintext::Accept, spoken) => Some(spoken),
            (Plaintext::Refuse, _) => opened(),
        }
    }

    /// Whether a client that proves nothing and comes this way is let in at a port.
    fn lets_in_unproved(&self, port: u16, origin: &Origin) -> bool {
        let is_known = self.plans.snapshot.plan.ports.iter().any(|known| known.port == port);
        is_known && self.plans.access.visit((None, port), Some(origin.clone())).is_ok()
    }

    /// Services that were asked for and do not exist.
    pub(crate) fn absent(&self) -> impl Iterator<Item = &ServiceName> {
        self.known.iter().filter(|(_, known)| known.plan.is_none()).map(|(name, _)| name)
    }
}

/// Questions that wait for the control thread; requests beyond it wait to ask.
const WANTS_MAX: usize = 1024;
