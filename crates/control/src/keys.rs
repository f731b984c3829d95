//! Periodic JWKS fetches, reported to the mesh owner.
//!
//! Sidecars receive the keys with their configuration, so that none of them needs access to an issuer.

mod access;
mod fetch_interval;
mod fetches;
mod file;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leno_identity::{JwkSetError, JwtKeys};
use leno_model::{Change, KeySource, Object, RequestCheck, ServicePolicy};
use leno_registry::RegistryUpdate;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout_at};

pub use access::{KeyAccess, PermittedFiles, PermittedServers};
use fetch_interval::JitterRandom;
pub(crate) use fetches::JwksFetches;

/// The JWKS endpoints in use.
pub(crate) type ActiveKeySources = Arc<BTreeSet<KeySource>>;

/// The result of a fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyUpdate {
    pub(crate) source: KeySource,
    pub(crate) fetched: FetchOutcome,
}

/// The outcome of a fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FetchOutcome {
    /// A changed key set.
    Changed(Arc<str>),
    /// The same key set as before.
    Same,
    /// The fetch failed for this reason; the previous set stays.
    Failed(String),
    /// The endpoint is no longer in use.
    Dropped,
}

/// Returns a policy's JWKS endpoints, with the indices of their issuers.
pub(crate) fn issuer_sources(policy: &ServicePolicy) -> impl Iterator<Item = (usize, &KeySource)> {
    let rule = match policy.rule.server_check() {
        Some(RequestCheck::Tokens(rule)) => Some(rule),
        Some(RequestCheck::Authorization(_)) | None => None,
    };
    let issuers = rule.into_iter().flat_map(|rule| rule.issuers.iter().enumerate());
    issuers.filter_map(|(index, issuer)| Some((index, issuer.keys.source()?)))
}

/// Returns the JWKS endpoints of an update.
pub(crate) fn wanted_by(update: &RegistryUpdate) -> BTreeSet<KeySource> {
    let policies = update.changes.iter().filter_map(|change| match change {
        Change::Upsert(Object::ServicePolicy(policy)) => Some(policy),
        _ => None,
    });
    policies.flat_map(issuer_sources).map(|(_, source)| source.clone()).collect()
}

/// Fetches the key sets in use.
#[derive(Debug)]
pub(crate) struct JwksFetcher {
    /// CA certificates (PEM) for JWKS servers; the system's roots if absent.
    roots: Option<PathBuf>,
    /// The permitted endpoints.
    access: Arc<KeyAccess>,
    known: BTreeMap<KeySource, JwksEndpointState>,
    under_way: JoinSet<(KeySource, Result<JwksResponse, String>)>,
    draw: JitterRandom,
}

/// The state of an endpoint.
#[derive(Debug, Default)]
struct JwksEndpointState {
    set: Option<Arc<str>>,
    /// The ETag of the current set.
    tag: Option<String>,
    /// Consecutive failures.
    failures: u32,
    /// The time of the next fetch; absent while one is in progress.
    due: Option<Instant>,
    /// Aborts the fetch that began last.
    fetch: Option<AbortHandle>,
    /// Held while its file is read: threads cannot be aborted, so further reads must not pile up behind one
    /// that hangs.
    turn: Arc<Mutex<()>>,
}

/// The reason why a response cannot be used.
#[derive(Debug, thiserror::Error)]
enum UnusableKeys {
    #[error(transparent)]
    Keys(#[from] JwkSetError),
    #[error("returned 304 (Not Modified), but no keys were fetched before")]
    Unchanged,
}

/// The response of an endpoint.
#[derive(Debug)]
enum JwksResponse {
    Set { text: String, tag: Option<String>, max_age: Option<Duration> },
    Unchanged { max_age: Option<Duration> },
}

impl JwksFetcher {
    /// Creates a fetcher without key sets; `seed` is for the random jitter.
    pub(crate) fn new(roots: Option<PathBuf>, access: KeyAccess, seed: u64) -> Self {
        let (draw, access) = (JitterRandom::new(seed), Arc::new(access));
        Self { roots, access, known: BTreeMap::new(), under_way: JoinSet::new(), draw }
    }

    /// Fetches each of these endpoints once, for a bounded time, so that sidecars mostly receive a rule
    /// together with its keys at the start.
    pub(crate) async fn read_first(&mut self, wanted: &BTreeSet<KeySource>) -> Vec<KeyUpdate> {
        let until = Instant::now() + FIRST_WAIT;
        let mut update = Vec::new();
        self.set_sources(wanted, Instant::now());
        loop {
            let now = Instant::now();
            self.begin_due(now, |known| known.failures == 0 && known.set.is_none());
            match timeout_at(until, self.under_way.join_next()).await {
                Ok(Some(Ok((source, read)))) => {
                    update.extend(self.record_result(source, read, Instant::now()))
                }
                // A panicked fetch has no result.
                Ok(Some(Err(_))) => {}
                Ok(None) | Err(_) => return update,
            }
        }
    }

