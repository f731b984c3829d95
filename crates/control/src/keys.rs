//! Fetches the JWKS of issuers periodically, and reports the results to the state task.
//!
//! A JWKS endpoint is the URL or file ([`KeySource`]) of an issuer's key set. Sidecars receive the keys with their
//! configuration, so that none of them needs access to an issuer.

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

/// The JWKS endpoints that policies of the mesh use.
pub(crate) type ActiveKeySources = Arc<BTreeSet<KeySource>>;

/// The result of a fetch, or the notice that an endpoint is no longer in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyUpdate {
    pub(crate) source: KeySource,
    pub(crate) outcome: FetchOutcome,
}

/// The outcome of a fetch, or the end of an endpoint's use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FetchOutcome {
    /// A changed key set.
    Changed(Arc<str>),
    /// The same key set as before.
    Unchanged,
    /// The fetch failed for this reason; the previous set stays.
    Failed(String),
    /// The endpoint is no longer in use.
    EndpointUnused,
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
pub(crate) fn key_sources_in_update(update: &RegistryUpdate) -> BTreeSet<KeySource> {
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
    roots_file: Option<PathBuf>,
    /// The servers and files from which keys may be fetched.
    access: Arc<KeyAccess>,
    /// The state of each endpoint in use.
    endpoints: BTreeMap<KeySource, JwksEndpointState>,
    fetches_in_progress: JoinSet<(KeySource, Result<JwksResponse, String>)>,
    jitter_random: JitterRandom,
}

/// The state of a JWKS endpoint.
#[derive(Debug, Default)]
struct JwksEndpointState {
    /// The current set; `None` before the first successful fetch.
    jwks: Option<Arc<str>>,
    /// The ETag of the current set, if the server sent one.
    etag: Option<String>,
    /// The number of consecutive failures.
    consecutive_failures: u32,
    /// The time of the next fetch; absent while one is in progress.
    due_at: Option<Instant>,
    /// Aborts the fetch that began last; `None` before the first one.
    fetch_handle: Option<AbortHandle>,
    /// Locked while a file is read. Threads cannot be aborted, so further reads must not accumulate behind a read
    /// that hangs.
    read_lock: Arc<Mutex<()>>,
}

/// The reason why a response cannot be used. In diagnostics, each message follows the URL or path.
#[derive(Debug, thiserror::Error)]
enum UnusableJwks {
    #[error(transparent)]
    Keys(#[from] JwkSetError),
    #[error("returned 304 (Not Modified), but no keys were fetched before")]
    Unchanged,
}

/// The response of a JWKS endpoint, or the content of a file.
#[derive(Debug)]
enum JwksResponse {
    Set { text: String, etag: Option<String>, max_age: Option<Duration> },
    Unchanged { max_age: Option<Duration> },
}

impl JwksFetcher {
    /// Creates a fetcher without key sets; `seed` is for the random jitter.
    pub(crate) fn new(roots_file: Option<PathBuf>, access: KeyAccess, seed: u64) -> Self {
        let (jitter_random, access) = (JitterRandom::new(seed), Arc::new(access));
        Self {
            roots_file,
            access,
            endpoints: BTreeMap::new(),
            fetches_in_progress: JoinSet::new(),
            jitter_random,
        }
    }

    /// Fetches each of these endpoints once, for at most [`FIRST_FETCH_TIMEOUT`], so that sidecars usually
    /// receive a rule together with its keys at the start.
    pub(crate) async fn fetch_first(
        &mut self,
        active_sources: &BTreeSet<KeySource>,
    ) -> Vec<KeyUpdate> {
        let deadline = Instant::now() + FIRST_FETCH_TIMEOUT;
        let mut updates = Vec::new();
        self.set_sources(active_sources, Instant::now());
        loop {
            let now = Instant::now();
            // A failed fetch is not repeated here: `fetch_until_closed` does that.
            self.start_due_fetches(now, |endpoint| {
                endpoint.consecutive_failures == 0 && endpoint.jwks.is_none()
            });
            match timeout_at(deadline, self.fetches_in_progress.join_next()).await {
                Ok(Some(Ok((source, result)))) => {
                    updates.extend(self.record_result(source, result, Instant::now()))
                }
                // A panicked fetch has no result.
                Ok(Some(Err(_))) => {}
                Ok(None) | Err(_) => return updates,
            }
        }
    }

