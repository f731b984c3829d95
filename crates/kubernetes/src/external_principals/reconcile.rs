//! Creates, renews and deletes the Secrets of external principals, in the leading control plane.

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

use super::desired::{CertificateOutcomes, DesiredCertificates, ExternalCertificateRequest};
use super::secret::{
    IssuanceParameters, SecretState, check_secret, is_owned_by_request, issue_into_secret,
};
use crate::api::{ApiError, NamespaceName, ObjectApi, ObjectName};

/// Creates a Secret with a key and a certificate for each desired external principal while this control plane
/// is the leader. Renews the certificate well before it expires, and immediately when the authority changes.
/// Deletes the Secret when no object requests it any more. Publishes the outcomes. Never returns.
///
/// Secrets are not watched, because that requires permission to list all Secrets of a namespace. Each is read by
/// its name, and only its metadata while it is unchanged.
pub async fn reconcile_external_principals(
    client: Client,
    lifetime: Duration,
    authority: watch::Receiver<Arc<Authority>>,
    desired: watch::Receiver<Arc<DesiredCertificates>>,
    is_leader: watch::Receiver<bool>,
    outcomes: watch::Sender<Arc<CertificateOutcomes>>,
) {
    let reconciler = CertificateReconciler { client, lifetime, secrets: BTreeMap::new(), outcomes };
    reconciler.run(authority, desired, is_leader).await;
}

struct CertificateReconciler {
    client: Client,
    /// The default lifetime of certificates.
    lifetime: Duration,
    /// The requested Secrets, and the Secrets to delete.
    secrets: BTreeMap<SecretName, SecretReconciliation>,
    outcomes: watch::Sender<Arc<CertificateOutcomes>>,
}

/// The state of a Secret that is or was requested.
struct SecretReconciliation {
    /// The latest request for the Secret.
    request: ExternalCertificateRequest,
    /// True if an object still requests the Secret; false if the Secret must be deleted.
    is_requested: bool,
    /// The Secret at the last check; `None` if that check failed, or before the first one.
    valid_secret: Option<ValidSecret>,
    /// The renewal time of the last valid certificate, which is kept when a check fails; `None` if none is known.
    renewal_time: Option<SystemTime>,
    next_check: Instant,
    /// The number of consecutive failed checks.
    failure_count: u32,
    /// The published outcome; `None` while it is unknown.
    outcome: Option<Result<(), String>>,
}

/// A Secret with a valid certificate, as last read or written.
struct ValidSecret {
    resource_version: Option<String>,
    renewal_time: SystemTime,
    /// The CA generation for which the certificate was checked.
    ca_generation: u64,
}

/// The reason that a Secret could not be reconciled.
enum ReconcileError {
    /// An error for the author of the object or the administrator to fix.
    Permanent(String),
    /// An error that may be transient.
    Transient(String),
}

