//! The API server as a source of facts: every kind is watched, and what changed is told.

mod arrivals;
mod exclusions;
mod kinds;
mod ledger;
mod news;
mod progress;
mod record;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use leno_model::{Floor, Name, TrustDomain};
use leno_registry::{Update, Warning, served_kinds};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use self::arrivals::watch_arrivals;
pub use self::exclusions::sidecar_settings;
use self::kinds::{Following, Watched};
pub(crate) use self::kinds::{Found, find};
use self::ledger::Ledger;
pub(crate) use self::news::Id;
use self::news::News;
pub use self::progress::Progress;
use crate::gateway::{EDGE_KINDS, Wish};
use crate::guests::{Grants, GuestWishes, Outcomes};
use crate::inject::Exclusions;
use crate::read::FOREIGN_CONFIGS;
use crate::status::Statement;

/// Facts from an API server: pods, services and namespaces, and custom resources of every kind
/// that files may hold.
///
/// As with files, the last good version of an object stays when a later one is refused, and only
/// what is gone is removed. A kind that the server does not have is looked for again. One that may
/// not be read is told as a warning, and the others are read; but nothing is told before those have
/// been listed that say who is in the mesh and who may call whom.
pub struct Source {
    client: Client,
    options: Options,
    progress: watch::Sender<Progress>,
    statements: watch::Sender<Arc<Vec<Statement>>>,
    wishes: watch::Sender<Arc<Vec<Wish>>>,
    guests: watch::Sender<Arc<GuestWishes>>,
    grants: Grants,
    outcomes: watch::Receiver<Arc<Outcomes>>,
    unwritten: watch::Receiver<Arc<Vec<Warning>>>,
    exclusions: watch::Sender<Exclusions>,
    floor: watch::Sender<Floor>,
    assumed: Option<TrustDomain>,
    settings: BTreeSet<Name>,
    image: Option<String>,
}

