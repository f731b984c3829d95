//! The authority as it is now: opened again and again, and swapped when its files changed.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_identity::{Authority, AuthorityError, AuthoritySource, RevocationFile};
use leno_model::RevokedWorkload;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Whoever signs, or tells whom to trust, asks this each time.
pub(crate) type Current = watch::Receiver<Arc<Authority>>;

/// Looks for another authority in the same place, until nobody asks for it any more. One that
/// cannot be used is told of once, and the one before it signs on.
///
/// The intermediates that members trust are kept in the file `pins`.
pub(crate) async fn keep_current(
    source: AuthoritySource,
    pins: PathBuf,
    current: watch::Sender<Arc<Authority>>,
) {
    let trust_domain = current.borrow().trust_domain().clone();
    let mut told: Option<String> = None;
    loop {
        tokio::select! {
            () = current.closed() => return,
            () = sleep(LOOK_EVERY) => {}
        }
        let (source, trust_domain, pins) = (source.clone(), trust_domain.clone(), pins.clone());
        let former = Arc::clone(&current.borrow());
        let opened = spawn_blocking(move || {
            let now = SystemTime::now();
            let opened = source.open(&trust_domain, now)?.succeeding(&former, now);
            opened.remember(&pins)?;
            Ok::<_, AuthorityError>(opened)
        });
        let Ok(opened) = opened.await else { continue };
        match opened {
            Ok(new) => {
                told = None;
                let new = Arc::new(new);
                let changed = current.send_if_modified(|current| {
                    let changed = **current != *new;
                    if changed {
                        *current = Arc::clone(&new);
                    }
                    changed
                });
                if changed {
                    tracing::info!(
                        roots = new.roots().certificates().len(),
                        "the authority changed"
                    );
                }
            }
            Err(error) => {
                let reason = error.to_string();
                if told.as_ref() != Some(&reason) {
                    tracing::error!(%error, "the authority's files cannot be used; the one before signs on");
                }
                told = Some(reason);
            }
        }
    }
}

/// Looks for workloads that `leno revoke` has revoked, until no receiver is left. A file that cannot be
/// read changes nothing.
pub(crate) async fn keep_revoked(file: RevocationFile, revoked: watch::Sender<Revoked>) {
    let mut failed = false;
    loop {
        let file = file.clone();
        if let Ok(read) = spawn_blocking(move || file.read()).await {
            match read {
                Ok(new) => {
                    failed = false;
                    revoked.send_if_modified(|old| {
                        let changed = *old != new;
                        if changed {
                            *old = new;
                        }
                        changed
                    });
                }
                Err(error) if !failed => {
                    failed = true;
                    tracing::error!(%error, "the revoked workloads cannot be read; those before stay revoked");
                }
                Err(_) => {}
            }
        }
        tokio::select! {
            () = revoked.closed() => return,
            () = sleep(LOOK_EVERY) => {}
        }
    }
}

/// The workloads that `leno revoke` has revoked.
pub(crate) type Revoked = BTreeSet<RevokedWorkload>;

/// Three small files.
const LOOK_EVERY: Duration = Duration::from_secs(1);
