//! Reconciliation of the Secrets of external principals, by the leading control plane.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{DeleteParams, PostParams, Preconditions};
use leno_identity::Authority;
use leno_model::SecretName;
use leno_telemetry::with_causes;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::desired::{CertificateOutcomes, DesiredCertificate, DesiredCertificates};
use super::secret::{IssuanceParameters, SecretState, check_secret, is_of, issue_into_secret};
use crate::api::{ApiError, NamespaceName, ObjectApi, ObjectName};

/// Creates a Secret with a key and a certificate for each desired external principal while this control plane
/// is the leader. Renews the certificate well before it expires, and immediately when the authority changes.
/// Deletes the Secret when no object requests it any more. Publishes the outcomes. Never returns.
///
/// Secrets are not watched: each is read by its name, and only its metadata while it is unchanged.
pub async fn keep_external_principals(
    client: Client,
    lifetime: Duration,
    authority: watch::Receiver<Arc<Authority>>,
    desired: watch::Receiver<Arc<DesiredCertificates>>,
    leading: watch::Receiver<bool>,
    outcomes: watch::Sender<Arc<CertificateOutcomes>>,
) {
    let reconciler = CertificateReconciler { client, lifetime, kept: BTreeMap::new(), outcomes };
    reconciler.run(authority, desired, leading).await;
}

struct CertificateReconciler {
    client: Client,
    /// The default lifetime of certificates.
    lifetime: Duration,
    kept: BTreeMap<SecretName, SecretReconciliation>,
    outcomes: watch::Sender<Arc<CertificateOutcomes>>,
}

/// The state of a Secret that is or was requested.
struct SecretReconciliation {
    desired: DesiredCertificate,
    /// True if an object still requests it.
    is_wanted: bool,
    /// The Secret at the last check, if it was valid.
    good: Option<ValidSecret>,
    /// The renewal time of the last valid certificate.
    due: Option<SystemTime>,
    /// The time of the next check.
    next: Instant,
    /// The number of consecutive failures.
    failures: u32,
    /// The published outcome; `None` while it is unknown.
    outcome: Option<Result<(), String>>,
}

/// A Secret with a valid certificate, as last read or written.
struct ValidSecret {
    /// The resource version seen.
    version: Option<String>,
    until: SystemTime,
    ca_generation: u64,
}

/// The reason that a Secret could not be reconciled.
enum ReconcileError {
    /// An error for the author of the object or the administrator to fix.
    Reported(String),
    /// An error that may be transient.
    Transient(String),
}