impl CertificateReconciler {
    /// Reconciles the due Secrets after each change and every [`DUE_CHECK_INTERVAL`], while this control plane is
    /// the leader.
    async fn run(
        mut self,
        mut authority: watch::Receiver<Arc<Authority>>,
        mut desired: watch::Receiver<Arc<DesiredCertificates>>,
        mut is_leader: watch::Receiver<bool>,
    ) {
        let mut ticks = interval(DUE_CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Ok(()) = desired.changed() => {}
                Ok(()) = authority.changed() => {}
                Ok(()) = is_leader.changed() => {}
                _ = ticks.tick() => {}
            }
            self.update_requests(&desired.borrow_and_update().clone());
            if !*is_leader.borrow_and_update() {
                self.reset_checks();
                self.publish_outcomes();
                continue;
            }
            let current_authority = Arc::clone(&authority.borrow_and_update());
            for name in self.due_secrets(&current_authority) {
                // The requests to the API server take time, in which the leadership may end.
                if !*is_leader.borrow() {
                    break;
                }
                self.reconcile_by_name(&name, &current_authority).await;
            }
            self.publish_outcomes();
        }
    }

    /// Adopts the latest requests. A Secret that is no longer requested is scheduled for deletion, unless its object
    /// now has an invalid request.
    fn update_requests(&mut self, desired: &DesiredCertificates) {
        for state in self.secrets.values_mut() {
            state.is_requested = false;
        }
        for request in &desired.requests {
            let existing = self.secrets.get_mut(&request.id.secret);
            match existing.filter(|existing| existing.request == *request) {
                Some(existing) => existing.is_requested = true,
                // A changed request starts without results, so its Secret is compared with the request again.
                None => {
                    let new_state = SecretReconciliation::new(request.clone());
                    self.secrets.insert(request.id.secret.clone(), new_state);
                }
            }
        }
        // A forgotten Secret is neither renewed nor deleted.
        self.secrets.retain(|_, state| {
            state.is_requested || !desired.unchanged_owners.contains(&state.request.owner.uid)
        });
        for state in
            self.secrets.values_mut().filter(|state| !state.is_requested && state.outcome.is_some())
        {
            // Delete it immediately. Without an outcome, later updates do not reset the retries of the deletion.
            (state.outcome, state.next_check, state.failure_count) = (None, Instant::now(), 0);
        }
    }

    /// Forgets the results of all checks: another control plane is the leader and may change the Secrets.
    fn reset_checks(&mut self) {
        self.secrets.retain(|_, state| state.is_requested);
        for state in self.secrets.values_mut() {
            *state = SecretReconciliation::new(state.request.clone());
        }
    }

    /// Returns the Secrets to reconcile now: their next check is due, or the authority has changed.
    fn due_secrets(&self, authority: &Authority) -> Vec<SecretName> {
        let (now, ca_generation) = (Instant::now(), authority.ca_generation());
        let is_due = |state: &SecretReconciliation| {
            state.next_check <= now || state.is_outdated(ca_generation)
        };
        self.secrets
            .iter()
            .filter(|(_, state)| is_due(state))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Deletes a Secret that is no longer requested; otherwise checks it, and issues a certificate if
    /// necessary. Schedules the next check.
    async fn reconcile_by_name(&mut self, name: &SecretName, authority: &Authority) {
        let Some(state) = self.secrets.get(name) else { return };
        let issuance =
            IssuanceParameters { authority, lifetime: self.lifetime, now: SystemTime::now() };
        let namespace = match NamespaceName::try_from(&name.namespace) {
            Ok(namespace) => namespace,
            // The names of namespaces may contain dots in the mesh, but not in Kubernetes.
            Err(error) => {
                return self.record_failure(name, ReconcileError::Permanent(error.to_string()));
            }
        };
        let api: ObjectApi<Secret> = ObjectApi::for_namespace(self.client.clone(), &namespace);
        let timeout_error =
            || ReconcileError::Transient("the API server did not respond in time".to_owned());
        if !state.is_requested {
            let deletion = timeout(SECRET_TIMEOUT, delete_secret(&api, &state.request)).await;
            match deletion.unwrap_or_else(|_| Err(timeout_error())) {
                Ok(()) => drop(self.secrets.remove(name)),
                Err(error) => self.record_failure(name, error),
            }
            return;
        }
        let reconciliation = timeout(SECRET_TIMEOUT, reconcile_secret(&api, state, issuance)).await;
        match reconciliation.unwrap_or_else(|_| Err(timeout_error())) {
            Ok(valid_secret) => {
                let Some(state) = self.secrets.get_mut(name) else { return };
                let time_to_renewal =
                    valid_secret.renewal_time.duration_since(issuance.now).unwrap_or_default();
                state.next_check = Instant::now() + time_to_renewal.min(POLL_INTERVAL);
                state.renewal_time = Some(valid_secret.renewal_time);
                (state.valid_secret, state.failure_count, state.outcome) =
                    (Some(valid_secret), 0, Some(Ok(())));
            }
            Err(error) => self.record_failure(name, error),
        }
    }

    /// Records a failed check: schedules a retry with exponential backoff, and logs the error. A transient error is
    /// published only if it persists and the last valid certificate is due for renewal.
    fn record_failure(&mut self, name: &SecretName, error: ReconcileError) {
        let Some(state) = self.secrets.get_mut(name) else { return };
        // Six doublings reach MAX_RETRY_DELAY; more could overflow the shift.
        state.next_check = Instant::now()
            + MIN_RETRY_DELAY.saturating_mul(1 << state.failure_count.min(6)).min(MAX_RETRY_DELAY);
        state.failure_count = state.failure_count.saturating_add(1);
        // The next check reads the whole Secret, and a change of the authority does not cause immediate
        // retries.
        state.valid_secret = None;
        let (reason, is_reported) = match error {
            ReconcileError::Permanent(reason) => (reason, true),
            ReconcileError::Transient(reason) => {
                let is_renewal_due =
                    state.renewal_time.is_none_or(|renewal_time| renewal_time <= SystemTime::now());
                (reason, is_renewal_due && state.failure_count > MAX_TRANSIENT_FAILURES)
            }
        };
        let outcome = Err(format!("{}: {reason}", state.request.field_path("secret")));
        // An error that is already published is not logged again.
        if state.outcome.as_ref() == Some(&outcome) {
            return;
        }
        tracing::warn!(secret = %name, owner = %state.request.owner, reason, "certificate Secret not reconciled");
        // A Secret to delete has no outcome, because no object has a request for it.
        if state.is_requested && is_reported {
            state.outcome = Some(outcome);
        }
    }

    /// Publishes the known outcomes of requested Secrets if they have changed.
    fn publish_outcomes(&self) {
        let known_outcomes =
            self.secrets.values().filter(|state| state.is_requested).filter_map(|state| {
                Some((state.request.owner.uid.clone(), state.outcome.clone()?))
            });
        let outcomes: CertificateOutcomes = known_outcomes.collect();
        self.outcomes.send_if_modified(|published| {
            let is_changed = **published != outcomes;
            if is_changed {
                *published = Arc::new(outcomes);
            }
            is_changed
        });
    }
}

