//! Renews the workload certificate: at half of its lifetime, and when the CA changes, the proxy requests a certificate
//! for a new key. Open connections continue.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_discovery::{IssuedCertificate, ProxyRequest};
use leno_identity::{
    CertificateBundle, Credential, CredentialError, PrivateKey, Roots, RootsError,
};
use leno_telemetry::{Count, Level};
use tokio::sync::{mpsc, oneshot, watch};

use crate::StartError;
use crate::config::OnExpiry;
use crate::control_client::ControlClient;

/// Checks that an issued certificate is for this workload, stores it on disk and makes it current.
pub(crate) fn accept_issued(
    control_client: &ControlClient,
    key: PrivateKey,
    issued_certificate: IssuedCertificate,
) -> Result<Arc<Credential>, RenewalError> {
    let roots = Roots::new(issued_certificate.roots.into_iter().map(Into::into).collect())?;
    let chain = issued_certificate.chain.into_iter().map(Into::into).collect();
    let credential = Credential::new(key, CertificateBundle::new(chain, roots)?)?;
    if credential.workload() != Some(&control_client.config.workload) {
        return Err(RenewalError::OtherWorkload);
    }
    let save_result = credential.save(control_client.state_dir.path());
    control_client.state_dir.record_certificate_write(&save_result);
    if let Err(error) = save_result {
        // The proxy continues: it lacks the certificate only after a restart without a control plane.
        tracing::warn!(%error, "cannot write the certificate to disk");
    }
    Ok(replace_credential(control_client, credential))
}

/// Makes a credential current, and sets the certificate's issue and expiry times in the metrics.
pub(crate) fn replace_credential(
    control_client: &ControlClient,
    credential: Credential,
) -> Arc<Credential> {
    for (level, time) in [
        (Level::CertificateIssued, credential.issue_time()),
        (Level::CertificateExpiry, credential.not_after()),
    ] {
        let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        control_client.telemetry.set_level(level, since_epoch.as_secs());
    }
    control_client.config_store.replace_credential(credential)
}

/// Renews the certificate at half of its lifetime or when the CA changes, and retries after a failure. Returns
/// when the proxy ends.
pub(crate) async fn run_renewal(
    control_client: Rc<ControlClient>,
    control_requests: mpsc::Sender<ProxyRequest>,
) {
    let mut changes = control_client.config_store.subscribe();
    let mut attempted_generation = 0;
    loop {
        let Some(credential) = control_client.config_store.credential() else {
            if changes.changed().await.is_err() {
                return;
            }
            continue;
        };
        let configured_generation = current_generation(&control_client);
        if configured_generation == credential.ca_generation() {
            attempted_generation = 0;
        }
        // 0: the configured generation is unknown.
        let needs_reissue =
            ![0, credential.ca_generation(), attempted_generation].contains(&configured_generation);
        if !wait_until_due(&control_client, &credential, needs_reissue, &mut changes).await {
            continue;
        }
        // A response after the expiry would be too late.
        let remaining =
            credential.not_after().duration_since(SystemTime::now()).unwrap_or_default();
        let max_wait = remaining.clamp(MIN_RETRY_PAUSE, MAX_RESPONSE_WAIT);
        let result = renew_certificate(&control_client, &control_requests, max_wait).await;
        let counter = if result.is_ok() {
            Count::CertificateRenewed
        } else {
            Count::CertificateRenewalFailed
        };
        control_client.metrics.add(counter, 1);
        if result.is_ok() {
            // A control plane that issues certificates of another CA generation than the configured one is not
            // queried repeatedly.
            attempted_generation = configured_generation;
        }
        if let Err(reason) = result {
            if credential.is_expired(SystemTime::now()) {
                report_expiry(&control_client);
                // No control plane accepts an expired certificate for a renewal.
                tokio::time::sleep(MAX_RETRY_PAUSE).await;
                continue;
            }
            tracing::warn!(%reason, "the certificate was not renewed; retrying");
            let remaining =
                credential.not_after().duration_since(SystemTime::now()).unwrap_or_default();
            tokio::time::sleep((remaining / 20).clamp(MIN_RETRY_PAUSE, MAX_RETRY_PAUSE)).await;
        }
    }
}

