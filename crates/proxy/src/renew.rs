//! Keeping the certificate fresh: a new key at half-life, swapped in without dropping a connection.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_discovery::{IssuedBytes, Request};
use leno_identity::{Credential, CredentialError, Issued, PrivateKey, Roots, RootsError};
use leno_telemetry::{Count, Level};
use tokio::sync::{mpsc, oneshot};

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
    if let Err(error) = credential.save(follower.state.path()) {
        // The running proxy goes on; only a restart without the control plane would miss it.
        tracing::warn!(%error, "the certificate cannot be kept on disk");
    }
    Ok(adopt(follower, credential))
}

/// Makes a certificate the current one.
pub(crate) fn adopt(follower: &Follower, credential: Credential) -> Arc<Credential> {
    let expiry = credential.not_after().duration_since(UNIX_EPOCH).unwrap_or_default();
    follower.telemetry.set(Level::CertificateExpiry, expiry.as_secs());
    follower.world.renew(credential)
}

/// Renews at half-life, and again soon after a failure, for as long as the proxy lives.
pub(crate) async fn keep_fresh(follower: Rc<Follower>, requests: mpsc::Sender<Request>) {
    let mut changes = follower.world.changes();
    loop {
        let Some(credential) = follower.world.credential() else {
            if changes.changed().await.is_err() {
                return;
            }
            continue;
        };
        let due = credential.renew_at(follower.seed).duration_since(SystemTime::now());
        tokio::time::sleep(due.unwrap_or_default()).await;
        let renewed = renew(&follower, &requests).await;
        let count = if renewed.is_ok() {
            Count::CertificateRenewed
        } else {
            Count::CertificateRenewalFailed
        };
        follower.shard.add(count, 1);
        if let Err(reason) = renewed {
            tracing::warn!(%reason, "the certificate was not renewed; trying again");
            let left = credential.not_after().duration_since(SystemTime::now()).unwrap_or_default();
            tokio::time::sleep((left / 20).clamp(RETRY_MIN, RETRY_MAX)).await;
        }
    }
}

async fn renew(follower: &Follower, requests: &mpsc::Sender<Request>) -> Result<(), Unusable> {
    let key = PrivateKey::generate();
    let (answer, issued) = oneshot::channel();
    let request = Request::Renew { csr: key.request(), answer };
    requests.send(request).await.map_err(|_| Unusable::Unanswered)?;
    let answered = tokio::time::timeout(ANSWER_MAX, issued).await;
    let issued = answered.map_err(|_| Unusable::Unanswered)?.map_err(|_| Unusable::Unanswered)?;
    let issued = issued.map_err(Unusable::Refused)?;
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
/// Between attempts to renew, however short the life of certificates is.
const RETRY_MIN: Duration = Duration::from_millis(200);
/// Between attempts to renew, however long the life of certificates is.
const RETRY_MAX: Duration = Duration::from_secs(60);
