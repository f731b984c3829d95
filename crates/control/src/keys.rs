//! Keys of issuers that are elsewhere: read again and again, and told to the owner of the mesh.
//!
//! Sidecars get them with their plan, so that none of them has to reach an issuer.

mod access;
mod file;
mod pace;
mod readings;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leno_identity::{BadKeys, JwtKeys};
use leno_model::{Change, Guard, KeySource, Object, ServicePolicy};
use leno_registry::Update;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout_at};

pub use access::{KeyAccess, PermittedFiles, PermittedServers};
use pace::Draw;
pub(crate) use readings::KeyReadings;

/// The places that somebody reads keys from.
pub(crate) type Wanted = Arc<BTreeSet<KeySource>>;

/// What became of a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyNews {
    pub(crate) source: KeySource,
    pub(crate) reading: Reading,
}

/// What came of reading keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reading {
    /// A set other than the one before.
    Changed(Arc<str>),
    /// The same set as before.
    Same,
    /// None, and why; the one before stays.
    Failed(String),
    /// Nobody wants it any more.
    Dropped,
}

/// The places that a policy reads keys from, with the numbers of their issuers.
pub(crate) fn sources(policy: &ServicePolicy) -> impl Iterator<Item = (usize, &KeySource)> {
    let rule = match policy.rule.guard() {
        Some(Guard::Tokens(rule)) => Some(rule),
        Some(Guard::Authorization(_)) | None => None,
    };
    let issuers = rule.into_iter().flat_map(|rule| rule.issuers.iter().enumerate());
    issuers.filter_map(|(index, issuer)| Some((index, issuer.keys.source()?)))
}

/// The places that these facts read keys from.
pub(crate) fn wanted_by(update: &Update) -> BTreeSet<KeySource> {
    let policies = update.changes.iter().filter_map(|change| match change {
        Change::Upsert(Object::ServicePolicy(policy)) => Some(policy),
        _ => None,
    });
    policies.flat_map(sources).map(|(_, source)| source.clone()).collect()
}

/// Reads keys wherever somebody wants them from.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// Who vouches for servers: a file of PEM, or the system's roots.
    roots: Option<PathBuf>,
    /// The places that are permitted.
    access: Arc<KeyAccess>,
    known: BTreeMap<KeySource, Known>,
    under_way: JoinSet<(KeySource, Result<Answer, String>)>,
    draw: Draw,
}

/// What is known of a place.
#[derive(Debug, Default)]
struct Known {
    set: Option<Arc<str>>,
    /// By which its server knows the version that we have.
    tag: Option<String>,
    /// How often in a row it could not be read.
    failures: u32,
    /// When to read it next; at the moment it is being read when absent.
    due: Option<Instant>,
    /// Ends the reading that was begun last.
    reading: Option<AbortHandle>,
    /// Held while its file is read: no thread can be ended, and one that hangs is not to be joined by
    /// more.
    turn: Arc<Mutex<()>>,
}

/// What of an answer cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    Keys(#[from] BadKeys),
    #[error("answers that nothing has changed, but nothing has been read from it before")]
    Unchanged,
}

/// A place's answer.
#[derive(Debug)]
enum Answer {
    Set { text: String, tag: Option<String>, max_age: Option<Duration> },
    Unchanged { max_age: Option<Duration> },
}

impl Keeper {
    /// Nothing is read yet; `seed` is for chance.
    pub(crate) fn new(roots: Option<PathBuf>, access: KeyAccess, seed: u64) -> Self {
        let (draw, access) = (Draw::new(seed), Arc::new(access));
        Self { roots, access, known: BTreeMap::new(), under_way: JoinSet::new(), draw }
    }

    /// Reads each of these places once, for a bounded time: whoever is told of a rule at the start is
    /// mostly told its keys too.
    pub(crate) async fn read_first(&mut self, wanted: &BTreeSet<KeySource>) -> Vec<KeyNews> {
        let until = Instant::now() + FIRST_WAIT;
        let mut news = Vec::new();
        self.want(wanted, Instant::now());
        loop {
            let now = Instant::now();
            self.begin_due(now, |known| known.failures == 0 && known.set.is_none());
            match timeout_at(until, self.under_way.join_next()).await {
                Ok(Some(Ok(read))) => news.extend(self.take(read, Instant::now())),
                // One that panicked told nothing.
                Ok(Some(Err(_))) => {}
                Ok(None) | Err(_) => return news,
            }
        }
    }