impl CertificateReconciler {
    async fn run(
        mut self,
        mut authority: watch::Receiver<Arc<Authority>>,
        mut desired: watch::Receiver<Arc<DesiredCertificates>>,
        mut leading: watch::Receiver<bool>,
    ) {
        let mut clock = interval(TICK);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Ok(()) = desired.changed() => {}
                Ok(()) = authority.changed() => {}
                Ok(()) = leading.changed() => {}
                _ = clock.tick() => {}
            }
            self.update_desired(&desired.borrow_and_update().clone());
            if !*leading.borrow_and_update() {
                self.forget_state();
                self.publish_outcomes();
                continue;
            }
            let authority = Arc::clone(&authority.borrow_and_update());
            for name in self.due_secrets(&authority) {
                if !*leading.borrow() {
                    break;
                }
                self.see_to(&name, &authority).await;
            }
            self.publish_outcomes();
        }
    }

    /// Updates the desired state. A Secret that is no longer requested is scheduled for deletion, unless its
    /// object now has an invalid request.
    fn update_desired(&mut self, desired: &DesiredCertificates) {
        for kept in self.kept.values_mut() {
            kept.is_wanted = false;
        }
        for desired in &desired.wanted {
            let known = self.kept.get_mut(&desired.id.secret);
            match known.filter(|known| known.desired == *desired) {
                Some(known) => known.is_wanted = true,
                None => {
                    let fresh = SecretReconciliation::new(desired.clone());
                    self.kept.insert(desired.id.secret.clone(), fresh);
                }
            }
        }
        self.kept
            .retain(|_, kept| kept.is_wanted || !desired.left.contains(&kept.desired.owner.uid));
        for kept in self.kept.values_mut().filter(|kept| !kept.is_wanted && kept.outcome.is_some())
        {
            // Check immediately.
            (kept.outcome, kept.next, kept.failures) = (None, Instant::now(), 0);
        }
    }

    /// Forgets all state: only the leader reconciles Secrets, and its state is authoritative.
    fn forget_state(&mut self) {
        self.kept.retain(|_, kept| kept.is_wanted);
        for kept in self.kept.values_mut() {
            *kept = SecretReconciliation::new(kept.desired.clone());
        }
    }

    fn due_secrets(&self, authority: &Authority) -> Vec<SecretName> {
        let (now, ca_generation) = (Instant::now(), authority.ca_generation());
        let is_due =
            |kept: &SecretReconciliation| kept.next <= now || kept.is_outdated(ca_generation);
        self.kept.iter().filter(|(_, kept)| is_due(kept)).map(|(name, _)| name.clone()).collect()
    }

    async fn see_to(&mut self, name: &SecretName, authority: &Authority) {
        let Some(kept) = self.kept.get(name) else { return };
        let terms =
            IssuanceParameters { authority, lifetime: self.lifetime, now: SystemTime::now() };
        let namespace = match NamespaceName::try_from(&name.namespace) {
            Ok(namespace) => namespace,
            Err(error) => return self.put_off(name, ReconcileError::Reported(error.to_string())),
        };
        let api: ObjectApi<Secret> = ObjectApi::for_namespace(self.client.clone(), &namespace);
        let late =
            || ReconcileError::Transient("the API server did not respond in time".to_owned());
        if !kept.is_wanted {
            let removed = timeout(ANSWER_MAX, remove(&api, &kept.desired)).await;
            match removed.unwrap_or_else(|_| Err(late())) {
                Ok(()) => drop(self.kept.remove(name)),
                Err(trouble) => self.put_off(name, trouble),
            }
            return;
        }
        let looked = timeout(ANSWER_MAX, reconcile_secret(&api, kept, terms)).await;
        match looked.unwrap_or_else(|_| Err(late())) {
            Ok(good) => {
                let Some(kept) = self.kept.get_mut(name) else { return };
                let left = good.until.duration_since(terms.now).unwrap_or_default();
                kept.next = Instant::now() + left.min(LOOK_EVERY);
                kept.due = Some(good.until);
                (kept.good, kept.failures, kept.outcome) = (Some(good), 0, Some(Ok(())));
            }
            Err(trouble) => self.put_off(name, trouble),
        }
    }

    /// Schedules a retry with exponential backoff. A transient error is published only if it persists and the
    /// last valid certificate is due for renewal.
    fn put_off(&mut self, name: &SecretName, trouble: ReconcileError) {
        let Some(kept) = self.kept.get_mut(name) else { return };
        kept.next =
            Instant::now() + AGAIN_AFTER.saturating_mul(1 << kept.failures.min(6)).min(AGAIN_MAX);
        kept.failures = kept.failures.saturating_add(1);
        // The next check reads the whole Secret, and a change of the authority does not cause immediate
        // retries.
        kept.good = None;
        let (cause, is_reported) = match trouble {
            ReconcileError::Reported(cause) => (cause, true),
            ReconcileError::Transient(cause) => {
                let is_due = kept.due.is_none_or(|due| due <= SystemTime::now());
                (cause, is_due && kept.failures > PASSING_MAX)
            }
        };
        let outcome = Err(format!("{}: {cause}", kept.desired.field_path("secret")));
        if kept.outcome.as_ref() == Some(&outcome) {
            return;
        }
        tracing::warn!(secret = %name, owner = %kept.desired.owner, reason = cause, "certificate Secret not reconciled");
        if kept.is_wanted && is_reported {
            kept.outcome = Some(outcome);
        }
    }

    fn publish_outcomes(&self) {
        let reported = self
            .kept
            .values()
            .filter(|kept| kept.is_wanted)
            .filter_map(|kept| Some((kept.desired.owner.uid.clone(), kept.outcome.clone()?)));
        let reported: CertificateOutcomes = reported.collect();
        self.outcomes.send_if_modified(|known| {
            let event = **known != reported;
            if event {
                *known = Arc::new(reported);
            }
            event
        });
    }
}

impl SecretReconciliation {
    fn new(desired: DesiredCertificate) -> Self {
        let next = Instant::now();
        Self { desired, is_wanted: true, good: None, due: None, next, failures: 0, outcome: None }
    }

    /// Returns true if the certificate is from another CA generation.
    fn is_outdated(&self, ca_generation: u64) -> bool {
        self.is_wanted && self.good.as_ref().is_some_and(|good| good.ca_generation != ca_generation)
    }
}