    /// Fetches the endpoints in use and reports the results, until the receiver is dropped.
    pub(crate) async fn fetch_until_closed(
        mut self,
        mut active_sources: watch::Receiver<ActiveKeySources>,
        update_sender: mpsc::Sender<KeyUpdate>,
    ) {
        loop {
            let now = Instant::now();
            let current_sources = Arc::clone(&active_sources.borrow_and_update());
            for endpoint_unused in self.set_sources(&current_sources, now) {
                if update_sender.send(endpoint_unused).await.is_err() {
                    return;
                }
            }
            self.start_due_fetches(now, |_| true);
            let next_fetch = self.next_fetch_time(now);
            let key_update = tokio::select! {
                changed = active_sources.changed() => if changed.is_err() { return } else { None },
                // An aborted or panicked fetch has no result.
                Some(task_result) = self.fetches_in_progress.join_next() => {
                    task_result.ok().and_then(|(source, fetch_result)| {
                        self.record_result(source, fetch_result, Instant::now())
                    })
                }
                () = sleep_until(next_fetch) => None,
            };
            if let Some(key_update) = key_update
                && update_sender.send(key_update).await.is_err()
            {
                return;
            }
        }
    }

    /// Replaces the set of endpoints in use, and returns those that are no longer in use.
    fn set_sources(
        &mut self,
        active_sources: &BTreeSet<KeySource>,
        now: Instant,
    ) -> Vec<KeyUpdate> {
        let unused_sources: Vec<KeySource> = self
            .endpoints
            .keys()
            .filter(|source| !active_sources.contains(*source))
            .cloned()
            .collect();
        for source in &unused_sources {
            let endpoint = self.endpoints.remove(source);
            // An aborted fetch must not occupy a slot.
            if let Some(fetch_handle) = endpoint.and_then(|endpoint| endpoint.fetch_handle) {
                fetch_handle.abort();
            }
        }
        for source in active_sources {
            let new_endpoint =
                || JwksEndpointState { due_at: Some(now), ..JwksEndpointState::default() };
            self.endpoints.entry(source.clone()).or_insert_with(new_endpoint);
        }
        unused_sources
            .into_iter()
            .map(|source| KeyUpdate { source, outcome: FetchOutcome::EndpointUnused })
            .collect()
    }

    /// Starts pending fetches, within the concurrency limit: the longest overdue first, so that unresponsive
    /// endpoints do not starve others.
    fn start_due_fetches(
        &mut self,
        now: Instant,
        is_selected: impl Fn(&JwksEndpointState) -> bool,
    ) {
        let is_due = |endpoint: &JwksEndpointState| {
            endpoint.due_at.is_some_and(|due_at| due_at <= now) && is_selected(endpoint)
        };
        let mut due_endpoints: Vec<_> =
            self.endpoints.iter_mut().filter(|(_, endpoint)| is_due(endpoint)).collect();
        due_endpoints.sort_by_key(|(_, endpoint)| endpoint.due_at);
        let free_slots = MAX_FETCHES.saturating_sub(self.fetches_in_progress.len());
        for (source, endpoint) in due_endpoints.into_iter().take(free_slots) {
            endpoint.due_at = None;
            let (source, etag, roots_file) =
                (source.clone(), endpoint.etag.clone(), self.roots_file.clone());
            let (access, read_lock) = (Arc::clone(&self.access), Arc::clone(&endpoint.read_lock));
            endpoint.fetch_handle = Some(self.fetches_in_progress.spawn(async move {
                let response = match &source {
                    KeySource::File(path) => {
                        file::read_key_set(path.clone(), access.files.clone(), read_lock).await
                    }
                    KeySource::Server(server) => {
                        server::fetch_key_set(server, etag.as_deref(), roots_file, &access.servers)
                            .await
                    }
                };
                (source, response)
            }));
        }
    }