    /// Reads what is wanted, and tells, until nobody listens.
    pub(crate) async fn keep(
        mut self,
        mut wanted: watch::Receiver<Wanted>,
        news: mpsc::Sender<KeyNews>,
    ) {
        loop {
            let now = Instant::now();
            let current = Arc::clone(&wanted.borrow_and_update());
            for dropped in self.want(&current, now) {
                if news.send(dropped).await.is_err() {
                    return;
                }
            }
            self.begin_due(now, |_| true);
            let next = self.next_due(now);
            let read = tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return } else { None },
                // One that was ended, or panicked, told nothing.
                Some(read) = self.under_way.join_next() => {
                    read.ok().and_then(|read| self.take(read, Instant::now()))
                }
                () = sleep_until(next) => None,
            };
            if let Some(read) = read
                && news.send(read).await.is_err()
            {
                return;
            }
        }
    }

    /// Takes over what is wanted now, and says what is not any more.
    fn want(&mut self, wanted: &BTreeSet<KeySource>, now: Instant) -> Vec<KeyNews> {
        let gone = self.known.keys().filter(|source| !wanted.contains(*source));
        let gone: Vec<KeySource> = gone.cloned().collect();
        for source in &gone {
            let known = self.known.remove(source);
            // Nobody is to wait for its place among those under way.
            if let Some(reading) = known.and_then(|known| known.reading) {
                reading.abort();
            }
        }
        for source in wanted {
            let new = || Known { due: Some(now), ..Known::default() };
            self.known.entry(source.clone()).or_insert_with(new);
        }
        gone.into_iter().map(|source| KeyNews { source, reading: Reading::Dropped }).collect()
    }

    /// Begins to read what is due, some at a time: first what has been due the longest, so that those
    /// that do not answer keep nobody from being asked.
    fn begin_due(&mut self, now: Instant, which: impl Fn(&Known) -> bool) {
        let is_due = |known: &Known| known.due.is_some_and(|due| due <= now) && which(known);
        let mut due: Vec<_> = self.known.iter_mut().filter(|(_, known)| is_due(known)).collect();
        due.sort_by_key(|(_, known)| known.due);
        let free = UNDER_WAY_MAX.saturating_sub(self.under_way.len());
        for (source, known) in due.into_iter().take(free) {
            known.due = None;
            let (source, tag, roots) = (source.clone(), known.tag.clone(), self.roots.clone());
            let (access, turn) = (Arc::clone(&self.access), Arc::clone(&known.turn));
            known.reading = Some(self.under_way.spawn(async move {
                let read = match &source {
                    KeySource::File(path) => {
                        file::read(path.clone(), access.files.clone(), turn).await
                    }
                    KeySource::Server(server) => {
                        server::ask(server, tag.as_deref(), (roots, &access.servers)).await
                    }
                };
                (source, read)
            }));
        }
    }

    fn next_due(&self, now: Instant) -> Instant {
        let due = self.known.values().filter_map(|known| known.due);
        let next = due.min().unwrap_or(now + IDLE);
        // What is due and has not begun waits for one that is under way.
        match self.under_way.len() >= UNDER_WAY_MAX {
            true => now + IDLE,
            false => next,
        }
    }

    /// What a reading means; nothing where nobody wants it any more.
    fn take(
        &mut self,
        (source, read): (KeySource, Result<Answer, String>),
        now: Instant,
    ) -> Option<KeyNews> {
        let known = self.known.get_mut(&source)?;
        let read = read.and_then(|answer| known.take(answer).map_err(|error| error.to_string()));
        let (reading, max_age) = match read {
            Ok((changed, max_age)) => (changed.map_or(Reading::Same, Reading::Changed), max_age),
            Err(why) => (Reading::Failed(why), None),
        };
        known.failures = match &reading {
            Reading::Failed(_) => known.failures.saturating_add(1),
            _ => 0,
        };
        let wait = match &source {
            KeySource::File(_) => LOOK_EVERY,
            KeySource::Server(server) if known.failures == 0 => {
                pace::after_success(server.refresh, max_age, &mut self.draw)
            }
            KeySource::Server(_) => pace::after_failure(known.failures, &mut self.draw),
        };
        known.due = Some(now + wait);
        Some(KeyNews { source, reading })
    }
}

impl Known {
    /// Takes in an answer: the set, if it is another one.
    fn take(&mut self, answer: Answer) -> Result<(Option<Arc<str>>, Option<Duration>), Unusable> {
        let (text, tag, max_age) = match answer {
            Answer::Unchanged { .. } if self.set.is_none() => {
                self.tag = None;
                return Err(Unusable::Unchanged);
            }
            Answer::Unchanged { max_age } => return Ok((None, max_age)),
            Answer::Set { text, tag, max_age } => (text, tag, max_age),
        };
        // What cannot be used is asked for again, whatever its version.
        let public = JwtKeys::public_part(&text).inspect_err(|_| self.tag = None)?;
        self.tag = tag;
        if self.set.as_deref() == Some(&*public) {
            return Ok((None, max_age));
        }
        let set: Arc<str> = public.into();
        self.set = Some(Arc::clone(&set));
        Ok((Some(set), max_age))
    }
}

/// The longest that one place is read.
const ASK_WAIT: Duration = Duration::from_secs(10);
/// How long a start waits for the first sets: an issuer that is slow, but answers, is not to have its
/// tokens refused meanwhile.
const FIRST_WAIT: Duration = ASK_WAIT;
/// Questions at a time.
const UNDER_WAY_MAX: usize = 8;
/// How often files are looked at, as those of the authority are.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long nothing is due where nothing is wanted.
const IDLE: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests;