/// Checks a Secret, and creates or updates it if necessary.
async fn reconcile_secret(
    api: &ObjectApi<Secret>,
    kept: &SecretReconciliation,
    terms: IssuanceParameters<'_>,
) -> Result<ValidSecret, ReconcileError> {
    let (desired, name) = (&kept.desired, ObjectName::from(&kept.desired.id.secret.name));
    let ca_generation = terms.authority.ca_generation();
    if let Some(good) = &kept.good
        && good.ca_generation == ca_generation
        && good.until > terms.now
    {
        let there = api.get_metadata_opt(&name).await.map_err(|error| classify_error(&error))?;
        let version = there.and_then(|there| there.metadata.resource_version);
        if version.is_some() && version == good.version {
            return Ok(ValidSecret { version, ..*good });
        }
    }
    let found = api.get_opt(&name).await.map_err(|error| classify_error(&error))?;
    if let Some(secret) = &found {
        match check_secret(secret, desired, terms) {
            SecretState::Good(until) => {
                let version = secret.metadata.resource_version.clone();
                return Ok(ValidSecret { version, until, ca_generation });
            }
            SecretState::Foreign => {
                return Err(ReconcileError::Reported(describe_foreign(desired)));
            }
            SecretState::Due => {}
        }
    }
    let is_new = found.is_none();
    let secret = issue_into_secret(found, desired, terms)
        .map_err(|error| ReconcileError::Reported(with_causes(&error)))?;
    // Only the version that was read is replaced.
    let parameters = PostParams::default();
    let written = match is_new {
        true => api.create(&parameters, &secret).await,
        false => api.replace(&name, &parameters, &secret).await,
    };
    let written = written.map_err(|error| match error.status_code() {
        // Another client deleted it meanwhile.
        Some(NOT_FOUND) if !is_new => ReconcileError::Transient(error.to_string()),
        _ => classify_error(&error),
    })?;
    tracing::info!(secret = %desired.id.secret, owner = %desired.owner, "certificate issued for an external client");
    match check_secret(&written, desired, terms) {
        SecretState::Good(until) => {
            Ok(ValidSecret { version: written.metadata.resource_version, until, ca_generation })
        }
        // An admission controller changed the object.
        SecretState::Due | SecretState::Foreign => Err(ReconcileError::Reported(
            "the API server stored a different object; check admission webhooks that change \
             Secrets"
                .to_owned(),
        )),
    }
}

/// Deletes a Secret that was created for this request, in the version that was read.
async fn remove(
    api: &ObjectApi<Secret>,
    desired: &DesiredCertificate,
) -> Result<(), ReconcileError> {
    let name = ObjectName::from(&desired.id.secret.name);
    let there = api.get_metadata_opt(&name).await.map_err(|error| classify_error(&error))?;
    let Some(there) = there.filter(|there| is_of(&there.metadata, desired)) else { return Ok(()) };
    let preconditions = Preconditions {
        uid: there.metadata.uid,
        resource_version: there.metadata.resource_version,
    };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(&name, &parameters).await {
        Ok(()) => {
            tracing::info!(secret = %desired.id.secret, owner = %desired.owner, "external client removed: deleting its Secret");
            Ok(())
        }
        Err(error) if error.status_code() == Some(NOT_FOUND) => Ok(()),
        Err(error) => Err(classify_error(&error)),
    }
}

/// Classifies an error: a rejection by the API server is permanent, a transport error may be transient.
fn classify_error(error: &ApiError) -> ReconcileError {
    let said = error.to_string();
    match error.status_code() {
        Some(code) if PASSING.contains(&code) || code >= SERVER_ERROR => {
            ReconcileError::Transient(said)
        }
        Some(_) => ReconcileError::Reported(said),
        None => ReconcileError::Transient(said),
    }
}

fn describe_foreign(desired: &DesiredCertificate) -> String {
    let (secret, owner) = (&desired.id.secret, &desired.owner);
    format!(
        "{secret} exists and was not created for the {owner}; delete that Secret, or name another"
    )
}

const NOT_FOUND: u16 = 404;
/// An expired token, a timeout, a conflict, and too many requests.
const PASSING: [u16; 4] = [401, 408, 409, 429];
const SERVER_ERROR: u16 = 500;
/// The number of consecutive transient failures that are not published.
const PASSING_MAX: u32 = 2;
/// The interval between checks for due work.
const TICK: Duration = Duration::from_secs(5);
/// The interval between checks of the metadata of each Secret.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The timeout for all API requests about one Secret.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// The initial delay of retries, which doubles up to `AGAIN_MAX`.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
const AGAIN_MAX: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests;