impl SecretReconciliation {
    fn new(request: ExternalCertificateRequest) -> Self {
        let next_check = Instant::now();
        Self {
            request,
            is_requested: true,
            valid_secret: None,
            renewal_time: None,
            next_check,
            failure_count: 0,
            outcome: None,
        }
    }

    /// Returns true if the Secret is requested, and its certificate was checked for another CA generation.
    fn is_outdated(&self, ca_generation: u64) -> bool {
        self.is_requested
            && self
                .valid_secret
                .as_ref()
                .is_some_and(|valid_secret| valid_secret.ca_generation != ca_generation)
    }
}

/// Checks a Secret, and creates or updates it if necessary. Returns the valid Secret.
async fn reconcile_secret(
    api: &ObjectApi<Secret>,
    state: &SecretReconciliation,
    issuance: IssuanceParameters<'_>,
) -> Result<ValidSecret, ReconcileError> {
    let (request, name) = (&state.request, ObjectName::from(&state.request.id.secret.name));
    let ca_generation = issuance.authority.ca_generation();
    // While the certificate is current, an unchanged resource version is sufficient.
    if let Some(valid_secret) = &state.valid_secret
        && valid_secret.ca_generation == ca_generation
        && valid_secret.renewal_time > issuance.now
    {
        let object = api.get_metadata_opt(&name).await.map_err(|error| classify_error(&error))?;
        let resource_version = object.and_then(|object| object.metadata.resource_version);
        if resource_version.is_some() && resource_version == valid_secret.resource_version {
            return Ok(ValidSecret { resource_version, ..*valid_secret });
        }
    }
    let existing_secret = api.get_opt(&name).await.map_err(|error| classify_error(&error))?;
    if let Some(secret) = &existing_secret {
        match check_secret(secret, request, issuance) {
            SecretState::Valid(renewal_time) => {
                let resource_version = secret.metadata.resource_version.clone();
                return Ok(ValidSecret { resource_version, renewal_time, ca_generation });
            }
            SecretState::OtherOwner => {
                return Err(ReconcileError::Permanent(describe_other_owner(request)));
            }
            SecretState::RenewalDue => {}
        }
    }
    let is_new = existing_secret.is_none();
    let secret = issue_into_secret(existing_secret, request, issuance)
        .map_err(|error| ReconcileError::Permanent(with_causes(&error)))?;
    // A replacement contains the resource version that was read: concurrent changes are not overwritten.
    let parameters = PostParams::default();
    let write_result = match is_new {
        true => api.create(&parameters, &secret).await,
        false => api.replace(&name, &parameters, &secret).await,
    };
    let written_secret = write_result.map_err(|error| match error.status_code() {
        // Another client deleted the Secret after it was read. The retry creates it.
        Some(NOT_FOUND) if !is_new => ReconcileError::Transient(error.to_string()),
        _ => classify_error(&error),
    })?;
    tracing::info!(secret = %request.id.secret, owner = %request.owner, "certificate issued for an external principal");
    match check_secret(&written_secret, request, issuance) {
        SecretState::Valid(renewal_time) => Ok(ValidSecret {
            resource_version: written_secret.metadata.resource_version,
            renewal_time,
            ca_generation,
        }),
        // An admission webhook changed the object.
        SecretState::RenewalDue | SecretState::OtherOwner => Err(ReconcileError::Permanent(
            "the API server stored a different object; check admission webhooks that change \
             Secrets"
                .to_owned(),
        )),
    }
}