/// How long a source waits for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Changes are told when nothing else has changed for this long,
    pub quiet: Duration,
    /// and at the latest after this long.
    pub quiet_max: Duration,
    /// How often a kind is looked for that the server does not have.
    pub look_again: Duration,
    /// True to watch also the kinds that only gateways need: their own, Secrets and Deployments.
    pub gateways: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            quiet: Duration::from_millis(50),
            quiet_max: Duration::from_millis(250),
            look_again: Duration::from_secs(30),
            gateways: false,
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Source {
    /// A source of all that this client may read. Nothing is read yet.
    #[must_use]
    pub fn new(client: Client, options: Options) -> Self {
        let progress =
            watch::Sender::new(Progress { waiting: WATCHED_FIRST.to_vec(), forbidden: Vec::new() });
        Self {
            client,
            options,
            progress,
            statements: watch::Sender::default(),
            wishes: watch::Sender::default(),
            guests: watch::Sender::default(),
            grants: Grants::default(),
            outcomes: watch::Sender::default().subscribe(),
            unwritten: watch::Sender::default().subscribe(),
            exclusions: watch::Sender::default(),
            floor: watch::Sender::default(),
            assumed: None,
            settings: BTreeSet::new(),
            image: None,
        }
    }

    /// The mesh is of this trust domain while no `MeshConfig` of ours says of which.
    #[must_use]
    pub fn assuming(self, trust_domain: Option<TrustDomain>) -> Self {
        Self { assumed: trust_domain, ..self }
    }

    /// Objects of these namespaces may be about the whole mesh.
    #[must_use]
    pub fn with_settings_of(self, namespaces: BTreeSet<Name>) -> Self {
        Self { settings: namespaces, ..self }
    }

    /// Sidecars have this image unless annotations name another.
    #[must_use]
    pub fn with_image(self, image: Option<String>) -> Self {
        Self { image, ..self }
    }

    /// Certificates for clients outside the mesh may be kept where these say, and what became of them is told by
    /// `outcomes`.
    #[must_use]
    pub fn granting(self, grants: Grants, outcomes: watch::Receiver<Arc<Outcomes>>) -> Self {
        Self { grants, outcomes, ..self }
    }

    /// The statuses that [`keep_statuses`](crate::status::keep_statuses) cannot write are warnings of this source.
    #[must_use]
    pub fn with_unwritten(self, unwritten: watch::Receiver<Arc<Vec<Warning>>>) -> Self {
        Self { unwritten, ..self }
    }

    /// Which kinds have still to be listed once, now and whenever that changes: what readiness
    /// hangs on.
    #[must_use]
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// What is to be said of objects and does not stand in their status yet, for
    /// [`keep_statuses`](crate::status::keep_statuses).
    #[must_use]
    pub fn statements(&self) -> watch::Receiver<Arc<Vec<Statement>>> {
        self.statements.subscribe()
    }

    /// What has to run for gateways, for [`provision`](crate::gateway::provision).
    #[must_use]
    pub fn wishes(&self) -> watch::Receiver<Arc<Vec<Wish>>> {
        self.wishes.subscribe()
    }

    /// The certificates that clients outside the mesh are to have, for [`keep_guests`](crate::guests::keep_guests).
    #[must_use]
    pub fn guests(&self) -> watch::Receiver<Arc<GuestWishes>> {
        self.guests.subscribe()
    }

    /// What the settings of another mesh leave out of every sidecar.
    #[must_use]
    pub fn exclusions(&self) -> watch::Receiver<Exclusions> {
        self.exclusions.subscribe()
    }

    /// The floor that pods get their sidecars by.
    #[must_use]
    pub fn floor(&self) -> watch::Receiver<Floor> {
        self.floor.subscribe()
    }

    /// Watches every kind and sends what came of it. The first update comes once every kind has
    /// been listed; later ones when they change objects, refusals or warnings. Ends when the
    /// receiver of the updates is dropped.
    pub async fn follow(self, updates: mpsc::Sender<Update>) {
        let kinds = watched(self.options.gateways);
        let (news, told) = mpsc::channel(NEWS_MAX);
        let arrivals = Arc::new(watch::Sender::new(0));
        let secrets = watch::Sender::new(Arc::new(BTreeSet::new()));
        let mut tasks = JoinSet::new();
        for (index, watched) in kinds.iter().enumerate() {
            let following = Following {
                client: self.client.clone(),
                watched: *watched,
                index,
                arrivals: arrivals.subscribe(),
                secrets: secrets.subscribe(),
                covering: None,
                news: news.clone(),
                look_again: self.options.look_again,
            };
            tasks.spawn(following.run());
        }
        tasks.spawn(watch_arrivals(self.client.clone(), arrivals));
        let mut ledger = Ledger::new(kinds);
        if let Some(trust_domain) = self.assumed {
            ledger.assume(trust_domain);
        }
        ledger.grant(self.grants);
        ledger.take_settings_of(self.settings);
        if let Some(image) = &self.image {
            ledger.take_image(image);
        }
        let Self { options, progress, statements, wishes, guests, exclusions, .. } = self;
        let (floor, outcomes, unwritten) = (self.floor, self.outcomes, self.unwritten);
        let out = Out { progress, statements, wishes, guests, exclusions, floor, secrets };
        let joined = Joined { ledger, options, out, told, outcomes, unwritten, failed: None };
        joined.run(updates).await;
    }
}

/// All news in one place.
struct Joined {
    ledger: Ledger,
    options: Options,
    out: Out,
    told: mpsc::Receiver<(usize, News)>,
    /// What became of the certificates of guests.
    outcomes: watch::Receiver<Arc<Outcomes>>,
    /// The statuses that cannot be written.
    unwritten: watch::Receiver<Arc<Vec<Warning>>>,
    /// When the server could not be asked last.
    failed: Option<Instant>,
}

/// Who is told of what, beside the updates.
struct Out {
    progress: watch::Sender<Progress>,
    statements: watch::Sender<Arc<Vec<Statement>>>,
    wishes: watch::Sender<Arc<Vec<Wish>>>,
    guests: watch::Sender<Arc<GuestWishes>>,
    exclusions: watch::Sender<Exclusions>,
    floor: watch::Sender<Floor>,
    /// The stream of secrets, of those that gateways refer to.
    secrets: watch::Sender<Arc<BTreeSet<Id>>>,
}