/// Logs that the certificate has expired and that peers reject it. Ends the proxy if it is configured to exit
/// then.
fn report_expiry(control_client: &ControlClient) {
    match control_client.config.on_expiry {
        OnExpiry::Continue if control_client.config.account_token.is_some() => {
            tracing::error!("the certificate has expired: joining again as soon as possible");
        }
        OnExpiry::Continue => tracing::error!(
            "the certificate has expired: peers reject this sidecar until it joins again with a \
             new token"
        ),
        OnExpiry::Fail => {
            tracing::error!(
                "the certificate has expired: this sidecar exits because of --on-expiry fail"
            );
            control_client.fatal_failure.report_cause(StartError::Expired);
        }
    }
}

/// Returns the current CA generation; 0 if it is unknown.
fn current_generation(control_client: &ControlClient) -> u64 {
    control_client
        .config_store
        .current_config()
        .map_or(0, |config| config.compiled.snapshot.config.ca_generation)
}

/// Waits until this certificate is due for renewal, then returns true. Returns false if the clock or the
/// configuration must be checked again first.
async fn wait_until_due(
    control_client: &ControlClient,
    credential: &Credential,
    needs_reissue: bool,
    changes: &mut watch::Receiver<u64>,
) -> bool {
    if needs_reissue {
        // All sidecars receive a new CA at once; their renewals are not urgent, so they are spread over time.
        let lifetime = credential.not_after().duration_since(credential.not_before());
        let spread = (lifetime.unwrap_or_default() / 20).min(MAX_REISSUE_SPREAD);
        tokio::time::sleep(spread.mul_f64(control_client.seed as f64 / u64::MAX as f64)).await;
        return true;
    }
    let due_time = credential.renewal_time(control_client.seed);
    let until_due = due_time.duration_since(SystemTime::now()).unwrap_or_default();
    // The clock may jump, or the machine may sleep: the clock is checked periodically.
    tokio::select! {
        () = tokio::time::sleep(until_due.min(CLOCK_CHECK_INTERVAL)) => {
            until_due <= CLOCK_CHECK_INTERVAL
        }
        // The sender lives as long as this task.
        _ = changes.changed() => false,
    }
}

/// Requests a certificate for a new key over the control stream, and makes the certificate current.
async fn renew_certificate(
    control_client: &ControlClient,
    control_requests: &mpsc::Sender<ProxyRequest>,
    max_wait: Duration,
) -> Result<(), RenewalError> {
    let key = PrivateKey::generate();
    let (response_sender, response_receiver) = oneshot::channel();
    let request = ProxyRequest::Renew { csr: key.certificate_request(), reply: response_sender };
    let exchange = async {
        control_requests.send(request).await.ok()?;
        response_receiver.await.ok()
    };
    let response = tokio::time::timeout(max_wait, exchange).await;
    let decision = response.ok().flatten().ok_or(RenewalError::NoResponse)?;
    let issued_certificate =
        decision.map_err(|rejection| RenewalError::Rejected(rejection.reason))?;
    accept_issued(control_client, key, issued_certificate)?;
    Ok(())
}

/// The reason why a certificate was not renewed or not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RenewalError {
    #[error(transparent)]
    Roots(#[from] RootsError),
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error("it is for another workload")]
    OtherWorkload,
    #[error("the control plane did not respond")]
    NoResponse,
    #[error("the control plane rejected the request: {0}")]
    Rejected(String),
}

/// The maximum wait for a response; the control plane signs within milliseconds.
const MAX_RESPONSE_WAIT: Duration = Duration::from_secs(30);
/// The maximum sleep between checks of the clock.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// The maximum time over which renewals spread when the CA changes. For certificates with a short lifetime, it is a
/// twentieth of the lifetime.
const MAX_REISSUE_SPREAD: Duration = Duration::from_secs(10);
/// The minimum pause between attempts. The pause is a twentieth of the remaining lifetime, so the minimum is for
/// certificates that expire soon.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(200);
/// The maximum pause between attempts, for certificates with a very long remaining lifetime.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(60);