    /// Returns the time at which the next fetch can start.
    fn next_fetch_time(&self, now: Instant) -> Instant {
        let due_times = self.endpoints.values().filter_map(|endpoint| endpoint.due_at);
        let next_fetch = due_times.min().unwrap_or(now + IDLE_WAIT);
        // At the limit, pending fetches wait for one in progress.
        match self.fetches_in_progress.len() >= MAX_FETCHES {
            true => now + IDLE_WAIT,
            false => next_fetch,
        }
    }

    /// Processes the result of a fetch. Returns `None` if the endpoint is no longer in use.
    fn record_result(
        &mut self,
        source: KeySource,
        fetch_result: Result<JwksResponse, String>,
        now: Instant,
    ) -> Option<KeyUpdate> {
        let endpoint = self.endpoints.get_mut(&source)?;
        let recorded_response = fetch_result.and_then(|response| {
            endpoint.record_response(response).map_err(|error| error.to_string())
        });
        let (outcome, max_age) = match recorded_response {
            Ok((changed_set, max_age)) => {
                (changed_set.map_or(FetchOutcome::Unchanged, FetchOutcome::Changed), max_age)
            }
            Err(reason) => (FetchOutcome::Failed(reason), None),
        };
        endpoint.consecutive_failures = match &outcome {
            FetchOutcome::Failed(_) => endpoint.consecutive_failures.saturating_add(1),
            _ => 0,
        };
        let delay = match &source {
            KeySource::File(_) => FILE_CHECK_INTERVAL,
            KeySource::Server(server) if endpoint.consecutive_failures == 0 => {
                fetch_interval::delay_after_success(
                    server.refresh_interval,
                    max_age,
                    &mut self.jitter_random,
                )
            }
            KeySource::Server(_) => fetch_interval::delay_after_failure(
                endpoint.consecutive_failures,
                &mut self.jitter_random,
            ),
        };
        endpoint.due_at = Some(now + delay);
        Some(KeyUpdate { source, outcome })
    }
}

impl JwksEndpointState {
    /// Processes a response. Returns the set if it changed, and the response's `max-age`.
    fn record_response(
        &mut self,
        response: JwksResponse,
    ) -> Result<(Option<Arc<str>>, Option<Duration>), UnusableJwks> {
        let (text, etag, max_age) = match response {
            JwksResponse::Unchanged { .. } if self.jwks.is_none() => {
                self.etag = None;
                return Err(UnusableJwks::Unchanged);
            }
            JwksResponse::Unchanged { max_age } => return Ok((None, max_age)),
            JwksResponse::Set { text, etag, max_age } => (text, etag, max_age),
        };
        // An unusable set is fetched again, regardless of its ETag.
        let public_part = JwtKeys::public_part(&text).inspect_err(|_| self.etag = None)?;
        self.etag = etag;
        if self.jwks.as_deref() == Some(&*public_part) {
            return Ok((None, max_age));
        }
        let jwks: Arc<str> = public_part.into();
        self.jwks = Some(Arc::clone(&jwks));
        Ok((Some(jwks), max_age))
    }
}

/// The timeout of a fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of the first fetches at start. It is as long as that of later fetches, because the tokens of a slow
/// issuer must not be rejected in the meantime.
const FIRST_FETCH_TIMEOUT: Duration = FETCH_TIMEOUT;
/// Maximum fetches in progress.
const MAX_FETCHES: usize = 8;
/// The interval of file checks, as for the authority's files.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The wait while no fetch is pending or no slot is free. A result or changed endpoints end it earlier.
const IDLE_WAIT: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests;