impl Joined {
    async fn run(mut self, updates: mpsc::Sender<Update>) {
        loop {
            let news = tokio::select! {
                () = updates.closed() => return,
                Ok(()) = self.outcomes.changed() => None,
                Ok(()) = self.unwritten.changed() => None,
                news = self.told.recv() => match news {
                    Some(news) => Some(news),
                    None => return,
                },
            };
            let noticed = Instant::now();
            match news {
                Some(news) => {
                    self.take(news);
                    self.settle(noticed).await;
                }
                None => {
                    self.ledger.take_outcomes(Arc::clone(&self.outcomes.borrow_and_update()));
                    self.ledger.take_unwritten(Arc::clone(&self.unwritten.borrow_and_update()));
                }
            }
            self.ledger.resolve();
            self.ledger.settle_guests();
            self.report();
            if let Some(mut update) = self.ledger.flush() {
                update.noticed = Some(noticed.into_std());
                if updates.send(update).await.is_err() {
                    return;
                }
            }
            // What is said to be in force is on its way by now.
            if let Some(statements) = self.ledger.statements() {
                self.out.statements.send_replace(Arc::new(statements));
            }
        }
    }

    /// Takes what comes until nothing comes for a while.
    async fn settle(&mut self, noticed: Instant) {
        let latest = noticed + self.options.quiet_max;
        loop {
            let until = latest.min(Instant::now() + self.options.quiet);
            match timeout_at(until, self.told.recv()).await {
                Ok(Some(news)) => self.take(news),
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn take(&mut self, (index, news): (usize, News)) {
        if let News::Failing(why) = &news {
            let now = Instant::now();
            let kind = self.ledger.word(index);
            match self.failed.replace(now) {
                // Every stream fails when the server does, again and again.
                Some(before) if now - before < QUIET_FAILURE => {
                    tracing::debug!(kind, why, "as before")
                }
                _ => {
                    tracing::warn!(kind, why, "the API server cannot be asked; what is known stays")
                }
            }
        }
        self.ledger.take(index, news);
    }

    fn report(&mut self) {
        let progress = self.ledger.progress();
        let secrets = self.ledger.secrets();
        self.out.secrets.send_if_modified(|known| {
            let news = *known != secrets;
            *known = secrets;
            news
        });
        let wishes = self.ledger.wishes();
        self.out.wishes.send_if_modified(|known| {
            let news = known.as_slice() != wishes;
            if news {
                *known = Arc::new(wishes.to_vec());
            }
            news
        });
        let guests = self.ledger.guests();
        self.out.guests.send_if_modified(|known| {
            let news = **known != *guests;
            if news {
                *known = Arc::new(guests.clone());
            }
            news
        });
        let exclusions = self.ledger.exclusions();
        self.out.exclusions.send_if_modified(|known| {
            let news = *known != exclusions;
            *known = exclusions;
            news
        });
        let floor = self.ledger.floor();
        self.out.floor.send_if_modified(|known| {
            let news = *known != floor;
            *known = floor;
            news
        });
        self.out.progress.send_if_modified(|known| {
            let news = *known != progress;
            match news {
                true if progress.is_synced() => tracing::info!("{progress}"),
                true if !progress.forbidden.is_empty() => tracing::error!("{progress}"),
                _ => {}
            }
            *known = progress;
            news
        });
    }
}

/// All that is watched; the index of each is its name in the news.
fn watched(gateways: bool) -> Vec<Watched> {
    let first = [Watched::Pods, Watched::Services, Watched::Namespaces];
    let customs = served_kinds().into_iter().chain(FOREIGN_CONFIGS).map(Watched::Custom);
    let others =
        [Watched::Nodes, Watched::ApiServerService, Watched::ApiServerEndpoints, Watched::Slices];
    let mut all: Vec<Watched> = first.into_iter().chain(customs).chain(others).collect();
    if gateways {
        all.extend([Watched::Secrets, Watched::Deployments, Watched::Entrances]);
        all.extend(EDGE_KINDS.map(Watched::Custom));
    }
    all
}

/// What is waited for before the kinds are known.
const WATCHED_FIRST: &[&str] = &["Pod", "Service", "Namespace"];
/// After this time without failures, the next one is told again.
const QUIET_FAILURE: Duration = Duration::from_secs(90);
/// News that wait to be joined; further ones wait in their streams.
const NEWS_MAX: usize = 1024;

#[cfg(test)]
mod tests;