    /// Fetches the endpoints in use and reports the results, until the receiver is dropped.
    pub(crate) async fn fetch_until_closed(
        mut self,
        mut wanted: watch::Receiver<ActiveKeySources>,
        update: mpsc::Sender<KeyUpdate>,
    ) {
        loop {
            let now = Instant::now();
            let current = Arc::clone(&wanted.borrow_and_update());
            for dropped in self.set_sources(&current, now) {
                if update.send(dropped).await.is_err() {
                    return;
                }
            }
            self.begin_due(now, |_| true);
            let next = self.next_due(now);
            let read = tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return } else { None },
                // An aborted or panicked fetch has no result.
                Some(read) = self.under_way.join_next() => {
                    read.ok().and_then(|(source, read)| {
                        self.record_result(source, read, Instant::now())
                    })
                }
                () = sleep_until(next) => None,
            };
            if let Some(read) = read
                && update.send(read).await.is_err()
            {
                return;
            }
        }
    }

    /// Replaces the set of endpoints in use, and returns those that are no longer in use.
    fn set_sources(&mut self, wanted: &BTreeSet<KeySource>, now: Instant) -> Vec<KeyUpdate> {
        let gone = self.known.keys().filter(|source| !wanted.contains(*source));
        let gone: Vec<KeySource> = gone.cloned().collect();
        for source in &gone {
            let known = self.known.remove(source);
            // An aborted fetch must not occupy a slot.
            if let Some(fetch) = known.and_then(|known| known.fetch) {
                fetch.abort();
            }
        }
        for source in wanted {
            let new = || JwksEndpointState { due: Some(now), ..JwksEndpointState::default() };
            self.known.entry(source.clone()).or_insert_with(new);
        }
        gone.into_iter()
            .map(|source| KeyUpdate { source, fetched: FetchOutcome::Dropped })
            .collect()
    }

    /// Starts pending fetches, within the concurrency limit: the longest overdue first, so that unresponsive
    /// endpoints do not starve others.
    fn begin_due(&mut self, now: Instant, which: impl Fn(&JwksEndpointState) -> bool) {
        let is_due =
            |known: &JwksEndpointState| known.due.is_some_and(|due| due <= now) && which(known);
        let mut due: Vec<_> = self.known.iter_mut().filter(|(_, known)| is_due(known)).collect();
        due.sort_by_key(|(_, known)| known.due);
        let free = UNDER_WAY_MAX.saturating_sub(self.under_way.len());
        for (source, known) in due.into_iter().take(free) {
            known.due = None;
            let (source, tag, roots) = (source.clone(), known.tag.clone(), self.roots.clone());
            let (access, turn) = (Arc::clone(&self.access), Arc::clone(&known.turn));
            known.fetch = Some(self.under_way.spawn(async move {
                let read = match &source {
                    KeySource::File(path) => {
                        file::read(path.clone(), access.files.clone(), turn).await
                    }
                    KeySource::Server(server) => {
                        server::fetch_key_set(server, tag.as_deref(), roots, &access.servers).await
                    }
                };
                (source, read)
            }));
        }
    }

    fn next_due(&self, now: Instant) -> Instant {
        let due = self.known.values().filter_map(|known| known.due);
        let next = due.min().unwrap_or(now + IDLE);
        // At the limit, pending fetches wait for one in progress.
        match self.under_way.len() >= UNDER_WAY_MAX {
            true => now + IDLE,
            false => next,
        }
    }

    /// Processes the result of a fetch; no report if the endpoint is no longer in use.
    fn record_result(
        &mut self,
        source: KeySource,
        read: Result<JwksResponse, String>,
        now: Instant,
    ) -> Option<KeyUpdate> {
        let known = self.known.get_mut(&source)?;
        let read = read.and_then(|response| {
            known.record_response(response).map_err(|error| error.to_string())
        });
        let (fetched, max_age) = match read {
            Ok((changed, max_age)) => {
                (changed.map_or(FetchOutcome::Same, FetchOutcome::Changed), max_age)
            }
            Err(reason) => (FetchOutcome::Failed(reason), None),
        };
        known.failures = match &fetched {
            FetchOutcome::Failed(_) => known.failures.saturating_add(1),
            _ => 0,
        };
        let wait = match &source {
            KeySource::File(_) => LOOK_EVERY,
            KeySource::Server(server) if known.failures == 0 => {
                fetch_interval::after_success(server.refresh_interval, max_age, &mut self.draw)
            }
            KeySource::Server(_) => fetch_interval::after_failure(known.failures, &mut self.draw),
        };
        known.due = Some(now + wait);
        Some(KeyUpdate { source, fetched })
    }
}

impl JwksEndpointState {
    /// Processes a response; returns the set if it changed.
    fn record_response(
        &mut self,
        response: JwksResponse,
    ) -> Result<(Option<Arc<str>>, Option<Duration>), UnusableKeys> {
        let (text, tag, max_age) = match response {
            JwksResponse::Unchanged { .. } if self.set.is_none() => {
                self.tag = None;
                return Err(UnusableKeys::Unchanged);
            }
            JwksResponse::Unchanged { max_age } => return Ok((None, max_age)),
            JwksResponse::Set { text, tag, max_age } => (text, tag, max_age),
        };
        // An unusable set is fetched again, regardless of its ETag.
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

/// The timeout of a fetch.
const ASK_WAIT: Duration = Duration::from_secs(10);
/// The timeout of the first fetches at start: tokens of a slow issuer must not be rejected meanwhile.
const FIRST_WAIT: Duration = ASK_WAIT;
/// Maximum fetches in progress.
const UNDER_WAY_MAX: usize = 8;
/// The interval of file checks, as for the authority's files.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The wait while no fetch is pending.
const IDLE: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests;