/// Deletes the Secret of a request if it was created for this request. The deletion fails if another client changes
/// the Secret in the meantime.
async fn delete_secret(
    api: &ObjectApi<Secret>,
    request: &ExternalCertificateRequest,
) -> Result<(), ReconcileError> {
    let name = ObjectName::from(&request.id.secret.name);
    let object = api.get_metadata_opt(&name).await.map_err(|error| classify_error(&error))?;
    let Some(object) = object.filter(|object| is_owned_by_request(&object.metadata, request))
    else {
        return Ok(());
    };
    let preconditions = Preconditions {
        uid: object.metadata.uid,
        resource_version: object.metadata.resource_version,
    };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(&name, &parameters).await {
        Ok(()) => {
            tracing::info!(secret = %request.id.secret, owner = %request.owner, "external principal removed; deleting its Secret");
            Ok(())
        }
        Err(error) if error.status_code() == Some(NOT_FOUND) => Ok(()),
        Err(error) => Err(classify_error(&error)),
    }
}

/// Classifies an error. A rejection by the API server is permanent, but a transport error may be transient.
fn classify_error(error: &ApiError) -> ReconcileError {
    let message = error.to_string();
    match error.status_code() {
        Some(code) if TRANSIENT_STATUS_CODES.contains(&code) || code >= MIN_SERVER_ERROR => {
            ReconcileError::Transient(message)
        }
        Some(_) => ReconcileError::Permanent(message),
        None => ReconcileError::Transient(message),
    }
}

fn describe_other_owner(request: &ExternalCertificateRequest) -> String {
    let (secret, owner) = (&request.id.secret, &request.owner);
    format!(
        "{secret} exists and was not created for the {owner}; delete that Secret, or name another"
    )
}

const NOT_FOUND: u16 = 404;
/// The status codes of transient errors: an expired token, a timeout, a conflict, and too many requests.
const TRANSIENT_STATUS_CODES: [u16; 4] = [401, 408, 409, 429];
/// The lowest status code of server errors, which are transient.
const MIN_SERVER_ERROR: u16 = 500;
/// The number of consecutive transient failures that are not published.
const MAX_TRANSIENT_FAILURES: u32 = 2;
/// The interval between searches for Secrets that are due for a check.
const DUE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The maximum interval between checks of a Secret, after which a deleted or changed Secret is issued again.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// The timeout for all API requests about one Secret.
const SECRET_TIMEOUT: Duration = Duration::from_secs(15);
/// The initial delay of retries, which doubles up to `MAX_RETRY_DELAY`.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(5);
/// The maximum delay of retries.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests;
