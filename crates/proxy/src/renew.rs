//! Keeping the certificate fresh: a new key at half-life, swapped in without dropping a connection.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_discovery::{IssuedBytes, Request};
use leno_identity::{Credential, CredentialError, Issued, PrivateKey, Roots, RootsError};
use leno_telemetry::{Count, Level};
use tokio::sync::{mpsc, oneshot, watch};

use crate::StartError;
use crate::config::OnExpiry;
use crate::follow::Follower;

/// Makes what the control plane issued the current certificate, and keeps it.
pub(crate) fn accept(
    follower: &Follower,
    key: PrivateKey,
    issued: IssuedBytes,
) -> Result<Arc<Credential>, Unusable> {
    let roots = Roots::new(issued.roots.into_iter().map(Into::into).collect())?;
    let chain = issued.chain.into_iter().map(Into::into).collect();
    let credential = Credential::new(key, Issued::new(chain, roots)?)?;
    if credential.workload() != Some(&follower.config.workload) {
        return Err(Unusable::OtherWorkload);
    }
    let saved = credential.save(follower.state.path());
    follower.state.note_certificate(&saved);
    if let Err(error) = saved {
        // The running proxy goes on; only a restart without the control plane would miss it.
        tracing::warn!(%error, "the certificate cannot be kept on disk");
    }
    Ok(adopt(follower, credential))
}

/// Makes a certificate the current one.
pub(crate) fn adopt(follower: &Follower, credential: Credential) -> Arc<Credential> {
    for (level, at) in [
        (Level::CertificateIssued, credential.issued()),
        (Level::CertificateExpiry, credential.not_after()),
    ] {
        let since_epoch = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        follower.telemetry.set(level, since_epoch.as_secs());
    }
    follower.world.renew(credential)
}

/// Renews at half-life, and again soon after a failure, for as long as the proxy lives.
pub(crate) async fn keep_fresh(follower: Rc<Follower>, requests: mpsc::Sender<Request>) {
    let mut changes = follower.world.changes();
    let mut answered = 0;
    loop {
        let Some(credential) = follower.world.credential() else {
            if changes.changed().await.is_err() {
                return;
            }
            continue;
        };
        let wanted = wanted(&follower);
        if wanted == credential.edition() {
            answered = 0;
        }
        let reissue = ![0, credential.edition(), answered].contains(&wanted);
        if !due(&follower, &credential, reissue, &mut changes).await {
            continue;
        }
        // What comes after the end of a certificate comes too late.
        let left = credential.not_after().duration_since(SystemTime::now()).unwrap_or_default();
        let patience = left.clamp(RETRY_MIN, ANSWER_MAX);
        let renewed = renew(&follower, &requests, patience).await;
        let count = if renewed.is_ok() {
            Count::CertificateRenewed
        } else {
            Count::CertificateRenewalFailed
        };
        follower.shard.add(count, 1);
        if renewed.is_ok() {
            // Who answers with another edition than it asks for is not asked again and again.
            answered = wanted;
        }
        if let Err(reason) = renewed {
            if credential.is_expired(SystemTime::now()) {
                expire(&follower);
                // No control plane takes its word for a renewal any more.
                tokio::time::sleep(RETRY_MAX).await;
                continue;
            }
            tracing::warn!(%reason, "the certificate was not renewed; trying again");
            let left = credential.not_after().duration_since(SystemTime::now()).unwrap_or_default();
            tokio::time::sleep((left / 20).clamp(RETRY_MIN, RETRY_MAX)).await;
        }
    }
}

/// The certificate has expired: peers refuse it from now on.
fn expire(follower: &Follower) {
    match follower.config.on_expiry {
        OnExpiry::Continue if follower.config.account_token.is_some() => {
            tracing::error!("the certificate has expired: this sidecar joins again when it can");
        }
        OnExpiry::Continue => tracing::error!(
            "the certificate has expired: peers refuse this sidecar until it joins again with a \
             new token"
        ),
        OnExpiry::Fail => {
            tracing::error!("the certificate has expired: this sidecar ends, as it was told to");
            follower.fatal.end(StartError::Expired);
        }
    }
}

/// The edition that certificates are issued in now; 0 when that is not known.
fn wanted(follower: &Follower) -> u64 {
    follower.world.scene().map_or(0, |scene| scene.plans.snapshot.plan.edition)
}

/// Waits until it is time to look again; says whether this certificate is to be renewed now.
async fn due(
    follower: &Follower,
    credential: &Credential,
    reissue: bool,
    changes: &mut watch::Receiver<u64>,
) -> bool {
    if reissue {
        // Everybody hears of another authority at once, and nobody is in a hurry.
        let life = credential.not_after().duration_since(credential.not_before());
        let spread = (life.unwrap_or_default() / 20).min(REISSUE_SPREAD_MAX);
        tokio::time::sleep(spread.mul_f64(follower.seed as f64 / u64::MAX as f64)).await;
        return true;
    }
    let left = credential.renew_at(follower.seed).duration_since(SystemTime::now());
    let left = left.unwrap_or_default();
    // The clock may jump, or the machine sleep: it is looked at again and again.
    tokio::select! {
        () = tokio::time::sleep(left.min(LOOK_EVERY)) => left <= LOOK_EVERY,
        // Who changes it lives as long as we do.
        _ = changes.changed() => false,
    }
}

async fn renew(
    follower: &Follower,
    requests: &mpsc::Sender<Request>,
    patience: Duration,
) -> Result<(), Unusable> {
    let key = PrivateKey::generate();
    let (answer, issued) = oneshot::channel();
    let request = Request::Renew { csr: key.request(), answer };
    let asked = async {
        requests.send(request).await.ok()?;
        issued.await.ok()
    };
    let answered = tokio::time::timeout(patience, asked).await;
    let issued = answered.ok().flatten().ok_or(Unusable::Unanswered)?;
    let issued = issued.map_err(|not| Unusable::Refused(not.reason))?;
    accept(follower, key, issued)?;
    Ok(())
}

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error(transparent)]
    Roots(#[from] RootsError),
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error("it names another workload")]
    OtherWorkload,
    #[error("the control plane did not answer")]
    Unanswered,
    #[error("the control plane refused: {0}")]
    Refused(String),
}

/// How long one answer is waited for; the control plane signs within milliseconds.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// The longest sleep between looks at the clock.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Over how long certificates are renewed at most when the authority changes.
const REISSUE_SPREAD_MAX: Duration = Duration::from_secs(10);
/// Between attempts to renew, however short the life of certificates is.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// Between attempts to renew, however long the life of certificates is.
const RETRY_MAX: Duration = Duration::from_secs(60);
